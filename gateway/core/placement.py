"""Which waiting request goes where: the best-ranked one that some open replica can take.

The choice is made at the instant at which capacity is free, never before. Nobody overtakes an
eligible request that ranks before it, not even into a free slot.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.core.fairqueue import Waiting
from gateway.core.freeness import freeness
from gateway.core.gate import unfit_by
from gateway.core.pool import Pool
from gateway.core.replica import Replica


@dataclass(frozen=True, slots=True)
class Choice:
    """One release: this request, to this replica."""

    waiting: Waiting
    replica: Replica
    is_owed: bool
    """Whether the tier's floor, not its rank, let it go."""


def choose(pool: Pool, replicas: Sequence[Replica], now: float) -> Choice | None:
    """The next release onto one of `replicas`, or None when nothing can go."""
    opened = [
        (replica, tiers) for replica in replicas if (tiers := pool.open_tiers(replica, now)) > 0
    ]
    if not opened:
        return None
    for tier, is_owed in _tiers_in_order(pool):
        judged_as = 0 if is_owed else tier
        candidates = [replica for replica, tiers in opened if judged_as < tiers]
        if not candidates:
            return None  # ceilings never rise with the rank: no later tier is open either
        best = _best_of(pool, tier, judged_as=judged_as, candidates=candidates, now=now)
        if best is None or (is_owed and not pool.floors.is_owed(tier, best[0].cost)):
            continue
        return Choice(best[0], best[1], is_owed)
    return None


def _tiers_in_order(pool: Pool) -> Iterator[tuple[int, bool]]:
    """(tier, may its floor let it go): those that may be owed first, then all that wait by rank."""
    backlogged = [tier for tier, queue in enumerate(pool.queues) if queue.count]
    for tier in backlogged:
        if pool.floors.deficits[tier] > 0.0:
            smallest, largest = pool.queues[tier].head_costs()
            pool.floors.cap(tier, largest)
            if pool.floors.is_owed(tier, smallest):
                yield tier, True
    for tier in backlogged:
        yield tier, False


def _best_of(
    pool: Pool, tier: int, *, judged_as: int, candidates: Sequence[Replica], now: float
) -> tuple[Waiting, Replica] | None:
    queue = pool.queues[tier]
    judge = pool.policy.tiers[judged_as]
    reserved = pool.reserved(now)[judged_as]
    best: tuple[Waiting, list[Replica]] | None = None
    for kind in queue.classes:
        waiting = queue.head(kind)
        if waiting is None:
            continue
        if best is not None and queue.rank(best[0]) < queue.rank(waiting):
            continue
        fitting = [
            replica
            for replica in candidates
            if replica.may_serve(waiting.request)
            and (
                pool.policy.release_at_once
                or unfit_by(waiting, replica, judge, reserved=reserved) is None
            )
        ]
        if fitting:
            best = waiting, fitting
    if best is None:
        return None
    waiting, fitting = best
    return waiting, _freest(fitting, pool, tier)


def _freest(replicas: Sequence[Replica], pool: Pool, tier: int) -> Replica:
    if len(replicas) == 1:
        return replicas[0]
    return min(
        replicas, key=lambda replica: (-freeness(replica, pool.headroom, tier), replica.name)
    )
