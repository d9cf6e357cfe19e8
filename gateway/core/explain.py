"""Why is this request waiting? Its flow, its place, and the gate that is shut on each replica.

Plain values with units in their names, for an operator's eyes and for JSON; computed on demand
from what the scheduler holds. It changes nothing and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core import admission
from gateway.core.flows import Flow, Waiting
from gateway.core.gate import Closed, Gates
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.core.reservation import is_held, keeps_out
from gateway.core.state import State

AHEAD_SHOWN = 5
"""Flows with a smaller virtual time that are named; of the others only the number is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTags:
    """One flow's claim: the smallest virtual time is served first."""

    tenant: str
    user: str
    tenant_start: float
    user_start: float
    waiting: int
    """Requests of this flow that wait in this tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaVerdict:
    """What keeps the request off one replica now, with the figures that say so."""

    replica: str
    closed_by: str | None
    """A `gate.Closed`; None: it fits, and goes there when its turn comes."""
    tripped_by: str | None
    """Why its circuit breaker is not closed: a `Fault`, "flapping" or "silent"."""
    tripped_s: float
    """How long it stays open at most; 0 where one request may try."""
    occupied: int
    """Sequences there, of this gateway and of others."""
    foreign: int
    slots: int | None
    waiting: int
    """Sequences that wait inside the engine."""
    allowance: int
    """Sequences that this tier may leave waiting there."""
    slots_away: int
    """Slots kept from this tier for those above."""
    inflight_limit: float | None
    tpot_ms: float | None
    tpot_limit_ms: float
    unstarted_prompt_tokens: int
    prefill_limit_tokens: int
    kv_tokens: int
    kv_capacity_tokens: int | None
    is_report_stale: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that decides when a request goes."""

    request_id: str
    state: str
    """"waiting"; "held" with the cap that keeps it out of the queue; or "granted" with nothing but
    the replica told."""
    model: str
    tier: str
    tenant: str
    user: str
    waited_s: float
    patience_left_s: float | None = None
    position: int | None = None
    expected_wait_s: float | None = None
    cost: float | None = None
    """Predicted, in the policy's cost unit."""
    flow: FlowTags | None = None
    flows_ahead: int = 0
    ahead: tuple[FlowTags, ...] = ()
    is_floor_owed: bool = False
    is_aged: bool = False
    tiers_ahead: int = 0
    """Requests that wait in the tiers above."""
    replicas: tuple[ReplicaVerdict, ...] = ()
    granted_on: str | None = None
    held_by: str | None = None
    """Whose cap it is."""
    held_by_running: int = 0
    held_by_most: int = 0


def explain(state: State, request_id: str, now: float) -> Explanation | None:
    """Why `request_id` waits at `now`, or where it runs; None when it is not here.

    O(users of its tier and replicas of its pool).
    """
    granted = state.granted.get(request_id)
    waiting = granted[0].waiting if granted is not None else state.waiting.get(request_id)
    if waiting is None:
        return None
    request = waiting.request
    name = state.policy.tiers[request.tier].name
    waited_s = max(0.0, now - request.arrived_at)
    if granted is not None:
        return Explanation(
            request_id=request_id, state="granted", model=request.model, tier=name,
            tenant=request.tenant, user=request.user, granted_on=granted[1].name,
            waited_s=max(0.0, granted[0].granted_at - request.arrived_at),
        )  # fmt: skip
    pool = state.pool_by_model[request.model]
    if waiting.holder is not None:
        return _explain_held(state, pool, waiting, now)
    gates = gates_at(pool, now)
    position = admission.position(pool, waiting)
    flows = _flows_ahead(pool, waiting)
    is_owed = pool.floors.is_owed(request.tier, waiting.cost)
    is_aged = pool.elders is not None and pool.elders.is_aged(waiting, now)
    judged_as = 0 if is_owed or is_aged else request.tier
    return Explanation(
        request_id=request_id, state="waiting", model=request.model, tier=name,
        tenant=request.tenant, user=request.user, waited_s=waited_s,
        patience_left_s=max(0.0, waiting.deadline - now),
        position=position, expected_wait_s=admission.wait_s(pool, position, now),
        cost=waiting.cost, flow=_tags_of(waiting),
        flows_ahead=len(flows), ahead=tuple(flows[:AHEAD_SHOWN]),
        is_floor_owed=is_owed, is_aged=is_aged,
        tiers_ahead=sum(queue.count for queue in pool.queues[: request.tier]),
        replicas=tuple(
            _verdict(pool, gates, waiting, pool.replicas[each], tier=judged_as, now=now)
            for each in sorted(pool.replicas)
        ),
    )  # fmt: skip


def _explain_held(state: State, pool: Pool, waiting: Waiting, now: float) -> Explanation:
    request, holder = waiting.request, state.caps.holders[waiting.holder or ""]
    position = admission.position(pool, waiting, caps=state.caps)
    return Explanation(
        request_id=request.id, state="held", model=request.model,
        tier=state.policy.tiers[request.tier].name, tenant=request.tenant, user=request.user,
        waited_s=max(0.0, now - request.arrived_at),
        patience_left_s=max(0.0, waiting.deadline - now),
        position=position, expected_wait_s=admission.wait_s(pool, position, now),
        cost=waiting.cost, held_by=holder.name, held_by_running=len(holder.running),
        held_by_most=holder.room,
    )  # fmt: skip


def _tags_of(waiting: Waiting) -> FlowTags:
    lane = waiting.lane
    assert lane is not None
    assert lane.flow is not None
    assert lane.parent is not None
    assert lane.parent.flow is not None
    return _tags(lane.parent.flow, lane.flow)


def _tags(tenant: Flow, user: Flow) -> FlowTags:
    return FlowTags(
        tenant=tenant.name, user=user.name, tenant_start=tenant.start, user_start=user.start,
        waiting=user.count,
    )  # fmt: skip


def _flows_ahead(pool: Pool, waiting: Waiting) -> list[FlowTags]:
    """The flows of its tier whose claim is older, the next to be served first."""
    mine = _tags_of(waiting)
    flows = [
        _tags(tenant, user)
        for tenant in pool.queues[waiting.request.tier].tenants.values()
        for user in tenant.users.values()
        if user.count
    ]
    claim = (mine.tenant_start, mine.user_start)
    before = [each for each in flows if (each.tenant_start, each.user_start) < claim]
    return sorted(before, key=lambda each: (each.tenant_start, each.user_start))


def closed_by(pool: Pool, waiting: Waiting, replica: Replica, now: float) -> Closed | None:
    """What keeps `waiting`, in its own tier, off `replica`; None: nothing."""
    gates = gates_at(pool, now)
    return _closed_by(pool, gates, waiting, replica, tier=waiting.request.tier, now=now)


def gates_at(pool: Pool, now: float) -> Gates:
    """The gates of a pool as they stand at `now`, apart from those that the scheduler goes by."""
    gates = Gates(pool.policy)
    gates.reserved = pool.reserved_at(now)
    return gates


def shut_by(gates: Gates, replica: Replica, tier: int, now: float) -> Closed | None:
    """What shuts the gate of `tier` to any ordinary request on `replica`; None: it is open.

    `gates` are those of `gates_at`. What a request is too large for is told by its explanation.
    """
    if not replica.is_usable:
        return Closed.UNUSABLE
    if now < replica.busy_until:
        return Closed.BUSY
    if gates.policy.release_at_once:
        return None
    if not replica.circuit.lets(now):
        return Closed.TRIPPED
    kept_for = replica.reserved_for
    if is_held(replica, now) and kept_for is not None and tier >= kept_for.request.tier:
        return Closed.RESERVED
    known, known_of = replica.away, replica.away_of
    shut = _full(gates, replica, tier, now)
    replica.away, replica.away_of = known, known_of
    return shut


def _full(gates: Gates, replica: Replica, tier: int, now: float) -> Closed | None:
    """What it has that leaves no room for one more."""
    gone = _foreign_gone(replica, now)
    queued = max(0, replica.waiting - max(0, gone))
    for rank in range(tier + 1):  # ceilings never rise: a gate above it shuts its own too
        shut = gates.closed_by(replica, rank, queued, now, without_foreign=gone)
        if shut is not None:
            return shut
    return None


def _closed_by(
    pool: Pool, gates: Gates, waiting: Waiting, replica: Replica, *, tier: int, now: float
) -> Closed | None:
    if not replica.is_usable:
        return Closed.UNUSABLE
    if replica.name not in waiting.kind.replicas:
        return Closed.ELSEWHERE
    if now < replica.busy_until:
        return Closed.BUSY
    if not (gates.policy.release_at_once or replica.circuit.lets(now)):
        return Closed.TRIPPED
    if is_held(replica, now) and keeps_out(pool, replica, waiting, now):
        return Closed.RESERVED
    if waiting.kind.decodes:
        shut = _full(gates, replica, tier, now)
        if shut is not None:
            return shut
    return gates.unfit_by(waiting, replica, tier, now)


def _foreign_gone(replica: Replica, now: float) -> int:
    """Foreign sequences that will not be believed in once the last report is known as stale."""
    is_stale = not replica.is_stale and now >= replica.fresh_until
    return replica.foreign - replica.sightings.foreign_lately() if is_stale else 0


def _verdict(
    pool: Pool, gates: Gates, waiting: Waiting, replica: Replica, *, tier: int, now: float
) -> ReplicaVerdict:
    ceiling, slots, gone = gates.ceilings[tier], replica.slots, _foreign_gone(replica, now)
    shut = _closed_by(pool, gates, waiting, replica, tier=tier, now=now)
    limit = gates.limit(replica)
    return ReplicaVerdict(
        replica=replica.name,
        closed_by=None if shut is None else shut.value,
        tripped_by=replica.circuit.reason,
        tripped_s=max(0.0, replica.circuit.until - now) if replica.circuit.reason else 0.0,
        occupied=replica.occupied - gone,
        foreign=replica.foreign - gone,
        slots=slots,
        waiting=replica.waiting,
        allowance=gates.allowance(replica, tier, now),
        slots_away=0 if slots is None else gates.away(replica, slots)[tier],
        inflight_limit=None if limit == float("inf") else limit,
        tpot_ms=None if replica.speed.tpot_s is None else replica.speed.tpot_s * 1e3,
        tpot_limit_ms=ceiling.tpot_s * 1e3,
        unstarted_prompt_tokens=replica.ledger.unstarted_prompt_tokens,
        prefill_limit_tokens=int(ceiling.prefill_s * replica.speed.prefill_rate),
        kv_tokens=int(replica.kv_tokens),
        kv_capacity_tokens=replica.kv_capacity_tokens,
        is_report_stale=replica.is_stale or now >= replica.fresh_until,
    )
