"""One scheduling domain: a connected component of models and replicas, with its own queues.

The model is a constraint on where a request can run, not a level of fairness: two models that
share no replica never compete, two that share one are served from the same queues.
"""

from collections.abc import Iterable, Sequence

from gateway.core.fairqueue import FairQueue, Waiting
from gateway.core.floors import Floors
from gateway.core.gate import open_tiers
from gateway.core.messages import Request
from gateway.core.policy import Policy
from gateway.core.rates import Rate
from gateway.core.replica import Replica

DRAIN_HALF_LIFE_S = 15.0


class Pool:
    """Queues per tier, the replicas that serve them, and who was active lately."""

    __slots__ = (
        "_last_seen", "_reserved", "_reserved_until", "drain_rate", "floors", "headroom", "models",
        "policy", "queues", "replicas",
    )  # fmt: skip

    def __init__(self, policy: Policy, models: Iterable[str]) -> None:
        self.policy = policy
        self.models = set(models)
        self.replicas: dict[str, Replica] = {}
        self.queues = [FairQueue(policy) for _ in policy.tiers]
        self.floors = Floors(policy)
        self.headroom = tuple(policy.headroom_fraction(tier) for tier in range(len(policy.tiers)))
        """Share of a replica that each tier reserves while it is active."""
        self.drain_rate = Rate(DRAIN_HALF_LIFE_S)
        self._last_seen: list[float | None] = [None] * len(policy.tiers)
        self._reserved: list[float] = []
        self._reserved_until = float("-inf")

    @property
    def waiting(self) -> int:
        """Requests in all tiers."""
        return sum(queue.count for queue in self.queues)

    def saw(self, tier: int, now: float) -> None:
        """A request of `tier` came: its headroom is held from now on."""
        before = self._last_seen[tier]
        self._last_seen[tier] = now
        if before is None or now - before > self.policy.hold_s:
            self._reserved_until = float("-inf")

    def reserved(self, now: float) -> list[float]:
        """Share of each replica kept from tier p for the active tiers above it, 0..1, by p."""
        if now >= self._reserved_until:
            self._recompute_reserved(now)
        return self._reserved

    def open_tiers(self, replica: Replica, now: float) -> int:
        """Tiers, from 0 down, whose gate on `replica` is open; judged again only if touched.

        Time alone shuts one gate: the allowance beyond the slots shrinks as the release rate
        decays. Those that time opens are looked at again when the scheduler wakes.
        """
        reserved = self.reserved(now)
        known = replica.open_tiers
        if known is None or (known and replica.judged_at != now and replica.waiting):
            known = replica.open_tiers = open_tiers(replica, self.policy, reserved, now)
            replica.judged_at = now
        return known

    @property
    def backlog(self) -> list[int]:
        """Requests waiting in each tier."""
        return [queue.count for queue in self.queues]

    def has_replica_for(self, request: Request) -> bool:
        """Whether any usable replica that has not failed `request` serves its model."""
        return any(replica.may_serve(request) for replica in self.replicas.values())

    def adopt(self, other: "Pool") -> None:
        """Take over what a pool that this one replaces knew (same tiers and cost unit)."""
        for mine, theirs in zip(self.queues, other.queues, strict=True):
            for debt in theirs.debts():
                mine.adopt_debt(debt)
        for tier, deficit in enumerate(other.floors.deficits):
            self.floors.deficits[tier] += deficit
        self.drain_rate.merge(other.drain_rate)
        for tier, seen in enumerate(other._last_seen):
            if seen is not None:
                self._last_seen[tier] = max(seen, self._last_seen[tier] or seen)

    def _recompute_reserved(self, now: float) -> None:
        policy = self.policy
        total, until = 0.0, float("inf")
        self._reserved = []
        for tier, seen in enumerate(self._last_seen):
            self._reserved.append(total)
            if not policy.lend:
                total += self.headroom[tier]
            elif seen is not None and now - seen <= policy.hold_s:
                total += self.headroom[tier]
                until = min(until, seen + policy.hold_s + 1e-6)
        self._reserved_until = until
        for replica in self.replicas.values():
            replica.touch()


def regrouped(
    policy: Policy,
    old: Sequence[Pool],
    *,
    replicas: Iterable[Replica],
    waiting: Iterable[Waiting],
    keeps_debts: bool,
) -> list[Pool]:
    """The pools after models or tiers changed; all that waits is in one of them again."""
    known, line = list(replicas), sorted(waiting, key=lambda each: each.order)
    lonely = [frozenset((each.request.model,)) for each in line]
    pools = [
        Pool(policy, models)
        for models in components([*(replica.models for replica in known), *lonely])
    ]
    for pool in pools:
        pool.replicas = {each.name: each for each in known if each.models & pool.models}
        for former in old:
            if keeps_debts and former.models & pool.models:
                pool.adopt(former)
    pool_of = {model: pool for pool in pools for model in pool.models}
    for each in line:
        pool_of[each.request.model].queues[each.request.tier].push(each)
    return pools


def components(serves: Iterable[frozenset[str]]) -> list[set[str]]:
    """Sets of models connected through replicas that serve several of them."""
    groups: list[set[str]] = []
    for models in serves:
        if not models:
            continue
        joined = set(models)
        rest = []
        for group in groups:
            if group & joined:
                joined |= group
            else:
                rest.append(group)
        groups = [*rest, joined]
    return groups
