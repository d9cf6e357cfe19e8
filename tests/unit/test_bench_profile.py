"""A profile as a table: what is told of each function, and in which units."""

from io import StringIO

import pytest
from rich.console import Console

from gateway.bench import scenarios
from gateway.bench.profile import ROWS, Profile, profile_table, short_place
from gateway.bench.scenarios import quick_plan
from gateway.bench.within import Cost, Seen
from tests.support.bench_runs import result, run, usage


def cost(name: str, own_share: float, *, calls: int | None = None) -> Cost:
    """A function of some file."""
    place = f"/srv/gateway/api/{name}.py:7"
    return Cost(name=name, place=place, own_share=own_share, total_share=0.5, calls=calls)


def found(
    *costs: Cost, samples: int | None = 800, scenario: str = scenarios.MANY_CLIENTS
) -> Profile:
    """A profile of 1,000 pieces of work at 100 us each."""
    planned = next(one for one in quick_plan().scenarios if one.name == scenario)
    load = result(requests=1_000, events=1_000)
    return Profile(
        scenario=planned,
        kind="any",
        run=run(load, contender=usage(0.1)),
        seen=Seen(costs=list(costs), samples=samples),
    )


def text_of(profile: Profile) -> str:
    """What a terminal of 160 columns would show."""
    out = StringIO()
    Console(file=out, width=160).print(profile_table(profile))
    return out.getvalue()


def cells(text: str, name: str) -> list[str]:
    """The cells of a function's row."""
    row = next(line for line in text.splitlines() if f"│ {name} " in line)
    return [cell.strip() for cell in row.split("│")[1:-1]]


def test_a_function_is_told_in_microseconds_of_a_request() -> None:
    """A share alone cannot be held against a target."""
    text = text_of(found(cost("relay", 0.25)))
    assert cells(text, "relay") == ["25.0%", "25.00", "50.0%", "relay", "gateway/api/relay.py:7"]
    assert "100.0 us CPU per request" in text
    assert "800 samples" in text


def test_a_stream_is_told_by_its_events() -> None:
    """CPU per request of a stream of 64 events says nothing."""
    text = text_of(found(cost("relay", 0.25), scenario=scenarios.STREAMS_5K))
    assert "us CPU per event" in text


def test_counted_calls_are_told_for_each_piece_of_all_work() -> None:
    """Calls before the window are counted too; divided by the window's work they were too many."""
    profile = found(cost("relay", 0.25, calls=2_300), samples=None)
    spec = profile.scenario.load
    assert profile.work_in_all == pytest.approx(1_000 * (spec.warm_s + spec.window_s) / 2.0)
    assert cells(text_of(profile), "relay")[3] == "2.00"


def test_only_the_dearest_functions_are_shown() -> None:
    """The rest is in the file."""
    costs = [cost(f"f{number}", 0.01) for number in range(2 * ROWS)]
    text = text_of(found(*costs))
    assert "f39" in text
    assert "f40" not in text


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("/a/.venv/lib/python3.11/site-packages/uvicorn/main.py:5", "uvicorn/main.py:5"),
        ("/srv/fairgate/gateway/core/scheduler.py:9", "gateway/core/scheduler.py:9"),
        ("/usr/lib/python3.11/asyncio/runners.py:118", "asyncio/runners.py:118"),
        ("C", "C"),
    ],
)
def test_a_place_is_told_from_its_package_on(place: str, expected: str) -> None:
    """Whole paths push the figures off the screen."""
    assert short_place(place) == expected


def test_without_work_nothing_is_divided() -> None:
    """A gateway that answers nothing ends with a status, not with a traceback."""
    profile = Profile(
        scenario=found().scenario,
        kind="any",
        run=run(result(), contender=usage(0.1)),
        seen=Seen(costs=[cost("relay", 1.0, calls=3)]),
    )
    assert profile.us_per_work == 0.0
    assert "relay" in text_of(profile)
