"""Which schedules are carried out, how long the long ones last, and a way to say figures."""

import sys
from collections.abc import Callable

import pytest

Say = Callable[[str], None]

SEEDS = 100
SLICES = 10
"""Tests that the seeds are dealt to, so that a run shows how far it is."""
OVERLOAD_S, SOAK_S, TRIALS, KILLS = 20.0, 900.0, 100, 50


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make chaos ARGS="--seed 17"`."""
    group = parser.getgroup("chaos")
    group.addoption("--seed", type=int, help="carry out this schedule only")
    group.addoption("--first-seed", type=int, default=0, help="of the schedules")
    group.addoption("--schedules", type=int, default=SEEDS, help="how many")
    group.addoption("--overload-s", type=float, default=OVERLOAD_S, help="length of the overload")
    group.addoption("--trials", type=int, default=TRIALS, help="of continued streams")
    group.addoption("--kills", type=int, default=KILLS, help="of a gateway with a batch")
    group.addoption("--soak", nargs="?", type=float, const=SOAK_S, help="seconds of churn")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each slice of the seeds."""
    if "seeds" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    only = option("--seed", default=None)
    first, count = option("--first-seed", default=0), option("--schedules", default=SEEDS)
    slices = [[only]]
    if only is None:
        slices = [list(range(first + n, first + count, SLICES)) for n in range(SLICES)]
    slices = [each for each in slices if each]
    metafunc.parametrize("seeds", slices, ids=[f"from {each[0]}" for each in slices])


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Print although pytest captures: the figures are the result."""

    def write(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {text}\n")

    return write
