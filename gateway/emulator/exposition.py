"""Prometheus text, as prometheus_client writes it: a family at a time, `_created` lines included.

Knows the format, and nothing of engines.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_PLAIN_DIGITS = 6
"""Numbers >= 0 with more digits before the point get an exponent."""

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


class Histogram:
    """Counts of values by bucket; `bounds` are inclusive upper ends, ascending, not infinite."""

    __slots__ = ("bounds", "count", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.count = 0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.count += 1


class Exposition:
    """Collects families and gives the text."""

    def __init__(self, created: float) -> None:
        self._created = created
        self._lines: list[str] = []

    def gauge(self, name: str, about: str, samples: Iterable[Sample]) -> None:
        """A family of values that go up and down."""
        self._head(name, about, "gauge")
        for labels, value in samples:
            self._line(name, labels, value)

    def counter(self, name: str, about: str, samples: Iterable[Sample]) -> None:
        """A family of totals; `name` comes without `_total`."""
        kept = list(samples)
        self._head(f"{name}_total", about, "counter")
        for labels, value in kept:
            self._line(f"{name}_total", labels, value)
        self.gauge(f"{name}_created", about, [(labels, self._created) for labels, _ in kept])

    def histogram(self, name: str, about: str, labels: Labels, histogram: Histogram) -> None:
        """A family of one histogram, its buckets cumulative."""
        self._head(name, about, "histogram")
        total = 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            total += count
            self._line(f"{name}_bucket", {**labels, "le": shown_float(bound)}, total)
        self._line(f"{name}_count", labels, histogram.count)
        self._line(f"{name}_sum", labels, histogram.sum)
        self.gauge(f"{name}_created", about, [(labels, self._created)])

    def text(self) -> bytes:
        """All families so far."""
        return "".join(self._lines).encode()

    def _head(self, name: str, about: str, kind: str) -> None:
        self._lines.append(f"# HELP {name} {about}\n# TYPE {name} {kind}\n")

    def _line(self, name: str, labels: Labels, value: float) -> None:
        shown = ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels))
        self._lines.append(f"{name}{{{shown}}} {shown_float(value)}\n")


def shown_float(value: float) -> str:
    """A number as Prometheus' clients write it."""
    if value == float("inf"):
        return "+Inf"
    text = repr(float(value))
    whole, dot, fraction = text.partition(".")
    if not dot or len(whole) <= _PLAIN_DIGITS:
        return text
    mantissa = f"{whole[0]}.{whole[1:]}{fraction}".rstrip("0.")
    return f"{mantissa}e+{len(whole) - 1:02d}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
