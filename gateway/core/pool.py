"""One scheduling domain: a connected component of models and replicas, with its own queues.

The model is a constraint on where a request can run, not a level of fairness: two models that
share no replica never compete, two that share one are served from the same queues.
"""

from collections.abc import Iterable

from gateway.core.fairqueue import FairQueue
from gateway.core.floors import Floors
from gateway.core.gate import open_tiers
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
        """Tiers, from 0 down, whose gate on `replica` is open; judged again only if touched."""
        reserved = self.reserved(now)
        if replica.open_tiers is None:
            replica.open_tiers = open_tiers(replica, self.policy, reserved, now)
        return replica.open_tiers

    def serving(self, model: str) -> list[Replica]:
        """Usable replicas that serve `model`."""
        return [
            replica
            for replica in self.replicas.values()
            if model in replica.models and replica.is_usable
        ]

    def adopt(self, other: "Pool") -> None:
        """Take over the debts and activity of a pool this one replaces (same tiers)."""
        for mine, theirs in zip(self.queues, other.queues, strict=True):
            for debt in theirs.debts():
                mine.adopt_debt(debt)
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
