"""How many sequences one replica takes at a time, learnt from the speed it shows and its refusals.

Decides one number, `limit`; refuses to know requests, tiers, clocks, or why an engine is slow.

Every engine slows down with its batch, and the operator states a bearable time per output token
(TPOT). The largest batch that keeps within it is looked for; nobody knows the curve, and it moves
with context lengths, foreign load and the weather of the machine. End-to-end latency says nothing
about it, since long answers take long at any batch.

**Why not the plain gradient rule.** `L <- L * min(1, target/mean) + sqrt(L)` always adds its
exploring term, so it can rest only where the cut takes away exactly that much: at
`mean = target / (1 - 1/sqrt(L))`. That is twice the target at L = 4, a third above it at L = 16:
the rule settles by design on a broken promise. So here the two moves exclude each other, with a
band between them in which nothing moves:

- `mean > target`: down to `ran * max(1/2, target/mean)`
- `mean <= 0.9 target` and more than half of the limit used: up by `sqrt(L)`, at most to
  `max(ran + 1.1, ran * target/mean)`

**Why from what ran, not from the limit.** A lower limit ends no sequence; the batch shrinks only as
answers end, for seconds or minutes, and all that time the samples stay slow. Multiplying the limit
once a step would read each of them as news and end at 1. A sample rather says: "`ran` sequences
were that slow, hence there is room for `ran * target/mean`", and saying it twice changes nothing.
The estimate errs on the gentle side: where TPOT is affine in the batch, `a + b n`, a cut never goes
below the right batch, and leaves at most the share `a/target` of the excess to the next one; a rise
never goes above the right batch, but for the one sequence that may always be tried. Only a curve
that bends upwards (preemption, a thrashing cache) is overshot, at a full replica by `sqrt(L)`.

**Noise.** Means of single steps are off by a tenth and more, and following each made the batch of
a steady engine swing by a factor of up to 3. So slowness and `ran` are both averaged over the last
few steps, with the same weights: on an affine curve the pair of means lies on the curve again, and
the estimate stays what it is. The averages are a step or two late, draining is later anyway.

**Refusals** (busy answers) say that a wall exists and not where it will be tomorrow: additive
increase (with answers that end, and slowly with time), multiplicative decrease, in a ceiling of
its own. If both moved one number, an engine that
is fast up to the wall would be sent into it again every 50 tokens.

**A limit once found stays finite.** Infinity means "nothing has shown that there is one", which is
no longer true. A limit that rose after a passing hiccup lies at up to twice what runs and binds
nobody; forgetting it would matter in one case only, a sudden burst, and would send all of it at
once into an engine that has been seen to suffer. A restarted engine gets a new object.
"""

import math
from collections.abc import Mapping
from typing import Final

TOKENS_A_STEP: Final = 50
"""Fewer tokens are too few to tell a slow batch from one long prefill beside it."""
NEWS: Final = 0.5
"""Share of the newest step in what is believed; one step alone is mostly the weather."""
CALM: Final = 0.9
"""Below this share of the target the limit may rise; between it and the target it rests."""
TRIED: Final = 1.1
"""So many more than ran may be tried in any case: small batches grow by whole sequences, and a mean
of four sequences is mostly a little less than four."""
CUT_MIN: Final = 0.5
"""No step takes more than half of what ran, however slow: one sample may be an accident."""
BUSY_CUT: Final = 0.9
"""After a refusal: the level that was refused is known exactly, unlike on a lossy network, and the
next probe costs one request its trip, so a small retreat keeps 95 % of the room on average."""
RECOVERY_PER_S: Final = 0.25
"""Sequences by which the ceiling rises each second whatever ends: an engine that said "busy" once,
beside one long answer, must not be left with that answer alone until it is finished."""
LIMIT_MIN: Final = 1.0
"""Where even one sequence is too slow there is nothing left to gain by waiting."""


class ConcurrencyLimit:
    """The adaptive limit on the sequences in flight on one replica.

    `limit` (>= 1, or infinity until something showed that there is one) may be compared with the
    sequences in flight on every event: one more fits while `in_use + 1 <= limit`. It is not a
    whole number: the fraction is progress towards the next sequence.

    `in_use` is everywhere the same count that is compared with the limit. Constant time and memory.
    """

    __slots__ = (
        "limit", "_speed", "_ceiling", "_slowness", "_ran", "_tokens", "_time_s", "_sequence_tokens"
    )  # fmt: skip

    def __init__(self) -> None:
        self.limit = math.inf
        self._speed = math.inf
        """Limit that the TPOT samples ask for."""
        self._ceiling = math.inf
        """Limit that the busy answers ask for."""
        self._slowness: float | None = None
        """Recent TPOT in targets; None before the first step."""
        self._ran = 0.0
        """Sequences that ran meanwhile."""
        self._tokens = 0.0
        self._time_s = 0.0
        self._sequence_tokens = 0.0

    def sampled(self, tpot_s: float, tokens: float, *, in_use: float, target_s: float) -> None:
        """`tokens` output tokens took `tpot_s` seconds each while `in_use` sequences ran.

        `in_use` belongs to the time in which these tokens were made: for the difference of two
        scrapes the count at the later one will do, for the whole life of a stream it must be the
        mean over that life, or old samples are read as news. `target_s` > 0. Samples without tokens
        or without a finite time are ignored. Steps once `TOKENS_A_STEP` have come together.
        """
        assert target_s > 0.0
        if not (0.0 < tokens < math.inf and 0.0 <= tpot_s < math.inf):
            return
        self._tokens += tokens
        self._time_s += tokens * tpot_s
        self._sequence_tokens += tokens * in_use
        if self._tokens >= TOKENS_A_STEP:
            mean_s = self._time_s / self._tokens
            ran = self._sequence_tokens / self._tokens
            self._tokens = self._time_s = self._sequence_tokens = 0.0
            self._step(mean_s / target_s, ran)

    def busy(self, in_use: int) -> None:
        """The engine refused a request as busy while `in_use` sequences were in flight there.

        Whether the refused one is counted makes no difference that lasts. The cut starts from what
        was in flight, not from the limit, so all refusals of one burst make one cut together: the
        one of the smallest `in_use` among them, never below `BUSY_CUT` of what is in flight.
        """
        self._ceiling = max(LIMIT_MIN, min(self._ceiling, in_use * BUSY_CUT))
        self.limit = min(self._speed, self._ceiling)

    def ended(self, in_use: int) -> None:
        """A sequence ended normally and `in_use` are still in flight.

        Recovers from refusals by one sequence per generation of a full replica; nothing to do
        where the engine never refused, or where the ceiling is not what holds.
        """
        ceiling = self._ceiling
        if in_use > ceiling - 2.0:  # the whole part of the ceiling was in use until now
            self._ceiling = ceiling + 1.0 / ceiling
            self.limit = min(self._speed, self._ceiling)

    def rested(self, elapsed_s: float) -> None:
        """So many seconds passed since the last time this was told."""
        if self._ceiling < math.inf:
            self._ceiling += elapsed_s * RECOVERY_PER_S
            self.limit = min(self._speed, self._ceiling)

    def snapshot(self) -> dict[str, float | None]:
        """What has been learnt, as plain data for JSON: infinity is None."""
        return {
            "speed": None if self._speed == math.inf else self._speed,
            "ceiling": None if self._ceiling == math.inf else self._ceiling,
            "slowness": self._slowness,
            "ran": self._ran,
            "tokens": self._tokens,
            "time_s": self._time_s,
            "sequence_tokens": self._sequence_tokens,
        }

    def restore(self, data: Mapping[str, float | None]) -> None:
        """Go on from what `snapshot` returned; a figure that is missing is one not learnt yet."""
        speed, ceiling = data.get("speed"), data.get("ceiling")
        self._speed = math.inf if speed is None else max(LIMIT_MIN, speed)
        self._ceiling = math.inf if ceiling is None else max(LIMIT_MIN, ceiling)
        self._slowness = data.get("slowness")
        self._ran = data.get("ran") or 0.0
        self._tokens = data.get("tokens") or 0.0
        self._time_s = data.get("time_s") or 0.0
        self._sequence_tokens = data.get("sequence_tokens") or 0.0
        self.limit = min(self._speed, self._ceiling)

    def _step(self, slowness: float, ran: float) -> None:
        """One move of the speed limit; `slowness` is the newest mean TPOT in targets."""
        if self._slowness is not None:
            slowness = self._slowness + NEWS * (slowness - self._slowness)
            ran = self._ran + NEWS * (ran - self._ran)
        self._slowness, self._ran = slowness, ran
        speed = self._speed
        if slowness > 1.0:
            self._speed = max(LIMIT_MIN, min(speed, ran * max(CUT_MIN, 1.0 / slowness)))
        elif slowness <= CALM and speed / 2.0 < ran and speed < math.inf:
            room = max(ran + TRIED, ran / slowness) if slowness else math.inf
            self._speed = max(speed, min(speed + math.sqrt(speed), room))
        self.limit = min(self._speed, self._ceiling)
