"""Quantiles that forget, held against the exact ones of the same samples."""

import json
from bisect import bisect_left
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.quantiles import RELATIVE_ERROR, VALUE_MAX, VALUE_MIN, Quantiles

ROUNDING = 3e-4
"""Share of the samples by which single precision and the dropping of negligible weights may err."""
INSIDE_EDGE = 1e-6

values = st.floats(VALUE_MIN, VALUE_MAX) | st.integers(1, 5_000).map(float)
samples = st.lists(values, min_size=1, max_size=150)
shares = st.floats(0.0, 1.0)


def fed(given: list[float], half_life_samples: int) -> Quantiles:
    """Quantiles of these samples, the last one newest."""
    quantiles = Quantiles(half_life_samples)
    for value in given:
        quantiles.add(value)
    return quantiles


def exact(given: list[float], half_life_samples: int, q: float) -> float:
    """The least sample that, with all smaller ones, has a share `q` of the decayed weights."""
    weighed = sorted(
        (value, 2.0 ** ((number - len(given)) / half_life_samples))
        for number, value in enumerate(given)
    )
    reached = list(accumulate(weight for _, weight in weighed))
    place = bisect_left(reached, min(max(q, 0.0), 1.0) * reached[-1])
    return weighed[min(place, len(weighed) - 1)][0]


def asked(quantiles: Quantiles, q: float) -> float:
    """The quantile of one that has samples."""
    value = quantiles.quantile(q)
    assert value is not None
    return value


@given(samples, st.sampled_from([1, 5, 32, 1_000]), st.floats(0.001, 0.999))
def test_a_quantile_is_within_the_stated_error_of_the_exact_one(
    given: list[float], half_life_samples: int, q: float
) -> None:
    """Whoever is predicted by it is charged and placed by it."""
    got = asked(fed(given, half_life_samples), q)
    low = exact(given, half_life_samples, q - ROUNDING)
    high = exact(given, half_life_samples, q + ROUNDING)
    within = 1.0 + RELATIVE_ERROR + INSIDE_EDGE
    assert low / within <= got <= high * within


@given(st.lists(values, min_size=1, max_size=12), st.floats(0.02, 0.98))
def test_of_a_behaviour_that_repeats_the_plain_quantile_is_found(
    pattern: list[float], q: float
) -> None:
    """Forgetting must not bend the picture of a client that never changes."""
    got = asked(fed(pattern * 60, half_life_samples=600), q)
    ordered = sorted(pattern)
    low = ordered[max(0, int((q - 0.02) * len(ordered) - 1e-9))]
    high = ordered[min(len(ordered) - 1, int((q + 0.02) * len(ordered) + 1e-9))]
    within = 1.0 + RELATIVE_ERROR + INSIDE_EDGE
    assert low / within <= got <= high * within


@given(samples, st.sampled_from([1, 32]), st.lists(shares, min_size=2, max_size=12))
def test_quantiles_rise_with_the_share_and_never_leave_what_was_seen(
    given: list[float], half_life_samples: int, asked_for: list[float]
) -> None:
    """A cautious prediction below the median would let a replica be overfilled."""
    quantiles = fed(given, half_life_samples)
    got = [asked(quantiles, q) for q in sorted(asked_for)]
    assert got == sorted(got)
    assert min(given) <= got[0]
    assert got[-1] <= max(given)


@given(samples, samples, st.sampled_from([1, 32]))
def test_a_revived_one_cannot_be_told_from_the_first(
    before: list[float], after: list[float], half_life_samples: int
) -> None:
    """Two gateways that agreed once go on to decide alike."""
    quantiles = fed(before, half_life_samples)
    other = Quantiles(half_life_samples)
    other.restore(json.loads(json.dumps(quantiles.snapshot())))
    for value in after:
        quantiles.add(value)
        other.add(value)
    assert other.snapshot() == quantiles.snapshot()
