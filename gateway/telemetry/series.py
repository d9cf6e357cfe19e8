"""Counters and histograms that cost a request next to nothing, told to Prometheus when it asks.

The library's own children take a lock for each of an observation's three figures; this process
counts in one thread. Names, labels and text format stay the library's business.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, Exemplar, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.telemetry.record import SettledRequest

Labels = tuple[str, ...]


class Buckets:
    """How many observations fell into each bucket, and their sum."""

    __slots__ = ("_bounds", "_kept", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The last one is of all beyond the last bound."""
        self.total = 0.0
        self._kept: dict[int, tuple[float, SettledRequest]] = {}

    def observe(self, value: float) -> None:
        """Count one value; one that equals a bound belongs below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def keep(self, value: float, record: SettledRequest) -> None:
        """Let a request whose value was observed stand for its bucket."""
        self._kept[bisect_left(self._bounds, value)] = (value, record)

    def exemplar(self, bucket: int, ahead_s: float) -> Exemplar | None:
        """The last that stands for a bucket; `ahead_s` turns its instants into Unix time."""
        kept = self._kept.get(bucket)
        if kept is None:
            return None
        value, record = kept
        labels = {"request_id": record.request_id}
        if record.trace_id is not None:
            labels["trace_id"] = record.trace_id
        return Exemplar(labels, value, record.arrived_at + record.duration_s + ahead_s)


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

    def families(self, ahead_s: float = 0.0) -> Iterator[Metric]:
        """All of it, as of now; `ahead_s` turns instants of exemplars into Unix time."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, child in self._children.items():
            running = 0
            told: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
            for bucket, count in enumerate(child.counts):
                running += count
                is_last = bucket == len(self._bounds)
                bound = "+Inf" if is_last else str(self._bounds[bucket])
                exemplar = child.exemplar(bucket, ahead_s)
                told.append((bound, running) if exemplar is None else (bound, running, exemplar))
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
