"""How long a wait will surely be."""

import json
from random import Random
from typing import Any

import pytest

from gateway.core.quantiles import HALF_LIFE_SAMPLES, RELATIVE_ERROR
from gateway.core.waits import (
    EXPECTED_S_MIN,
    RATIO_MAX,
    REFRESH_SAMPLES,
    SAMPLES_MIN,
    WaitForecast,
)


def learnt(ratio: float, samples: int = SAMPLES_MIN) -> WaitForecast:
    """A forecast after so many waits that lasted `ratio` times what was expected."""
    forecast = WaitForecast()
    for number in range(samples):
        forecast.add(1.0 + number % 7, (1.0 + number % 7) * ratio)
    return forecast


def test_with_too_few_samples_nothing_is_forecast() -> None:
    """After a restart nobody may be turned away on a guess."""
    assert WaitForecast().lower(60.0) is None
    assert learnt(3.0, SAMPLES_MIN - 1).lower(60.0) is None
    assert learnt(3.0).lower(60.0) == pytest.approx(180.0)


@pytest.mark.parametrize("ratio", [0.1, 1.0, 2.5])
def test_an_expectation_that_is_always_wrong_by_a_factor_is_put_right(ratio: float) -> None:
    """Where the line moves faster than computed, clients would be refused for nothing."""
    assert learnt(ratio).lower(10.0) == pytest.approx(10.0 * ratio)
    assert learnt(ratio).lower(0.0) == 0.0


def test_three_of_four_waits_are_longer_than_the_lower_forecast() -> None:
    """Only a hopeless request is refused early, not one of merely doubtful prospects."""
    random = Random(3)
    forecast = WaitForecast()
    ratios = [random.lognormvariate(0.0, 0.7) for _ in range(2_000)]
    for ratio in ratios:
        forecast.add(5.0, 5.0 * ratio)
    lower = forecast.lower(5.0)
    assert lower is not None
    longer = sum(5.0 * ratio > lower for ratio in ratios) / len(ratios)
    assert 0.65 < longer < 0.85


def test_short_expectations_teach_nothing() -> None:
    """One engine step against an expected millisecond would pass for a thousandfold wait."""
    forecast = learnt(1.0)
    for _ in range(1_000):
        forecast.add(EXPECTED_S_MIN / 2, 5.0)
        forecast.add(0.0, 5.0)
    assert forecast.lower(10.0) == pytest.approx(10.0)


def test_a_stall_cannot_have_everybody_refused_for_ever() -> None:
    """Were the ratio unbounded, no short wait would be let in to prove that the stall is over."""
    forecast = learnt(1e9, samples=1_000)
    assert forecast.lower(EXPECTED_S_MIN) == pytest.approx(EXPECTED_S_MIN * RATIO_MAX)
    for _ in range(3 * HALF_LIFE_SAMPLES):
        forecast.add(EXPECTED_S_MIN, EXPECTED_S_MIN)
    assert forecast.lower(10.0) == pytest.approx(10.0, rel=RELATIVE_ERROR)


def test_waits_that_become_shorter_are_believed_soon() -> None:
    """A replica was added: whoever comes now must not be refused for yesterday's line."""
    forecast = learnt(4.0, samples=1_000)
    for _ in range(HALF_LIFE_SAMPLES // 2 + REFRESH_SAMPLES):
        forecast.add(2.0, 2.0)
    assert forecast.lower(10.0) == pytest.approx(10.0, rel=RELATIVE_ERROR)


@pytest.mark.parametrize("samples", [0, 7, SAMPLES_MIN, 1_003])
def test_a_snapshot_comes_back_exactly_and_goes_on_alike(samples: int) -> None:
    """After a restart nobody is let in, or turned away, who would not have been before."""
    forecast, other = learnt(1.7, samples), WaitForecast()
    other.restore(json.loads(json.dumps(forecast.snapshot())))
    for number in range(50):
        assert other.lower(9.0) == forecast.lower(9.0)
        forecast.add(3.0, 1.0 + number)
        other.add(3.0, 1.0 + number)
    assert other.snapshot() == forecast.snapshot()


@pytest.mark.parametrize(
    "spoilt",
    [{"ratio": None}, {"ratio": -1.0}, {"ratio": 1e9}, {"ratio": []}, {"ratios": {}},
     {"ratios": None}],
)  # fmt: skip
def test_a_damaged_snapshot_is_refused_and_changes_nothing(spoilt: dict[str, Any]) -> None:
    """Half a file must not have everybody refused."""
    forecast = learnt(2.0)
    before = forecast.snapshot()
    with pytest.raises(ValueError, match="not a snapshot"):
        forecast.restore({**before, **spoilt})
    with pytest.raises(ValueError, match="not a snapshot"):
        forecast.restore({})
    assert forecast.snapshot() == before
