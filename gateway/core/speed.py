"""How fast one engine is: what an output token takes, and how many prompt tokens it computes.

Learnt from the differences between scrapes, from our own streams and from first tokens. Nothing is
known here of load and limits: whoever learns says how many ran meanwhile.
"""

from collections.abc import Mapping
from typing import Any, Final

from gateway.core.ledger import Grant
from gateway.core.plain import age_s, finite, instant_of
from gateway.core.rates import Mean
from gateway.core.report import ReplicaReport

ITL_TOKENS_MIN: Final = 50
"""Fewer tokens than this say nothing of the speed."""
PREFILL_TOKENS_MIN: Final = 512
"""Shorter prompts measure overhead rather than the prefill rate."""
LONG_PREFILL_TOKENS: Final = 8_192
"""A prompt this long slows the streams beside it so much that they say nothing of the batch."""
GAUGES_LAG_S: Final = 1.0
"""An engine's counters may show what was so long ago."""
PREFILL_TOKENS_PER_S: Final = 8_000.0
"""Prefill rate until one is learnt: half of what an A100 does for a 7B model (Vidur profiles)."""
PREFILL_TOKENS_PER_S_MAX: Final = 2 * PREFILL_TOKENS_PER_S
"""What an engine is taken to have computed at most, until one is learnt."""
STEP_S: Final = 0.03
"""Engine step until one is learnt."""
SPEED_HALVING_S: Final = 5.0
"""With no new samples the excess of the measured TPOT over a limit halves in this time."""
LEARNING_SHARE: Final = 0.3


class Speed:
    """What is believed of one engine's pace, in seconds a token and tokens a second."""

    __slots__ = (
        "_last_prefill_end", "_long_prefill_end", "_prefill_rate", "tpot_at", "tpot_in_use",
        "tpot_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tpot_s: float | None = None
        self.tpot_at = 0.0
        self.tpot_in_use = 0.0
        """Sequences there when it was measured."""
        self._prefill_rate = Mean(LEARNING_SHARE)
        self._last_prefill_end = 0.0
        self._long_prefill_end = float("-inf")

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second that the engine prefills."""
        learnt = self._prefill_rate.value
        return PREFILL_TOKENS_PER_S if learnt is None else learnt

    @property
    def step_s(self) -> float:
        """Duration of one engine step: its TPOT, or a guess until one was seen."""
        return STEP_S if self.tpot_s is None else self.tpot_s

    def tpot_over(self, limit_s: float, occupied: int, now: float) -> bool:
        """Whether the TPOT exceeds `limit_s` with one more than `occupied` sequences there.

        Silence halves the excess; and a sample is late, so it counts only while about as many run
        as when it was taken: one that is slow for its batch is fast enough for a smaller one.
        """
        if self.tpot_s is None or self.tpot_s <= limit_s:
            return False
        if (occupied + 1) * self.tpot_s <= self.tpot_in_use * limit_s:
            return False
        excess_s = self.tpot_s - limit_s
        silent_s = max(0.0, now - self.tpot_at)
        # Without the decay a gate closed by a slow moment would never see a sample again.
        return bool(excess_s * 0.5 ** (silent_s / SPEED_HALVING_S) > 0.02 * limit_s)

    def take_tpot(self, tpot_s: float, in_use: float, now: float) -> None:
        """A token took `tpot_s` while `in_use` sequences were there."""
        self.tpot_s = max(0.0, tpot_s)
        self.tpot_at, self.tpot_in_use = now, in_use

    def take_first_token(self, grant: Grant, now: float) -> None:
        """A first token came: the time since the prefill before it measures the prefill rate."""
        prompt_tokens = grant.prefill_tokens
        # One that waited for a slot would measure the wait.
        if grant.found_room and prompt_tokens >= PREFILL_TOKENS_MIN:
            elapsed_s = now - max(grant.granted_at, self._last_prefill_end)
            if elapsed_s > 0.0:
                self._prefill_rate.add(prompt_tokens / elapsed_s)
        self._last_prefill_end = now
        if prompt_tokens >= LONG_PREFILL_TOKENS:
            self._long_prefill_end = now

    def prefilled_share(self, grant: Grant, now: float) -> float:
        """Share of its prompt, 0..1, that the engine has probably computed for `grant`."""
        rate = self._prefill_rate.value
        if rate is None:
            # Not the usual guess: where it is too low, cancelling would be cheap prefill.
            rate = PREFILL_TOKENS_PER_S_MAX
        expected_s = grant.prefill_tokens / rate
        if grant.is_started or expected_s <= 0.0:
            return 1.0
        return min(1.0, (now - grant.granted_at) / expected_s)

    def had_long_prefill(self, since: float) -> bool:
        """Whether the gauges of that instant or of later ones may show a long prefill's end."""
        return since < self._long_prefill_end + GAUGES_LAG_S

    def snapshot(self, now: float) -> dict[str, Any]:
        """What was learnt, as plain values."""
        return {
            "tpot_s": finite(self.tpot_s),
            "tpot_age_s": now - self.tpot_at,
            "tpot_in_use": self.tpot_in_use,
            "prefill_rate": self._prefill_rate.value,
            "last_prefill_age_s": now - self._last_prefill_end,
            "long_prefill_age_s": age_s(self._long_prefill_end, now),
        }

    def restore(self, data: Mapping[str, Any], now: float) -> None:
        """Go on at `now` from what `snapshot` gave, perhaps under another clock."""
        self.tpot_s = data["tpot_s"]
        self.tpot_at = now - data["tpot_age_s"]
        self.tpot_in_use = data["tpot_in_use"]
        self._prefill_rate.value = data["prefill_rate"]
        self._last_prefill_end = now - data["last_prefill_age_s"]
        self._long_prefill_end = instant_of(data["long_prefill_age_s"], now)


def itl_between(previous: ReplicaReport, report: ReplicaReport) -> tuple[float, float] | None:
    """(tokens, seconds for all of them) that the engine made between two scrapes; None: unsaid.

    Fewer than no tokens where it was started anew.
    """
    if (
        report.itl_count is None
        or previous.itl_count is None
        or report.itl_sum_s is None
        or previous.itl_sum_s is None
    ):
        return None
    return report.itl_count - previous.itl_count, report.itl_sum_s - previous.itl_sum_s
