"""Rates and means that forget."""

import pytest

from gateway.core.rates import Mean, Rate


def test_a_steady_stream_is_measured_at_its_rate() -> None:
    """`Retry-After` and the queue allowance are computed from it."""
    rate = Rate(half_life_s=5.0)
    for tick in range(1_000):
        rate.add(tick * 0.1)
    assert rate.per_s(99.9) == pytest.approx(10.0, rel=0.02)


def test_silence_halves_the_rate_in_one_half_life() -> None:
    """A replica that stopped must not keep the allowance of a fast one."""
    rate = Rate(half_life_s=5.0)
    rate.add(0.0, 8.0)
    assert rate.per_s(5.0) == pytest.approx(rate.per_s(0.0) / 2)
    assert rate.per_s(10.0) == pytest.approx(rate.per_s(0.0) / 4)


def test_nothing_happened_yet_is_zero_and_an_earlier_instant_does_no_harm() -> None:
    """The first refusal of a fresh gateway asks for the rate too."""
    rate = Rate(half_life_s=5.0)
    assert rate.per_s(3.0) == 0.0
    rate.add(10.0)
    assert rate.per_s(9.0) == rate.per_s(10.0)


def test_two_rates_join_into_their_sum() -> None:
    """When two pools become one, clients are told when the joint line moves."""
    one, other = Rate(5.0), Rate(5.0)
    one.add(10.0, 4.0)
    other.add(5.0, 4.0)
    expected = one.per_s(10.0) + other.per_s(10.0)
    one.merge(other)
    one.merge(Rate(5.0))
    assert one.per_s(10.0) == pytest.approx(expected)
    fresh = Rate(5.0)
    fresh.merge(one)
    assert fresh.per_s(10.0) == pytest.approx(expected)


def test_a_mean_takes_its_first_sample_whole_and_moves_by_its_share() -> None:
    """The second request of a client is predicted from the first one already."""
    mean = Mean(share=0.25)
    assert mean.value is None
    mean.add(8.0)
    assert mean.value == 8.0
    mean.add(16.0)
    assert mean.value == 10.0


def test_a_mean_of_equal_samples_stays_and_a_share_of_one_forgets_all() -> None:
    """Both ends of the range are legal: an operator may want the last sample alone."""
    steady, last = Mean(share=0.3), Mean(share=1.0)
    for sample in (2.0, 2.0, 2.0):
        steady.add(sample)
        last.add(sample)
    last.add(7.0)
    assert steady.value == 2.0
    assert last.value == 7.0


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_a_share_beyond_its_range_is_a_programmers_error(share: float) -> None:
    """A mean that never moves, or overshoots, would mislead every decision after it."""
    with pytest.raises(AssertionError):
        Mean(share)


def test_the_count_of_a_moment_is_what_was_added_over_the_mean_life() -> None:
    """The unit: events per second, or all waits are told wrong by a factor."""
    rate = Rate(half_life_s=0.6931471805599453)
    rate.add(4.0, 3.0)
    assert rate.per_s(4.0) == pytest.approx(3.0)
    rate.add(4.0)
    assert rate.per_s(4.0) == pytest.approx(4.0)


def test_an_event_of_the_past_takes_nothing_away() -> None:
    """Clocks of two reports may cross by a millisecond."""
    rate = Rate(half_life_s=5.0)
    rate.add(10.0, 2.0)
    before = rate.per_s(10.0)
    rate.add(9.0, 2.0)
    assert rate.per_s(9.0) == pytest.approx(2 * before)
