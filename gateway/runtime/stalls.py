"""Which exchanges have stalled: no output, and no sign that their engine does anything.

An engine that hangs keeps its connections, answers `/health` and may go on sending keep-alives; so
life is progress. A stream that is merely preempted is silent too, while its engine's counters grow.
"""

from gateway.core.replica import Replica
from gateway.core.scheduler import Scheduler

STALL_S = 10.0
"""Silence that means nothing yet."""
PREFILLS = 3.0
"""The same, in expected times of computing the prompt."""
BLIND_STALL_S = 60.0
"""For a stream that had begun, on an engine that was never seen to count anything."""


def is_stalled(
    scheduler: Scheduler, request_id: str, *, silent_since: float, has_begun: bool, now: float
) -> bool:
    """Whether a granted request should be given up.

    `silent_since`: its last data event, or when it was sent; `has_begun`: whether there was one.
    """
    silent_s = now - silent_since
    if silent_s < STALL_S:
        return False
    found = scheduler.granted.get(request_id)
    if found is None:
        return False
    grant, replica = found
    if replica.progressed_at is None:
        return has_begun and silent_s >= BLIND_STALL_S
    still_s = min(silent_s, now - replica.progressed_at)
    return still_s >= max(STALL_S, PREFILLS * _prefill_s(replica, grant.prefill_tokens))


def _prefill_s(replica: Replica, prefill_tokens: int) -> float:
    """All that is unstarted may be computed before it."""
    ahead = max(prefill_tokens, replica.ledger.unstarted_prompt_tokens)
    return ahead / replica.speed.prefill_rate
