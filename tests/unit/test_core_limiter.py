"""The adaptive concurrency limit: its moves, and the closed loop with a model of an engine."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from statistics import fmean
from typing import Literal, Protocol

import pytest

from gateway.core.limiter import BUSY_CUT, TOKENS_A_STEP, ConcurrencyLimit

TARGET_S = 0.05
Signal = Literal["scrapes", "streams"]
Curve = Callable[[int, float], float]
"""(sequences running, seconds) -> TPOT in targets."""

SWING_MAX = {0.0: 1.25, 0.2: 2.0}
"""Stated bound of the oscillation by noise: largest batch over smallest, once settled."""
SWING_MAX_KNEE = 2.0
"""Same, for a curve that is flat and then rises five times as steeply as proportionally."""


def limited(limit: float) -> ConcurrencyLimit:
    """A limit found long ago: nothing recent is remembered."""
    found = ConcurrencyLimit()
    found.restore({"speed": limit})
    return found


def show(limit: ConcurrencyLimit, slowness: float, in_use: float) -> float:
    """One step's worth of tokens at `slowness` targets; the new limit."""
    limit.sampled(slowness * TARGET_S, TOKENS_A_STEP, in_use=in_use, target_s=TARGET_S)
    return limit.limit


# --- single moves -----------------------------------------------------------------------------


def test_nothing_is_limited_until_something_was_slow() -> None:
    """A fast engine would be held back by a guess."""
    limit = ConcurrencyLimit()
    for in_use in (1, 8, 500):
        assert show(limit, 0.9, in_use) == math.inf
        assert show(limit, 1.0, in_use) == math.inf


def test_a_slow_batch_is_cut_to_what_would_have_been_fast() -> None:
    """Everybody on that replica reads slower than was promised."""
    assert show(ConcurrencyLimit(), 1.25, 40) == pytest.approx(32.0)
    assert show(ConcurrencyLimit(), 100.0, 40) == pytest.approx(20.0)


def test_saying_the_same_twice_cuts_once() -> None:
    """While a batch drains its samples stay slow; a limit of one would be the end of it."""
    limit = limited(32.0)
    for _ in range(100):
        assert show(limit, 1.25, 40) == pytest.approx(32.0)


def test_between_calm_and_target_nothing_moves() -> None:
    """A limit that always explores settles on a broken promise."""
    limit = limited(16.0)
    for slowness in (0.91, 0.95, 1.0):
        assert show(limit, slowness, 16) == pytest.approx(16.0)


def test_a_calm_and_used_limit_rises_by_its_root() -> None:
    """After a slow period the room must be found again."""
    assert show(limited(16.0), 0.5, 16) == pytest.approx(20.0)


def test_a_stream_that_took_no_time_raises_the_limit_like_any_calm_one() -> None:
    """An answer that came in one piece has no time between its tokens."""
    assert show(limited(4.0), 0.0, 4) == 6.0


def test_a_rise_stops_at_what_the_sample_speaks_for() -> None:
    """From 0.85 of the target a rise by half would break the promise at once."""
    assert show(limited(4.0), 0.85, 4) == pytest.approx(5.1)
    assert show(limited(100.0), 0.89, 95) == pytest.approx(95 / 0.89)


def test_a_limit_that_is_not_used_does_not_rise() -> None:
    """Quiet nights must not teach that the engine can take anything."""
    assert show(limited(16.0), 0.1, 8) == pytest.approx(16.0)
    assert show(limited(16.0), 0.1, 9) > 16.0


def test_one_strange_step_is_half_believed() -> None:
    """The batch of a steady engine would swing with the weather of each second."""
    limit = limited(20.0)
    show(limit, 0.95, 20)
    assert show(limit, 1.04, 20) == 20.0
    assert show(limit, 1.5, 20) == pytest.approx(20 / 1.2475)


def test_a_rise_never_takes_back_room() -> None:
    """A sample of a half-used replica would otherwise cut a limit for being fast."""
    assert show(limited(30.0), 0.9, 16) == pytest.approx(30.0)


def test_the_limit_never_falls_below_one() -> None:
    """Nobody would ever be served by a replica that even one sequence finds slow."""
    limit = ConcurrencyLimit()
    assert show(limit, 50.0, 1) == 1.0
    assert show(limit, 50.0, 0) == 1.0
    limit.busy(0)
    assert limit.limit == 1.0


def test_single_tokens_are_gathered_before_they_are_believed() -> None:
    """One long prefill beside a stream would otherwise read as a slow engine."""
    limit = limited(40.0)
    limit.sampled(10 * TARGET_S, TOKENS_A_STEP * 0.04, in_use=20, target_s=TARGET_S)
    assert limit.limit == 40.0
    limit.sampled(0.5 * TARGET_S, TOKENS_A_STEP * 0.96, in_use=20, target_s=TARGET_S)
    assert limit.limit == 40.0  # 0.04 x 10 + 0.96 x 0.5 = 0.88 targets
    slow = limited(40.0)
    slow.sampled(10 * TARGET_S, TOKENS_A_STEP * 0.08, in_use=20, target_s=TARGET_S)
    slow.sampled(0.5 * TARGET_S, TOKENS_A_STEP * 0.92, in_use=20, target_s=TARGET_S)
    assert slow.limit == pytest.approx(20 / 1.26)


@pytest.mark.parametrize(
    ("tpot_s", "tokens"),
    [(math.nan, 99), (math.inf, 99), (-1.0, 99), (1.0, math.nan), (1.0, 0), (1.0, -5)],
)
def test_figures_that_cannot_be_are_ignored(tpot_s: float, tokens: float) -> None:
    """A restarted engine's counters run backwards, and one NaN would stay for ever."""
    limit = limited(8.0)
    limit.sampled(tpot_s, tokens, in_use=8, target_s=TARGET_S)
    assert limit.snapshot() == limited(8.0).snapshot()


def test_what_was_learnt_travels_as_json() -> None:
    """A new leader of the cluster would flood engines that the old one knew well."""
    fresh, known = ConcurrencyLimit(), limited(7.0)
    known.busy(5)
    known.sampled(0.2, 10, in_use=4, target_s=TARGET_S)
    for limit in (fresh, known):
        copy = limited(3.0)
        copy.restore(json.loads(json.dumps(limit.snapshot())))
        assert copy.limit == limit.limit
        assert copy.snapshot() == limit.snapshot()


def test_an_empty_snapshot_is_a_fresh_limit() -> None:
    """A follower of an older version sends fewer figures."""
    limit = limited(3.0)
    limit.restore({})
    assert limit.snapshot() == ConcurrencyLimit().snapshot()


# --- refusals ---------------------------------------------------------------------------------


def test_a_refusal_cuts_below_what_was_in_flight() -> None:
    """The next request would only travel to be refused."""
    limit = ConcurrencyLimit()
    limit.busy(20)
    assert limit.limit == pytest.approx(20 * BUSY_CUT)


def test_a_burst_of_refusals_cuts_once() -> None:
    """Thirty requests sent in one instant are one piece of news, not thirty."""
    limit = ConcurrencyLimit()
    for in_use in [*range(49, 19, -1), *[20] * 30]:
        limit.busy(in_use)
    assert limit.limit == pytest.approx(20 * BUSY_CUT)


def test_a_full_replica_recovers_one_sequence_per_generation() -> None:
    """TGI reports no TPOT: nothing else would ever raise the limit again."""
    limit = ConcurrencyLimit()
    limit.busy(20)
    for _ in range(18):
        limit.ended(math.floor(limit.limit) - 1)
    assert limit.limit == pytest.approx(19.0, abs=0.05)


def test_a_replica_that_is_not_full_proves_nothing() -> None:
    """A night of single requests would otherwise forget the wall."""
    limit = ConcurrencyLimit()
    limit.busy(20)
    for _ in range(100):
        limit.ended(12)
    assert limit.limit == pytest.approx(18.0)


def test_a_replica_is_full_while_no_whole_sequence_more_would_fit() -> None:
    """One that ends beside an unused place says nothing of the wall."""
    limit = ConcurrencyLimit()
    limit.busy(10)
    limit.ended(7)
    assert limit.limit == 9.0
    limit.ended(8)
    assert limit.limit > 9.0


def test_speed_does_not_lift_the_ceiling_that_refusals_set() -> None:
    """An engine that is fast up to its wall would be sent into it every fifty tokens."""
    limit = limited(40.0)
    limit.busy(10)
    for _ in range(50):
        assert show(limit, 0.2, 9) == pytest.approx(9.0)


def test_ends_do_not_lift_what_speed_asks_for() -> None:
    """The additive rule would creep over the target between two samples."""
    limit = limited(9.0)
    for _ in range(100):
        limit.ended(9)
    assert limit.limit == pytest.approx(9.0)


def test_a_wall_is_used_to_nine_tenths_and_seldom_hit() -> None:
    """Requests of an engine with a hard limit would bounce, or its slots lie idle."""
    limit, wall, running, refused, ends = ConcurrencyLimit(), 40, 0, 0, 20_000
    use = []
    for turn in range(ends):
        wall = 10 if ends / 4 < turn < ends / 2 else 40
        while running + 1 <= limit.limit and running < 64:
            if running >= wall:
                limit.busy(running)
                refused += 1
                break
            running += 1
        use.append(running / wall)
        running -= 1
        limit.ended(running)
    assert fmean(use[: ends // 4]) > 0.9
    assert fmean(use[-ends // 4 :]) > 0.9
    assert max(use[ends // 4 + 40 : ends // 2]) <= 1.0
    assert refused < ends / 40


# --- the closed loop --------------------------------------------------------------------------


class Limit(Protocol):
    """What the loop needs of a limiter, so that worse rules can be put in its place."""

    limit: float

    def sampled(self, tpot_s: float, tokens: float, *, in_use: float, target_s: float) -> None:
        """Take in what was measured."""


@dataclass(frozen=True)
class Seen:
    """One second of a run."""

    at_s: float
    limit: float
    running: int
    slowness: float


@dataclass(frozen=True, kw_only=True)
class Loop:
    """An engine that makes one token per running sequence and step; a step takes one TPOT."""

    curve: Curve
    signal: Signal = "scrapes"
    noise: float = 0.0
    """Standard deviation of single steps; whole seconds vary by half of it besides."""
    demand: Callable[[float], int] = lambda _: 1_000
    slots: int = 64

    def run(self, limit: Limit, duration_s: float = 400.0) -> list[Seen]:
        """What was seen each second."""
        dice = random.Random(7)
        now = scraped_at = area = busy_s = tokens = 0.0
        weather = 1.0
        running: list[tuple[int, int, float, float]] = []  # last step, length, start, area then
        seen: list[Seen] = []
        step = 0
        while now < duration_s:
            most = min(self.slots, limit.limit, self.demand(now))
            while len(running) + 1 <= most:
                length = dice.randint(50, 300)
                heappush(running, (step + length, length, now, area))
            count, step = len(running), step + 1
            luck = max(0.2, dice.gauss(1.0, self.noise)) * weather
            tpot_s = self.curve(max(1, count), now) * TARGET_S * luck
            now, area = now + tpot_s, area + count * tpot_s
            busy_s, tokens = busy_s + count * tpot_s, tokens + count
            while running and running[0][0] <= step:
                _, length, start, area_then = heappop(running)
                if self.signal == "streams":
                    mean = (area - area_then) / (now - start)
                    limit.sampled((now - start) / length, length, in_use=mean, target_s=TARGET_S)
            if now - scraped_at >= 1.0 and tokens:
                if self.signal == "scrapes":
                    limit.sampled(busy_s / tokens, tokens, in_use=count, target_s=TARGET_S)
                seen.append(Seen(now, limit.limit, count, busy_s / tokens / TARGET_S))
                scraped_at, busy_s, tokens = now, 0.0, 0.0
                weather = max(0.5, dice.gauss(1.0, self.noise / 2))
        return seen


def affine(alone: float, best: float) -> Curve:
    """TPOT is `alone` targets by the engine's weight and one target at `best` sequences."""
    return lambda running, _: alone + (1.0 - alone) * running / best


def swing(seen: list[Seen]) -> float:
    """Largest batch over smallest."""
    return max(each.running for each in seen) / min(each.running for each in seen)


def after(seen: list[Seen], start_s: float, end_s: float = math.inf) -> list[Seen]:
    """The part of a run between two instants."""
    return [each for each in seen if start_s <= each.at_s < end_s]


@pytest.mark.parametrize("signal", ["scrapes", "streams"])
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("alone", [0.05, 0.2, 0.4])
@pytest.mark.parametrize("best", [6, 16, 50])
def test_it_settles_within_a_tenth_of_the_target(
    signal: Signal, noise: float, alone: float, best: int
) -> None:
    """Slower breaks the promise; faster leaves a paid GPU idle."""
    seen = after(
        Loop(curve=affine(alone, best), signal=signal, noise=noise).run(ConcurrencyLimit()), 200
    )
    assert fmean(each.slowness for each in seen) == pytest.approx(1.0, abs=0.1)
    assert swing(seen) <= SWING_MAX[noise]


@pytest.mark.parametrize("signal", ["scrapes", "streams"])
def test_where_one_sequence_is_a_big_step_it_stays_within_one_of_the_best(signal: Signal) -> None:
    """A slow engine with three sequences has no batch within a tenth of the target."""
    seen = Loop(curve=lambda n, _: 0.2 + 0.3 * n, signal=signal).run(ConcurrencyLimit(), 800)
    assert {each.running for each in after(seen, 500)} <= {1, 2, 3}
    assert fmean(each.slowness for each in after(seen, 500)) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("signal", ["scrapes", "streams"])
@pytest.mark.parametrize("alone", [0.05, 0.4])
def test_it_does_not_collapse_while_a_flooded_engine_drains(signal: Signal, alone: float) -> None:
    """Every start of a busy gateway begins with one."""
    seen = Loop(curve=affine(alone, 16), signal=signal).run(ConcurrencyLimit())
    assert min(each.limit for each in seen) >= 16 / SWING_MAX[0.0]


@pytest.mark.parametrize("signal", ["scrapes", "streams"])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_it_follows_into_a_slow_period_and_finds_the_way_back_up(
    signal: Signal, noise: float
) -> None:
    """Somebody else's batch job ends; the room it took must not stay lost."""

    def curve(running: int, now: float) -> float:
        return (0.1 + 0.9 * running / 24) * (3.0 if 200 <= now < 400 else 1.0)

    seen = Loop(curve=curve, signal=signal, noise=noise).run(ConcurrencyLimit(), 600)
    for start_s, end_s in ((100, 200), (300, 400), (500, 600)):
        settled = after(seen, start_s, end_s)
        assert fmean(each.slowness for each in settled) == pytest.approx(1.0, abs=0.1)
        assert swing(settled) <= SWING_MAX[noise]
    back_at_s = next(each.at_s for each in after(seen, 400) if each.running >= 20)
    assert back_at_s < 440


@pytest.mark.parametrize("signal", ["scrapes", "streams"])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_flat_fast_engine_is_never_limited(signal: Signal, noise: float) -> None:
    """It would be the gateway that makes a fast engine slow."""
    seen = Loop(curve=lambda *_: 0.5, signal=signal, noise=noise).run(ConcurrencyLimit(), 200)
    assert {each.limit for each in seen} == {math.inf}
    assert after(seen, 10)[-1].running >= 60


@pytest.mark.parametrize("signal", ["scrapes", "streams"])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_curve_with_a_knee_is_not_overshot_for_long(signal: Signal, noise: float) -> None:
    """Engines are flat until memory runs short, and then steep."""
    loop = Loop(
        curve=lambda n, _: 0.4 if n <= 20 else 0.4 + 0.1 * (n - 20), signal=signal, noise=noise
    )
    seen = after(loop.run(ConcurrencyLimit()), 200)
    assert fmean(each.slowness for each in seen) == pytest.approx(1.0, abs=0.12)
    assert swing(seen) <= SWING_MAX_KNEE


def test_a_hiccup_stops_binding_once_the_engine_is_fast_again() -> None:
    """The limit stays finite after a hiccup; nobody may notice."""
    loop = Loop(
        curve=lambda _, now: 3.0 if 20 <= now < 23 else 0.4,
        demand=lambda now: 10 if now < 60 else 40,
    )
    seen = loop.run(ConcurrencyLimit(), 100)
    assert after(seen, 50, 60)[-1].running == 10
    assert after(seen, 50, 60)[-1].limit == pytest.approx(24, abs=5)
    assert after(seen, 66)[0].running >= 39


# --- negative controls: rules that the loop must find wanting ----------------------------------


class PlainGradient:
    """The rule that always explores."""

    def __init__(self) -> None:
        self.limit = 4.0

    def sampled(self, tpot_s: float, tokens: float, *, in_use: float, target_s: float) -> None:
        """Cut by the gradient, then add the root, whatever was seen."""
        assert tokens
        assert in_use
        self.limit = self.limit * min(1.0, target_s / tpot_s) + math.sqrt(self.limit)


class CutsItself:
    """The rule that multiplies the limit, whatever really runs."""

    def __init__(self) -> None:
        self.limit = math.inf

    def sampled(self, tpot_s: float, tokens: float, *, in_use: float, target_s: float) -> None:
        """Every slow sample is taken for news."""
        assert tokens
        mean = tpot_s / target_s
        if mean > 1.0:
            start = in_use if self.limit == math.inf else self.limit
            self.limit = max(1.0, start * max(0.5, 1.0 / mean))
        elif mean <= 0.9 and in_use > self.limit / 2:
            self.limit += math.sqrt(self.limit)


def test_the_loop_shows_that_the_plain_gradient_rule_breaks_its_promise() -> None:
    """A judge that likes every rule would protect nobody."""
    seen = after(Loop(curve=affine(0.0, 2)).run(PlainGradient()), 200)
    assert fmean(each.slowness for each in seen) > 1.6


def test_the_loop_shows_that_a_rule_blind_to_draining_collapses() -> None:
    """A judge that likes every rule would protect nobody."""
    seen = Loop(curve=affine(0.05, 16)).run(CutsItself())
    assert min(each.limit for each in seen) < 16 / SWING_MAX[0.0]
