"""How real waits compare with expected ones: decides when a wait is surely longer than it seems.

It learns the ratio alone; who expected what, and why, is not its business.
"""

from collections.abc import Mapping
from typing import Any, Final

from gateway.core.quantiles import Quantiles

SAMPLES_MIN: Final = 20
"""With fewer nobody is refused on its word."""
LOWER_QUANTILE: Final = 0.25
"""Three of four waited longer than this."""
EXPECTED_S_MIN: Final = 0.1
"""Shorter expectations teach nothing: one engine step or round trip more is already a multiple."""
RATIO_MAX: Final = 20.0
"""A greater ratio tells of a bad expectation rather than of a long wait. Without a bound one stall
could have everybody refused, and the waits that would prove it over never come to pass."""
REFRESH_SAMPLES: Final = 4
"""The answer follows what was learnt once in so many samples."""


class WaitForecast:
    """Ratios of actual to expected waits, the recent ones above the old."""

    __slots__ = ("_ratio", "_ratios")

    def __init__(self) -> None:
        self._ratios = Quantiles()
        self._ratio: float | None = None

    def add(self, expected_s: float, actual_s: float) -> None:
        """A wait expected to last `expected_s` ended after `actual_s`; both at least 0."""
        if expected_s < EXPECTED_S_MIN:
            return
        ratios = self._ratios
        ratios.add(min(actual_s / expected_s, RATIO_MAX))
        if ratios.count >= SAMPLES_MIN and ratios.count % REFRESH_SAMPLES == 0:
            self._ratio = ratios.quantile(LOWER_QUANTILE)

    def lower(self, expected_s: float) -> float | None:
        """Seconds that three of four such waits exceed; None while too little is known."""
        ratio = self._ratio
        return None if ratio is None else expected_s * ratio

    def snapshot(self) -> dict[str, Any]:
        """All that it learnt, in plain values that survive JSON exactly."""
        return {"ratio": self._ratio, "ratios": self._ratios.snapshot()}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `snapshot` gave. ValueError, and no change, on anything else."""
        ratios = Quantiles()
        try:
            ratio = None if data["ratio"] is None else float(data["ratio"])
            ratios.restore(data["ratios"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a snapshot of waits: {error!r}") from error
        if (ratio is None) != (ratios.count < SAMPLES_MIN):
            raise ValueError("not a snapshot of waits: the ratio does not fit its count")
        if ratio is not None and not 0.0 <= ratio <= RATIO_MAX:
            raise ValueError("not a snapshot of waits: the ratio is out of its range")
        self._ratio, self._ratios = ratio, ratios
