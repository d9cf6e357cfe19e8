"""How queues and replicas stand at the moment somebody asks, read from the scheduler.

Nothing is kept between two looks but the tags by which fairness is judged, so a replica or a model
that is gone vanishes by itself, and a gateway that nobody asks spends nothing on it.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core import scheduler as scheduler_module
from gateway.core.breaker import Breaker
from gateway.core.explain import gates_at, shut_by
from gateway.core.freeness import freeness
from gateway.core.gate import Closed, Gates
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.core.scheduler import Scheduler
from gateway.telemetry.fairness import Evenness
from gateway.telemetry.tenants import OTHER

BREAKER_STATES = (Breaker.CLOSED, Breaker.HALF_OPEN, Breaker.OPEN)
"""By the value of their gauge."""
OF_REPLICAS: Mapping[str, str] = MappingProxyType(
    {
        "freeness": "Normalised freeness for tier 0, in free slots' worth.",
        "waiting_estimate": "Sequences believed to wait inside the engine.",
        "inflight": "Sequences this gateway has there.",
        "foreign": "Sequences there that came from elsewhere.",
        "breaker_state": "0 closed, 1 half open, 2 open: nothing new goes there.",
        "slots": "Sequences it can run at once; 0 while that is unknown.",
        "draining": "1 while it only finishes what runs there.",
        "report_stale": "1 while its own metrics are too old to be believed, or never came.",
        "silent_seconds": "For how long it has shown no sign of work while it has some of ours.",
    }
)
KNOWN_OF_REPLICAS: Mapping[str, str] = MappingProxyType(
    {
        "report_age_seconds": "Seconds since its own metrics last came; nothing before the first.",
        "tpot_seconds": "Time per output token, as measured; nothing while that is unknown.",
        "kv_tokens": "Tokens in its KV cache; nothing where its size is unknown.",
        "kv_capacity_tokens": "Tokens that fit into its KV cache; nothing where that is unknown.",
        "inflight_limit": "Sequences that it gets at most for its speed; nothing without a limit.",
    }
)


class SchedulerGauges(Collector):
    """Gauges read from the scheduler at scrape time: removed replicas vanish by themselves."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
        version: str,
        *,
        shown: Callable[[], frozenset[str]],
        leads: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`shown`: the tenants that have series of their own. `leads`: see `Metrics.leads`."""
        self._scheduler = scheduler
        self._clock = clock
        self._version = version
        self._shown = shown
        self._leads = leads
        self._evenness = Evenness()

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: registering must not read the scheduler."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The gauges of this moment."""
        now = self._clock()
        yield self._build()
        pools = [
            pool for pool in self._scheduler.pools if self._leads(min(pool.models, default=""))
        ]
        yield from self._tiers(pools, now)
        yield from self._lines(pools, now)
        yield self._tenants_waiting()
        yield from self._replicas(pools, now)

    def _build(self) -> Metric:
        is_compiled = not (scheduler_module.__file__ or "").endswith(".py")
        labels = {
            "version": self._version,
            "python": ".".join(map(str, sys.version_info[:3])),
            "compiled": "true" if is_compiled else "false",
        }
        return InfoMetricFamily(
            "fairgate_build", "Version of the gateway, and what it runs as.", labels
        )

    def _tiers(self, pools: Sequence[Pool], now: float) -> Iterator[Metric]:
        """What is promised to each tier, what runs of it, and how evenly it was served."""
        tiers = self._scheduler.policy.tiers
        patience = _gauge("tier_patience_seconds", "How long a request may wait.", "tier")
        ttft = _gauge("tier_ttft_target_seconds", "Target for the first token.", "tier")
        tpot = _gauge("tier_tpot_target_seconds", "Target for each further token.", "tier")
        running = _gauge("flow_control_running", "Requests that replicas have.", "tier")
        index = _gauge(
            "fairness_jain_index",
            "Jain's index of the service over weight of those who waited all the time: 1 is even.",
            "tier",
        )
        counts = [0] * len(tiers)
        for replica in (each for pool in pools for each in pool.replicas.values()):
            for rank, count in enumerate(replica.ledger.by_tier):
                counts[rank] += count
        for tier, count in zip(tiers, counts, strict=True):
            patience.add_metric((tier.name,), tier.patience_s)
            running.add_metric((tier.name,), count)
            if tier.ttft_target_ms is not None:
                ttft.add_metric((tier.name,), tier.ttft_target_ms / 1e3)
            if tier.tpot_target_ms is not None:
                tpot.add_metric((tier.name,), tier.tpot_target_ms / 1e3)
        for name, value in self._evenness.by_tier(self._scheduler.policy, pools, now).items():
            index.add_metric((name,), value)
        yield from (patience, ttft, tpot, running, index)

    def _lines(self, pools: Sequence[Pool], now: float) -> Iterator[Metric]:
        """What waits, by tier and model; for how long already, and for how long yet."""
        size = _gauge("flow_control_queue_size", "Requests waiting now.", "tier", "model")
        oldest = _gauge(
            "flow_control_oldest_wait_seconds",
            "How long the request has waited that waits for longest; 0 where none does.",
            "tier",
        )
        expected = _gauge(
            "flow_control_expected_wait_seconds",
            "How long a request that comes now would wait, as the line moved lately.",
            "tier", "pool",
        )  # fmt: skip
        held = _gauge(
            "flow_control_held",
            "Requests that do not even wait, since a cap keeps them back.",
            "tier",
        )
        tiers = self._scheduler.policy.tiers
        counts = {
            (tier.name, model): 0
            for pool in pools
            for tier in tiers
            for model in sorted(pool.models)
        }
        since, kept = [now] * len(tiers), [0] * len(tiers)
        for waiting in self._scheduler.waiting.values():
            request = waiting.request
            if waiting.holder is not None:
                kept[request.tier] += 1
                continue
            key = (tiers[request.tier].name, request.model)
            if key not in counts:
                continue
            counts[key] += 1
            since[request.tier] = min(since[request.tier], request.arrived_at)
        for labels, count in counts.items():
            size.add_metric(labels, count)
        for tier, instant, count in zip(tiers, since, kept, strict=True):
            oldest.add_metric((tier.name,), now - instant)
            held.add_metric((tier.name,), count)
        for pool in pools:
            ahead, per_s = 0, pool.drain_rate.guess_per_s(now)
            for tier, queue in zip(tiers, pool.queues, strict=True):
                ahead += queue.count
                wait_s = (ahead + 1) / per_s if ahead else 0.0
                expected.add_metric((tier.name, name_of(pool)), wait_s)
        yield from (size, oldest, held, expected)

    def _tenants_waiting(self) -> Metric:
        family = _gauge("tenant_waiting", "Requests waiting now, by tenant.", "tenant")
        shown = self._shown()
        counts = {**dict.fromkeys(sorted(shown), 0), OTHER: 0}
        for waiting in self._scheduler.waiting.values():
            tenant = waiting.request.tenant
            counts[tenant if tenant in shown else OTHER] += 1
        for name, count in counts.items():
            family.add_metric((name,), count)
        return family

    def _replicas(self, pools: Sequence[Pool], now: float) -> Iterator[Metric]:
        gauges = {
            name: _gauge(f"replica_{name}", text, "replica")
            for name, text in {**OF_REPLICAS, **KNOWN_OF_REPLICAS}.items()
        }
        saturation = _gauge(
            "flow_control_pool_saturation",
            "Share of known slots in use, 0..1, 0 while none is known.",
            "pool",
        )
        told = Gate()
        for pool in pools:
            gates = gates_at(pool, now)
            used = slots = 0
            for replica in pool.replicas.values():
                for name, value in _figures(replica, pool, now).items():
                    gauges[name].add_metric((replica.name,), value)
                told.add(replica, pool, gates, now)
                if replica.is_usable:
                    used += replica.occupied
                    slots += replica.slots or 0
            saturation.add_metric((name_of(pool),), used / slots if slots else 0.0)
        yield from gauges.values()
        yield saturation
        yield from told.families()


class Gate:
    """Which tiers may release on which replica, and what keeps the others out."""

    def __init__(self) -> None:
        self._opened = _gauge(
            "replica_gate_open",
            "1 where the tier may release an ordinary request now.",
            "replica", "tier",
        )  # fmt: skip
        self._closed = _gauge(
            "replica_gate_closed",
            "1 for what keeps the tier from releasing; nothing where its gate is open.",
            "replica", "tier", "reason",
        )  # fmt: skip

    def add(self, replica: Replica, pool: Pool, gates: Gates, now: float) -> None:
        """Tell of one replica; `gates` are its pool's, at `now`."""
        for rank, tier in enumerate(pool.policy.tiers):
            shut = shut_by(gates, replica, rank, now)
            self._opened.add_metric((replica.name, tier.name), float(shut is None))
            if shut is not None:
                reason = _word_of(shut, replica)
                self._closed.add_metric((replica.name, tier.name, reason), 1.0)

    def families(self) -> Iterator[Metric]:
        """All of it."""
        yield from (self._opened, self._closed)


def name_of(pool: Pool) -> str:
    """How a pool is called: by its models."""
    return ",".join(sorted(pool.models))


def _word_of(shut: Closed, replica: Replica) -> str:
    """`draining` and `lost` say more than that it cannot be used."""
    if shut is Closed.UNUSABLE and replica.is_lost:
        return "lost"
    if shut is Closed.UNUSABLE and (replica.is_draining or replica.is_removed):
        return "draining"
    return shut.value


def _figures(replica: Replica, pool: Pool, now: float) -> dict[str, float]:
    """By name of the gauge; what is unknown is left out."""
    found = {
        "freeness": _freeness(replica, pool),
        "waiting_estimate": replica.waiting,
        "inflight": replica.occupied - replica.foreign,
        "foreign": replica.foreign,
        "breaker_state": BREAKER_STATES.index(replica.circuit.state(now)),
        "slots": replica.slots or 0,
        "draining": float(replica.is_draining),
        "report_stale": float(
            replica.report is None or replica.is_stale or now >= replica.fresh_until
        ),
        "silent_seconds": _silent_s(replica, now),
    }
    if replica.reported_at is not None:
        found["report_age_seconds"] = now - replica.reported_at
    if replica.speed.tpot_s is not None:
        found["tpot_seconds"] = replica.speed.tpot_s
    if replica.kv_capacity_tokens is not None:
        found["kv_tokens"] = replica.kv_tokens
        found["kv_capacity_tokens"] = replica.kv_capacity_tokens
    limit = pool.gates.limit(replica)
    if limit != float("inf"):
        found["inflight_limit"] = limit
    return found


def _freeness(replica: Replica, pool: Pool) -> float:
    """What is computed for a look is not noted: it is no part of what the scheduler judged."""
    known, replica.scores = replica.scores, dict(replica.scores)
    value = freeness(replica, pool.headroom, 0)
    replica.scores = known
    return value


def _silent_s(replica: Replica, now: float) -> float:
    """0 where nothing of ours runs there; no longer than the oldest of ours is there."""
    grants = replica.ledger.grants
    if not grants:
        return 0.0
    oldest = next(iter(grants.values())).granted_at
    progressed_at = replica.vital.progressed_at
    signs = (oldest, replica.vital.heard_at, oldest if progressed_at is None else progressed_at)
    return max(0.0, now - max(signs))


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fairgate_{name}", text, labels=labels)
