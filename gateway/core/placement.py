"""Which waiting request goes where: the best-ranked one that some open replica can take.

The choice is made at the instant at which capacity is free, never before. Nobody overtakes an
eligible request that ranks before it, not even into a free slot; one that fits nowhere is passed
over, and after a while a replica is drained for it (`reservation.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.core.fairqueue import Rank
from gateway.core.flows import Waiting
from gateway.core.freeness import freeness
from gateway.core.locality import closest
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.core.reservation import is_held, keeps_out, let_go, release


class Choice:
    """One release: this request, to this replica."""

    __slots__ = ("is_aged", "is_owed", "passed_over", "replica", "waiting")

    def __init__(self, waiting: Waiting, replica: Replica) -> None:
        self.waiting = waiting
        self.replica = replica
        self.is_owed = False
        """Whether the tier's floor, not its rank, let it go."""
        self.is_aged = False
        """Whether its age did."""
        self.passed_over: list[Waiting] = []
        """Those that rank before it and, for their size, fit nowhere now."""


def choose(pool: Pool, replicas: list[Replica], now: float) -> Choice | None:
    """The next release onto one of `replicas`, or None when nothing can go."""
    pool.refresh_if_due(now)
    most_open = 0
    for replica in replicas:
        if replica.reserved_for is not None:
            release(replica, now)
        most_open = max(most_open, pool.open_tiers(replica, now))
    if not most_open and not pool.slotless:
        return None
    aged = pool.elders.aged(now) if pool.elders is not None else []
    owed, waiting = _in_order(pool)
    # Ceilings never rise with the rank: a gate shut to the first of them is shut to all.
    needed = 0 if aged or owed else _first_rank(waiting)
    candidates: list[Replica] = []
    for replica in replicas:
        if (replica.open_tiers or 0) > needed:
            candidates.append(replica)
        elif pool.slotless and pool.gates.takes(replica, now):
            candidates.append(replica)  # what needs no slot is not kept out by full ones
    if not candidates:
        return None
    search = Search(pool, candidates, now)
    return search.kept() or search.oldest(aged) or search.owed(owed) or search.ranked(waiting)


def freest(pool: Pool, waiting: Waiting, first: Replica, now: float) -> Replica | None:
    """What `Search.place` finds among all that are open, where it need not look at each of them.

    `first` is the freest of them. None: it does not fit there, or a replica that comes into
    question is kept for another.
    """
    tier, headroom = waiting.request.tier, pool.headroom
    best, best_score = first, freeness(first, headroom, tier)
    for name, worth in _worths(pool, waiting).items():
        replica = pool.replicas.get(name)
        if replica is None or (replica.open_tiers or 0) <= tier:
            continue
        if replica.reserved_for is not None:
            return None
        score = freeness(replica, headroom, tier)
        if score > 0.0:
            score *= 1.0 + worth
        if score > best_score or (score == best_score and name < best.name):
            best, best_score = replica, score
    if first.reserved_for is not None or pool.gates.unfit_by(waiting, best, tier, now) is not None:
        return None
    return best


class Search:
    """One look for the next release, by its candidates."""

    __slots__ = ("_candidates", "_now", "_passed", "_pool")

    def __init__(self, pool: Pool, candidates: list[Replica], now: float) -> None:
        self._pool = pool
        self._candidates = candidates
        """Those whose gates have been judged, and are not all shut."""
        self._now = now
        self._passed: list[tuple[Rank, Waiting]] = []

    def kept(self) -> Choice | None:
        """What one of them was drained for, and fits there now."""
        for replica in self._candidates:
            waiting = replica.reserved_for
            if waiting is None or not is_held(replica, self._now):
                continue
            tier = waiting.request.tier
            if self._is_open(replica, waiting) and self._fits(waiting, replica, tier):
                return Choice(waiting, replica)
            if not replica.ledger.in_flight:
                let_go(replica, self._now)
        return None

    def oldest(self, aged: Iterable[Waiting]) -> Choice | None:
        """The first of these that fits somewhere by the gates of tier 0."""
        for waiting in aged:
            replica = self.place(waiting, judged_as=0)
            if replica is not None:
                choice = Choice(waiting, replica)
                choice.is_aged = True
                return choice
        return None

    def owed(self, tiers: Iterable[int]) -> Choice | None:
        """The best-ranked request that its tier's floor covers, by the gates of tier 0."""
        for tier in tiers:
            found = self._best_of(tier, judged_as=0)
            if found is not None and self._pool.floors.is_owed(tier, found.waiting.cost):
                found.is_owed = True
                return self._with_passed(found)
        return None

    def ranked(self, tiers: Iterable[int]) -> Choice | None:
        """The best-ranked request that fits somewhere, tiers taken in this order."""
        for tier in tiers:
            found = self._best_of(tier, judged_as=tier)
            if found is not None:
                return self._with_passed(found)
        return None

    def _with_passed(self, found: Choice) -> Choice:
        if self._passed:
            tier = found.waiting.request.tier
            rank = self._pool.queues[tier].rank(found.waiting)
            found.passed_over = [
                each for place, each in self._passed if each.request.tier != tier or place < rank
            ]
        return found

    def place(self, waiting: Waiting, *, judged_as: int) -> Replica | None:
        """Where this request can go by the gates of tier `judged_as`: the freest, or None."""
        best = self._freest(waiting, judged_as, ())
        if best is None or self._fits(waiting, best, judged_as):
            return best
        unfit = [best]
        while (best := self._freest(waiting, judged_as, unfit)) is not None:
            if self._fits(waiting, best, judged_as):
                return best
            unfit.append(best)
        return None

    def _is_open(self, replica: Replica, waiting: Waiting) -> bool:
        return not waiting.kind.decodes or (replica.open_tiers or 0) > waiting.request.tier

    def _fits(self, waiting: Waiting, replica: Replica, judged_as: int) -> bool:
        return self._pool.gates.unfit_by(waiting, replica, judged_as, self._now) is None

    def _freest(self, waiting: Waiting, judged_as: int, unfit: Sequence[Replica]) -> Replica | None:
        """The one with the largest normalised freeness, affinity counted; ties by name."""
        kind, tier, headroom = waiting.kind, waiting.request.tier, self._pool.headroom
        decodes, replicas = kind.decodes, kind.replicas
        worths = _worths(self._pool, waiting) if len(self._candidates) > 1 else {}
        is_choosy = len(replicas) < len(self._pool.replicas)
        best: Replica | None = None
        best_score = 0.0
        for replica in self._candidates:
            tiers = replica.open_tiers
            if decodes and (tiers is None or tiers <= judged_as):
                continue
            if is_choosy and replica.name not in replicas:
                continue
            if replica.reserved_for is not None and keeps_out(
                self._pool, replica, waiting, self._now
            ):
                continue
            if unfit and replica in unfit:
                continue
            known = replica.scores.get(tier)
            score: float = freeness(replica, headroom, tier) if known is None else known
            if worths and score > 0.0:
                worth = worths.get(replica.name)
                if worth is not None:
                    score *= 1.0 + worth
            if (
                best is None
                or score > best_score
                or (score == best_score and replica.name < best.name)
            ):
                best, best_score = replica, score
        return best

    def _best_of(self, tier: int, *, judged_as: int) -> Choice | None:
        queue = self._pool.queues[tier]
        best: Choice | None = None
        best_rank: Rank | None = None
        for kind in queue.classes:
            waiting = queue.head(kind)
            assert waiting is not None, "a class is kept only while something of it waits"
            rank = queue.rank(waiting)
            if best_rank is not None and best_rank < rank:
                continue
            replica = self.place(waiting, judged_as=judged_as)
            if replica is not None:
                best, best_rank = Choice(waiting, replica), rank
            elif self._is_kept_out_by_size(waiting, judged_as):
                self._passed.append((rank, waiting))
        if best is not None and self._pool.policy.within_user == "prefix":
            self._swap_for_cached(best, judged_as)
        return best

    def _is_kept_out_by_size(self, waiting: Waiting, judged_as: int) -> bool:
        for replica in self._candidates:
            if (replica.open_tiers or 0) > judged_as and replica.name in waiting.kind.replicas:
                return True
        return False

    def _swap_for_cached(self, choice: Choice, judged_as: int) -> None:
        """Let another request of the same user and class go first, if its prefix is held there."""
        if choice.waiting.request.is_continuation:
            return
        other = closest(choice.waiting, choice.replica)
        if other is None:
            return
        if self._fits(other, choice.replica, judged_as):
            choice.waiting = other


def _worths(pool: Pool, waiting: Waiting) -> dict[str, float]:
    request = waiting.request
    if not request.prefix and request.session is None and not pool.has_adapters:
        return {}
    return pool.ties.worths(request, waiting.prompt_tokens, pool.policy.affinity)


def _first_rank(tiers: list[int]) -> int:
    first = tiers[0]
    for tier in tiers:
        first = min(first, tier)
    return first


def _in_order(pool: Pool) -> tuple[list[int], list[int]]:
    """(tiers whose floor may let one go, tiers that wait in the policy's order)."""
    queues, floors = pool.queues, pool.floors
    waiting = [tier for tier, queue in enumerate(queues) if queue.count]
    owed: list[int] = []
    if floors.may_owe:
        for tier in waiting:
            if floors.deficits[tier] > 0.0:
                smallest, largest = queues[tier].head_costs()
                floors.cap(tier, largest)
                if floors.is_owed(tier, smallest):
                    owed.append(tier)
    if pool.shares is not None:
        waiting = pool.shares.in_order(waiting)
    return owed, waiting
