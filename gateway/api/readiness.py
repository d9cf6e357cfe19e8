"""Whether traffic should come here, and what an operator should know if not."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core.breaker import Breaker
from gateway.core.scheduler import Scheduler
from gateway.upstream.replicas import ReplicaStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReadiness:
    """One replica, as far as it matters to whoever reads `/readyz`."""

    up: bool
    engine: str | None
    models: tuple[str, ...]
    slots: int | None
    """None: not known yet, so releases go by unstarted work only and no headroom is kept."""
    is_draining: bool
    breaker: str
    """closed, open or half_open: then one request at a time may try."""
    breaker_reason: str | None
    """What opened it; None while it is closed."""
    breaker_open_s: float | None
    """For how long nothing new goes there, unless it shows life before; None: it is not open."""
    report_age_s: float | None
    error: str | None
    missing_metrics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReadiness:
    """Who decides about the requests of one pool of models."""

    phase: str
    """leading, following, alone; looking or gathering for a moment after a leader went."""
    leader: str | None
    """None: nobody is known to lead it."""
    epoch: int
    followers: int
    """Gateways that this one decides for, beside itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReadiness:
    """This gateway among several."""

    gateway: str
    gateways: tuple[str, ...]
    """All that are there, as far as is known."""
    degraded: bool
    """Whether it decides alone, within its part of every replica: fairness ends at this gateway."""
    pools: Mapping[str, PoolReadiness]
    """By the smallest model name of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The answer of `/readyz`."""

    ready: bool
    reason: str | None
    waiting: int
    granted: int
    replicas: Mapping[str, ReplicaReadiness]
    store_error: str | None = None
    """Why operators can change nothing now; traffic is served all the same."""
    cluster: ClusterReadiness | None = None
    """None: it is not one of several."""


def readiness(
    scheduler: Scheduler,
    statuses: Mapping[str, ReplicaStatus],
    now: float,
    *,
    is_leaving: bool = False,
    store_error: str | None = None,
    cluster: ClusterReadiness | None = None,
) -> Readiness:
    """Ready means: not shutting down, and at least one replica can take a request."""
    replicas = {
        name: _of_replica(name, status, scheduler, now) for name, status in statuses.items()
    }
    reason = None
    if is_leaving or scheduler.is_closed:
        reason = "shutting down"
    elif not any(replica.is_usable for replica in scheduler.replicas.values()):
        reason = "no replica answers"
    return Readiness(
        ready=reason is None,
        reason=reason,
        waiting=len(scheduler.waiting),
        granted=len(scheduler.granted),
        replicas=replicas,
        store_error=store_error,
        cluster=cluster,
    )


def _of_replica(
    name: str, status: ReplicaStatus, scheduler: Scheduler, now: float
) -> ReplicaReadiness:
    believed = scheduler.replicas.get(name)
    reported_at = believed.reported_at if believed else None
    circuit = believed.circuit if believed else None
    state = circuit.state(now) if circuit else Breaker.CLOSED
    open_s = circuit.until - now if circuit and state is Breaker.OPEN else None
    return ReplicaReadiness(
        up=status.up,
        engine=status.engine,
        models=tuple(sorted(status.models)),
        slots=believed.slots if believed else None,
        is_draining=believed.is_draining if believed else False,
        breaker=state.value,
        breaker_reason=circuit.reason if circuit else None,
        breaker_open_s=None if open_s is None else round(open_s, 3),
        report_age_s=None if reported_at is None else round(now - reported_at, 3),
        error=status.last_error,
        missing_metrics=status.missing,
    )
