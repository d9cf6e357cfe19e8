"""Prometheus metrics: what settled requests add up to, and how the fleet stands when asked.

Names and suffixes follow llm-d's flow control, so that a dashboard needs only the prefix changed.
Labels are bounded: tiers, configured models and replicas, some of the tenants; a name that a caller
made up never becomes one, since only admitted requests are recorded.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from time import time

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.policy import Policy
from gateway.core.scheduler import Scheduler
from gateway.telemetry.gauges import SchedulerGauges
from gateway.telemetry.goodput import Targets, is_met, targets_of
from gateway.telemetry.record import SettledRequest
from gateway.telemetry.series import Buckets, Count, Counter, Histogram
from gateway.telemetry.tenants import Tenants

WAIT_BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
TPOT_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
LAG_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
MET = ("true", "false")
MIGRATIONS = ("queued", "continued")
"""Kinds of moves; each has its series from the start, so that its first one shows in rates."""
EXEMPLAR_EVERY = 8
"""Of requests that are nothing special one in so many is an exemplar: each costs a microsecond."""
OPEN_METRICS = "application/openmetrics-text"
OVERHEAD_BUCKETS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1)


class Metrics:
    """The registry of one gateway."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
        *,
        version: str,
        wall: Callable[[], float] = time,
    ) -> None:
        """`clock` is that of the records' instants; `wall` tells seconds since 1970."""
        self.registry = CollectorRegistry()
        self._scheduler, self._clock, self._wall = scheduler, clock, wall
        self._by_labels: dict[tuple[str, str, str], _Series] = {}
        self._policy: Policy | None = None
        """That of which `_by_labels` has the targets."""
        self._keeps_exemplars = False
        """Whether anybody ever asked in a format that has a place for them."""
        self._passed_over = 0
        self._queue, self._ttft, self._tpot, self._duration = _times()
        self._requests, self._goodput, self._tokens = _counts()
        self._overhead_of_all = _overhead()
        self._overhead = self._overhead_of_all.of()
        self._tenants = Tenants()
        self._retries = Counter(
            "fairgate_retries", "Attempts beyond the first, before the first byte."
        )
        self._attempts = self._retries.of()
        self._migrations = Counter(
            "fairgate_migrations",
            "Requests that were moved between replicas or taken back from one, by kind.",
            ("kind",),
        )
        for kind in MIGRATIONS:
            self._migrations.of(kind)
        self._lag_of_all = _lag()
        self._told_by: list[Callable[[], Iterator[Metric]]] = []
        self._advised: dict[str, int] = {}
        self.leads: Callable[[str], bool] = lambda _: True
        """Whether this gateway tells of the queues and replicas of a model: one of several does."""
        self._targets: dict[str, Targets] = {}
        self.registry.register(_Counted(self))
        gauges = SchedulerGauges(
            scheduler, clock, version, shown=lambda: self._tenants.shown, leads=self._leads
        )
        self.registry.register(gauges)
        ProcessCollector(namespace="fairgate", registry=self.registry)

    def tell_also(self, families: Callable[[], Iterator[Metric]]) -> None:
        """Ask `families` too at each scrape."""
        self._told_by.append(families)

    def lag(self, lag_s: float) -> None:
        """Count one look at the event loop's lag."""
        self._lag_of_all.of().observe(lag_s)

    def settled(self, record: SettledRequest) -> None:
        """Count one settled request."""
        if self._scheduler.policy is not self._policy:
            self._follow(self._scheduler.policy)
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
        met = is_met(record, series.targets)
        if met is not None:
            (series.met if met else series.missed).add(1)
        self._tenants.settled(record)
        if self._keeps_exemplars:
            self._keep(series, record, is_missed=met is False)

    def _keep(self, series: "_Series", record: SettledRequest, *, is_missed: bool) -> None:
        """Those that are looked for stand for their buckets, of all others only some."""
        self._passed_over += 1
        if is_missed or record.trace_id is not None or self._passed_over >= EXEMPLAR_EVERY:
            self._passed_over = 0
            series.keep(record)

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
        return self.exposed("")[0]

    def exposed(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that `accept`, a header, asks for, and its media type.

        OpenMetrics has a place for exemplars: they are kept from the first time it is asked for.
        """
        encode, media_type = choose_encoder(accept)
        self._keeps_exemplars = self._keeps_exemplars or media_type.startswith(OPEN_METRICS)
        return encode(self.registry), media_type

    def families(self) -> Iterator[Metric]:
        """All that was counted, as of now."""
        if self._scheduler.policy is not self._policy:
            self._follow(self._scheduler.policy)
        ahead_s = self._wall() - self._clock()
        for each in (
            self._queue, self._ttft, self._tpot, self._duration, self._overhead_of_all,
            self._lag_of_all,
        ):  # fmt: skip
            yield from each.families(ahead_s)
        for counter in (
            self._requests, self._goodput, self._tokens, self._retries, self._migrations
        ):  # fmt: skip
            yield from counter.families()
        self._tenants.rank(self._clock())
        yield from self._tenants.families()
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

    def _follow(self, policy: Policy) -> None:
        """Judge by other targets; each tier has its series from the start, so that rates do."""
        self._policy = policy
        self._by_labels = {}
        self._targets = {tier.name: targets_of(tier) for tier in policy.tiers}
        for name in self._targets:
            for met in MET:
                self._goodput.of(name, met)

    def _series(self, tier: str, outcome: str, model: str) -> "_Series":
        targets = self._targets.get(tier)
        return _Series(
            targets=Targets() if targets is None else targets,
            met=self._goodput.of(tier, MET[0]),
            missed=self._goodput.of(tier, MET[1]),
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

    targets: Targets
    met: Count
    missed: Count
    queue: Buckets
    requests: Count
    duration: Buckets
    ttft: Buckets
    tpot: Buckets
    prompt: Count
    cached: Count
    output: Count

    def keep(self, record: SettledRequest) -> None:
        """Let the request stand for those of its size."""
        self.queue.keep(record.waited_s, record)
        self.duration.keep(record.duration_s, record)
        if record.ttft_s is not None:
            self.ttft.keep(record.ttft_s, record)
        if record.tpot_s is not None:
            self.tpot.keep(record.tpot_s, record)


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


def _times() -> tuple[Histogram, Histogram, Histogram, Histogram]:
    """In the queue, to the first token, for each further one, and of the whole."""
    return (
        Histogram(
            "fairgate_flow_control_request_queue_duration_seconds",
            "Time from arrival to release or refusal.",
            ("tier", "outcome", "model"),
            bounds=WAIT_BUCKETS_S,
        ),
        Histogram(
            "fairgate_request_ttft_seconds",
            "Arrival to first token, queueing included; plain answers count when complete.",
            ("tier",),
            bounds=WAIT_BUCKETS_S,
        ),
        Histogram(
            "fairgate_request_streaming_tpot_seconds",
            "Time per output token of streams after their first.",
            ("tier",),
            bounds=TPOT_BUCKETS_S,
        ),
        Histogram(
            "fairgate_request_duration_seconds",
            "Arrival to the last byte.",
            ("tier",),
            bounds=WAIT_BUCKETS_S,
        ),
    )


def _counts() -> tuple[Counter, Counter, Counter]:
    """Requests by outcome and by whether they met their targets, and tokens."""
    return (
        Counter(
            "fairgate_flow_control_requests",
            "Requests that were admitted to the queue, by how they ended.",
            ("tier", "outcome"),
        ),
        Counter(
            "fairgate_goodput_requests",
            "Requests by whether they met the targets of their tier: first token and pace.",
            ("tier", "met"),
        ),
        Counter(
            "fairgate_tokens",
            "Tokens by kind: prompt, cached (part of prompt) and output.",
            ("tier", "kind"),
        ),
    )


def _overhead() -> Histogram:
    return Histogram(
        "fairgate_relay_overhead_seconds",
        "The gateway's own time before it sent a request on, queueing excluded.",
        bounds=OVERHEAD_BUCKETS_S,
    )


def _lag() -> Histogram:
    return Histogram(
        "fairgate_event_loop_lag_seconds",
        "How much later than due the event loop ran a timer, looked at ten times a second.",
        bounds=LAG_BUCKETS_S,
    )
