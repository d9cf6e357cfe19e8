"""Which running request should go on elsewhere: off a replica that is emptied, or to a freer one.

A move ends a request here and begins it anew there with what it has produced as part of its
prompt, so it costs one prefill and its reader a pause. So it is asked for only where the target
can begin at once, one at a time, and for the sake of balance only of what has stayed for a while.
How a request is continued is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.freeness import freeness
from gateway.core.ledger import Grant
from gateway.core.messages import Decision, Fault, MoveWanted
from gateway.core.placement import Search
from gateway.core.pool import Pool
from gateway.core.recall import gap, gap_after
from gateway.core.replica import Replica
from gateway.core.state import State

DRAIN_EVERY_S = 0.1
"""Least time between two moves off one replica that is emptied."""
BALANCE_EVERY_S = 1.0
"""The same for the sake of balance: what the last one changed must have shown first."""
STAY_S = 30.0
"""Nobody is moved for balance, or asked to move again, sooner than this."""


def move(state: State, pool: Pool, *, now: float, out: list[Decision]) -> None:
    """Ask for one running request to be moved, where the policy wants that and it helps."""
    if state.policy.migrate_running == "off" or state.is_closed or state.policy.release_at_once:
        return
    found = _wanted(pool, now)
    if found is None:
        return
    grant, source = found
    grant.move_asked_at = source.moved_at = now
    out.append(MoveWanted(grant.waiting.request.id, source.name))
    if _is_emptied(source):
        state.wake_by(now + DRAIN_EVERY_S)


def _wanted(pool: Pool, now: float) -> tuple[Grant, Replica] | None:
    emptied = [each for each in pool.replicas.values() if _is_emptied(each)]
    for source in emptied:
        if now >= source.moved_at + DRAIN_EVERY_S:
            for grant in sorted(_movable(source, now), key=_price):
                if _target(pool, grant, source, now) is not None:
                    return grant, source
    if pool.policy.migrate_running == "balance":
        return _balancing(pool, now)
    return None


def _is_emptied(replica: Replica) -> bool:
    """Whether an operator drains it, or it said that it shuts down."""
    if replica.is_lost:
        return False
    return replica.is_draining or replica.circuit.reason == Fault.DRAINING


def _movable(replica: Replica, now: float) -> Iterator[Grant]:
    for grant in replica.ledger.grants.values():
        can_go = grant.is_started and grant.waiting.request.is_continuable
        if can_go and now >= grant.move_asked_at + STAY_S:
            yield grant


def _price(grant: Grant) -> tuple[int, int, int]:
    """The lowest tier first, then what costs the least to compute again; ties by age."""
    return -grant.tier, grant.kv_tokens, grant.waiting.sequence


def _balancing(pool: Pool, now: float) -> tuple[Grant, Replica] | None:
    """One whose move evens out the fullest replica that has any and a freer one."""
    sources = [
        each
        for each in pool.replicas.values()
        if each.is_usable and each.ledger.grants and now >= each.moved_at + BALANCE_EVERY_S
    ]
    for source in sorted(sources, key=lambda each: (_freeness(pool, each), each.name)):
        stayed = [each for each in _movable(source, now) if now >= each.granted_at + STAY_S]
        for grant in sorted(stayed, key=_price):
            target = _target(pool, grant, source, now)
            if target is None:
                continue
            before = gap(pool, target, source, grant.tier)
            after = gap_after(grant, target, source)
            if before > pool.policy.recall_gap and 0.0 <= after < before:
                return grant, source
            break  # the next one is larger, or of a tier above
    return None


def _freeness(pool: Pool, replica: Replica) -> float:
    return freeness(replica, pool.headroom, len(pool.queues) - 1)


def _target(pool: Pool, grant: Grant, source: Replica, now: float) -> Replica | None:
    """Where it could begin at once by the gates of its own tier; None: nowhere."""
    others = [
        each
        for each in list(pool.open.values())
        if each is not source and not each.waiting and pool.open_tiers(each, now)
    ]
    target = Search(pool, others, now).place(grant.waiting, judged_as=grant.tier)
    return target if target is not None and target.has_room_for(grant.slots) else None
