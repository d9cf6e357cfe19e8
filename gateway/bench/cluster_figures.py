"""The figures of several gateways, their targets, and how each follows from the windows."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from gateway.bench.cluster_spec import (
    GATEWAYS,
    LIMIT_CORES,
    QUEUE_LIMIT,
    USERS,
    WORKERS,
    ClusterResult,
    CostRound,
    CostRun,
    Loads,
    Served,
    Traffic,
)

Computed = Callable[[ClusterResult], float | None]
"""A figure of a result; None where nothing was measured for it."""
US_PER_MS = 1e3
SLOTS_OF_THOUSAND = 64
ANSWER_S_OF_THOUSAND = 10.0
THOUSAND_PER_S = 1_000 * SLOTS_OF_THOUSAND / ANSWER_S_OF_THOUSAND
"""Requests/s of 1,000 replicas with so many slots each, and answers that take so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFigure:
    """One line of the table; smaller is better where there is a target."""

    key: str
    title: str
    unit: str
    of: Callable[[ClusterResult], float | None]
    """None where nothing was measured for it."""
    target: float | None = None
    is_limited: bool = False
    """Whether it needs processes to be limited to a part of a core, which not every system can."""

    def verdict(self, value: float | None) -> str:
        """One of "met" and "missed"; empty without a target or a value."""
        if self.target is None or value is None:
            return ""
        return "met" if value <= self.target else "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one user got through so many gateways, all windows together."""

    share: float
    """Of all requests."""
    wait_s: float
    """In the queue, on average."""
    time_s: float
    """To the whole answer, on average."""


def part_of(result: ClusterResult, user: str, gateways: int) -> Part | None:
    """None where it got nothing."""
    runs = [run for run in result.power if run.gateways == gateways]
    own = [run.users[user] for run in runs if user in run.users]
    count = sum(each.requests for each in own)
    if not count:
        return None
    return Part(
        share=count / _requests(each for run in runs for each in run.users.values()),
        wait_s=sum(each.waited_s for each in own) / count,
        time_s=sum(each.took_s for each in own) / count,
    )


def _requests(served: Iterable[Served]) -> int:
    return sum(each.requests for each in served)


def differences(result: ClusterResult, of: Callable[[Part, Part], float]) -> float | None:
    """The greatest difference of any user between several gateways and one, in %."""
    found = []
    for user in USERS:
        several, alone = part_of(result, user, GATEWAYS), part_of(result, user, 1)
        if several is None or alone is None:
            return None
        found.append(100 * abs(of(several, alone)))
    return max(found)


def share_difference(result: ClusterResult) -> float | None:
    """Of the shares of what was served."""
    return differences(result, lambda several, alone: several.share / alone.share - 1)


def wait_difference(result: ClusterResult) -> float | None:
    """Of the waits, as parts of what a request takes in all: a wait of nothing has no ratio."""
    return differences(
        result, lambda several, alone: (several.wait_s - alone.wait_s) / alone.time_s
    )


def queued_most(result: ClusterResult) -> float | None:
    """In any replica, however many gateways there were."""
    return max((float(run.queued_most) for run in result.power if run.looks), default=None)


def _of_rounds(of: Callable[[CostRound], float]) -> Computed:
    """The median over the rounds."""
    return lambda result: median(map(of, result.cost)) if result.cost else None


def _traffic(of: Callable[[Traffic], float]) -> Computed:
    return _of_rounds(lambda each: of(each.traffic))


def _full(of: Callable[[Traffic], float]) -> Computed:
    return _of_rounds(lambda each: of(each.full))


def ceiling_per_s(result: ClusterResult) -> float | None:
    """Requests/s that one core could lead if it did nothing else."""
    cpu_us = _full(lambda each: each.leader_cpu_us)(result)
    return 1e6 / cpu_us if cpu_us else None


def leading_cores(result: ClusterResult) -> float | None:
    """Of leading, for 1,000 replicas."""
    per_s = ceiling_per_s(result)
    return None if per_s is None else THOUSAND_PER_S / per_s


def redis_share(result: ClusterResult) -> float | None:
    """Of one core of Redis, for 1,000 replicas, in %."""
    cpu_us = _full(lambda each: each.redis_cpu_us)(result)
    return None if cpu_us is None else 100 * THOUSAND_PER_S * cpu_us / 1e6


def redis_mb_per_s(result: ClusterResult) -> float | None:
    """In and out of Redis, for 1,000 replicas."""
    size = _full(lambda each: each.redis_bytes)(result)
    return None if size is None else THOUSAND_PER_S * size / 1e6


Way = Callable[[CostRound], Loads]


def _local(each: CostRound) -> Loads:
    return each.local


def _workers(each: CostRound) -> Loads:
    return each.workers


def _apart(each: CostRound) -> Loads:
    return each.apart


def _run(load: str, way: Way, of: Callable[[CostRun], float]) -> Computed:
    """Of one load through one way; the median over the rounds."""

    def found(result: ClusterResult) -> float | None:
        runs = [getattr(way(each), load) for each in result.cost]
        return median(map(of, runs)) if runs and None not in runs else None

    return found


def _over(load: str, way: Way, other: Way, of: Callable[[CostRun], float]) -> Computed:
    """The same through one way, over it through another one; the median over the rounds."""

    def found(result: ClusterResult) -> float | None:
        pairs = [(getattr(way(each), load), getattr(other(each), load)) for each in result.cost]
        if not pairs or any(None in pair for pair in pairs):
            return None
        return median(of(one) / of(two) for one, two in pairs)

    return found


def _cpu_us(run: CostRun) -> float:
    return run.cpu_us


def _cpu(load: str, title: str, *, is_limited: bool = False) -> Iterator[ClusterFigure]:
    """CPU of workers for one load, and how much of it is of their being one."""
    yield ClusterFigure(
        key=f"cpu_{load}",
        title=f"CPU a request, {WORKERS} workers over one process: {title}",
        unit="x",
        of=_over(load, _workers, _local, _cpu_us),
        target=1.15,
        is_limited=is_limited,
    )
    yield ClusterFigure(
        key=f"cpu_{load}_apart",
        title="  two processes that share nothing over one",
        unit="x",
        of=_over(load, _apart, _local, _cpu_us),
        is_limited=is_limited,
    )
    yield ClusterFigure(
        key=f"cpu_{load}_shared",
        title="  the workers over those two",
        unit="x",
        of=_over(load, _workers, _apart, _cpu_us),
        is_limited=is_limited,
    )
    yield ClusterFigure(
        key=f"cpu_{load}_us",
        title="  one process",
        unit="us",
        of=_run(load, _local, _cpu_us),
        is_limited=is_limited,
    )


def _limited(load: str, title: str) -> Iterator[ClusterFigure]:
    """The same where each process is as busy as it may be, and how much more they answer."""
    yield from _cpu(load, f"{title}, as many as {LIMIT_CORES:g} cores each can", is_limited=True)
    yield ClusterFigure(
        key=f"rate_{load}",
        title="  requests/s of the workers over those of one process",
        unit="x",
        of=_over(load, _workers, _local, lambda run: run.requests_per_s),
        is_limited=True,
    )


CLUSTER_FIGURES = (
    ClusterFigure(
        key="share_difference",
        title=f"a user's share, {GATEWAYS} gateways beside one: greatest difference",
        unit="%",
        of=share_difference,
        target=5,
    ),
    ClusterFigure(
        key="wait_difference",
        title="a user's wait, the same, of the time to an answer",
        unit="%",
        of=wait_difference,
        target=5,
    ),
    ClusterFigure(
        key="queued_most",
        title=f"most waiting inside an engine, limit {QUEUE_LIMIT}",
        unit="requests",
        of=queued_most,
        target=QUEUE_LIMIT + 1,
    ),
    ClusterFigure(
        key="added_p50_ms",
        title="a follower over one alone, p50",
        unit="ms",
        of=_of_rounds(lambda each: (each.follower.p50_us - each.local.plain.p50_us) / US_PER_MS),
        target=1,
    ),
    ClusterFigure(
        key="added_p99_ms",
        title="a follower over one alone, p99",
        unit="ms",
        of=_of_rounds(lambda each: (each.follower.p99_us - each.local.plain.p99_us) / US_PER_MS),
        target=5,
    ),
    *_cpu("plain", "small answers in one piece"),
    *_cpu("streams", "streams of 64 events"),
    *_cpu("plain_busy", "small answers, as many as can be"),
    *_cpu("streams_busy", "streams of 64 events, 20,000 events/s"),
    *_limited("plain_limited", "small answers"),
    *_limited("streams_limited", "streams of 64 events"),
    ClusterFigure(
        key="redis_commands",
        title="commands to Redis a request, through a follower",
        unit="",
        of=_traffic(lambda each: each.commands),
    ),
    ClusterFigure(
        key="redis_bytes",
        title="bytes into and out of Redis a request",
        unit="bytes",
        of=_traffic(lambda each: each.redis_bytes),
    ),
    ClusterFigure(
        key="redis_cpu_us",
        title="CPU of Redis a request",
        unit="us",
        of=_traffic(lambda each: each.redis_cpu_us),
    ),
    ClusterFigure(
        key="leader_cpu_us",
        title="CPU of the leader for a request of another gateway",
        unit="us",
        of=_traffic(lambda each: each.leader_cpu_us),
    ),
    ClusterFigure(
        key="full_per_s",
        title="requests that one follower gets through",
        unit="/s",
        of=_full(lambda each: each.requests_per_s),
    ),
    ClusterFigure(
        key="leader_cpu_full_us",
        title="CPU of the leader for each of those",
        unit="us",
        of=_full(lambda each: each.leader_cpu_us),
    ),
    ClusterFigure(
        key="ceiling_per_s",
        title="requests that one leader's core could decide about",
        unit="/s",
        of=ceiling_per_s,
    ),
    ClusterFigure(
        key="thousand_leading_cores",
        title=f"1,000 replicas, {THOUSAND_PER_S:,.0f} requests/s: cores of leading",
        unit="cores",
        of=leading_cores,
    ),
    ClusterFigure(
        key="thousand_redis_percent",
        title="the same: of one core of Redis",
        unit="%",
        of=redis_share,
    ),
    ClusterFigure(
        key="thousand_redis_mb_per_s",
        title="the same: into and out of Redis",
        unit="MB/s",
        of=redis_mb_per_s,
    ),
)
"""In the table's order."""
