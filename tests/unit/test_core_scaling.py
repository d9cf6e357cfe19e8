"""Advice on the number of replicas: single decisions, and an hour of virtual time."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.policy import Scaling
from gateway.core.scaling import GROWTH_MAX, ScalingAdvisor, signal

SCALING = Scaling(min=0, max=8, hold_s=10.0, cooldown_s=60.0)


def advised(
    load: float, *, replicas: int, waiting: bool = False, scaling: Scaling = SCALING
) -> int | None:
    """First advice of a fresh advisor after a long time at a constant load, in replicas."""
    advisor = ScalingAdvisor()
    said = None
    for now in range(int(scaling.hold_s) + 1):
        assert said is None, "said before the hold was over"
        said = tell(advisor, load, replicas, now, waiting=waiting, scaling=scaling)
    return said


def tell(
    advisor: ScalingAdvisor,
    load: float,
    replicas: int,
    now: float,
    *,
    waiting: bool | None = None,
    scaling: Scaling = SCALING,
) -> int | None:
    """One call with the signal of `load` (in replicas) on `replicas` equal ones."""
    used = min(load, replicas)
    value = signal(capacity=replicas, used=used, waiting=load - used)
    has_waiting = load > replicas if waiting is None else waiting
    return advisor.advise(
        value, replicas=replicas, has_waiting=has_waiting, now=now, scaling=scaling
    )


# --- the signal -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capacity", "used", "waiting", "expected"),
    [
        (10.0, 0.0, 0.0, 1.0),
        (10.0, 4.0, 0.0, 0.6),
        (10.0, 10.0, 0.0, 0.0),
        (10.0, 10.0, 5.0, -0.5),
        (10.0, 10.0, 1e9, -2.0),
        (10.0, -50.0, 0.0, 2.0),
        (0.0, 0.0, 3.0, -2.0),
        (0.0, 0.0, 1.0, -2.0),
        (0.0, 0.0, 0.0, 0.0),
        (0.0, 5.0, 0.0, 0.0),
    ],
)
def test_the_signal_is_the_free_share_less_what_waits(
    capacity: float, used: float, waiting: float, expected: float
) -> None:
    """With late binding the line is at the gateway: full replicas alone never ask for more."""
    assert signal(capacity=capacity, used=used, waiting=waiting) == pytest.approx(expected)


# --- upwards ----------------------------------------------------------------------------------


def test_a_backlog_asks_for_as_many_as_clear_the_threshold() -> None:
    """One at a time would let a morning's rush wait for four starts in a row."""
    assert advised(4.3, replicas=3) == 4
    assert advised(4.5, replicas=3) == 5
    assert advised(5.4, replicas=3) == 5


def test_a_load_exactly_at_the_threshold_of_a_size_gets_one_more() -> None:
    """The signal must come to lie above the threshold, not on it."""
    scaling = replace(SCALING, below=-0.25)
    assert advised(5.0, replicas=3, scaling=scaling) == 5
    assert advised(4.9, replicas=3, scaling=scaling) == 4


def test_one_advice_at_most_doubles() -> None:
    """A burst is often over before the machines that it asked for have started."""
    assert advised(30.0, replicas=2) == 4
    assert advised(30.0, replicas=1) == 2


def test_no_advice_beyond_the_maximum() -> None:
    """The operator pays by the replica."""
    assert advised(30.0, replicas=5) == 8
    assert advised(30.0, replicas=8) is None


def test_a_full_fleet_without_a_line_is_left_alone() -> None:
    """A busy GPU is what one pays for."""
    assert advised(3.0, replicas=3) is None
    assert advised(3.2, replicas=3) is None


def test_a_burst_shorter_than_the_hold_asks_for_nothing() -> None:
    """Every batch of requests would buy a machine."""
    advisor = ScalingAdvisor()
    for now in range(100):
        assert tell(advisor, 5.0 if now % 10 else 1.0, 2, now) is None


def test_between_two_advices_lies_the_cooldown() -> None:
    """What was asked for must have a chance to arrive."""
    advisor, said = ScalingAdvisor(), {}
    for now in range(200):
        wanted = tell(advisor, 30.0, 2 if now < 30 else advisor.advised or 2, now)
        if wanted is not None:
            said[now] = wanted
    assert said == {10: 4, 70: 8}


def test_what_has_not_arrived_yet_is_not_asked_for_twice() -> None:
    """A slow cloud would be asked for ever more machines."""
    advisor = ScalingAdvisor()
    said = [tell(advisor, 3.0, 2, now) for now in range(1_000)]
    assert [each for each in said if each is not None] == [3]


def test_a_lost_replica_is_for_its_orchestrator_to_replace() -> None:
    """The number of replicas to have did not change because one died."""
    advisor = ScalingAdvisor()
    assert [tell(advisor, 4.0, 3, now) for now in range(11)][-1] == 4
    assert all(tell(advisor, 4.0, 3 if now < 500 else 4, now) is None for now in range(11, 1_000))


def test_a_backlog_never_lowers_what_was_asked_for() -> None:
    """Half of a growing fleet arrived: the other half would be called off while a line waits."""
    advisor = ScalingAdvisor()
    assert [tell(advisor, 30.0, 4, now) for now in range(11)][-1] == 8
    assert all(tell(advisor, 5.7, 5, now) is None for now in range(11, 300))


def test_each_advice_begins_a_new_hold() -> None:
    """Without a cooldown the second advice would follow in the same instant."""
    eager, advisor, said = replace(SCALING, cooldown_s=0.0), ScalingAdvisor(), {}
    for now in range(25):
        wanted = tell(advisor, 0.0, advisor.advised or 4, now, scaling=eager)
        if wanted is not None:
            said[now] = wanted
    assert said == {10: 3, 21: 2}


def test_a_hold_does_not_outlive_the_fleet_it_judged() -> None:
    """A pool that was gone for minutes says nothing of its size when it is back."""
    advisor = ScalingAdvisor()
    said = [
        tell(advisor, 1.5, 0 if 5 <= now < 100 else 1, now, waiting=False) for now in range(111)
    ]
    assert said == [None] * 110 + [2]


# --- from and to zero -------------------------------------------------------------------------


def test_the_first_arrival_at_an_empty_pool_asks_at_once() -> None:
    """Somebody waits for the whole start of a machine already."""
    advisor = ScalingAdvisor()
    assert tell(advisor, 0.0, 0, 0.0) is None
    assert tell(advisor, 1.0, 0, 0.1) == 1
    assert tell(advisor, 9.0, 0, 0.2) is None


def test_after_a_removal_to_zero_neither_hold_nor_cooldown_delays_the_start() -> None:
    """A request a second after the last removal would wait for a minute for nothing."""
    advisor = ScalingAdvisor()
    assert [tell(advisor, 0.0, 1, now) for now in range(11)][-1] == 0
    assert tell(advisor, 1.0, 0, 10.5) == 1


@pytest.mark.parametrize(("load", "waiting"), [(0.2, False), (0.0, True)])
def test_zero_is_taken_back_when_something_comes_before_the_last_replica_went(
    load: float, waiting: bool
) -> None:
    """A loaded model would be thrown away under a request, and loaded again."""
    advisor = ScalingAdvisor()
    assert [tell(advisor, 0.0, 1, now) for now in range(11)][-1] == 0
    assert tell(advisor, 0.0, 1, 11.0) is None
    assert tell(advisor, load, 1, 12.0, waiting=waiting) == 1


def test_zero_is_reached_only_when_nothing_runs_or_waits_and_the_minimum_allows() -> None:
    """A single long answer is worth a replica; a minimum was set by somebody."""
    assert advised(0.0, replicas=1) == 0
    assert advised(1e-6, replicas=1) is None
    assert advised(0.0, replicas=1, waiting=True) is None
    assert advised(0.0, replicas=1, scaling=replace(SCALING, min=1)) is None


def test_a_start_nobody_waits_for_any_more_is_taken_back_only_once_it_is_there() -> None:
    """Clients who give up and come again would make the pool start and stop for ever."""
    advisor = ScalingAdvisor()
    assert tell(advisor, 1.0, 0, 0.0) == 1
    assert all(tell(advisor, 0.0, 0, now) is None for now in range(1, 500))
    assert [tell(advisor, 0.0, 1, now) for now in range(500, 511)] == [None] * 10 + [0]


def test_waiting_for_the_first_replica_is_no_reason_to_double_it() -> None:
    """The hold begins when there is a fleet to be judged."""
    advisor = ScalingAdvisor()
    tell(advisor, 1.0, 0, 0.0)
    assert all(tell(advisor, 5.0, 0, now) is None for now in range(1, 100))
    assert [tell(advisor, 5.0, 1, now) for now in range(100, 111)] == [None] * 10 + [2]


# --- downwards --------------------------------------------------------------------------------


def test_an_idle_fleet_shrinks_one_at_a_time() -> None:
    """A pause for lunch would otherwise cost the whole fleet."""
    advisor, replicas, said = ScalingAdvisor(), 4, {}
    for now in range(300):
        wanted = tell(advisor, 0.0, replicas, now)
        if wanted is not None:
            said[now] = replicas = wanted
    assert said == {10: 3, 70: 2, 130: 1, 190: 0}


def test_nothing_is_removed_while_anything_waits() -> None:
    """One large request may wait beside an idle-looking fleet for exactly that replica."""
    assert advised(0.5, replicas=4, waiting=True) is None
    assert advised(0.5, replicas=4) == 3


def test_nothing_is_removed_where_the_rest_would_be_short_of_room() -> None:
    """The next advice would be to add it again."""
    eager = replace(SCALING, above=0.2)
    assert advised(1.5, replicas=2, scaling=eager) is None
    assert advised(1.05, replicas=2, scaling=eager) is None
    assert advised(1.0, replicas=2, scaling=eager) == 1
    assert advised(5.5, replicas=7, scaling=eager) == 6


def test_the_next_removal_waits_for_the_last_one_to_be_done() -> None:
    """A replica that drains for ten minutes would be followed by the rest of the fleet."""
    advisor = ScalingAdvisor()
    said = [tell(advisor, 0.1, 4, now) for now in range(1_000)]
    assert [each for each in said if each is not None] == [3]


def test_the_default_thresholds_shrink_below_two_fifths_of_use() -> None:
    """Whoever tunes the fleet's cost needs to know where it starts to shrink."""
    assert advised(10 * 0.39, replicas=10, scaling=replace(SCALING, max=20)) == 9
    assert advised(10 * 0.41, replicas=10, scaling=replace(SCALING, max=20)) is None


# --- bounds -----------------------------------------------------------------------------------


def test_the_operators_bounds_are_followed_at_once() -> None:
    """A minimum exists for the load that has not come yet, a maximum for the bill."""
    few = replace(SCALING, min=2)
    advisor = ScalingAdvisor()
    assert tell(advisor, 0.0, 0, 0.0, scaling=few) == 2
    assert tell(advisor, 0.0, 2, 1.0, scaling=replace(SCALING, max=1)) == 1
    assert advised(5.0, replicas=9, scaling=replace(SCALING, hold_s=0.0)) == 8


def test_an_empty_pool_that_may_have_no_replica_gets_none() -> None:
    """`max: 0` is how a pool is switched off."""
    assert tell(ScalingAdvisor(), 5.0, 0, 0.0, scaling=replace(SCALING, max=0)) is None


def test_thresholds_that_no_load_can_satisfy_are_a_mistake() -> None:
    """The fleet would grow to its maximum on an idle night."""
    with pytest.raises(AssertionError):
        advised(0.0, replicas=1, scaling=replace(SCALING, below=0.7, above=0.6))


# --- snapshot ---------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.0, 3.0, 9.0])
@pytest.mark.parametrize("handed_over_s", [0, 4, 12, 40, 90])
def test_a_successor_under_another_clock_says_the_same_at_the_same_time(
    load: float, handed_over_s: int
) -> None:
    """A change of leader must neither repeat an advice nor begin the hold anew."""

    def story(handing_over: bool) -> dict[int, int]:
        advisor, replicas, offset_s, said = ScalingAdvisor(), 3, 0.0, {}
        for now in range(200):
            if handing_over and now == handed_over_s:
                data = json.loads(json.dumps(advisor.snapshot(now + offset_s), allow_nan=False))
                advisor, offset_s = ScalingAdvisor(), 5_000.0
                advisor.restore(data, now + offset_s)
            wanted = tell(advisor, load, replicas, now + offset_s)
            if wanted is not None:
                said[now] = replicas = wanted
        return said

    assert story(handing_over=True) == story(handing_over=False)


def test_an_empty_snapshot_is_a_fresh_advisor() -> None:
    """A leader of an older version may know nothing of scaling."""
    advisor = ScalingAdvisor()
    tell(advisor, 1.0, 0, 0.0)
    advisor.restore({}, 5.0)
    assert advisor.snapshot(5.0) == ScalingAdvisor().snapshot(9.0)


# --- an hour of virtual time ------------------------------------------------------------------

SERVICE_S = 20.0
START_S = 45.0
DRAIN_S = 30.0


def staircase(
    demand: Callable[[float], float], scaling: Scaling, *, replicas: int, noise: float = 0.0
) -> list[tuple[int, int]]:
    """(second, advice) of an hour in which replicas start and drain slowly.

    `demand` is what would run if there were room for all, in replicas.
    """
    dice, advisor, said = random.Random(3), ScalingAdvisor(), []
    work, target, changes = demand(0.0), replicas, list[tuple[float, int]]()
    for now in range(3_600):
        while changes and changes[0][0] <= now:
            replicas = changes.pop(0)[1]
        used = min(work, float(replicas))
        luck = noise * dice.gauss(0.0, 1.0) if demand(now) > 0.0 else 0.0
        work = max(0.0, work + (demand(now) - used) / SERVICE_S + luck)
        wanted = tell(advisor, work, replicas, now, scaling=scaling)
        if wanted is not None:
            said.append((now, wanted))
            changes.append((now + (START_S if wanted > target else DRAIN_S), wanted))
            target = wanted
    return said


def day(now: float) -> float:
    """Twenty minutes up to nearly six replicas' worth, a plateau, and twenty minutes down."""
    return 5.6 * max(0.0, min(1.0, (now + 60.0) / 1_200.0, (3_500.0 - now) / 1_200.0))


@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("least", [0, 1])
def test_a_ramp_a_plateau_and_a_ramp_give_a_staircase(noise: float, least: int) -> None:
    """Every flap is a model loaded and thrown away, at minutes of an unused GPU each."""
    said = staircase(day, replace(SCALING, min=least), replicas=1, noise=noise)
    numbers = [1, *(number for _, number in said if number)]
    top = max(numbers)
    peak = numbers.index(top)
    assert top in {6, 7}
    assert all(a < b for a, b in pairwise(numbers[: peak + 1]))
    assert all(a == b + 1 for a, b in pairwise(numbers[peak:]))
    assert numbers[-1] <= 2
    assert not [now for now, _ in said if 1_500 < now < 2_400], "the plateau was left alone"
    assert all(b - a >= SCALING.cooldown_s for (a, _), (b, _) in pairwise(said))


def test_a_sudden_load_is_met_by_doubling() -> None:
    """From one replica to eight by steps of one would take eight starts."""
    said = staircase(lambda now: 7.0 if now > 100 else 0.5, SCALING, replicas=1)
    assert [number for _, number in said] == [2, 4, 8]


@pytest.mark.parametrize("period_s", [30.0, 90.0, 300.0, 900.0])
def test_waves_within_the_band_move_nothing(period_s: float) -> None:
    """Lunch breaks and cron jobs are not a reason to load a model."""
    said = staircase(
        lambda now: 2.2 + 0.6 * math.sin(2 * math.pi * now / period_s), SCALING, replicas=3
    )
    assert said == []


# --- properties -------------------------------------------------------------------------------

scalings = st.builds(
    lambda least, more, below, gap, hold_s, cooldown_s: Scaling(
        min=least,
        max=least + more,
        below=below,
        above=below + gap,
        hold_s=hold_s,
        cooldown_s=cooldown_s,
    ),
    st.integers(0, 3),
    st.integers(0, 40),
    st.floats(-1.5, 0.9),
    st.floats(0.01, 1.5),
    st.floats(0.0, 30.0),
    st.floats(0.0, 120.0),
)


@given(
    load=st.just(0.0) | st.floats(0.001, 60.0),
    replicas=st.integers(0, 60),
    scaling=scalings,
    delay_s=st.sampled_from([0, 1, 15, 70]),
)
@example(load=1.1, replicas=1, scaling=Scaling(below=0.3, above=0.31), delay_s=0)
@example(load=0.8, replicas=2, scaling=Scaling(hold_s=0.0, cooldown_s=0.0), delay_s=0)
def test_at_a_constant_load_no_advice_is_taken_back(
    load: float, replicas: int, scaling: Scaling, delay_s: int
) -> None:
    """The fleet would flap for ever without anything having happened."""
    advisor, directions, changes, target = ScalingAdvisor(), [], list[tuple[int, int]](), replicas
    for now in range(0, 1_500, 5):
        while changes and changes[0][0] <= now:
            replicas = changes.pop(0)[1]
        wanted = tell(advisor, load, replicas, now, scaling=scaling)
        if wanted is None:
            continue
        assert scaling.min <= wanted <= scaling.max
        assert wanted != target
        if scaling.min <= target <= scaling.max:
            directions.append(wanted > target)
            assert wanted >= target - 1
            assert wanted <= max(1, scaling.min, GROWTH_MAX * replicas)
        assert wanted > 0 or load == 0.0 or scaling.max == 0
        target = wanted
        changes.append((now + delay_s, wanted))
    assert len(set(directions)) <= 1


@given(
    calls=st.lists(
        st.tuples(st.floats(-2.0, 1.0), st.integers(0, 12), st.booleans(), st.floats(0.0, 40.0)),
        max_size=60,
    ),
    scaling=scalings,
)
def test_whatever_happens_the_rules_of_a_single_advice_hold(
    calls: list[tuple[float, int, bool, float]], scaling: Scaling
) -> None:
    """Scrapes fail, replicas die and clocks jump ahead; the bill and the line do not forgive it."""
    advisor, now, said_at, target = ScalingAdvisor(), 0.0, -math.inf, None
    for value, replicas, has_waiting, elapsed_s in calls:
        now += elapsed_s
        before = replicas if target is None else target
        wanted = advisor.advise(
            value, replicas=replicas, has_waiting=has_waiting, now=now, scaling=scaling
        )
        assert advisor.advised == (target if wanted is None else wanted)
        if replicas == 0 and has_waiting and scaling.max:
            assert (before if wanted is None else wanted) >= 1
        if wanted is None:
            continue
        assert wanted != before
        assert scaling.min <= wanted <= scaling.max
        if scaling.min <= before <= scaling.max and before:
            assert now - said_at >= scaling.cooldown_s
            assert wanted > before or (wanted == before - 1 and not has_waiting)
            assert wanted > 0 or value == 1.0
        said_at, target = now, wanted
