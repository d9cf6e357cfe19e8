"""A replica as operators see it: what was configured, what is believed of it, what holds it back.

Read from the scheduler's belief and from the probe; nothing is decided here.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.gates import GateView, gate_views
from gateway.core.breaker import Breaker
from gateway.core.freeness import freeness
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.upstream.replicas import ReplicaAddress, ReplicaStatus

EXAMPLE: dict[str, Any] = {
    "object": "replica",
    "name": "gpu0-8000",
    "source": "store",
    "url": "http://gpu0:8000",
    "dns": None,
    "models": ["llama-3-8b"],
    "engine": "vllm",
    "max_num_seqs": 256,
    "scheduling_policy": "fcfs",
    "weight": 1.0,
    "is_drained": False,
    "version": 17,
    "members": None,
    "live": {
        "is_up": True,
        "is_usable": True,
        "is_draining": False,
        "circuit": {"state": "closed", "reason": None, "open_s": None},
        "health": {"answered_s": 0.4, "misses": 0, "error": None, "detail": None},
        "load": {
            "running": 12, "unstarted": 1, "sequences": 13, "by_tier": {"standard": 13},
            "foreign": 0, "waiting_estimate": 0, "slots": 256, "kv_tokens": 18432,
            "kv_capacity_tokens": 450000, "unstarted_prompt_tokens": 900,
        },
        "limits": {"inflight": 64.0, "context_tokens": 8192, "tpot_ms": 31.5},
        "freeness": {"critical": 17.2},
        "gates": [
            {"tier": "critical", "closed_by": None, "reason": None, "slots_away": 0},
            {"tier": "standard", "closed_by": "headroom",
             "reason": "has its last free slots kept for the tiers above", "slots_away": 51},
        ],
        "metrics": {"age_s": 0.4, "is_stale": False, "missing": []},
    },
}  # fmt: skip


class CircuitView(BaseModel):
    """The replica's circuit breaker."""

    state: Literal["closed", "open", "half_open"]
    reason: str | None = Field(description="What opened it; null while it is closed.")
    open_s: float | None = Field(description="For how long nothing new goes there.")


class HealthView(BaseModel):
    """What the probe saw last."""

    answered_s: float | None = Field(description="Seconds since it last answered; null: never.")
    misses: int = Field(description="Rounds in a row without any answer.")
    error: str | None = Field(description="Why the last round failed.")
    detail: str | None = Field(description="What should be known though it answers.")


class LoadView(BaseModel):
    """Our ledger of the replica, and what is believed of others' load there."""

    running: int = Field(description="Requests of ours there.")
    unstarted: int = Field(description="Those of them that the engine has not begun, as we know.")
    sequences: int = Field(description="Slots that ours take.")
    by_tier: dict[str, int] = Field(description="Requests of ours by tier.")
    foreign: int = Field(description="Sequences there that did not come through this gateway.")
    waiting_estimate: int = Field(description="Sequences that wait inside the engine.")
    slots: int | None = Field(description="Sequences it can run at once; null: not known yet.")
    kv_tokens: int = Field(description="KV tokens in use.")
    kv_capacity_tokens: int | None
    unstarted_prompt_tokens: int = Field(description="Prompt tokens that it has yet to compute.")


class LimitsView(BaseModel):
    """What bounds the load there."""

    inflight: float | None = Field(description="Sequences that it gets at most; null: no limit.")
    context_tokens: int | None = Field(description="Longest prompt and output together.")
    tpot_ms: float | None = Field(description="Milliseconds an output token, as measured.")


class MetricsView(BaseModel):
    """The engine's own metrics."""

    age_s: float | None = Field(description="Seconds since the last scrape; null: none yet.")
    is_stale: bool = Field(description="Whether the ledger alone counts.")
    missing: list[str] = Field(description="Names that this engine should have and has not.")


class LiveView(BaseModel):
    """How it is now."""

    is_up: bool = Field(description="Whether it answers.")
    is_usable: bool = Field(description="Whether anything new may go there at all.")
    is_draining: bool = Field(description="Whether it only finishes what runs there.")
    circuit: CircuitView
    health: HealthView
    load: LoadView | None = Field(description="Null: the scheduler does not know it yet.")
    limits: LimitsView | None
    freeness: dict[str, float] = Field(
        description="Free slots' worth for each tier; tiers for which it takes nothing are missing."
    )
    gates: list[GateView] = Field(
        description="By tier; empty while the scheduler does not know it."
    )
    metrics: MetricsView


class ReplicaView(BaseModel):
    """One replica, or one DNS name whose addresses are replicas."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    object: Literal["replica"] = "replica"
    name: str
    source: Literal["file", "store"] = Field(
        description="`file`: configured, only drained and undrained here; `store`: added here."
    )
    url: str | None
    dns: str | None = Field(description="The name, with its port, that it stands behind.")
    models: list[str] = Field(description="What it serves.")
    engine: str | None = Field(description="Null: not known yet.")
    max_num_seqs: int | None = Field(description="As configured; null: asked or learnt.")
    scheduling_policy: Literal["fcfs", "priority"]
    weight: float
    is_drained: bool = Field(description="Whether an operator drained it; kept over a restart.")
    version: int | None = Field(description="Of its record in the store; null: it has none.")
    members: list[str] | None = Field(description="Of a DNS name: the replicas found behind it.")
    live: LiveView | None = Field(description="Null for a DNS name.")


def live_view(
    status: ReplicaStatus, believed: Replica | None, pool: Pool | None, *, now: float
) -> LiveView:
    """How a replica is at `now`."""
    reported_at = believed.reported_at if believed else None
    answered_at = status.last_success_at
    return LiveView(
        is_up=status.up,
        is_usable=believed is not None and believed.is_usable,
        is_draining=believed is not None and believed.is_draining,
        circuit=_circuit(believed, now),
        health=HealthView(
            answered_s=None if answered_at is None else round(now - answered_at, 3),
            misses=status.misses,
            error=status.last_error,
            detail=status.detail,
        ),
        load=None if believed is None or pool is None else _load(believed, pool),
        limits=None if believed is None or pool is None else _limits(believed, pool),
        freeness={} if believed is None or pool is None else _freeness(believed, pool),
        gates=[] if believed is None or pool is None else gate_views(believed, pool, now),
        metrics=MetricsView(
            age_s=None if reported_at is None else round(now - reported_at, 3),
            is_stale=believed is None or believed.is_stale or now >= believed.fresh_until,
            missing=list(status.missing),
        ),
    )


def address_fields(address: ReplicaAddress, status: ReplicaStatus) -> dict[str, object]:
    """What is configured of a replica, filled in from what it says of itself."""
    models = status.models if address.models is None else address.models
    return {
        "name": address.name,
        "url": address.url,
        "models": sorted(models),
        "engine": status.engine or address.engine,
        "max_num_seqs": address.max_num_seqs,
        "scheduling_policy": address.scheduling_policy,
        "weight": address.weight,
    }


def _circuit(believed: Replica | None, now: float) -> CircuitView:
    if believed is None:
        return CircuitView(state="closed", reason=None, open_s=None)
    circuit = believed.circuit
    state = circuit.state(now)
    open_s = circuit.until - now if state is Breaker.OPEN else None
    return CircuitView(
        state=state.value,
        reason=circuit.reason,
        open_s=None if open_s is None else round(open_s, 3),
    )


def _load(replica: Replica, pool: Pool) -> LoadView:
    ledger, tiers = replica.ledger, pool.policy.tiers
    return LoadView(
        running=len(ledger.grants),
        unstarted=len(ledger.unstarted),
        sequences=ledger.sequences,
        by_tier={
            tier.name: count for tier, count in zip(tiers, ledger.by_tier, strict=True) if count
        },
        foreign=replica.foreign,
        waiting_estimate=replica.waiting,
        slots=replica.slots,
        kv_tokens=int(replica.kv_tokens),
        kv_capacity_tokens=replica.kv_capacity_tokens,
        unstarted_prompt_tokens=ledger.unstarted_prompt_tokens,
    )


def _limits(replica: Replica, pool: Pool) -> LimitsView:
    limit, tpot_s = pool.gates.limit(replica), replica.speed.tpot_s
    return LimitsView(
        inflight=None if limit == float("inf") else round(limit, 3),
        context_tokens=replica.context_tokens,
        tpot_ms=None if tpot_s is None else round(tpot_s * 1e3, 3),
    )


def _freeness(replica: Replica, pool: Pool) -> dict[str, float]:
    """What is computed for a look is not noted, so that the look changes nothing."""
    if not replica.is_usable:
        return {}
    known, replica.scores = replica.scores, {}
    told = {
        tier.name: round(freeness(replica, pool.headroom, rank), 4)
        for rank, tier in enumerate(pool.policy.tiers)
    }
    replica.scores = known
    return told
