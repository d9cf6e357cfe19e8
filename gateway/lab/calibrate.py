"""Fits a profile to a live engine: a small designed load, timed, and the costs that explain it.

Prompts of several lengths, each alone, give the cost of prefill; answers in batches of several
sizes over short and long contexts, timed while the whole batch decodes, give the cost of decoding.
How the costs are solved for is in `fitting.py`, what is sent and heard in `loading.py`.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, median

from gateway.lab.comparing import table
from gateway.lab.fitting import Fit, Observation, Step, fitted
from gateway.lab.loading import EngineFault, Heard, LiveEngine, Scrape
from gateway.sim.profiles import Profile
from gateway.sim.world.outcome import percentile

BATCH_MAX = 64
"""Most answers at once, unless the engine's slots are fewer."""
STEP_TOKENS = 1_800
"""Prompts are no longer, so that each is one step of 2,048 tokens even where words are long."""
PREFILLS = 8
"""Lengths of prompts that are tried."""
PREFILL_TOKENS_MIN = 16
DECODE_TOKENS = 32
SHORT_TOKENS, LONG_TOKENS = 32, 1_024
"""Contexts of those that decode."""
CONTEXT_TOKENS = 4_096
"""Where the engine does not say how much it can hold."""
KV_SHARE_MAX = 0.8
BLOCK_TOKENS, MAX_NUM_SEQS = 16, 256
"""Where the engine does not say; vLLM's defaults."""
ROUNDS_MIN, ROUNDS_MAX = 3, 12
"""Of everything that is sent; what was disturbed once is not twice."""
MARKS_MIN = 4
"""Tokens of each answer within the time when all decode; fewer tell no step time."""
FOREIGN_SHARE_MAX = 0.02
"""Tokens of others, as a share of ours, beyond which the figures are doubted."""
LOOK_AFTER_S = 0.05
LOOKS_MAX = 40
"""Looks at a batch's queue before it is called known."""

Say = Callable[[str], object]
_BLOCK = re.compile(r'block_size="(\d+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the engine says that it holds."""

    context_tokens: int
    kv_tokens: int
    block_tokens: int
    max_num_seqs: int | None
    """None: never found full."""

    def told(self) -> str:
        """One line."""
        slots = (
            "slots that were never full"
            if self.max_num_seqs is None
            else (f"{self.max_num_seqs} slots")
        )
        return (
            f"{slots}, KV of {self.kv_tokens} tokens in blocks of {self.block_tokens}, "
            f"contexts of {self.context_tokens}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What came of it."""

    profile: Profile
    fit: Fit
    observations: Sequence[Observation]
    hop_s: float
    """Half of what a first token takes beside its prefill."""
    rounds: int
    doubts: Sequence[str] = ()

    def told(self) -> Iterator[str]:
        """For people, line by line."""
        rows = []
        for each in self.observations:
            said_s = self.profile.step_s(
                each.step.tokens,
                decodes=each.step.decodes,
                kv_tokens=each.step.kv_tokens,
                attended=each.step.attended,
            )
            off = said_s / each.seconds - 1
            rows.append(
                [each.label, f"{each.seconds * 1000:.2f}", f"{said_s * 1000:.2f}", f"{off:+.1%}"]
            )
        yield from table(("step", "measured ms", "fitted ms", "off"), rows)
        yield ""
        yield (
            f"{len(self.observations)} kinds of steps in {self.rounds} rounds; "
            f"root mean square of the errors {self.fit.error:.1%}; "
            f"one way to the engine {self.hop_s * 1000:.2f} ms (--hop-ms)"
        )
        yield from self.doubts


@dataclass(slots=True)
class _Seen:
    """What has been measured so far, by the label of the step."""

    steps: dict[str, list[Step]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    extras_s: list[float] = field(default_factory=list)
    tokens: int = 0

    def add(self, label: str, step: Step, seconds: float) -> None:
        self.steps.setdefault(label, []).append(step)
        self.seconds.setdefault(label, []).append(seconds)

    def observations(self) -> list[Observation]:
        """One for each label.

        Of prefills the lower quartile: what disturbs a single step only ever makes it longer.
        Of decodes the median: a disturbance at the beginning makes all that follows look shorter.
        """
        return [
            Observation(
                Step(*(round(fmean(column)) for column in zip(*self.steps[label], strict=True))),
                percentile(self.seconds[label], 0.5 if self.steps[label][0].decodes else 0.25),
                label,
            )
            for label in sorted(self.steps, key=lambda label: _size(self.steps[label][0]))
        ]


async def calibrate(
    engine: LiveEngine,
    *,
    seconds: float,
    seed: int,
    batch_max: int = BATCH_MAX,
    max_num_seqs: int | None = None,
    say: Say,
) -> Calibrated:
    """Load the engine for about `seconds`, and at least three rounds long.

    Raises:
        EngineFault: it does not do what is asked of it, or is not alone.
        ValueError: what was seen is no step times.
    """
    dice, began_at = Random(seed), engine.clock()
    await engine.open(dice)
    before = await engine.scrape()
    if before.report.running or before.report.waiting:
        raise EngineFault("others use the engine; only one that is idle can be calibrated")
    sizes = await _sized(engine, before, batch_max=batch_max, slots=max_num_seqs, dice=dice)
    say(f"{engine.model}: {sizes.told()}")
    start, seen, rounds = await engine.scrape(), _Seen(), 0
    while rounds < ROUNDS_MAX and (rounds < ROUNDS_MIN or engine.clock() - began_at < seconds):
        for tokens in dice.sample(_lengths(sizes), PREFILLS):
            await _prefill(engine, tokens, seen, dice)
        for batch, context in _shuffled(_batches(sizes, batch_max), dice):
            await _decode(engine, batch, context, seen=seen, dice=dice)
        rounds += 1
        say(f"round {rounds} after {engine.clock() - began_at:.0f} s")
    doubts = _doubts(start, await engine.scrape(), seen, sizes)
    observations = seen.observations()
    fit = fitted(observations)
    return Calibrated(
        profile=_profile(engine, fit, sizes),
        fit=fit,
        observations=observations,
        hop_s=max(0.0, median(seen.extras_s) / 2),
        rounds=rounds,
        doubts=doubts,
    )


# --- what is asked of it ------------------------------------------------------------------------


def _lengths(sizes: Sizes) -> list[int]:
    """Prompts from short to as long as one step has, in equal ratios."""
    most = min(STEP_TOKENS, int(sizes.context_tokens * KV_SHARE_MAX))
    ratio = (most / PREFILL_TOKENS_MIN) ** (1 / (PREFILLS - 1))
    return [round(PREFILL_TOKENS_MIN * ratio**power) for power in range(PREFILLS)]


def _batches(sizes: Sizes, batch_max: int) -> list[tuple[int, int]]:
    """(answers at once, tokens of each context)."""
    most = min(batch_max, sizes.max_num_seqs or batch_max)
    counts = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    if counts[-1] < most:
        counts.append(most)
    found = []
    for count in counts:
        room = min(sizes.context_tokens, int(sizes.kv_tokens * KV_SHARE_MAX) // count)
        for context in (SHORT_TOKENS, min(LONG_TOKENS, room - 2 * DECODE_TOKENS)):
            if 0 < context <= room - DECODE_TOKENS and (count, context) not in found:
                found.append((count, context))
    return found


def _shuffled(cells: list[tuple[int, int]], dice: Random) -> list[tuple[int, int]]:
    return dice.sample(cells, len(cells))


async def _sized(
    engine: LiveEngine, scrape: Scrape, *, batch_max: int, slots: int | None, dice: Random
) -> Sizes:
    """What it says of itself; its slots show when so many come that some have to wait."""
    kv_tokens = scrape.report.kv_capacity_tokens
    context = min(engine.max_model_len or CONTEXT_TOKENS, kv_tokens or CONTEXT_TOKENS)
    block = _BLOCK.search(scrape.text)
    return Sizes(
        context_tokens=context,
        kv_tokens=kv_tokens or context * batch_max,
        block_tokens=int(block.group(1)) if block else BLOCK_TOKENS,
        max_num_seqs=slots or await _slots(engine, batch_max, dice),
    )


async def _slots(engine: LiveEngine, batch_max: int, dice: Random) -> int | None:
    """The most that run while others wait, of one more than we would ever send."""
    prompts = [engine.prompt(PREFILL_TOKENS_MIN, dice) for _ in range(batch_max + 1)]
    work = asyncio.ensure_future(engine.ask_all(prompts, tokens=DECODE_TOKENS))
    found: int | None = None
    try:
        for _ in range(LOOKS_MAX):
            await asyncio.sleep(LOOK_AFTER_S)
            if work.done():
                break
            report = (await engine.scrape()).report
            running = report.running if report.waiting else None
            if running and running == found:
                break  # twice the same: it is full
            found = running or found
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
    # Gauges stand still after everything was aborted, until the next step.
    await engine.ask(engine.prompt(PREFILL_TOKENS_MIN, dice), tokens=2)
    return found


def _size(step: Step) -> tuple[int, int]:
    """Prefills before decodes, the small before the large."""
    return (step.decodes, step.tokens + step.kv_tokens)


# --- what is measured ---------------------------------------------------------------------------


async def _prefill(engine: LiveEngine, tokens: int, seen: _Seen, dice: Random) -> None:
    """One prompt alone: the engine itself says how long its prefill took."""
    prompt = engine.prompt(tokens, dice)
    before = (await engine.scrape()).report
    heard = await engine.ask(prompt, tokens=1)
    after = (await engine.scrape()).report
    total_s = heard.first_at - heard.sent_at
    took_s = (
        _mean_between((before.prefill_sum_s, before.prefill_count),
                      (after.prefill_sum_s, after.prefill_count))
        or _mean_between((before.ttft_sum_s, before.ttft_count),
                         (after.ttft_sum_s, after.ttft_count))
        or total_s
    )  # fmt: skip
    size = heard.prompt_tokens
    seen.add(f"prefill of {tokens}", Step(size, attended=size * size // 2), took_s)
    seen.extras_s.append(total_s - took_s)
    seen.tokens += heard.output_tokens


async def _decode(
    engine: LiveEngine, batch: int, context: int, *, seen: _Seen, dice: Random
) -> None:
    """So many answers at once, timed from the last first token to the first last one."""
    prompts = [engine.prompt(context, dice) for _ in range(batch)]
    heard = await engine.ask_all(prompts, tokens=DECODE_TOKENS)
    seen.tokens += sum(each.output_tokens for each in heard)
    since = max(each.first_at for each in heard)
    until = min(each.last_at for each in heard)
    spans = [span for each in heard if (span := _span(each, since, until)) is not None]
    tokens = sum(count for count, _, _ in spans)
    if tokens < MARKS_MIN * batch:
        return  # they were hardly ever together
    step_s = sum(lasted_s for _, lasted_s, _ in spans) / tokens
    kv_tokens = sum(each.prompt_tokens for each in heard) + sum(mid for _, _, mid in spans)
    step = Step(batch, decodes=batch, kv_tokens=round(kv_tokens))
    seen.add(f"decode of {batch} x {context}", step, step_s)


def _span(heard: Heard, since: float, until: float) -> tuple[int, float, float] | None:
    """(tokens, seconds, tokens so far in the middle) between two instants."""
    inside = [mark for mark in heard.marks if since <= mark[0] <= until]
    if len(inside) < 2:
        return None
    (first_at, first), (last_at, last) = inside[0], inside[-1]
    return last - first, last_at - first_at, (first + last) / 2


def _mean_between(
    before: tuple[float | None, float | None], after: tuple[float | None, float | None]
) -> float | None:
    """Mean of what a histogram took in between; None where it took in nothing."""
    (sum_before, count_before), (sum_after, count_after) = before, after
    if sum_before is None or count_before is None or sum_after is None or count_after is None:
        return None
    count = count_after - count_before
    return (sum_after - sum_before) / count if count > 0 else None


def _doubts(before: Scrape, after: Scrape, seen: _Seen, sizes: Sizes) -> list[str]:
    doubts = []
    if sizes.max_num_seqs is None:
        doubts.append(
            f"its slots were never full; the profile says {MAX_NUM_SEQS}: "
            "name them with --max-num-seqs where there are others"
        )
    made = (after.report.generation_tokens or 0) - (before.report.generation_tokens or 0)
    if made > seen.tokens * (1 + FOREIGN_SHARE_MAX):
        doubts.append(f"others used the engine: it made {made:.0f} tokens, {seen.tokens} for us")
    return doubts


def _profile(engine: LiveEngine, fit: Fit, sizes: Sizes) -> Profile:
    return Profile(
        name=f"{engine.model}-calibrated",
        weights_ms=fit.weights_ms,
        token_ms=fit.token_ms,
        knee=fit.knee,
        # One layer stands for all of them: only their sum can be seen from outside.
        layers=1,
        layer_us=0.0,
        layer_sequence_us=fit.sequence_ms * 1000,
        kv_token_us=fit.kv_token_ms * 1000,
        attended_pair_ns=fit.pair_ms * 1e6,
        kv_blocks=max(1, sizes.kv_tokens // sizes.block_tokens),
        block_tokens=sizes.block_tokens,
        max_num_seqs=sizes.max_num_seqs or MAX_NUM_SEQS,
        max_model_len=sizes.context_tokens,
    )
