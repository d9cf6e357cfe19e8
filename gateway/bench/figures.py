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
Quantity = Callable[[Run], float | None]
"""What one run says; None when it does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the report, smaller is better where there is a target."""

    key: str
    title: str
    unit: str
    scenario: str
    take: Quantity
    is_added: bool = False
    """The direct run's value is subtracted: what the gateway adds."""
    target: float | None = None
    stretch: float | None = None
    scaled_by: str | None = None
    """The CPU figure whose ratio between two machines is this one's too; None: it has none."""

    def of(self, runs: Runs) -> float | None:
        """The absolute value for one target, from its runs of one round."""
        run = runs.get(self.scenario)
        return None if run is None else self.take(run)

    def through(self, through: Runs, direct: Runs) -> float | None:
        """The value for a contender, from its runs and the direct ones of the same round."""
        value, base = self.of(through), self.of(direct)
        if not self.is_added or value is None:
            return value
        return None if base is None else value - base

    def verdict(self, value: float | None) -> str:
        """One of "stretch", "met" and "not met"; empty without a target or a value."""
        if self.target is None or value is None:
            return ""
        if self.stretch is not None and value <= self.stretch:
            return "stretch"
        return "met" if value <= self.target else "not met"


def cpu_us_per(work: Callable[[LoadResult], int]) -> Quantity:
    """CPU time of the contender's process tree for each piece of work that arrived."""

    def value(run: Run) -> float | None:
        if run.contender is None or not work(run.load):
            return None
        return run.contender.cpu_s * 1e6 / work(run.load)

    return value


def rate_per_s(work: Callable[[LoadResult], int]) -> Quantity:
    """How much work arrived each second."""
    return lambda run: work(run.load) / run.load.elapsed_s if run.load.elapsed_s else None


def quantile(
    of: Callable[[LoadResult], Quantiles | None], share: str, *, per_unit: float = 1.0
) -> Quantity:
    """`share` ("p50" or "p99") of times in us, in units of so many us."""
    assert share in ("p50", "p99"), f"no quantile {share}"

    def value(run: Run) -> float | None:
        quantiles = of(run.load)
        if quantiles is None:
            return None
        return (quantiles.p50 if share == "p50" else quantiles.p99) / per_unit

    return value


def requests(load: LoadResult) -> int:
    """Whole answers."""
    return load.requests


def events(load: LoadResult) -> int:
    """Content events of all streams."""
    return load.events


def latency_us(share: str) -> Quantity:
    """Of whole requests."""
    return quantile(lambda load: load.latency_us, share)


def ttft_ms(share: str) -> Quantity:
    """From sending a request to its first content event."""
    return quantile(lambda load: load.ttft_us, share, per_unit=US_PER_MS)


def chunk_delay_ms(share: str) -> Quantity:
    """From an event's stamp at the engine to its arrival at the client."""
    return quantile(lambda load: load.chunk_delay_us, share, per_unit=US_PER_MS)


def rest_mb(run: Run) -> float | None:
    """Memory before the scenario's first connection."""
    return run.contender.rss_at_rest_bytes / 1e6 if run.contender else None


def stream_kb(run: Run) -> float | None:
    """Growth of memory from one open stream to all, for each of the others."""
    others = run.load.open_connections - 1
    if run.contender is None or others < 1:
        return None
    return (run.contender.rss_bytes - run.contender.rss_alone_bytes) / 1e3 / others


def open_streams(run: Run) -> float:
    """Streams in progress when the window ended."""
    return float(run.load.open_connections)


CPU_PER_REQUEST = Figure(
    key="cpu_per_request_us",
    title="CPU per plain request, 32 clients",
    unit="us",
    scenario=scenarios.MANY_CLIENTS,
    take=cpu_us_per(requests),
    target=120,
    stretch=72,
    scaled_by="cpu_per_request_us",
)
CPU_PER_EVENT_5K = Figure(
    key="cpu_per_event_5k_us",
    title="CPU per SSE event, 200 streams, 5k/s",
    unit="us",
    scenario=scenarios.STREAMS_5K,
    take=cpu_us_per(events),
    target=32,
    stretch=24,
    scaled_by="cpu_per_event_5k_us",
)
CPU_PER_EVENT_20K = Figure(
    key="cpu_per_event_20k_us",
    title="CPU per SSE event, 200 streams, 20k/s",
    unit="us",
    scenario=scenarios.STREAMS_20K,
    take=cpu_us_per(events),
    target=28,
    stretch=20,
    scaled_by="cpu_per_event_20k_us",
)
FIGURES = (
    Figure(
        key="cpu_per_request_1_us",
        title="CPU per plain request, 1 client",
        unit="us",
        scenario=scenarios.ONE_CLIENT,
        take=cpu_us_per(requests),
        scaled_by="cpu_per_request_us",
    ),
    CPU_PER_REQUEST,
    Figure(
        key="requests_per_s",
        title="plain requests, 32 clients",
        unit="/s",
        scenario=scenarios.MANY_CLIENTS,
        take=rate_per_s(requests),
    ),
    CPU_PER_EVENT_5K,
    CPU_PER_EVENT_20K,
    Figure(
        key="events_20k_per_s",
        title="SSE events delivered of 20k/s",
        unit="/s",
        scenario=scenarios.STREAMS_20K,
        take=rate_per_s(events),
    ),
    Figure(
        key="latency_added_p50_us",
        title="latency added, 1 client, p50",
        unit="us",
        scenario=scenarios.ONE_CLIENT,
        take=latency_us("p50"),
        is_added=True,
        target=250,
        stretch=150,
        scaled_by="cpu_per_request_us",
    ),
    Figure(
        key="latency_added_p99_us",
        title="latency added, 1 client, p99",
        unit="us",
        scenario=scenarios.ONE_CLIENT,
        take=latency_us("p99"),
        is_added=True,
        target=500,
        scaled_by="cpu_per_request_us",
    ),
    *(
        Figure(
            key=f"latency_added_{key}_{share}_us",
            title=f"latency added, {title}, {share}",
            unit="us",
            scenario=scenario,
            take=latency_us(share),
            is_added=True,
            scaled_by="cpu_per_request_us",
        )
        for key, title, scenario in (
            ("32", "32 clients without a pause", scenarios.MANY_CLIENTS),
            ("steady", "32 clients, 500/s", scenarios.STEADY_RATE),
        )
        for share in ("p50", "p99")
    ),
    Figure(
        key="ttft_added_p50_ms",
        title="TTFT added, idle, p50",
        unit="ms",
        scenario=scenarios.FIRST_EVENT,
        take=ttft_ms("p50"),
        is_added=True,
        scaled_by="cpu_per_request_us",
    ),
    Figure(
        key="ttft_added_p99_ms",
        title="TTFT added, idle, p99",
        unit="ms",
        scenario=scenarios.FIRST_EVENT,
        take=ttft_ms("p99"),
        is_added=True,
        target=1.0,
        stretch=0.5,
        scaled_by="cpu_per_request_us",
    ),
    *(
        Figure(
            key=f"ttft_added_5k_{share}_ms",
            title=f"TTFT added, 200 streams, 5k/s, {share}",
            unit="ms",
            scenario=scenarios.STREAMS_5K,
            take=ttft_ms(share),
            is_added=True,
            scaled_by="cpu_per_event_5k_us",
        )
        for share in ("p50", "p99")
    ),
    *(
        Figure(
            key=f"jitter_added_{rate}_p99_ms",
            title=f"chunk delay added, 200 streams, {rate}/s, p99",
            unit="ms",
            scenario=scenario,
            take=chunk_delay_ms("p99"),
            is_added=True,
            target=2.0,
            stretch=1.0,
            scaled_by=f"cpu_per_event_{rate}_us",
        )
        for rate, scenario in (("5k", scenarios.STREAMS_5K), ("20k", scenarios.STREAMS_20K))
    ),
    Figure(
        key="memory_at_rest_mb",
        title="memory at rest",
        unit="MB",
        scenario=scenarios.OPEN_STREAMS,
        take=rest_mb,
        target=80,
        stretch=60,
    ),
    Figure(
        key="memory_per_stream_kb",
        title="memory per open stream, from 1 to 1000",
        unit="kB",
        scenario=scenarios.OPEN_STREAMS,
        take=stream_kb,
        target=30,
        stretch=21,
    ),
    Figure(
        key="open_streams",
        title="streams open of 1000",
        unit="",
        scenario=scenarios.OPEN_STREAMS,
        take=open_streams,
    ),
)
"""In the report's order. Peers' figures beside which the targets stand are in the documentation."""
