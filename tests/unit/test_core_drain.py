"""How fast a line moves, measured while somebody stands in it and at no other time."""

import pytest

from gateway.core.drain import DrainRate
from gateway.core.policy import Bounds
from tests.support.play import Play
from tests.support.script import four_tiers, one_tier


def running(half_life_s: float = 15.0) -> DrainRate:
    """Something waits since instant 0."""
    rate = DrainRate(half_life_s)
    rate.begin(0.0)
    return rate


def test_a_steady_line_is_measured_at_its_pace_from_the_first_seconds_on() -> None:
    """A fresh gateway must not tell clients to come back in half a minute."""
    rate = running()
    for tick in range(1, 41):
        rate.add(tick * 0.5)
        if tick >= 2:
            assert rate.per_s(tick * 0.5) == pytest.approx(2.0, rel=0.05)


def test_idle_time_is_no_slowness() -> None:
    """A fleet that was asked nothing for an hour serves as fast as it did before."""
    rate = running()
    rate.add(1.0, 4.0)
    rate.end(2.0)
    before = rate.per_s(2.0)
    assert before == pytest.approx(2.0, rel=0.1)
    assert rate.per_s(3_602.0) == before
    rate.begin(3_602.0)
    assert rate.per_s(3_602.0) == before
    rate.add(3_602.5)
    assert rate.per_s(3_602.5) == pytest.approx(2.0, rel=0.1)


def test_who_never_waited_tells_nothing() -> None:
    """Ten requests a minute that find a free slot say nothing of how many could."""
    rate = DrainRate(15.0)
    for minute in range(10):
        rate.add(minute * 6.0)
    assert rate.per_s(60.0) == 0.0
    assert rate.guess_per_s(60.0) == 1.0


def test_a_line_that_stands_still_gets_slower_with_time() -> None:
    """An engine that hangs must not have its clients come back each second."""
    rate = running()
    assert rate.guess_per_s(20.0) == pytest.approx(1 / 13.05, rel=0.01)
    rate.add(20.0)
    assert rate.per_s(35.0) == pytest.approx(0.5 / rate._at(35.0)[1])
    assert rate.per_s(35.0) < rate.per_s(20.0) < 1.0


def test_a_burst_is_no_pace() -> None:
    """Eight free slots that are filled at once are not eight requests in no time."""
    rate = running()
    rate.add(0.0, 8.0)
    assert rate.per_s(0.0) == 8.0


def test_two_lines_that_become_one_move_as_both() -> None:
    """When two pools become one, clients are told when the joint line moves."""
    one, other, idle = running(), running(), DrainRate(15.0)
    for tick in range(1, 11):
        one.add(float(tick))
        other.add(tick + 0.5, 2.0)
    expected = one.per_s(10.5) + other.per_s(10.5)
    one.merge(other)
    one.merge(DrainRate(15.0))
    assert one.per_s(10.5) == pytest.approx(expected)
    idle.merge(one)
    assert idle.is_running
    assert idle.per_s(10.5) == pytest.approx(expected)


def test_two_lines_that_have_just_begun_lose_nothing_when_they_become_one() -> None:
    """Whoever is refused in the first second would be told to come back in half a minute."""
    one, other = running(), running()
    one.add(0.0, 3.0)
    other.add(0.0, 5.0)
    one.merge(other)
    assert one.per_s(0.0) == 8.0


def test_a_measurement_goes_on_after_a_restart() -> None:
    """Under another clock, to the last digit."""
    rate = running()
    rate.add(3.0)
    rate.add(7.0)
    other = DrainRate(15.0)
    other.restore(rate.snapshot(8.0), 108.0)
    assert other.per_s(109.0) == rate.per_s(9.0)
    rate.end(9.0)
    other.restore(rate.snapshot(500.0), 0.0)
    assert other.per_s(0.0) == rate.per_s(500.0)
    assert not other.is_running


def test_a_refusal_at_a_cold_start_says_a_second_or_two() -> None:
    """The queue is full within the first second; then one leaves it in each."""
    policy = one_tier(bounds=Bounds(waiting_per_user=2))
    script = Play(policy).replica("r", slots=1).arrive("held").arrive_many("a", 2).arrive("no")
    assert script.refused["no"].retry_after_s == 3.0
    for number in range(8):
        script.serve(1).arrive(f"b{number}")
    script.arrive("late")
    assert script.refused["late"].retry_after_s == 3.0


def test_a_refusal_after_a_quiet_hour_says_the_same() -> None:
    """Measured by the rate of arrivals, each lull made the fleet look slow."""
    policy = one_tier(bounds=Bounds(waiting_per_user=2))
    script = Play(policy).replica("r", slots=1).arrive("held").arrive_many("a", 2)
    for number in range(8):
        script.serve(1).arrive(f"b{number}")
    script.serve(3).advance(3_600.0)
    script.arrive("again").arrive_many("c", 2).arrive("late")
    assert script.refused["late"].retry_after_s == 3.0


def test_whoever_leaves_the_line_last_stops_the_watch() -> None:
    """A client that gives up must not leave the clock running for all that follow."""
    script = Play(one_tier()).replica("r", slots=1).arrive("held").arrive("gone")
    assert script.pool().drain_rate.is_running
    script.advance(1.0).cancel("gone")
    assert not script.pool().drain_rate.is_running
    script.check()


def test_a_new_policy_forgets_no_pace() -> None:
    """Other tiers do not make engines slower."""
    script = Play(one_tier()).replica("r", slots=1).arrive("held").arrive_many("a", 9)
    for _ in range(4):
        script.advance(0.5).serve(1)
    before = script.pool().drain_rate.per_s(script.now)
    script.change(four_tiers(), {"only": "critical"})
    assert script.pool().drain_rate.per_s(script.now) >= before > 0.0
    script.check()
