"""The core's loads and what their measurement says, as they travel between two processes.

It knows nothing of the scheduler, so that whoever only reads figures needs none.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

IDLE = "idle"
SMALL = "1k"
BACKLOG = "1k-all-tiers"
PLAIN = "1k-plain"
MEDIUM = "10k"
LARGE = "100k"
FULL_PER_REPLICA = 20
"""Running requests at which the lowest tier begins to wait, by the default headroom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLoad:
    """One steady state: how many wait, whose they are, and how many replicas serve them."""

    name: str
    waiting: int
    users: int
    tenants: int
    replicas: int
    running_per_replica: int = FULL_PER_REPLICA
    """Running on each before the queue is filled; where nothing waits it stays at that."""
    has_prefixes: bool = True
    """Whether requests carry the hashes of their prompt's leading blocks, as the gateway's do."""
    waits_in_all_tiers: bool = False
    """Whether every tier keeps its queue, as in an overload of the highest; else the lowest has
    all that waits, where a strict order leaves it, and those above are served as they come."""


LOADS = (
    CoreLoad(name=SMALL, waiting=1_000, users=100, tenants=10, replicas=10),
    CoreLoad(
        name=BACKLOG, waiting=1_000, users=100, tenants=10, replicas=10, waits_in_all_tiers=True
    ),
    CoreLoad(name=IDLE, waiting=0, users=100, tenants=10, replicas=10, running_per_replica=16),
    CoreLoad(name=MEDIUM, waiting=10_000, users=1_000, tenants=30, replicas=30),
    CoreLoad(name=LARGE, waiting=100_000, users=10_000, tenants=100, replicas=100),
)
MORE_LOADS = (
    CoreLoad(name=PLAIN, waiting=1_000, users=100, tenants=10, replicas=10, has_prefixes=False),
)
"""No part of the report: run by their name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCost:
    """One kind of event among those timed one by one."""

    count: int
    """In all repetitions together."""
    mean_us: float
    """CPU time, about half a microsecond of the clock's own included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreRun:
    """One load: the CPU time of an event in each repetition, and what makes it trustworthy."""

    load: CoreLoad
    events: int
    requests: int
    """Of them, how many requests ended: about as many as arrived."""
    event_us: tuple[float, ...]
    """CPU time of one event, by repetition."""
    kinds: dict[str, KindCost]
    waiting_min: int
    waiting_max: int
    refused: int
    is_repeatable: bool
    """Whether every repetition left the same requests waiting as the recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreResult:
    """All loads, by name, and what one more waiting request adds to the process."""

    runs: dict[str, CoreRun]
    waiting_bytes: float | None
    """Of the load with the most waiting; None where nothing waits."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "CoreResult":
        """The inverse of `to_json`."""
        stored = json.loads(text)
        return cls(
            runs={name: _run_from(fields) for name, fields in stored["runs"].items()},
            waiting_bytes=stored["waiting_bytes"],
        )


def _run_from(fields: Mapping[str, Any]) -> CoreRun:
    return CoreRun(
        **{
            **fields,
            "load": CoreLoad(**fields["load"]),
            "event_us": tuple(fields["event_us"]),
            "kinds": {kind: KindCost(**cost) for kind, cost in fields["kinds"].items()},
        }
    )
