"""Arrival processes: rates, bursts and periods, at fixed seeds."""

from collections.abc import Iterator
from itertools import groupby, islice, pairwise, takewhile
from random import Random
from statistics import mean, pstdev

import pytest

from gateway.sim.workload.arrivals import Arrivals, Bursts, OnOff, Poisson


def until(arrivals: Arrivals, end: float, seed: int = 7) -> list[float]:
    """All instants before `end`."""
    found: Iterator[float] = arrivals.instants(Random(seed))
    return list(takewhile(lambda at: at < end, found))


@pytest.mark.parametrize(
    "arrivals",
    [
        Poisson(rate_per_s=50.0, starts_at=3.0),
        Bursts(size=5, every_s=0.5, jitter_s=0.5, starts_at=3.0),
        OnOff(rate_per_s=50.0, on_s=1.0, off_s=2.0, starts_at=3.0),
    ],
)
def test_time_never_runs_back(arrivals: Arrivals) -> None:
    """A world that takes jobs in order would serve the past."""
    instants = list(islice(arrivals.instants(Random(3)), 2_000))
    assert instants == sorted(instants)
    assert instants[0] >= 3.0


def test_poisson_gaps_are_exponential_at_the_rate() -> None:
    """A smoother stream queues less than real clients do."""
    instants = until(Poisson(rate_per_s=20.0), 1_000.0)
    gaps = [after - before for before, after in pairwise(instants)]
    assert len(instants) == pytest.approx(20_000, rel=0.03)
    assert pstdev(gaps) == pytest.approx(mean(gaps), rel=0.03)


def test_bursts_come_at_once_and_in_time() -> None:
    """What a burst does to others is the question; a spread one answers another."""
    bursts = [
        (at, len(list(group)))
        for at, group in groupby(until(Bursts(size=7, every_s=10.0, starts_at=2.0), 40.0))
    ]
    assert bursts == [(2.0, 7), (12.0, 7), (22.0, 7), (32.0, 7)]


def test_bursts_may_be_late_but_stay_apart() -> None:
    """Bursts in step with a scrape interval hide from it or hit it each time."""
    starts = [at for at, _ in groupby(until(Bursts(size=2, every_s=10.0, jitter_s=4.0), 1_000.0))]
    assert all(0.0 <= at - 10.0 * number < 4.0 for number, at in enumerate(starts))
    assert len({at % 10.0 for at in starts}) > 90


def test_a_regular_power_user_is_on_and_off_by_the_clock() -> None:
    """Shares are judged within its periods: they must be where they were said to be."""
    instants = until(OnOff(rate_per_s=30.0, on_s=2.0, off_s=3.0, regular=True), 500.0)
    assert max(at % 5.0 for at in instants) < 2.0
    assert len(instants) == pytest.approx(30.0 * 2.0 * 100, rel=0.05)


def test_an_irregular_power_user_is_on_for_its_share_of_time() -> None:
    """Its load is its rate times that share."""
    instants = until(OnOff(rate_per_s=30.0, on_s=2.0, off_s=3.0), 5_000.0)
    assert len(instants) == pytest.approx(30.0 * 0.4 * 5_000, rel=0.08)
    pauses = [after - before for before, after in pairwise(instants) if after - before > 0.5]
    assert mean(pauses) == pytest.approx(3.0, rel=0.25)


def test_a_power_user_that_never_pauses_is_a_poisson_process() -> None:
    """Zero is a time like any other."""
    instants = until(OnOff(rate_per_s=30.0, on_s=2.0, off_s=0.0), 500.0)
    assert len(instants) == pytest.approx(15_000, rel=0.04)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poisson(rate_per_s=0.0),
        lambda: Poisson(rate_per_s=float("nan")),
        lambda: Bursts(size=0, every_s=1.0),
        lambda: Bursts(size=1, every_s=0.0),
        lambda: Bursts(size=1, every_s=1.0, jitter_s=2.0),
        lambda: OnOff(rate_per_s=1.0, on_s=0.0, off_s=1.0),
        lambda: OnOff(rate_per_s=1.0, on_s=1.0, off_s=-1.0),
    ],
)
def test_impossible_processes_are_refused(make: object) -> None:
    """A rate of zero would wait for its first request for ever."""
    assert callable(make)
    with pytest.raises(ValueError, match="must"):
        make()
