"""What the gateway tells of its own process beside what it tells of requests."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.telemetry.log import RequestLog

Told = tuple[str, Callable[[], float]]


def families_of(
    gauges: Mapping[str, Told], counters: Mapping[str, Told], log: Callable[[], RequestLog | None]
) -> Callable[[], Iterator[Metric]]:
    """Families of these, each a help text and a reader, and of the request log's losses."""

    def families() -> Iterator[Metric]:
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"fairgate_{name}", text, value())
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"fairgate_{name}", text, value())
        writer = log()
        if writer is not None:
            lost = CounterMetricFamily(
                "fairgate_request_log_dropped_lines",
                "Lines of the request log that were lost: too many waited, or the disk took none.",
                labels=("reason",),
            )
            for reason, count in writer.dropped.items():
                lost.add_metric((reason,), count)
            yield lost

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
