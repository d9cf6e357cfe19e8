"""Which open replica is the freest for a tier, without a look at all of them.

A tournament for each tier: each match of two has as its winner the freer one, and so on up to the
final. What changed plays its matches anew when somebody asks the next time, which ends where the
winner is the same as before. It knows neither requests nor what draws them.
"""

from collections.abc import Sequence
from math import inf

from gateway.core.freeness import freeness
from gateway.core.replica import Replica


class Ranking:
    """The replicas of one pool by their freeness, for each tier."""

    __slots__ = ("_changed", "_freeness", "_replicas", "_winners", "bridging")

    def __init__(self, tiers: int, replicas: Sequence[Replica]) -> None:
        self._replicas = sorted(replicas, key=lambda each: each.name)
        """Each at its `place`: of equals the first wins."""
        size = len(self._replicas)
        self._changed = [list(self._replicas) for _ in range(tiers)]
        """Those whose freeness is to be looked up, each once: their bit in `ranked` is not set."""
        self._freeness = [[-inf] * size for _ in range(tiers)]
        """By place; minus infinity where it is not open to the tier."""
        winners = [0] * size + list(range(size))
        for match in range(size - 1, 0, -1):
            winners[match] = min(winners[2 * match], winners[2 * match + 1])
        self._winners = [list(winners) for _ in range(tiers)]
        """Places. The final is match 1, match m is between the winners of 2m and 2m + 1; from
        match `size` on there is one replica alone."""
        self.bridging: dict[str, Replica] = {}
        """Those with an open gate although something waits there: time alone may shut it."""
        for place, each in enumerate(self._replicas):
            each.place, each.ranked = place, 0

    def changed(self, replica: Replica) -> None:
        """Its freeness may be another, or its gates."""
        ranked = replica.ranked
        if ranked:
            replica.ranked = 0
            for tier, changed in enumerate(self._changed):
                if ranked >> tier & 1:
                    changed.append(replica)

    def judged(self, replica: Replica) -> None:
        """Its gates have a verdict."""
        if replica.open_tiers and replica.has_queue:
            self.bridging[replica.name] = replica
        elif self.bridging:
            self.bridging.pop(replica.name, None)

    def unranked(self, tier: int) -> list[Replica]:
        """Those that changed since `first` was last asked for this tier; all must be judged."""
        return self._changed[tier]

    def first(self, tier: int, headroom: tuple[float, ...]) -> Replica | None:
        """The freest of those open to `tier`, by name among equals; None: none is open.

        O(log n) for each that changed since this was last asked.
        """
        if not self._replicas:
            return None
        changed, free = self._changed[tier], self._freeness[tier]
        for replica in changed:
            tiers = replica.open_tiers
            assert tiers is not None, "whoever asks has judged what changed"
            replica.ranked |= 1 << tier
            now = freeness(replica, headroom, tier) if tiers > tier else -inf
            if now != free[replica.place]:
                free[replica.place] = now
                self._replay(tier, replica.place)
        if changed:
            changed.clear()
        best = self._winners[tier][1]
        return self._replicas[best] if free[best] > -inf else None

    def _replay(self, tier: int, place: int) -> None:
        winners, free = self._winners[tier], self._freeness[tier]
        match = (place + len(free)) // 2
        while match:
            one, other = winners[2 * match], winners[2 * match + 1]
            mine, theirs = free[one], free[other]
            if theirs > mine or (theirs == mine and other < one):
                one = other
            if one != place and winners[match] == one:
                return
            winners[match] = one
            match //= 2
