"""What happens to requests and scrapes, as signs of an engine's health for its circuit.

A whole engine is silent when it has work, makes no output for anybody, and its counters do not
grow: one stream alone may be preempted, and a long prompt is computed in silence. It decides what
counts as whose fault; what follows from it is the circuit's affair.
"""

from __future__ import annotations

from gateway.core.ledger import Grant
from gateway.core.messages import Fault, Finished, Outcome
from gateway.core.replica import Replica
from gateway.core.state import State

SILENT_S = 2.5
"""Silence of a whole engine that means nothing yet: two scrapes and a slow step."""
GAPS = 3.0
"""The same, in engine steps."""
PREFILLS = 3.0
"""The same, in expected times of computing all prompts that have not begun."""
STILL_S = 10.0
"""Silence of one data-parallel rank, while others go on, that means nothing yet."""


def sent(replica: Replica, request_id: str, now: float) -> None:
    """A request was granted there."""
    replica.circuit.sent(request_id, now)


def began(replica: Replica, request_id: str, now: float) -> None:
    """The engine began to answer a request."""
    replica.vital.begin(now)
    replica.circuit.began(request_id, now)


def heard(replica: Replica, at: float, now: float) -> bool:
    """Output came at that instant; returns whether the replica may be used again for it."""
    return replica.vital.hear(at) and replica.circuit.spoke(now)


def went_back(replica: Replica, request_id: str) -> None:
    """A request left without a verdict: busy, or recalled."""
    replica.circuit.left(request_id)


def ended(state: State, grant: Grant, replica: Replica, event: Finished, *, now: float) -> None:
    """A request ended there, well or not."""
    circuit, fault = replica.circuit, event.fault
    if fault is Fault.STUCK:
        replica.absence.begin_anew()  # it was one of those that are missing
    if event.outcome is Outcome.DONE:
        if grant.waiting.request.streams:
            replica.vital.hear(now)
        else:
            replica.vital.begin(now)
        circuit.succeeded(event.request_id, now)
    elif fault is None or _is_past(grant, replica) or _is_its_own(grant, replica, fault, now):
        circuit.left(event.request_id)
    else:
        if fault is Fault.REFUSED:
            replica.vital.refuse(now)
        _count(state, replica, event.request_id, fault=fault, now=now)


def refused(state: State, replica: Replica, now: float) -> None:
    """A question to the engine met nobody who listens."""
    replica.vital.refuse(now)
    if not replica.is_lost:  # then it is known already
        _count(state, replica, "", fault=Fault.REFUSED, now=now)


def reported(state: State, replica: Replica, now: float, *, did: bool, is_new: bool) -> None:
    """A scrape came back, and was taken in: the engine did something, or was started anew."""
    circuit = replica.circuit
    circuit.answered(now, is_new=is_new)
    if did:
        circuit.spoke(now)
    elif _is_silent(replica) and circuit.fell_silent(now):
        state.wake_by(circuit.until)
        rest_briefly(state, replica, now)


def look_for_absent(replica: Replica, *, sent_at: float, now: float) -> None:
    """Compare what the scrape asked for at `sent_at` shows with what should be there."""
    absence, report = replica.absence, replica.report
    assert report is not None, "a scrape was taken in"
    gap_s = expected_gap_s(replica)
    present = absence.present(report, sent_at=sent_at, still_s=max(STILL_S, gap_s))
    grants = replica.ledger.grants
    if present is None or len(grants) <= present:
        absence.begin_anew()
        return
    # Of each at least one sequence must be there, but for what may not have got in yet, and what
    # may be done with: its client has not taken it all.
    owed = 0
    for id, grant in grants.items():
        if grant.slots and grant.granted_at <= sent_at - gap_s and id not in replica.held:
            owed += 1
    has_grown = replica.vital.progressed_at == now
    absence.take(owed - present, sent_at=sent_at, has_grown=has_grown)


def rest_briefly(state: State, replica: Replica, now: float) -> None:
    """Where nobody could take over from `replica` nor from its like, none of them rests for long.

    A rest sends clients elsewhere. Where there is no elsewhere they wait for it, and one trial now
    and then is care enough.
    """
    pool = state.pool_by_replica.get(replica.name)
    if pool is None:
        return
    usable = [each for each in pool.replicas.values() if each.is_usable]
    if any(each.circuit.reason is None for each in usable):
        return
    for each in usable:
        if each.circuit.rest_briefly(now):
            state.wake_by(each.circuit.until)


def expected_gap_s(replica: Replica) -> float:
    """How long the whole engine may be silent, in seconds, before that is a bad sign."""
    speed = replica.speed
    prefill_s = replica.ledger.unstarted_prompt_tokens / speed.prefill_rate
    return max(SILENT_S, GAPS * speed.step_s, PREFILLS * prefill_s)


def _count(state: State, replica: Replica, request_id: str, *, fault: Fault, now: float) -> None:
    if replica.circuit.failed(request_id, fault, now):
        state.wake_by(replica.circuit.until)
        rest_briefly(state, replica, now)


def _is_past(grant: Grant, replica: Replica) -> bool:
    """Whether the engine that it was sent to is gone: what comes next is not to blame."""
    refused_at = replica.vital.refused_at
    was_left = refused_at is not None and grant.granted_at <= refused_at
    return replica.is_lost or was_left or grant.granted_at <= replica.circuit.lost_at


def _is_its_own(grant: Grant, replica: Replica, fault: Fault, now: float) -> bool:
    """Whether a request seems to be at fault for the error that the engine answered it with.

    One user whose requests always fail must not have the fleet taken from all others.
    """
    if fault is not Fault.SERVER_ERROR or (grant.is_started and grant.waiting.request.streams):
        return False
    return replica.vital.takes(now)


def _is_silent(replica: Replica) -> bool:
    vital, report = replica.vital, replica.report
    if vital.still_until is None or vital.progressed_at is None or report is None:
        return False
    # What has begun may wait for its reader, and the engine have done with it: then it is idle.
    is_busy = (report.running or 0) + (report.waiting or 0) > 0
    owed = replica.ledger.grants if is_busy else replica.ledger.unstarted
    oldest = next(iter(owed.values()), None)
    if oldest is None:
        return False
    since = max(oldest.granted_at, vital.progressed_at, vital.heard_at)
    return vital.still_until - since >= expected_gap_s(replica)
