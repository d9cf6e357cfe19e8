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
