"""The concurrency limit under any sequence of samples, refusals and ends."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.limiter import BUSY_CUT, CALM, CUT_MIN, LIMIT_MIN, ConcurrencyLimit

TARGET_S = 0.05

sequences = st.integers(0, 2_000)
samples = st.tuples(
    st.just("sampled"), st.floats(0.0, 100.0), st.floats(0.0, 5_000.0, width=32), sequences
)
refusals = st.tuples(st.just("busy"), sequences)
ends = st.tuples(st.just("ended"), sequences)
Move = tuple[str, float, float, int] | tuple[str, int]
moves = st.lists(st.one_of(samples, refusals, ends), max_size=60)


def apply(limit: ConcurrencyLimit, move: Move) -> None:
    """Tell `limit` what happened."""
    match move:
        case ("sampled", slowness, tokens, in_use):
            limit.sampled(slowness * TARGET_S, tokens, in_use=in_use, target_s=TARGET_S)
        case ("busy", in_use):
            limit.busy(int(in_use))
        case (_, in_use):
            limit.ended(int(in_use))


def after(told: list[Move]) -> ConcurrencyLimit:
    """A limit that lived through all of it."""
    limit = ConcurrencyLimit()
    for move in told:
        apply(limit, move)
    return limit


@given(told=moves)
def test_the_limit_is_always_a_number_of_at_least_one(told: list[Move]) -> None:
    """A NaN compares false with everything: the replica would be shut, or open, for ever."""
    limit = ConcurrencyLimit()
    for move in told:
        apply(limit, move)
        assert limit.limit >= LIMIT_MIN


@given(told=moves, move=st.one_of(samples, refusals, ends))
def test_a_copy_by_json_goes_on_exactly_as_the_original(told: list[Move], move: Move) -> None:
    """A replayed incident must decide what was decided."""
    original, copy = after(told), ConcurrencyLimit()
    copy.restore(json.loads(json.dumps(original.snapshot(), allow_nan=False)))
    assert copy.limit == original.limit
    apply(original, move)
    apply(copy, move)
    assert copy.limit == original.limit
    assert copy.snapshot() == original.snapshot()


@given(told=moves, in_use=sequences, times=st.integers(1, 50))
def test_a_burst_of_refusals_is_one_cut(told: list[Move], in_use: int, times: int) -> None:
    """The whole burst was sent before the first answer could be heard."""
    limit = after(told)
    before = limit.limit
    limit.busy(in_use)
    cut = limit.limit
    assert min(before, max(LIMIT_MIN, BUSY_CUT * in_use)) == cut
    for more in range(times):
        limit.busy(in_use + more)
    assert limit.limit == cut


@given(told=moves, in_use=sequences)
def test_one_end_gives_at_most_one_sequence_back(told: list[Move], in_use: int) -> None:
    """Recovery by leaps would run into the wall again at once."""
    limit = after(told)
    before = limit.limit
    limit.ended(in_use)
    assert before <= limit.limit <= before + 1.0


@given(told=moves, slowness=st.floats(1.01, 100.0), in_use=st.integers(1, 2_000))
def test_a_steady_slow_batch_is_cut_to_its_estimate_and_no_further(
    told: list[Move], slowness: float, in_use: int
) -> None:
    """However long the batch takes to drain, the limit must be waiting for it there."""
    limit = after(told)
    before = limit.limit
    floor = max(LIMIT_MIN, in_use * max(CUT_MIN, 1.0 / slowness))
    for _ in range(100):
        limit.sampled(slowness * TARGET_S, 50, in_use=in_use, target_s=TARGET_S)
    assert limit.limit <= max(floor * 1.001, LIMIT_MIN) or limit.limit <= before
    fresh = ConcurrencyLimit()
    for _ in range(100):
        fresh.sampled(slowness * TARGET_S, 50, in_use=in_use, target_s=TARGET_S)
        assert math.isclose(fresh.limit, floor, rel_tol=1e-9)


@given(
    alone=st.floats(0.0, 0.5),
    best=st.integers(3, 200),
    flood=st.integers(1, 400),
    drain=st.integers(4, 20),
)
def test_on_a_straight_line_it_comes_to_rest_beside_the_best_batch(
    alone: float, best: int, flood: int, drain: int
) -> None:
    """Any engine, any flood, any time to drain: it may not swing, collapse or stay slow."""
    limit, running, flooded, resting = ConcurrencyLimit(), flood, [], []
    for turn in range(300):
        if turn == 150:
            limit.restore({"speed": 1.0})  # a slow period has just ended
        slowness = alone + (1.0 - alone) * running / best
        limit.sampled(slowness * TARGET_S, 50, in_use=running, target_s=TARGET_S)
        allowed = flood if limit.limit == math.inf else math.floor(limit.limit)
        running = max(allowed, running - drain) if running > allowed else allowed
        flooded.append(running)
        if turn >= 230:
            resting.append(running)
    assert min(flooded[:150]) >= min(flood, best - 1)
    # At most one step of the band below the target, and one sequence beyond the best.
    assert min(resting) >= min(best - 1, math.floor(best * (CALM - alone) / (1.0 - alone)))
    assert max(resting) <= best + 1
