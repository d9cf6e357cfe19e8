"""What the gateway tells of its own process beside what it tells of requests."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Told = tuple[str, Callable[[], float]]


def families_of(
    gauges: Mapping[str, Told], counters: Mapping[str, Told]
) -> Callable[[], Iterator[Metric]]:
    """Families of these, each a help text and a reader."""

    def families() -> Iterator[Metric]:
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"fairgate_{name}", text, value())
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"fairgate_{name}", text, value())

    return families


def refusals_of(counts: Mapping[tuple[str, str], int]) -> Callable[[], Iterator[Metric]]:
    """The family of the refusals by limits, which are counted elsewhere by (limit, scope)."""

    def families() -> Iterator[Metric]:
        family = CounterMetricFamily(
            "fairgate_limit_refusals",
            "Requests that a limit refused, by its kind and whose it is.",
            labels=("limit", "scope"),
        )
        for labels, count in counts.items():
            family.add_metric(labels, count)
        yield family

    return families
