"""Turns the samples of one scrape into figures, and remembers which expected names were absent.

It refuses to guess: an absent name, a NaN, an infinity or a negative number is unknown, not zero.
"""

import math
from collections.abc import Mapping, Sequence

from gateway.upstream.dialects.scan import Sample


class Reading:
    """One scrape, asked name by name. Of several names the first that is present answers."""

    __slots__ = ("_missing", "_samples")

    def __init__(self, samples: Mapping[str, tuple[Sample, ...]]) -> None:
        self._samples = samples
        self._missing: list[str] = []

    @property
    def missing(self) -> tuple[str, ...]:
        """The expected names asked for so far that the scrape does not have."""
        return tuple(self._missing)

    def samples(self, *names: str, expected: bool = True) -> tuple[Sample, ...]:
        """The lines of the first name present; `names[0]` counts as missing where none is."""
        for name in names:
            if name in self._samples:
                return self._samples[name]
        if expected:
            self._missing.append(names[0])
        return ()

    def total(self, *names: str, expected: bool = True) -> float | None:
        """Sum over all lines of the first name present."""
        return total([sample.value for sample in self.samples(*names, expected=expected)])


def total(values: Sequence[float]) -> float | None:
    """The sum; None of nothing, and None where one part is unknown."""
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        return None
    return math.fsum(values)


def share(values: Sequence[float]) -> float | None:
    """The mean of values that are each 0..1; a rounding error above 1 is cut off."""
    whole = total(values)
    return None if whole is None else min(1.0, whole / len(values))


def whole(value: float | None) -> int | None:
    """A count read as a float, as the integer it is; None stays None."""
    return None if value is None else int(value)


def digits(text: str | None) -> int | None:
    """A positive integer written in a label; None for "None", for 0 and for anything else."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        return None
    return int(text) or None


DIGITS_MAX = 15
"""Longer numbers in a label are no token counts, and 15 digits are exact in a float."""
