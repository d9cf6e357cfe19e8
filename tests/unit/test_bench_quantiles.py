"""Percentiles of measured values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bench.quantiles import Quantiles, percentile


@pytest.mark.parametrize(
    ("share", "expected"), [(0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (1.0, 100)]
)
def test_a_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    """An interpolated p99 would be a latency that no request ever had."""
    assert percentile(range(1, 101), share) == expected


def test_one_value_is_every_percentile() -> None:
    """A window with one request must still give a figure, not an index error."""
    assert percentile([7.0], 0.01) == percentile([7.0], 0.99) == 7.0


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01])
def test_a_share_outside_the_unit_interval_is_a_mistake(share: float) -> None:
    """99 in place of 0.99 would silently be some other value."""
    with pytest.raises(AssertionError, match="outside"):
        percentile([1.0], share)


def test_a_percentile_of_nothing_is_a_mistake() -> None:
    """A zero would read as the best latency of all."""
    with pytest.raises(AssertionError, match="no values"):
        percentile([], 0.5)


def test_quantiles_of_nothing_are_none() -> None:
    """A scenario without first events must show a dash, not a zero."""
    assert Quantiles.of([]) is None


def test_quantiles_sort_and_scale() -> None:
    """Samples come in the order of arrival and in ns; the report speaks us."""
    assert Quantiles.of([3_000, 1_000, 2_000], scale=1e-3) == Quantiles(
        count=3, p50=2.0, p99=3.0, highest=3.0
    )


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0.001, 1.0))
def test_at_least_the_share_of_values_is_at_or_below_the_percentile(
    values: list[int], share: float
) -> None:
    """Who reads a p99 relies on 99 of 100 being no slower."""
    ordered = sorted(values)
    limit = percentile(ordered, share)
    assert limit in ordered
    assert sum(value <= limit for value in ordered) >= share * len(ordered) * (1 - 1e-9)
