"""Distributions that forget."""

import json
import sys
from random import Random
from typing import Any

import pytest

from gateway.core.quantiles import (
    BUCKETS_MAX,
    BUCKETS_PER_OCTAVE,
    HALF_LIFE_SAMPLES,
    RELATIVE_ERROR,
    VALUE_MAX,
    VALUE_MIN,
    Quantiles,
)


def of(*values: float, times: int = 1) -> Quantiles:
    """What is known after `values`, in that order, so many times over."""
    quantiles = Quantiles()
    for _ in range(times):
        for value in values:
            quantiles.add(value)
    return quantiles


def revived(quantiles: Quantiles) -> Quantiles:
    """Another one, from its snapshot as it comes back from a file."""
    other = Quantiles()
    other.restore(json.loads(json.dumps(quantiles.snapshot())))
    return other


def test_before_the_first_sample_nothing_is_claimed() -> None:
    """A made-up figure would be taken for a measured one."""
    assert Quantiles().quantile(0.5) is None
    assert Quantiles().count == 0


@pytest.mark.parametrize("value", [1.0, 2.0, 40.0, 777.7, 4_096.0])
def test_what_is_always_the_same_is_known_exactly(value: float) -> None:
    """A client whose every answer has 40 tokens is charged for 40, not for its bucket's edge."""
    quantiles = of(value, times=5_000)
    assert [quantiles.quantile(q) for q in (0.0, 0.5, 1.0)] == [value] * 3
    assert quantiles.count == 5_000


@pytest.mark.parametrize("phase", [0, 1])
def test_the_newest_sample_weighs_as_much_as_its_half_life_says_for_ever(phase: int) -> None:
    """The weights are scaled back now and then: the past must not count double afterwards."""
    quantiles = Quantiles(half_life_samples=1)
    quantiles.add(1.0)
    quantiles.add(10.0)
    for number in range(100):
        newest = 1.0 if (number + phase) % 2 else 10.0
        quantiles.add(newest)
        if number > 2:
            assert quantiles.quantile(0.6) == pytest.approx(newest, rel=RELATIVE_ERROR)


@pytest.mark.parametrize(("old", "usual"), [(0.5, 1.5), (1.5, 0.5)])
def test_a_value_that_was_forgotten_is_counted_where_it_belongs(old: float, usual: float) -> None:
    """It would be taken for its neighbour, or for the largest of all."""
    quantiles = Quantiles(half_life_samples=1)
    for bucket in (old, *[usual] * 60, old):
        quantiles.add(2.0 ** (bucket / BUCKETS_PER_OCTAVE))
    edge = 2.0 ** (1.0 / BUCKETS_PER_OCTAVE)
    found = [quantiles.quantile(q) or 0.0 for q in (0.25, 0.75)]
    assert found[0] < edge < found[1]


def test_quantiles_of_a_wide_distribution_are_near_the_exact_ones() -> None:
    """Answers differ by four orders of magnitude; a prediction must hold at either end."""
    random = Random(1)
    values = [random.lognormvariate(5.0, 1.5) for _ in range(4_000)]
    quantiles = Quantiles(half_life_samples=2_000)
    for value in values:
        quantiles.add(value)
    values.sort()
    for q in (0.05, 0.25, 0.5, 0.75, 0.9, 0.95):
        exact = values[int(q * len(values))]
        assert quantiles.quantile(q) == pytest.approx(exact, rel=RELATIVE_ERROR)


def test_after_one_half_life_the_new_outweighs_all_the_old() -> None:
    """A client that changed its ways is not judged by its past for ever."""
    quantiles = of(10.0, times=10_000)
    for _ in range(HALF_LIFE_SAMPLES - 1):
        quantiles.add(1_000.0)
    assert quantiles.quantile(0.5) == pytest.approx(10.0, rel=RELATIVE_ERROR)
    for _ in range(2):
        quantiles.add(1_000.0)
    assert quantiles.quantile(0.5) == pytest.approx(1_000.0, rel=RELATIVE_ERROR)


def test_a_value_that_never_came_back_is_forgotten_altogether() -> None:
    """One freak answer must not be the 100th percentile of a client for the rest of its life."""
    quantiles = of(9.0, 100_000.0, 30.0)
    for _ in range(100 * HALF_LIFE_SAMPLES):
        quantiles.add(100.0)
        quantiles.add(200.0)
    least, most = quantiles.quantile(0.0), quantiles.quantile(1.0)
    assert least is not None
    assert most is not None
    assert 100.0 / (1 + RELATIVE_ERROR) <= least <= 100.0
    assert 200.0 <= most <= 200.0 * (1 + RELATIVE_ERROR)
    assert len(quantiles.snapshot()["weights"]) < 8


@pytest.mark.parametrize("edge", [64.0, 2.0**6.25, 2.0**6.5 * (1 - 1e-15)])
def test_values_on_the_edge_of_a_bucket_survive_the_forgetting_of_their_neighbours(
    edge: float,
) -> None:
    """Powers of two are the commonest limits of clients."""
    quantiles = of(edge / 8, edge * 8)
    for _ in range(100 * HALF_LIFE_SAMPLES):
        quantiles.add(edge)
    assert quantiles.quantile(0.5) == pytest.approx(edge, rel=RELATIVE_ERROR)
    assert revived(quantiles).snapshot() == quantiles.snapshot()
    quantiles.add(edge / 8)
    quantiles.add(edge * 8)
    assert quantiles.quantile(0.5) == pytest.approx(edge, rel=RELATIVE_ERROR)


def test_a_limit_that_a_client_always_fills_is_known_exactly_while_others_are_forgotten() -> None:
    """What remains may be one value on the edge of its bucket, whatever else was seen once."""
    for other in (8.0, 4_096.0):
        quantiles = Quantiles(half_life_samples=1)
        quantiles.add(other)
        for _ in range(200):
            quantiles.add(64.0)
            value = revived(quantiles).quantile(0.5)
            assert value == pytest.approx(64.0, rel=RELATIVE_ERROR)


@pytest.mark.sources
def test_what_lies_beyond_the_range_is_counted_at_its_end() -> None:
    """An engine that reports nonsense must neither stop the gateway nor fill its memory."""
    for absurd in (-5.0, 0.0, 1e-30):
        assert of(absurd).quantile(0.5) == VALUE_MIN
    for absurd in (1e30, float("inf"), 10**400):
        assert of(absurd).quantile(0.5) == VALUE_MAX
    quantiles = of(1e9, 0.0, times=1_000)
    assert quantiles.quantile(0.1) == pytest.approx(VALUE_MIN, rel=RELATIVE_ERROR)
    assert quantiles.quantile(0.9) == pytest.approx(VALUE_MAX, rel=RELATIVE_ERROR)
    assert len(quantiles.snapshot()["weights"]) == BUCKETS_MAX


@pytest.mark.sources
def test_a_typical_client_is_remembered_in_less_than_five_hundred_bytes() -> None:
    """Ten thousand of them are remembered at once."""
    random = Random(2)
    quantiles = of(*(random.lognormvariate(5.5, 0.8) for _ in range(3_000)))
    parts = [getattr(quantiles, name) for name in Quantiles.__slots__]
    assert sum(map(sys.getsizeof, [quantiles, *parts])) < 500


@pytest.mark.parametrize("samples", [0, 1, 5, 1_000, 3_000])
def test_a_snapshot_comes_back_exactly_and_goes_on_alike(samples: int) -> None:
    """After a restart, or on another gateway, the same is decided as before."""
    random = Random(samples)
    quantiles = of(*(random.lognormvariate(4.0, 2.0) for _ in range(samples)))
    other = revived(quantiles)
    assert other.snapshot() == quantiles.snapshot()
    for _ in range(2_000):
        value = random.lognormvariate(5.0, 2.0)
        quantiles.add(value)
        other.add(value)
    assert other.count == samples + 2_000
    assert other.snapshot() == quantiles.snapshot()
    assert [other.quantile(q / 10) for q in range(11)] == [
        quantiles.quantile(q / 10) for q in range(11)
    ]


@pytest.mark.parametrize(
    "spoilt",
    [
        {"count": 0},
        {"count": "many"},
        {"weight": 0.0},
        {"weight": 1e300},
        {"weight": None},
        {"lowest": -1},
        {"lowest": 10_000},
        {"min": float("nan")},
        {"min": 90.0},
        {"max": 1e300},
        {"max": 3_000.0},
        {"weights": []},
        {"weights": [0.0, 1.0]},
        {"weights": [1.0, -1.0, 1.0]},
        {"weights": [float("inf")]},
        {"weights": [1.0] * 10_000},
        {"weights": ["a"]},
        {"weights": 7},
    ],
)
def test_a_damaged_snapshot_is_refused_and_changes_nothing(spoilt: dict[str, Any]) -> None:
    """Half a file must not become the prediction of everybody, nor an exception per request."""
    quantiles = of(30.0, 80.0)
    before = quantiles.snapshot()
    with pytest.raises(ValueError, match=r"not a snapshot|invalid literal"):
        quantiles.restore({**before, **spoilt})
    with pytest.raises(ValueError, match="not a snapshot"):
        quantiles.restore({})
    assert quantiles.snapshot() == before
