"""Prometheus metrics: what settled requests add up to, and how the fleet stands when asked.

Names and suffixes follow llm-d's flow control, so that a dashboard needs only the prefix changed.
Labels are bounded: tiers, configured models and replicas; a name that a caller made up never
becomes one, since only admitted requests are recorded.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.breaker import Breaker
from gateway.core.freeness import freeness
from gateway.core.pool import Pool
from gateway.core.scheduler import Scheduler
from gateway.telemetry.record import SettledRequest
from gateway.telemetry.series import Buckets, Count, Counter, Histogram

WAIT_BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
TPOT_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
BREAKER_STATES = (Breaker.CLOSED, Breaker.HALF_OPEN, Breaker.OPEN)
"""By the value of their gauge."""
LAG_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
OVERHEAD_BUCKETS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1)


class Metrics:
    """The registry of one gateway."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], *, version: str) -> None:
        self.registry = CollectorRegistry()
        self._by_labels: dict[tuple[str, str, str], _Series] = {}
        self._queue = Histogram(
            "fairgate_flow_control_request_queue_duration_seconds",
            "Time from arrival to release or refusal.",
            ("tier", "outcome", "model"),
            bounds=WAIT_BUCKETS_S,
        )
        self._requests = Counter(
            "fairgate_flow_control_requests",
            "Requests that were admitted to the queue, by how they ended.",
            ("tier", "outcome"),
        )
        self._ttft = Histogram(
            "fairgate_request_ttft_seconds",
            "Arrival to first token, queueing included; plain answers count when complete.",
            ("tier",),
            bounds=WAIT_BUCKETS_S,
        )
        self._tpot = Histogram(
            "fairgate_request_streaming_tpot_seconds",
            "Time per output token of streams after their first.",
            ("tier",),
            bounds=TPOT_BUCKETS_S,
        )
        self._duration = Histogram(
            "fairgate_request_duration_seconds",
            "Arrival to the last byte.",
            ("tier",),
            bounds=WAIT_BUCKETS_S,
        )
        self._overhead_of_all = Histogram(
            "fairgate_relay_overhead_seconds",
            "The gateway's own time before it sent a request on, queueing excluded.",
            bounds=OVERHEAD_BUCKETS_S,
        )
        self._overhead = self._overhead_of_all.of()
        self._tokens = Counter(
            "fairgate_tokens",
            "Tokens by kind: prompt, cached (part of prompt) and output.",
            ("tier", "kind"),
        )
        self._retries = Counter(
            "fairgate_retries", "Attempts beyond the first, before the first byte."
        )
        self._attempts = self._retries.of()
        self._migrations = Counter(
            "fairgate_migrations",
            "Requests that were moved between replicas or taken back from one, by kind.",
            ("kind",),
        )
        self._lag_of_all = _lag()
        self._told_by: list[Callable[[], Iterator[Metric]]] = []
        self._advised: dict[str, int] = {}
        self.leads: Callable[[str], bool] = lambda _: True
        """Whether this gateway tells of the queues and replicas of a model: one of several does."""
        self.registry.register(_Counted(self))
        self.registry.register(_SchedulerGauges(scheduler, clock, version, self._leads))
        ProcessCollector(namespace="fairgate", registry=self.registry)

    def tell_also(self, families: Callable[[], Iterator[Metric]]) -> None:
        """Ask `families` too at each scrape."""
        self._told_by.append(families)

    def lag(self, lag_s: float) -> None:
        """Count one look at the event loop's lag."""
        self._lag_of_all.of().observe(lag_s)

    def settled(self, record: SettledRequest) -> None:
        """Count one settled request."""
        labels = (record.tier, record.outcome, record.model)
        series = self._by_labels.get(labels)
        if series is None:
            series = self._by_labels[labels] = self._series(*labels)
        series.queue.observe(record.waited_s)
        series.requests.add(1)
        series.duration.observe(record.duration_s)
        if record.ttft_s is not None:
            series.ttft.observe(record.ttft_s)
        if record.tpot_s is not None:
            series.tpot.observe(record.tpot_s)
        if record.replica:
            self._overhead.observe(record.overhead_s)
        if record.attempts > 1:
            self._attempts.add(record.attempts - 1 - record.continuations)
        if record.continuations:
            self._migrations.of("continued").add(record.continuations)
        if record.usage is not None:
            series.prompt.add(record.usage.prompt_tokens)
            series.cached.add(record.usage.cached_tokens)
            series.output.add(record.usage.output_tokens)

    def advised(self, models: Iterable[str], replicas: int) -> None:
        """The replicas that serve `models` should be so many."""
        self._advised |= dict.fromkeys(models, replicas)

    def forget_advice(self, models: Collection[str]) -> None:
        """Tell the last advice for these models only: the others have no replica any more."""
        self._advised = {model: self._advised[model] for model in self._advised if model in models}

    def recalled(self, kind: str) -> None:
        """Count one move; `kind` is one of a few words of ours."""
        self._migrations.of(kind).add(1)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def families(self) -> Iterator[Metric]:
        """All that was counted, as of now."""
        for each in (
            self._queue, self._requests, self._ttft, self._tpot, self._duration,
            self._overhead_of_all, self._tokens, self._retries, self._migrations, self._lag_of_all,
        ):  # fmt: skip
            yield from each.families()
        yield self._advice()
        for families in self._told_by:
            yield from families()

    def _advice(self) -> Metric:
        family = GaugeMetricFamily(
            "fairgate_scale_advised_replicas",
            "Replicas that should serve the model, as last advised.",
            labels=("model",),
        )
        for model, replicas in self._advised.items():
            if self.leads(model):
                family.add_metric((model,), replicas)
        return family

    def _leads(self, model: str) -> bool:
        return self.leads(model)

    def _series(self, tier: str, outcome: str, model: str) -> "_Series":
        return _Series(
            queue=self._queue.of(tier, outcome, model),
            requests=self._requests.of(tier, outcome),
            duration=self._duration.of(tier),
            ttft=self._ttft.of(tier),
            tpot=self._tpot.of(tier),
            prompt=self._tokens.of(tier, "prompt"),
            cached=self._tokens.of(tier, "cached"),
            output=self._tokens.of(tier, "output"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """The children of one label set, looked up once."""

    queue: Buckets
    requests: Count
    duration: Buckets
    ttft: Buckets
    tpot: Buckets
    prompt: Count
    cached: Count
    output: Count


class _Counted(Collector):
    """What was counted until a scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: the names are checked by a test."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of it."""
        return self._metrics.families()


class _SchedulerGauges(Collector):
    """Gauges read from the scheduler at scrape time: removed replicas vanish by themselves."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
        version: str,
        leads: Callable[[str], bool],
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._version = version
        self._leads = leads

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: registering must not read the scheduler."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The gauges of this moment."""
        yield InfoMetricFamily(
            "fairgate_build", "Version of the gateway.", {"version": self._version}
        )
        pools = [
            pool for pool in self._scheduler.pools if self._leads(min(pool.models, default=""))
        ]
        yield self._queue_size(pools)
        yield from self._replicas(pools)

    def _queue_size(self, pools: Iterable[Pool]) -> Metric:
        family = GaugeMetricFamily(
            "fairgate_flow_control_queue_size", "Requests waiting now.", labels=("tier", "model")
        )
        tiers = self._scheduler.policy.tiers
        shared: dict[tuple[str, str], int] = {}
        for pool in pools:
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

    def _replicas(self, pools: Iterable[Pool]) -> Iterator[Metric]:
        now, policy = self._clock(), self._scheduler.policy
        gauge = _gauges(
            {
                "pool_saturation": "Share of known slots in use, 0..1, 0 while none is known.",
                "replica_freeness": "Normalised freeness for tier 0, in free slots' worth.",
                "replica_waiting_estimate": "Sequences believed to wait inside the engine.",
                "replica_inflight": "Sequences this gateway has there.",
                "replica_foreign": "Sequences there that came from elsewhere.",
                "replica_breaker_state": "0 closed, 1 half open, 2 open: nothing new goes there.",
                "replica_slots": "Sequences it can run at once; 0 while that is unknown.",
            }
        )
        opened = GaugeMetricFamily(
            "fairgate_replica_gate_open",
            "1 where the tier may release an ordinary request now.",
            labels=("replica", "tier"),
        )
        for pool in pools:
            used = slots = 0
            for replica in pool.replicas.values():
                name = (replica.name,)
                gauge["replica_freeness"].add_metric(name, freeness(replica, pool.headroom, 0))
                gauge["replica_waiting_estimate"].add_metric(name, replica.waiting)
                gauge["replica_inflight"].add_metric(name, replica.occupied - replica.foreign)
                gauge["replica_foreign"].add_metric(name, replica.foreign)
                state = BREAKER_STATES.index(replica.circuit.state(now))
                gauge["replica_breaker_state"].add_metric(name, state)
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


def _lag() -> Histogram:
    return Histogram(
        "fairgate_event_loop_lag_seconds",
        "How much later than due the event loop ran a timer, looked at ten times a second.",
        bounds=LAG_BUCKETS_S,
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
