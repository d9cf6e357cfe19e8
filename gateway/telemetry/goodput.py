"""Whether a settled request was served as its tier promises: within both targets, TTFT and TPOT.

It judges outcomes and times, and refuses to judge what says nothing of the service: requests that
were wrong themselves, that a limit of their own refused, or whose clients left in good time.
"""

from math import inf

from gateway.core.policy import Tier
from gateway.telemetry.record import SettledRequest

LEFT = ("cancelled", "client_stalled")
"""Outcomes that a client chose."""
TURNED_AWAY = ("over_capacity", "patience_spent")
"""Outcomes with a client's status that are the fleet's doing all the same."""


class Targets:
    """Seconds for the first token and for each further one; infinite where a tier names none."""

    __slots__ = ("tpot_s", "ttft_s")

    def __init__(self, ttft_s: float = inf, tpot_s: float = inf) -> None:
        self.ttft_s = ttft_s
        self.tpot_s = tpot_s


def targets_of(tier: Tier) -> Targets:
    """What a tier promises."""
    ttft_ms, tpot_ms = tier.ttft_target_ms, tier.tpot_target_ms
    return Targets(
        inf if ttft_ms is None else ttft_ms / 1e3, inf if tpot_ms is None else tpot_ms / 1e3
    )


def is_met(record: SettledRequest, targets: Targets) -> bool | None:
    """Whether the request met its targets; None: it does not count.

    A plain answer shows no first token: it must be there when a stream of its length that just met
    both targets would have ended. Who left counts as missed only if it had waited for the first
    token for longer than promised.
    """
    outcome = record.outcome
    if outcome == "done":
        if record.streams:
            return (record.ttft_s or 0.0) <= targets.ttft_s and (
                record.tpot_s or 0.0
            ) <= targets.tpot_s
        return record.duration_s <= _plain_s(record, targets)
    if outcome in LEFT:
        is_late = record.ttft_s is None and record.duration_s > targets.ttft_s
        return False if is_late else None
    if record.status >= 500 or record.status < 400 or outcome in TURNED_AWAY:
        return False
    return None


def _plain_s(record: SettledRequest, targets: Targets) -> float:
    output_tokens = 0 if record.usage is None else record.usage.output_tokens
    if output_tokens and targets.tpot_s == inf:
        return inf if record.waited_s <= targets.ttft_s else 0.0
    return targets.ttft_s + (output_tokens * targets.tpot_s if output_tokens else 0.0)
