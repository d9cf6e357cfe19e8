"""Requests, grants and what is believed of a replica, as plain values and back.

Each field is named here one by one, so that what is added to a class is left out knowingly or not
at all. It refuses to know queues and pools.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from gateway.core.affinity import KNOWN, Recent, Ties
from gateway.core.flows import Waiting
from gateway.core.kinds import Kind
from gateway.core.ledger import Grant
from gateway.core.messages import Request
from gateway.core.plain import (
    age_s,
    finite,
    instant_of,
    known_instant,
    plain_report,
    plain_request,
    report_of,
    request_of,
)
from gateway.core.policy import Policy
from gateway.core.replica import Replica


class KindTable:
    """Eligibility classes by number: which requests share one matters, not only what it says."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[Kind, int] = {}

    def number_of(self, kind: Kind) -> int:
        """The number of `kind`, a new one where it has none."""
        return self._numbers.setdefault(kind, len(self._numbers))

    def snapshot(self) -> list[list[Any]]:
        """All that have a number, by it."""
        return [
            [sorted(kind.replicas), kind.size, kind.sequences, kind.decodes]
            for kind in self._numbers
        ]


def kinds_of(data: Sequence[Sequence[Any]]) -> list[Kind]:
    """The classes that `KindTable.snapshot` gave, by their numbers."""
    return [
        Kind(frozenset(replicas), size=size, sequences=sequences, decodes=decodes)
        for replicas, size, sequences, decodes in data
    ]


def plain_waiting(waiting: Waiting, kinds: KindTable, now: float) -> dict[str, Any]:
    """A request with all that was predicted for it; where it stands is the queue's affair."""
    return {
        "request": plain_request(waiting.request, now),
        "kind": kinds.number_of(waiting.kind),
        "sequence": waiting.sequence,
        "key_age_s": now - waiting.key,
        "cost": waiting.cost,
        "prompt_tokens": waiting.prompt_tokens,
        "output_tokens": waiting.output_tokens,
        "kv_tokens": waiting.kv_tokens,
        "deadline_age_s": age_s(waiting.deadline, now),
        "ticket": waiting.ticket,
        "holder": waiting.holder,
        "entered_age_s": now - waiting.entered_at,
        "expected_s": finite(waiting.expected_s),
        "skipped_age_s": age_s(waiting.skipped_since, now),
        "was_recalled": waiting.was_recalled,
    }


def waiting_of(data: Mapping[str, Any], kinds: Sequence[Kind], now: float, tier: int) -> Waiting:
    """What `plain_waiting` was given, in the clock of `now` and ranked `tier`."""
    request = request_of(data["request"], now, tier=tier)
    waiting = Waiting(request, kind=kinds[data["kind"]], sequence=data["sequence"])
    waiting.key = now - data["key_age_s"]
    waiting.cost = data["cost"]
    waiting.prompt_tokens = data["prompt_tokens"]
    waiting.output_tokens = data["output_tokens"]
    waiting.kv_tokens = data["kv_tokens"]
    waiting.deadline = instant_of(data["deadline_age_s"], now, never=inf)
    waiting.ticket = data["ticket"]
    waiting.holder = data["holder"]
    waiting.entered_at = now - data["entered_age_s"]
    waiting.expected_s = data["expected_s"]
    waiting.skipped_since = known_instant(data["skipped_age_s"], now)
    waiting.was_recalled = data["was_recalled"]
    return waiting


def plain_grant(grant: Grant, kinds: KindTable, now: float) -> dict[str, Any]:
    """A grant with its request; its tier is the request's."""
    return {
        "waiting": plain_waiting(grant.waiting, kinds, now),
        "sequences": grant.sequences,
        "slots": grant.slots,
        "cached_tokens": grant.cached_tokens,
        "prefill_tokens": grant.prefill_tokens,
        "kv_tokens": grant.kv_tokens,
        "granted_age_s": now - grant.granted_at,
        "is_started": grant.is_started,
        "is_recalled": grant.is_recalled,
        "move_asked_age_s": age_s(grant.move_asked_at, now),
        "output_tokens": grant.output_tokens,
        "charged": grant.charged,
        "was_favoured": grant.was_favoured,
        "in_use": grant.in_use,
        "found_room": grant.found_room,
    }


def grant_of(data: Mapping[str, Any], kinds: Sequence[Kind], now: float, tier: int) -> Grant:
    """What `plain_grant` was given, not yet in a ledger, and so not yet started."""
    grant = Grant(
        waiting_of(data["waiting"], kinds, now, tier),
        sequences=data["sequences"],
        cached_tokens=data["cached_tokens"],
        granted_at=now - data["granted_age_s"],
    )
    grant.slots = data["slots"]
    grant.prefill_tokens = data["prefill_tokens"]
    grant.kv_tokens = data["kv_tokens"]
    grant.is_recalled = data["is_recalled"]
    grant.move_asked_at = instant_of(data["move_asked_age_s"], now)
    grant.output_tokens = data["output_tokens"]
    grant.charged = data["charged"]
    grant.was_favoured = data["was_favoured"]
    grant.in_use = data["in_use"]
    grant.found_room = data["found_room"]
    return grant


def plain_replica(replica: Replica, now: float) -> dict[str, Any]:
    """All that is believed of a replica but its grants and what it is reserved for."""
    return {
        "name": replica.name,
        "models": sorted(replica.models),
        "weight": replica.weight,
        "configured_slots": replica.configured_slots,
        "context_tokens": replica.context_tokens,
        "orders_by_tier": replica.orders_by_tier,
        "is_lost": replica.is_lost,
        "is_draining": replica.is_draining,
        "is_removed": replica.is_removed,
        "busy_age_s": now - replica.busy_until,
        "recalled_age_s": age_s(replica.recalled_at, now),
        "reserved_age_s": now - replica.reserved_until,
        "release_rate": replica.release_rate.snapshot(now),
        "ledger_history": replica.ledger.snapshot(now),
        "cached_blocks": [list(replica.cache.old), list(replica.cache.young)],
        "report": plain_report(replica.report),
        "reported_age_s": age_s(replica.reported_at, now),
        "fresh_age_s": age_s(replica.fresh_until, now),
        "is_stale": replica.is_stale,
        "kv_capacity_tokens": replica.kv_capacity_tokens,
        "kv_use_tokens_scraped": finite(replica.kv_use_tokens_scraped),
        "ledger_kv_at_scrape": replica.ledger_kv_at_scrape,
        "sightings": replica.sightings.snapshot(),
        "speed": replica.speed.snapshot(now),
        "round_trip_s": replica.round_trip_s,
        "limit": replica.limit.snapshot(),
        "warm_from_age_s": now - replica.warm_from,
        "warm_until_age_s": now - replica.warm_until,
        "foreign": replica.foreign,
        "measured": replica.measured(now),
        "moved_age_s": age_s(replica.moved_at, now),
        "circuit": replica.circuit.snapshot(now),
        "vital": replica.vital.snapshot(now),
        "absence": replica.absence.snapshot(now),
        "held": sorted(replica.held),
        "judged": _plain_judgement(replica, now),
    }


def replica_of(data: Mapping[str, Any], policy: Policy, now: float) -> Replica:
    """What `plain_replica` was given, nothing judged yet and without any grant."""
    replica = Replica(data["name"], tiers=len(policy.tiers), blocks=policy.bounds.prefixes)
    replica.models = frozenset(data["models"])
    replica.weight = data["weight"]
    replica.configured_slots = data["configured_slots"]
    replica.context_tokens = data["context_tokens"]
    replica.orders_by_tier = data["orders_by_tier"]
    replica.mark(
        lost=data["is_lost"], draining=data["is_draining"], removed=data["is_removed"]
    )  # fmt: skip
    replica.busy_until = now - data["busy_age_s"]
    replica.recalled_at = instant_of(data["recalled_age_s"], now)
    replica.reserved_until = now - data["reserved_age_s"]
    replica.release_rate.restore(data["release_rate"], now)
    replica.cache.old, replica.cache.young = (
        dict.fromkeys(blocks, KNOWN) for blocks in data["cached_blocks"]
    )
    replica.cache.resize(policy.bounds.prefixes)
    _restore_learnt(replica, data, now)
    return replica


def _restore_learnt(replica: Replica, data: Mapping[str, Any], now: float) -> None:
    replica.report = report_of(data["report"])
    replica.reported_at = known_instant(data["reported_age_s"], now)
    replica.fresh_until = instant_of(data["fresh_age_s"], now, never=inf)
    replica.is_stale = data["is_stale"]
    replica.kv_capacity_tokens = data["kv_capacity_tokens"]
    replica.kv_use_tokens_scraped = data["kv_use_tokens_scraped"] or 0.0
    replica.ledger_kv_at_scrape = data["ledger_kv_at_scrape"]
    replica.sightings.restore(data["sightings"])
    replica.speed.restore(data["speed"], now)
    replica.round_trip_s = data["round_trip_s"]
    replica.limit.restore(data["limit"])
    replica.warm_from = now - data["warm_from_age_s"]
    replica.warm_until = now - data["warm_until_age_s"]
    replica.foreign = data["foreign"]
    replica.restore_measured(data["measured"], now)
    replica.moved_at = instant_of(data["moved_age_s"], now)
    replica.circuit.restore(data["circuit"], now)
    replica.vital.restore(data["vital"], now)
    replica.absence.restore(data["absence"], now)
    replica.held = frozenset(data["held"])
    replica.count_slots()


def _plain_judgement(replica: Replica, now: float) -> dict[str, Any]:
    return {
        "open_tiers": replica.open_tiers,
        "judged_age_s": now - replica.judged_at,
        "has_queue": replica.has_queue,
        "scores": [[tier, score] for tier, score in replica.scores.items()],
    }


def restore_judgement(replica: Replica, data: Mapping[str, Any], now: float) -> None:
    """Keep what was judged when something last changed: until then time alone opens no gate."""
    replica.open_tiers = data["open_tiers"]
    replica.judged_at = now - data["judged_age_s"]
    replica.has_queue = data["has_queue"]
    replica.scores = {int(tier): float(score) for tier, score in data["scores"]}


def plain_ties(ties: Ties) -> dict[str, list[list[list[Any]]]]:
    """Who had what, the older generation first."""
    return {
        "blocks": _plain_generations(ties.blocks),
        "sessions": _plain_generations(ties.sessions),
        "adapters": _plain_generations(ties.adapters),
    }


def restore_ties(ties: Ties, data: Mapping[str, Any]) -> None:
    """Remember what `plain_ties` told, as far as the bounds of these allow."""
    _restore_generations(ties.blocks, data["blocks"])
    _restore_generations(ties.sessions, data["sessions"])
    _restore_generations(ties.adapters, data["adapters"])


def _plain_generations(recent: Recent[Any]) -> list[list[list[Any]]]:
    return [
        [[key, list(names)] for key, names in generation.items()]
        for generation in (recent.old, recent.young)
    ]


def _restore_generations(recent: Recent[Any], data: list[list[list[Any]]]) -> None:
    recent.old, recent.young = ({key: tuple(names) for key, names in each} for each in data)
    recent.resize(recent.limit)


def gone_waiting() -> Waiting:
    """Stands for a request that a replica is still held for, and that is no more."""
    request = Request(id="", model="", tier=0, tenant="", user="", arrived_at=0.0)
    kind = Kind(frozenset(), size=0, sequences=1, decodes=True)
    return Waiting(request, kind=kind, sequence=0)
