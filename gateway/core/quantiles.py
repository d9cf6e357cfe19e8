"""How a positive quantity is distributed lately, in a few hundred bytes.

Samples are counted in buckets whose edges grow geometrically, and forgotten by the number of
samples that came after, never by time: it knows no clock, nor what it measures.

Forgetting is forward decay (Cormode et al., ICDE 2009): old samples keep their weight and each new
one weighs a little more than the one before, so that an `add` touches one bucket. When the weights
have grown large all are scaled back at once, and what has become negligible is dropped.
"""

from array import array
from collections.abc import Mapping
from math import isfinite, log2
from typing import Any, Final

BUCKETS_PER_OCTAVE: Final = 4
OCTAVES_BELOW_1: Final = 10
RELATIVE_ERROR: Final[float] = 2.0 ** (1 / BUCKETS_PER_OCTAVE) - 1.0
"""19 %: a quantile lies in the bucket of the exact one, and is interpolated there."""
VALUE_MIN: Final[float] = 2.0**-OCTAVES_BELOW_1
"""About a thousandth. What lies beyond either end is counted as that end."""
VALUE_MAX: Final[float] = 2.0**20
"""About a million."""
BUCKETS_MAX: Final = (OCTAVES_BELOW_1 + 20) * BUCKETS_PER_OCTAVE + 1
"""Only those between the least and the greatest value remembered are held, 4 bytes each."""
HALF_LIFE_SAMPLES: Final = 32
"""A sample counts half as much once so many came after it; about 92 equal ones would be as sure."""
WEIGHT_MAX: Final[float] = 2.0**32
"""The weight of the next sample at which all are scaled back: single precision holds it."""
WEIGHT_NEGLIGIBLE: Final = 1e-6
"""Beside the newest sample: twenty half-lives old. Dropped when all are scaled back."""

WEIGHT_BYTES: Final = 4
_NOTHING = bytes(BUCKETS_MAX * WEIGHT_BYTES)
"""Buckets without any weight."""
_GROWTH: Final[float] = 2.0 ** (1.0 / HALF_LIFE_SAMPLES)
_BUCKET_OF_1: Final = OCTAVES_BELOW_1 * BUCKETS_PER_OCTAVE
_INSIDE: Final = 1e-9
"""Relative distance from the edge of a bucket beyond which rounding cannot reach over it."""


class Quantiles:
    """An online distribution of values `VALUE_MIN` to `VALUE_MAX` that forgets by half-lives."""

    __slots__ = ("_growth", "_lowest", "_max", "_min", "_weight", "_weights", "count")

    def __init__(self, half_life_samples: int = HALF_LIFE_SAMPLES) -> None:
        assert half_life_samples >= 1
        self.count = 0
        """Samples ever added, forgotten ones included."""
        self._growth = _GROWTH
        if half_life_samples != HALF_LIFE_SAMPLES:
            self._growth = float(2.0 ** (1.0 / half_life_samples))
        self._weight = 1.0
        self._weights = array("f")
        self._lowest = 0
        # All between these two lies within the buckets that are held.
        self._min = VALUE_MAX
        self._max = VALUE_MIN

    def add(self, value: float) -> None:
        """Count `value`, a number (not NaN), once; constant time but for the rare scaling back."""
        if not self._min <= value <= self._max:
            value = self._widen(value)
        weight = self._weight
        self._weights[int(log2(value) * BUCKETS_PER_OCTAVE + _BUCKET_OF_1) - self._lowest] += weight
        self.count += 1
        self._weight = weight = weight * self._growth
        if weight > WEIGHT_MAX:
            self._scale_back()

    def quantile(self, q: float) -> float | None:
        """The value that a share `q`, 0..1, of the remembered samples do not exceed.

        Interpolated inside its bucket, never outside what was ever added, monotone in `q`. None
        before the first sample.
        """
        assert 0.0 <= q <= 1.0
        weights = self._weights
        if not weights:
            return None
        left = q * sum(weights)
        bucket = self._lowest
        for weight in weights:
            # The first and the last are never empty, and so is no bucket in which this ends.
            if left <= weight:
                break
            left -= weight
            bucket += 1
        else:
            # Rounding left a trifle beyond the last one.
            return self._max
        return min(max(_edge(bucket + left / weight), self._min), self._max)

    def snapshot(self) -> dict[str, Any]:
        """All that it knows, in numbers and lists that survive JSON exactly."""
        return {
            "count": self.count,
            "weight": self._weight,
            "lowest": self._lowest,
            "min": self._min,
            "max": self._max,
            "weights": self._weights.tolist(),
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Become what `snapshot` gave; the half-life stays.

        Raises ValueError, and changes nothing, on anything else.
        """
        try:
            weights = array("f", data["weights"])
            count, lowest = int(data["count"]), int(data["lowest"])
            weight, least, most = (float(data[name]) for name in ("weight", "min", "max"))
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a snapshot of quantiles: {error!r}") from error
        if weights:
            ends = (least, most)
            is_sound = (
                count > 0
                and all(isfinite(one) and one >= 0.0 for one in weights)
                and weights[0] > 0.0
                and weights[-1] > 0.0
                and 0 <= lowest <= BUCKETS_MAX - len(weights)
                and VALUE_MIN <= least <= most <= VALUE_MAX
                and all(0 <= _bucket(end) - lowest < len(weights) for end in ends)
                and 0.0 < weight <= WEIGHT_MAX
            )
        else:
            is_sound = (count, weight, least, most) == (0, 1.0, VALUE_MAX, VALUE_MIN)
        if not is_sound:
            raise ValueError("not a snapshot of quantiles: a figure is out of its range")
        self.count, self._weight = count, weight
        self._weights, self._lowest = weights, lowest
        self._min, self._max = least, most

    def _widen(self, value: float) -> float:
        """Hold the bucket of a new extreme; returns `value`, within the range."""
        value = min(max(value, VALUE_MIN), VALUE_MAX)
        self._min = min(self._min, value)
        self._max = max(self._max, value)
        weights = self._weights
        bucket = _bucket(value)
        if not weights:
            self._lowest = bucket
            weights.append(0.0)
            return value
        short = self._lowest - bucket
        if short > 0:
            self._weights = array("f", _NOTHING[: short * WEIGHT_BYTES] + weights.tobytes())
            self._lowest = bucket
            return value
        short = bucket + 1 - self._lowest - len(weights)
        if short > 0:
            weights.frombytes(_NOTHING[: short * WEIGHT_BYTES])
        return value

    def _scale_back(self) -> None:
        scale = 1.0 / self._weight
        scaled = [weight * scale for weight in self._weights]
        kept = [place for place, weight in enumerate(scaled) if weight > WEIGHT_NEGLIGIBLE]
        first, last = kept[0], kept[-1]
        if last + 1 < len(scaled):
            self._max = _edge(self._lowest + last + 1) * (1.0 - _INSIDE)
        if first > 0:
            self._min = _edge(self._lowest + first) * (1.0 + _INSIDE)
        self._min = min(self._min, self._max)
        self._weights = array("f", scaled[first : last + 1])
        self._lowest += first
        self._weight = 1.0


def _bucket(value: float) -> int:
    return int(log2(value) * BUCKETS_PER_OCTAVE + _BUCKET_OF_1)


def _edge(bucket: float) -> float:
    """The lower edge of a bucket; with a fraction, so far towards its upper edge."""
    edge: float = 2.0 ** ((bucket - _BUCKET_OF_1) / BUCKETS_PER_OCTAVE)
    return edge
