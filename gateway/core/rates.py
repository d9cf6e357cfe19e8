"""Rates and averages that forget: events a second, and means with a half-life in samples."""

from collections.abc import Sequence
from typing import Final

HALF: Final = 0.5


class Rate:
    """Events per second as an exponentially decaying count with a half-life in seconds."""

    __slots__ = ("_at", "_count", "half_life_s")

    def __init__(self, half_life_s: float) -> None:
        self.half_life_s = half_life_s
        self._count = 0.0
        self._at: float | None = None

    def add(self, now: float, amount: float = 1.0) -> None:
        """Count `amount` events at `now`."""
        self._count = self._decayed(now) + amount
        self._at = now

    def per_s(self, now: float) -> float:
        """Events per second at `now`: the decayed count over the mean life of one event."""
        mean_life_s = self.half_life_s / 0.6931471805599453
        return self._decayed(now) / mean_life_s

    def merge(self, other: "Rate") -> None:
        """Count the events of `other` too."""
        if other._at is not None:
            at = other._at if self._at is None else max(self._at, other._at)
            self.add(at, other._decayed(at))

    def snapshot(self, now: float) -> list[float | None]:
        """The count when it last changed, and how long ago that was; None: never."""
        return [self._count, None if self._at is None else now - self._at]

    def restore(self, data: Sequence[float | None], now: float) -> None:
        """Go on at `now` from what `snapshot` gave, perhaps under another clock."""
        count, age = data
        self._count = count or 0.0
        self._at = None if age is None else now - age

    def _decayed(self, now: float) -> float:
        if self._at is None:
            return 0.0
        elapsed_s = max(0.0, now - self._at)
        return float(self._count * HALF ** (elapsed_s / self.half_life_s))


class Mean:
    """Exponential moving mean; the first sample is taken whole."""

    __slots__ = ("_share", "value")

    def __init__(self, share: float) -> None:
        assert 0.0 < share <= 1.0
        self._share = share
        self.value: float | None = None

    def add(self, sample: float) -> None:
        """Move the mean towards `sample` by the share given at construction."""
        self.value = (
            sample if self.value is None else self.value + self._share * (sample - self.value)
        )
