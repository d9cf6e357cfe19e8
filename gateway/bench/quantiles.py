"""What a set of measured values says: nearest-rank percentiles. Units are not its business."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest-rank percentile of an ascending, non-empty sequence; `share` is in (0, 1]."""
    assert ordered, "no values to take a percentile of"
    assert 0 < share <= 1, f"share {share} is outside (0, 1]"
    return ordered[math.ceil(share * len(ordered)) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """The figures kept of many values, in the values' own unit."""

    count: int
    p50: float
    p99: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float], *, scale: float = 1.0) -> "Quantiles | None":
        """Quantiles of `values`, each multiplied by `scale`; None when there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(
            count=len(ordered),
            p50=percentile(ordered, 0.50) * scale,
            p99=percentile(ordered, 0.99) * scale,
            highest=ordered[-1] * scale,
        )
