"""Counters and histograms that cost a request next to nothing, told to Prometheus when it asks.

The library's own children take a lock for each of an observation's three figures; this process
counts in one thread. Names, labels and text format stay the library's business.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

Labels = tuple[str, ...]


class Buckets:
    """How many observations fell into each bucket, and their sum."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The last one is of all beyond the last bound."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value; one that equals a bound belongs below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Count:
    """A sum that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float) -> None:
        """Add an amount that is not negative."""
        self.value += amount


class Histogram:
    """One histogram with its label sets."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, bounds: Sequence[float]
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = tuple(map(float, bounds))
        self._children: dict[Labels, Buckets] = {}

    def of(self, *labels: str) -> Buckets:
        """The child with these values of the labels."""
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = Buckets(self._bounds)
        return child

    def families(self) -> Iterator[Metric]:
        """All of it, as of now."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, child in self._children.items():
            running, told = 0, []
            for bound, count in zip((*self._bounds, None), child.counts, strict=True):
                running += count
                told.append(("+Inf" if bound is None else str(bound), running))
            family.add_metric(labels, told, child.total)
        yield family


class Counter:
    """One counter with its label sets; `name` without the suffix that counters get."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._children: dict[Labels, Count] = {}

    def of(self, *labels: str) -> Count:
        """The child with these values of the labels."""
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = Count()
        return child

    def families(self) -> Iterator[Metric]:
        """All of it, as of now."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, child in self._children.items():
            family.add_metric(labels, child.value)
        yield family
