"""Which exchanges have stalled: no output, and no sign that their engine does anything.

An engine that hangs keeps its connections, answers `/health` and may go on sending keep-alives; so
life is progress. A stream that is merely preempted is silent too, while its engine's counters grow.
Where nobody listens any more, what was sent before is waited for no longer than a moment.
"""

from gateway.core.breaker import STANDSTILL
from gateway.core.ledger import Grant
from gateway.core.replica import Replica
from gateway.core.scheduler import Scheduler

STALL_S = 10.0
"""Silence that means nothing yet."""
PREFILLS = 3.0
"""The same, in expected times of computing the prompt."""
BLIND_STALL_S = 60.0
"""For a stream that had begun, on an engine that was never seen to count anything."""
TRIAL_STALL_S = 3.0
"""For the one request that finds out whether an engine that stood still goes on."""
REFUSED_STALL_S = 3.0
"""Silence that means nothing yet where connections are refused: vLLM, told to stop, closes its
listener within 0.1 s and leaves its streams open and silent for ever."""


def is_stalled(
    scheduler: Scheduler, request_id: str, *, silent_since: float, has_begun: bool, now: float
) -> bool:
    """Whether a granted request should be given up.

    `silent_since`: its last data event, or when it was sent; `has_begun`: whether there was one.
    """
    silent_s = now - silent_since
    if silent_s < min(REFUSED_STALL_S, TRIAL_STALL_S):
        return False
    found = scheduler.granted.get(request_id)
    if found is None:
        return False
    grant, replica = found
    prefills_s = 0.0 if has_begun else PREFILLS * _prefill_s(replica, grant.prefill_tokens)
    if _is_left_behind(grant, replica, prefills_s, silent_s=silent_s, now=now):
        return True
    circuit = replica.circuit
    is_trial = circuit.trial == request_id and circuit.reason in STANDSTILL
    least_s = TRIAL_STALL_S if is_trial else STALL_S
    if silent_s < least_s:
        return False
    vital = replica.vital
    if vital.progressed_at is None and not replica.is_lost:
        return has_begun and silent_s >= BLIND_STALL_S
    still_s = silent_s
    if vital.progressed_at is not None:
        still_s = min(silent_s, now - max(vital.progressed_at, vital.heard_at))
    return still_s >= max(least_s, PREFILLS * _prefill_s(replica, grant.prefill_tokens))


def _is_left_behind(
    grant: Grant, replica: Replica, prefills_s: float, *, silent_s: float, now: float
) -> bool:
    """Whether it is silent on an engine that has stopped to listen since it was sent."""
    refused_at = replica.vital.refused_at
    if refused_at is None or grant.granted_at > refused_at:
        return False
    return min(silent_s, now - refused_at) >= max(REFUSED_STALL_S, prefills_s)


def _prefill_s(replica: Replica, prefill_tokens: int) -> float:
    """All that is unstarted may be computed before it."""
    ahead = max(prefill_tokens, replica.ledger.unstarted_prompt_tokens)
    return ahead / replica.speed.prefill_rate
