"""Promotion of single requests that waited long: they go before all tiers, a few each second.

A floor guarantees a tier its share; ageing guards the one request that its own tier's order
keeps behind. The rate is bounded, so that a flood of old work cannot become a new tier 0.
"""

from collections.abc import Sequence

from gateway.core.flows import WaitHeap, Waiting
from gateway.core.kinds import Kind
from gateway.core.plain import age_s, instant_of
from gateway.core.policy import Ageing


class Elders:
    """Waiting requests of the tiers below 0 by arrival, and how many may be promoted now."""

    __slots__ = ("_after_s", "_at", "_by_kind", "_per_s", "_tokens")

    BURST = 1.0
    """Promotions that may be saved up."""

    def __init__(self, ageing: Ageing) -> None:
        assert ageing.after_s is not None
        self._after_s = ageing.after_s
        self._per_s = ageing.per_s
        self._tokens = self.BURST
        self._at = float("-inf")
        self._by_kind: dict[Kind, WaitHeap] = {}

    def push(self, waiting: Waiting) -> None:
        """A request of a lower tier began to wait."""
        heap = self._by_kind.get(waiting.kind)
        if heap is None:
            heap = self._by_kind[waiting.kind] = WaitHeap()
        heap.push(waiting.request.arrived_at, waiting)

    def left(self, waiting: Waiting) -> None:
        """It waits no longer; its ticket is gone."""
        heap = self._by_kind[waiting.kind]
        heap.left()
        if not heap.live:
            del self._by_kind[waiting.kind]

    def aged(self, now: float) -> list[Waiting]:
        """The oldest request of each class that may be promoted now, the oldest first."""
        if not self._by_kind or not self._may_promote(now):
            return []
        heads = [heap.first() for heap in self._by_kind.values()]
        old = [
            head
            for head in heads
            if head is not None and now - head.request.arrived_at >= self._after_s
        ]
        return sorted(old, key=lambda each: (each.request.arrived_at, each.sequence))

    def is_aged(self, waiting: Waiting, now: float) -> bool:
        """Whether it has waited long enough, promoted or not."""
        return now - waiting.request.arrived_at >= self._after_s

    def promoted(self, now: float) -> None:
        """One was released for its age."""
        self._may_promote(now)
        self._tokens -= 1.0

    def adopt(self, other: "Elders") -> None:
        """Do not promote more because the pools were regrouped."""
        self._tokens, self._at = min(self._tokens, other._tokens), max(self._at, other._at)

    def snapshot(self, now: float) -> list[float | None]:
        """Promotions saved up, and how long ago they were counted; None: never."""
        return [self._tokens, age_s(self._at, now)]

    def restore(self, data: Sequence[float | None], now: float) -> None:
        """Go on at `now` from what `snapshot` gave, perhaps under another clock."""
        tokens, age = data
        self._tokens = tokens or 0.0
        self._at = instant_of(age, now)

    def _may_promote(self, now: float) -> bool:
        if self._at != now:
            elapsed_s = max(0.0, now - self._at)
            self._tokens = min(self.BURST, self._tokens + elapsed_s * self._per_s)
            self._at = now
        return self._tokens >= 1.0
