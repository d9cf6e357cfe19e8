"""Parts of the core made by hand: a request, one that waits, a replica, a grant on it."""

from dataclasses import fields as fields_of
from typing import Any

from gateway.core.flows import Waiting
from gateway.core.kinds import Kind
from gateway.core.ledger import Grant
from gateway.core.messages import Request
from gateway.core.replica import Replica
from gateway.core.report import ReplicaReport

TARGET_S = 0.15
_REPORT_FIGURES = {each.name for each in fields_of(ReplicaReport)}


def a_request(id: str = "a", **fields: Any) -> Request:
    """A request of 10 prompt tokens, of user u of tenant t, for model m."""
    given: dict[str, Any] = {
        "model": "m", "tier": 0, "tenant": "t", "user": "u", "arrived_at": 0.0,
        "prompt_tokens": 10, "streams": True, **fields,
    }  # fmt: skip
    return Request(id=id, **given)


def a_waiting(id: str = "a", *, output_tokens: int = 5, on: str = "r", **fields: Any) -> Waiting:
    """A request that may run on `on` and is predicted to produce so much in each sequence."""
    request = a_request(id, **fields)
    decodes = request.output_tokens_max != 0
    kind = Kind(frozenset({on}), size=0, sequences=request.sequences, decodes=decodes)
    waiting = Waiting(request, kind=kind, sequence=1)
    waiting.prompt_tokens = request.prompt_tokens or 0
    waiting.output_tokens = output_tokens if decodes else 0
    waiting.kv_tokens = (waiting.prompt_tokens + waiting.output_tokens) * request.sequences
    waiting.cost = 1.0
    return waiting


def a_grant(id: str = "a", *, cached_tokens: int = 0, at: float = 0.0, **fields: Any) -> Grant:
    """A grant of that request; of as many slots as it has sequences."""
    waiting = a_waiting(id, **fields)
    return Grant(
        waiting,
        sequences=waiting.request.sequences,
        cached_tokens=cached_tokens,
        granted_at=at,
    )


def a_replica(name: str = "r", *, slots: int | None = None, tiers: int = 1) -> Replica:
    """A replica that serves model m and was never heard of."""
    replica = Replica(name, tiers=tiers, blocks=100)
    replica.models = frozenset({"m"})
    replica.configured_slots = slots
    replica.count_slots()
    return replica


def put(replica: Replica, id: str = "a", *, starts: bool = False, **fields: Any) -> Grant:
    """A grant is entered at its instant `at`, and begins at once if it `starts`."""
    grant = a_grant(id, **fields)
    grant.found_room = replica.has_room_for(grant.slots)
    replica.ledger.enter(grant, grant.granted_at)
    replica.touch()
    if starts:
        replica.ledger.start(id)
    return grant


def put_many(replica: Replica, count: int, *, prefix: str = "p", **fields: Any) -> None:
    """`count` grants of one kind."""
    for number in range(count):
        put(replica, f"{prefix}{number}", **fields)


def report(replica: Replica, *, now: float = 0.0, **figures: Any) -> None:
    """A scrape comes back, asked for at `sent_at` (else: just now)."""
    told = {name: figures.pop(name) for name in list(figures) if name in _REPORT_FIGURES}
    asked: dict[str, Any] = {
        "sent_at": now, "round_trip_s": 0.0, "interval_s": 1.0, "target_s": TARGET_S, **figures,
    }  # fmt: skip
    replica.take_report(ReplicaReport(**told), now=now, **asked)
    replica.touch()
