"""How fast a line moves while somebody stands in it.

Time in which nothing waits says nothing of it: a fleet that gets one request a minute does not
need a minute for each, and one that has just started is not slow.
"""

from collections.abc import Sequence
from typing import Final

from gateway.core.rates import HALF

LN_2: Final = 0.6931471805599453
WINDOW_S_MIN: Final = 1.0
"""A shorter measurement is taken for one of this length: slots that were free are no pace."""


class DrainRate:
    """Releases per second of waiting; old ones count half after `half_life_s` of it."""

    __slots__ = ("_drained", "_since", "_waited_s", "half_life_s")

    def __init__(self, half_life_s: float) -> None:
        self.half_life_s = half_life_s
        self._drained = 0.0
        self._waited_s = 0.0
        """Seconds in which anything waited, decayed as the releases are."""
        self._since: float | None = None
        """Up to when the waiting is counted; None while nothing waits."""

    @property
    def is_running(self) -> bool:
        """Whether anything waits."""
        return self._since is not None

    def begin(self, now: float) -> None:
        """Something waits where nothing did."""
        self._since = now

    def add(self, now: float, amount: float = 1.0) -> None:
        """So many were released; without meaning while nothing waits."""
        if self._since is not None:
            self._pass(now)
            self._drained += amount

    def end(self, now: float) -> None:
        """Nothing waits any more."""
        self._pass(now)
        self._since = None

    def pause(self) -> None:
        """Nothing waits here, and did not since it was last looked at."""
        self._since = None

    def per_s(self, now: float) -> float:
        """Releases per second of waiting; 0 before the first."""
        drained, waited_s = self._at(now)
        return drained / max(waited_s, WINDOW_S_MIN)

    def guess_per_s(self, now: float) -> float:
        """The same; before the first release as if one came now."""
        drained, waited_s = self._at(now)
        return (drained or 1.0) / max(waited_s, WINDOW_S_MIN)

    def scale(self, factor: float) -> None:
        """From now on the line moves so many times as fast."""
        self._drained *= factor

    def merge(self, other: "DrainRate") -> None:
        """Two lines become one, which moves as fast as both."""
        if other._since is not None:
            if self._since is None:
                self._since = other._since
            at = max(self._since, other._since)
            self._pass(at)
            drained, waited_s = other._at(at)
        else:
            drained, waited_s = other._drained, other._waited_s
        longer_s = max(self._waited_s, waited_s, WINDOW_S_MIN)
        mine_per_s = self._drained / max(self._waited_s, WINDOW_S_MIN)
        self._drained = (mine_per_s + drained / max(waited_s, WINDOW_S_MIN)) * longer_s
        self._waited_s = max(self._waited_s, waited_s)

    def snapshot(self, now: float) -> list[float | None]:
        """Releases, seconds, and how long ago the count was last brought up to date."""
        age_s = None if self._since is None else now - self._since
        return [self._drained, self._waited_s, age_s]

    def restore(self, data: Sequence[float | None], now: float) -> None:
        """Go on at `now` from what `snapshot` gave, perhaps under another clock."""
        drained, waited_s, age_s = data
        self._drained, self._waited_s = drained or 0.0, waited_s or 0.0
        self._since = None if age_s is None else now - age_s

    def _pass(self, now: float) -> None:
        self._drained, self._waited_s = self._at(now)
        if self._since is not None and now > self._since:
            self._since = now

    def _at(self, now: float) -> tuple[float, float]:
        """(releases, seconds) at `now`."""
        elapsed_s = 0.0 if self._since is None else now - self._since
        if elapsed_s <= 0.0:
            return self._drained, self._waited_s
        kept = float(HALF ** (elapsed_s / self.half_life_s))
        mean_life_s = self.half_life_s / LN_2
        return self._drained * kept, self._waited_s * kept + mean_life_s * (1.0 - kept)
