"""What several gateways are measured with, and what the measurement says, as plain values.

How anything is started or sent is not known here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

SLOTS = 4
"""Of each emulated replica."""
REPLICAS = 4
GATEWAYS = 3
QUEUE_LIMIT = 2
"""Requests of the tier that is asked for that may wait inside an engine (`tiers.standard`)."""
ANSWERS_TOKENS = (10, 22, 34, 13, 25, 37, 16, 28, 40, 19, 31)
"""Of a client's answers, one after the other, half a second of an emulated replica on average.

Equal ones keep step: all slots come free at once, whoever waits just then gets them, and what a
user gets hangs on who is a few milliseconds late: one gateway differs from itself by more than 5 %.
"""
USERS: Mapping[str, int] = {"power": 40, "team-a": 8, "team-b": 8, "light": 2}
"""Clients of each, who ask again as soon as they are answered. All but the last want more than
their part; the power user's are spread over all gateways, and so are the others'."""
WORKERS = 2
CLIENTS = 32
STREAM_CLIENTS = 64
STREAM_CLIENTS_BUSY = 400
"""20,000 events a second."""
LIMIT_CORES = 0.25
"""Of a core, for each process, where all are as busy as they can be: two of them have room enough
on two cores beside what asks and what answers."""
LIMITED_CLIENTS = 128
"""Of each process, as the next one."""
LIMITED_STREAM_CLIENTS = 300
"""15,000 events a second, more than that part of a core passes on one by one."""
STREAM_EVENTS = 64
STREAM_EVENTS_PER_S = 50.0
"""Of each stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """How often, how long, and how much."""

    rounds: int = 3
    power_s: float = 16.0
    """Of the power user's load, each time and through each number of gateways."""
    power_rounds: int = 2
    settle_s: float = 2.0
    """Before it counts."""
    window_s: float = 2.5
    """Of every other load."""
    warm_s: float = 0.5
    load_share: float = 0.25
    """Of what one gateway can do, for latencies and CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one user got in a window."""

    requests: int
    waited_s: float
    """In the gateway's queue, all of them together."""
    took_s: float
    """From asking to the whole answer, all of them together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRun:
    """One window of the power user's load."""

    gateways: int
    users: Mapping[str, Served]
    queued_most: int
    """Requests that were seen beyond the slots of a replica."""
    looks: int
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRun:
    """One load through one way, in its window."""

    requests: int
    errors: int
    elapsed_s: float
    cpu_us: float
    """Of all processes of the gateways, for each request."""
    p50_us: float
    p99_us: float

    @property
    def requests_per_s(self) -> float:
        """That were answered."""
        return self.requests / self.elapsed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What requests through a follower cost elsewhere, for each of them, heartbeats left out."""

    requests_per_s: float
    leader_cpu_us: float
    redis_cpu_us: float
    commands: float
    redis_bytes: float
    """In and out together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """The same loads through one way."""

    plain: CostRun
    """Small answers in one piece, a quarter of what one gateway does."""
    streams: CostRun
    plain_busy: CostRun
    """As many as are answered to clients who ask again at once."""
    streams_busy: CostRun
    plain_limited: CostRun | None = None
    """As many for each process, all of which are as busy as `LIMIT_CORES` let them be; None where
    that cannot be."""
    streams_limited: CostRun | None = None

    def runs(self) -> Iterator[tuple[str, CostRun]]:
        """Each that there is, with its name."""
        for field in fields(self):
            run = getattr(self, field.name)
            if run is not None:
                yield field.name, run


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRound:
    """All ways, one right after the other."""

    follower: CostRun
    local: Loads
    workers: Loads
    apart: Loads
    """Workers that lost their store, so that each decides alone: what as many processes cost that
    have nothing to do with one another. Less to do at once wakes a process for less."""
    traffic: Traffic
    full: Traffic
    """As many as go through one follower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    """All of it."""

    power: tuple[PowerRun, ...]
    cost: tuple[CostRound, ...]
    requests_per_s: float
    """Of the loads whose latencies and CPU are compared."""
    redis_version: str
    unlimited_because: str = ""
    """Why processes could not be limited to a part of a core; empty where they were."""
