"""What the runs of one round say: the figures, their targets, and how each is derived.

A figure is taken within one round, from runs that lie next to each other; medians over rounds are
taken later.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.bench import scenarios
from gateway.bench.load_spec import LoadResult
from gateway.bench.process import Usage
from gateway.bench.quantiles import Quantiles

US_PER_MS = 1_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One load against one target; `contender` is None when it went directly to the engine."""

    load: LoadResult
    upstream: Usage
    contender: Usage | None = None


Runs = Mapping[str, Run]
"""The runs of one round against one target, by scenario."""
Absolute = Callable[[Runs], float | None]
"""A quantity of one target's runs; None when they do not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the report, smaller is better where there is a target."""

    key: str
    title: str
    unit: str
    of: Absolute
    is_added: bool = False
    """The direct runs' value is subtracted: what the gateway adds."""
    target: float | None = None
    stretch: float | None = None

    def through(self, through: Runs, direct: Runs) -> float | None:
        """The value for a contender, from its runs and the direct ones of the same round."""
        value, base = self.of(through), self.of(direct)
        if not self.is_added or value is None:
            return value
        return None if base is None else value - base

    def is_met(self, value: float) -> bool | None:
        """Whether `value` keeps the target; None without one."""
        return None if self.target is None else value <= self.target


def cpu_per_request_us(scenario: str) -> Absolute:
    """CPU time of the contender's process tree for each request."""
    return _cpu_us_per(scenario, lambda load: load.requests)


def cpu_per_event_us(scenario: str) -> Absolute:
    """CPU time of the contender's process tree for each delivered event."""
    return _cpu_us_per(scenario, lambda load: load.events)


def latency_us(scenario: str, share: str) -> Absolute:
    """Of whole requests; `share` is "p50" or "p99"."""
    return _quantile(scenario, lambda load: load.latency_us, share)


def ttft_ms(scenario: str, share: str) -> Absolute:
    """From sending a request to its first content event."""
    return _quantile(scenario, lambda load: load.ttft_us, share, per_unit=US_PER_MS)


def chunk_delay_ms(scenario: str, share: str) -> Absolute:
    """From an event's stamp at the engine to its arrival at the client."""
    return _quantile(scenario, lambda load: load.chunk_delay_us, share, per_unit=US_PER_MS)


def rest_mb(scenario: str) -> Absolute:
    """Memory before the scenario's first connection."""

    def value(runs: Runs) -> float | None:
        usage = _contender(runs, scenario)
        return usage.rss_at_rest_bytes / 1e6 if usage else None

    return value


def stream_kb(scenario: str) -> Absolute:
    """Growth of memory for each stream that is open at the end of the window."""

    def value(runs: Runs) -> float | None:
        usage = _contender(runs, scenario)
        if usage is None or not runs[scenario].load.open_connections:
            return None
        grown_bytes = usage.rss_bytes - usage.rss_at_rest_bytes
        return grown_bytes / 1e3 / runs[scenario].load.open_connections

    return value


def rate_per_s(scenario: str, work: Callable[[LoadResult], int]) -> Absolute:
    """How much work arrived each second."""

    def value(runs: Runs) -> float | None:
        load = runs[scenario].load if scenario in runs else None
        return work(load) / load.elapsed_s if load and load.elapsed_s else None

    return value


def _cpu_us_per(scenario: str, work: Callable[[LoadResult], int]) -> Absolute:
    def value(runs: Runs) -> float | None:
        usage = _contender(runs, scenario)
        if usage is None or not work(runs[scenario].load):
            return None
        return usage.cpu_s * 1e6 / work(runs[scenario].load)

    return value


def _quantile(
    scenario: str,
    of: Callable[[LoadResult], Quantiles | None],
    share: str,
    *,
    per_unit: float = 1.0,
) -> Absolute:
    assert share in ("p50", "p99"), f"no quantile {share}"

    def value(runs: Runs) -> float | None:
        quantiles = of(runs[scenario].load) if scenario in runs else None
        if quantiles is None:
            return None
        return (quantiles.p50 if share == "p50" else quantiles.p99) / per_unit

    return value


def _contender(runs: Runs, scenario: str) -> Usage | None:
    return runs[scenario].contender if scenario in runs else None


CPU_PER_REQUEST = Figure(
    key="cpu_per_request_us",
    title="CPU per plain request, 32 connections",
    unit="us",
    of=cpu_per_request_us(scenarios.MANY_CLIENTS),
    target=120,
    stretch=72,
)
CPU_PER_EVENT = Figure(
    key="cpu_per_event_5k_us",
    title="CPU per SSE event, 200 streams, 5k/s",
    unit="us",
    of=cpu_per_event_us(scenarios.STREAMS_5K),
    target=32,
    stretch=24,
)
FIGURES = (
    CPU_PER_REQUEST,
    Figure(
        key="requests_per_s",
        title="plain requests, 32 connections",
        unit="/s",
        of=rate_per_s(scenarios.MANY_CLIENTS, lambda load: load.requests),
    ),
    CPU_PER_EVENT,
    Figure(
        key="cpu_per_event_20k_us",
        title="CPU per SSE event, 200 streams, 20k/s",
        unit="us",
        of=cpu_per_event_us(scenarios.STREAMS_20K),
        target=28,
        stretch=20,
    ),
    Figure(
        key="events_20k_per_s",
        title="SSE events delivered of 20k/s",
        unit="/s",
        of=rate_per_s(scenarios.STREAMS_20K, lambda load: load.events),
    ),
    Figure(
        key="latency_added_p50_us",
        title="latency added, 1 connection, p50",
        unit="us",
        of=latency_us(scenarios.ONE_CLIENT, "p50"),
        is_added=True,
        target=250,
        stretch=150,
    ),
    Figure(
        key="latency_added_p99_us",
        title="latency added, 1 connection, p99",
        unit="us",
        of=latency_us(scenarios.ONE_CLIENT, "p99"),
        is_added=True,
        target=500,
    ),
    Figure(
        key="ttft_added_p50_ms",
        title="TTFT added, idle, p50",
        unit="ms",
        of=ttft_ms(scenarios.FIRST_EVENT, "p50"),
        is_added=True,
    ),
    Figure(
        key="ttft_added_p99_ms",
        title="TTFT added, idle, p99",
        unit="ms",
        of=ttft_ms(scenarios.FIRST_EVENT, "p99"),
        is_added=True,
        target=1.0,
        stretch=0.5,
    ),
    Figure(
        key="ttft_added_5k_p50_ms",
        title="TTFT added, 200 streams, 5k/s, p50",
        unit="ms",
        of=ttft_ms(scenarios.STREAMS_5K, "p50"),
        is_added=True,
    ),
    Figure(
        key="ttft_added_5k_p99_ms",
        title="TTFT added, 200 streams, 5k/s, p99",
        unit="ms",
        of=ttft_ms(scenarios.STREAMS_5K, "p99"),
        is_added=True,
    ),
    Figure(
        key="jitter_added_5k_p99_ms",
        title="chunk delay added, 200 streams, 5k/s, p99",
        unit="ms",
        of=chunk_delay_ms(scenarios.STREAMS_5K, "p99"),
        is_added=True,
        target=2.0,
        stretch=1.0,
    ),
    Figure(
        key="jitter_added_20k_p99_ms",
        title="chunk delay added, 200 streams, 20k/s, p99",
        unit="ms",
        of=chunk_delay_ms(scenarios.STREAMS_20K, "p99"),
        is_added=True,
        target=2.0,
        stretch=1.0,
    ),
    Figure(
        key="memory_at_rest_mb",
        title="memory at rest",
        unit="MB",
        of=rest_mb(scenarios.OPEN_STREAMS),
        target=80,
        stretch=60,
    ),
    Figure(
        key="memory_per_stream_kb",
        title="memory per open stream, 1000 streams",
        unit="kB",
        of=stream_kb(scenarios.OPEN_STREAMS),
        target=30,
        stretch=21,
    ),
)
"""In the report's order. Peers' figures beside which the targets stand are in the documentation."""
