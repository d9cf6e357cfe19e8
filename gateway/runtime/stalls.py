"""Which exchanges have stalled: no output, and no sign that their engine does anything for them.

An engine that hangs keeps its connections, answers `/health` and may go on sending keep-alives; so
life is progress. A stream that is merely preempted is silent too, while its engine's counters grow.
Where nobody listens any more, what was sent before is waited for no longer than a moment.

A single request may be stuck on an engine that is lively with others. It is only taken for that
with evidence: the engine's own count lacks it, or it is silent for several times as long as its
whole answer should take while nothing waits there and others go on.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

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
ABSENT_UNBEGUN_S = 60.0
"""Silence of one that the engine does not count, and that has not begun: the server before the
engine may still prepare it."""
BESIDE_STALL_S = 120.0
"""Silence of one that the engine may well count, while it goes on with others."""
BESIDE_ANSWERS = 3.0
"""The same, in times that its longest answer should take: a tool's call may come all at once."""
BESIDE_STALL_S_MAX = 900.0
"""The longest of that."""
LIVELY_S = 5.0
"""An engine whose last data event came so lately goes on: we are told once a second."""


class Silent(NamedTuple):
    """A granted request whose engine has said nothing for a while. A tuple: there may be many."""

    request_id: str
    since: float
    """Its last data event, or when it was sent; never while its client held it up."""
    has_begun: bool
    """Whether there was any."""


class _Look(NamedTuple):
    """One of them, with its grant."""

    silent: Silent
    grant: Grant


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


def stuck(scheduler: Scheduler, silent: Iterable[Silent], now: float) -> list[str]:
    """Ids of those that their engine, lively with others, does nothing for.

    `silent` must name all that are silent for `STALL_S` or longer; who is held up by its client is
    not one of them.
    """
    looks: defaultdict[str, list[_Look]] = defaultdict(list)
    for each in silent:
        found = scheduler.granted.get(each.request_id)
        if found is not None and found[0].slots and now - each.since >= STALL_S:
            looks[found[1].name].append(_Look(each, found[0]))
    ids: list[str] = []
    for name, those in looks.items():
        replica = scheduler.replicas.get(name)
        if replica is not None and replica.is_usable and now < replica.fresh_until:
            gone = _absent(replica, those)
            ids += [
                look.silent.request_id
                for look in those
                if (look in gone and _is_over(replica, look, now))
                or _is_passed_over(replica, look, now)
            ]
    return ids


def _absent(replica: Replica, silent: list[_Look]) -> list[_Look]:
    """Those that the engine's count must lack, if it is not known which of them it lacks: none."""
    absence = replica.absence
    missing, since = absence.missing, absence.since
    # A count that lacks also some of those which it has just worked at is no count.
    if since is None or not 0 < missing <= len(silent):
        return []
    suspects = [look for look in silent if look.silent.since <= since]
    return suspects if len(suspects) <= missing else []


def _is_over(replica: Replica, look: _Look, now: float) -> bool:
    """Whether one that is not in the engine's count is silent for too long even so."""
    least_s = STALL_S if look.silent.has_begun else ABSENT_UNBEGUN_S
    prefills_s = PREFILLS * _prefill_s(replica, look.grant.prefill_tokens)
    return now - look.silent.since >= max(least_s, prefills_s)


def _is_passed_over(replica: Replica, look: _Look, now: float) -> bool:
    """Whether others go on, nothing waits in the engine, and this should have ended long ago."""
    silent, grant, clear_since = look.silent, look.grant, replica.absence.clear_since
    if not grant.waiting.request.streams or clear_since is None:
        return False
    if now - replica.vital.heard_at > LIVELY_S:
        return False
    longest = max(grant.predicted_tokens, grant.waiting.request.output_tokens_max or 0)
    answer_s = _prefill_s(replica, grant.prefill_tokens) + longest * replica.speed.step_s
    least_s = min(BESIDE_STALL_S_MAX, max(BESIDE_STALL_S, BESIDE_ANSWERS * answer_s))
    return now - max(silent.since, clear_since) >= least_s


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
