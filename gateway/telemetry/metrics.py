"""Prometheus metrics: what settled requests add up to, and how the fleet stands when asked.

Names and suffixes follow llm-d's flow control, so that a dashboard needs only the prefix changed.
Labels are bounded: tiers, configured models and replicas; a name that a caller made up never
becomes one, since only admitted requests are recorded.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.freeness import freeness
from gateway.core.scheduler import Scheduler
from gateway.telemetry.record import SettledRequest

WAIT_BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
TPOT_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
OVERHEAD_BUCKETS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1)


class Metrics:
    """The registry of one gateway."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], *, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped there; they double the text and no dashboard reads them
        self.registry = CollectorRegistry()
        self._by_labels: dict[tuple[str, str, str], _Series] = {}
        self._queue = Histogram(
            "fairgate_flow_control_request_queue_duration_seconds",
            "Time from arrival to release or refusal.",
            ("tier", "outcome", "model"),
            buckets=WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self._requests = Counter(
            "fairgate_flow_control_requests",
            "Requests that were admitted to the queue, by how they ended.",
            ("tier", "outcome"),
            registry=self.registry,
        )
        self._ttft = Histogram(
            "fairgate_request_ttft_seconds",
            "Arrival to first token, queueing included; plain answers count when complete.",
            ("tier",),
            buckets=WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self._tpot = Histogram(
            "fairgate_request_streaming_tpot_seconds",
            "Time per output token of streams after their first.",
            ("tier",),
            buckets=TPOT_BUCKETS_S,
            registry=self.registry,
        )
        self._duration = Histogram(
            "fairgate_request_duration_seconds",
            "Arrival to the last byte.",
            ("tier",),
            buckets=WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self._overhead = Histogram(
            "fairgate_relay_overhead_seconds",
            "The gateway's own time before it sent a request on, queueing excluded.",
            buckets=OVERHEAD_BUCKETS_S,
            registry=self.registry,
        )
        self._tokens = Counter(
            "fairgate_tokens",
            "Tokens by kind: prompt, cached (part of prompt) and output.",
            ("tier", "kind"),
            registry=self.registry,
        )
        self._attempts = Counter(
            "fairgate_retries",
            "Attempts beyond the first, before the first byte.",
            registry=self.registry,
        )
        self._migrations = _migrations(self.registry)
        self._advised = _advised(self.registry)
        self.registry.register(_SchedulerGauges(scheduler, clock, version))

    def settled(self, record: SettledRequest) -> None:
        """Count one settled request."""
        labels = (record.tier, record.outcome, record.model)
        series = self._by_labels.get(labels)
        if series is None:
            series = self._by_labels[labels] = self._series(*labels)
        series.queue.observe(record.waited_s)
        series.requests.inc()
        series.duration.observe(record.duration_s)
        if record.ttft_s is not None:
            series.ttft.observe(record.ttft_s)
        if record.tpot_s is not None:
            series.tpot.observe(record.tpot_s)
        if record.replica:
            self._overhead.observe(record.overhead_s)
        if record.attempts > 1:
            self._attempts.inc(record.attempts - 1)
        if record.usage is not None:
            series.prompt.inc(record.usage.prompt_tokens)
            series.cached.inc(record.usage.cached_tokens)
            series.output.inc(record.usage.output_tokens)

    def advised(self, models: Iterable[str], replicas: int) -> None:
        """The replicas that serve `models` should be so many."""
        for model in models:
            self._advised.labels(model).set(replicas)

    def recalled(self, kind: str) -> None:
        """Count one move; `kind` is one of a few words of ours."""
        self._migrations.labels(kind).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _series(self, tier: str, outcome: str, model: str) -> "_Series":
        series = _Series()
        series.queue = self._queue.labels(tier, outcome, model)
        series.requests = self._requests.labels(tier, outcome)
        series.duration = self._duration.labels(tier)
        series.ttft = self._ttft.labels(tier)
        series.tpot = self._tpot.labels(tier)
        series.prompt = self._tokens.labels(tier, "prompt")
        series.cached = self._tokens.labels(tier, "cached")
        series.output = self._tokens.labels(tier, "output")
        return series


class _Series:
    """The children of one label set, looked up once."""

    __slots__ = (
        "cached", "duration", "output", "prompt", "queue", "requests", "tpot", "ttft",
    )  # fmt: skip

    queue: Histogram
    requests: Counter
    duration: Histogram
    ttft: Histogram
    tpot: Histogram
    prompt: Counter
    cached: Counter
    output: Counter


class _SchedulerGauges(Collector):
    """Gauges read from the scheduler at scrape time: removed replicas vanish by themselves."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], version: str) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._version = version
        self._started_at = time.time()

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: registering must not read the scheduler."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The gauges of this moment."""
        yield InfoMetricFamily(
            "fairgate_build", "Version of the gateway.", {"version": self._version}
        )
        yield GaugeMetricFamily(
            "fairgate_process_start_time_seconds", "Unix time of the start.", self._started_at
        )
        yield self._queue_size()
        yield from self._replicas()

    def _queue_size(self) -> Metric:
        family = GaugeMetricFamily(
            "fairgate_flow_control_queue_size", "Requests waiting now.", labels=("tier", "model")
        )
        tiers = self._scheduler.policy.tiers
        shared: dict[tuple[str, str], int] = {}
        for pool in self._scheduler.pools:
            for tier, queue in zip(tiers, pool.queues, strict=True):
                if len(pool.models) == 1:
                    family.add_metric((tier.name, *pool.models), queue.count)
                else:
                    shared |= {(tier.name, model): 0 for model in pool.models}
        if shared:
            # Models that share replicas share queues: only the requests tell them apart.
            for waiting in self._scheduler.waiting.values():
                key = (tiers[waiting.request.tier].name, waiting.request.model)
                if key in shared:
                    shared[key] += 1
        for labels, count in shared.items():
            family.add_metric(labels, count)
        return family

    def _replicas(self) -> Iterator[Metric]:
        now, policy = self._clock(), self._scheduler.policy
        gauge = _gauges(
            {
                "pool_saturation": "Share of known slots in use, 0..1, 0 while none is known.",
                "replica_freeness": "Normalised freeness for tier 0, in free slots' worth.",
                "replica_waiting_estimate": "Sequences believed to wait inside the engine.",
                "replica_inflight": "Sequences this gateway has there.",
                "replica_foreign": "Sequences there that came from elsewhere.",
                "replica_slots": "Sequences it can run at once; 0 while that is unknown.",
            }
        )
        opened = GaugeMetricFamily(
            "fairgate_replica_gate_open",
            "1 where the tier may release an ordinary request now.",
            labels=("replica", "tier"),
        )
        for pool in self._scheduler.pools:
            used = slots = 0
            for replica in pool.replicas.values():
                name = (replica.name,)
                gauge["replica_freeness"].add_metric(name, freeness(replica, pool.headroom, 0))
                gauge["replica_waiting_estimate"].add_metric(name, replica.waiting)
                gauge["replica_inflight"].add_metric(name, replica.occupied - replica.foreign)
                gauge["replica_foreign"].add_metric(name, replica.foreign)
                gauge["replica_slots"].add_metric(name, replica.slots or 0)
                open_tiers = pool.open_tiers(replica, now)
                for rank, tier in enumerate(policy.tiers):
                    opened.add_metric((replica.name, tier.name), float(rank < open_tiers))
                if replica.is_usable:
                    used += replica.occupied
                    slots += replica.slots or 0
            saturation = used / slots if slots else 0.0
            gauge["pool_saturation"].add_metric((",".join(sorted(pool.models)),), saturation)
        yield from gauge.values()
        yield opened


def _migrations(registry: CollectorRegistry) -> Counter:
    return Counter(
        "fairgate_migrations",
        "Requests that were moved between replicas or taken back from one, by kind.",
        ("kind",),
        registry=registry,
    )


def _advised(registry: CollectorRegistry) -> Gauge:
    return Gauge(
        "fairgate_scale_advised_replicas",
        "Replicas that should serve the model, as last advised.",
        ("model",),
        registry=registry,
    )


def _gauges(helps: dict[str, str]) -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(
            "fairgate_flow_control_pool_saturation"
            if name == "pool_saturation"
            else f"fairgate_{name}",
            text,
            labels=("pool" if name == "pool_saturation" else "replica",),
        )
        for name, text in helps.items()
    }
