"""The core's figures and section of the report, from made-up repetitions; and how it is run."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gateway.bench import run
from gateway.bench.core_figures import CORE_FIGURES, CoreFigure, Spread
from gateway.bench.core_report import core_doubts, core_json, core_rendered
from gateway.bench.core_spec import (
    IDLE,
    LARGE,
    LOADS,
    MEDIUM,
    SMALL,
    CoreResult,
    CoreRun,
    KindCost,
)
from gateway.bench.launch import StartFailed, usable_cores
from gateway.bench.launch import run_core as launch_core
from gateway.bench.options import Options
from tests.support.bench_runs import machine

KINDS = {"Finished": KindCost(count=30, mean_us=20.0), "Arrived": KindCost(count=20, mean_us=10.0)}


def run_of(name: str, *event_us: float) -> CoreRun:
    """A sound run of that load."""
    load = next(load for load in LOADS if load.name == name)
    return CoreRun(
        load=load,
        events=20_000,
        requests=5_000,
        event_us=event_us,
        kinds=KINDS,
        waiting_min=load.waiting,
        waiting_max=load.waiting,
        refused=0,
        is_repeatable=True,
    )


def result_of(*runs: CoreRun, waiting_bytes: float | None = 1_500.0) -> CoreResult:
    """These runs and the memory of a request."""
    return CoreResult(runs={each.load.name: each for each in runs}, waiting_bytes=waiting_bytes)


WHOLE = result_of(
    run_of(SMALL, 9.0, 8.0, 12.0),
    run_of(IDLE, 5.0, 5.5, 4.5),
    run_of(MEDIUM, 10.0, 12.0, 11.0),
    run_of(LARGE, 20.0, 16.0, 25.0),
)


def figure(key: str) -> CoreFigure:
    """The figure of that key."""
    return next(one for one in CORE_FIGURES if one.key == key)


def value(key: str, result: CoreResult = WHOLE) -> Spread:
    """Best and median of a figure that there is."""
    spread = figure(key).of(result)
    assert spread is not None
    return spread


def text_of(result: CoreResult) -> str:
    """What a terminal of 160 columns would show."""
    out = StringIO()
    Console(file=out, width=160).print(core_rendered(result, machine()))
    return out.getvalue()


def row_of(text: str, title: str) -> list[str]:
    """The cells behind the title."""
    row = next(line for line in text.splitlines() if title in line)
    return [cell.strip() for cell in row.split("│")[2:-1]]


def test_best_and_median_are_those_of_the_repetitions() -> None:
    """The best alone is luck, the median alone hides what the code can do."""
    assert value("event_us_1k") == Spread(best=8.0, median=9.0)
    assert value("events_per_s_100k") == Spread(best=62_500.0, median=50_000.0)


def test_a_request_costs_all_events_of_the_window() -> None:
    """Scrapes and progress are paid for by the requests as well."""
    assert value("request_us_idle") == Spread(best=18.0, median=20.0)
    ended_none = replace(run_of(IDLE, 5.0), requests=0)
    assert math.isnan(value("request_us_idle", result_of(ended_none)).best)


def test_growth_is_held_against_the_logarithm() -> None:
    """A heap costs log n: more than that is a walk over something."""
    assert value("growth_10k") == Spread(best=10 / 8, median=11 / 9)
    assert value("growth_100k") == Spread(best=2.0, median=20 / 9)
    assert figure("growth_10k").target == pytest.approx(4 / 3)
    assert figure("growth_100k").target == pytest.approx(5 / 3)


@pytest.mark.parametrize(
    ("key", "value", "verdict"),
    [
        ("event_us_1k", 10.0, "met"),
        ("event_us_1k", 10.1, "missed"),
        ("events_per_s_100k", 19_999.0, "missed"),
        ("events_per_s_100k", 20_000.0, "met"),
        ("events_per_s_100k", 50_000.0, "stretch"),
        ("events_per_s_10k", 1.0, ""),
        ("waiting_kb", 2.0, "met"),
        ("waiting_kb", 2.1, "missed"),
    ],
)
def test_a_verdict_knows_which_way_is_better(key: str, value: float, verdict: str) -> None:
    """Fewer microseconds are good, fewer events are not."""
    assert figure(key).verdict(value) == verdict


def test_the_table_has_a_row_for_each_figure_with_its_verdict() -> None:
    """It is what `make bench` prints."""
    text = text_of(WHOLE)
    assert all(one.title in text for one in CORE_FIGURES)
    assert row_of(text, figure("event_us_1k").title) == ["us", "10", "-", "8", "9", "met"]
    assert row_of(text, figure("events_per_s_100k").title) == [
        "/s", "20,000", "50,000", "62,500", "50,000", "stretch",
    ]  # fmt: skip
    assert row_of(text, figure("growth_100k").title)[-1] == "missed"
    assert row_of(text, figure("waiting_kb").title) == ["kB", "2", "-", "1.5", "1.5", "met"]
    assert "Imaginary 1" in text
    assert "3 repetitions" in text


def test_a_load_that_was_not_run_has_dashes() -> None:
    """One load by itself is what somebody who tunes it runs."""
    text = text_of(result_of(run_of(SMALL, 9.0, 9.0), waiting_bytes=None))
    assert row_of(text, figure("events_per_s_100k").title)[-3:] == ["-", "-", "-"]
    assert row_of(text, figure("growth_100k").title)[-3:] == ["-", "-", "-"]
    assert row_of(text, figure("waiting_kb").title)[-3:] == ["-", "-", "-"]


def test_below_the_table_stands_where_the_time_goes() -> None:
    """A mean over all kinds tells nobody which one to mend."""
    assert "1k: Finished 75% (20 us), Arrived 25% (10 us)" in text_of(WHOLE)


def test_steady_repeated_agreeing_runs_raise_no_doubt() -> None:
    """Doubts that are always there are not read."""
    quiet = result_of(run_of(SMALL, 9.0, 8.0, 9.5), run_of(IDLE, 5.0, 5.5, 5.0))
    assert core_doubts(quiet) == []


@pytest.mark.parametrize(
    ("spoilt", "doubt"),
    [
        (replace(run_of(SMALL, 9.0, 9.0), refused=3), "3 requests were refused"),
        (replace(run_of(SMALL, 9.0, 9.0), is_repeatable=False), "left other requests waiting"),
        (replace(run_of(SMALL, 9.0, 9.0), waiting_min=900), "between 900 and 1,000 waited"),
        (replace(run_of(IDLE, 9.0, 9.0), waiting_max=1), "between 0 and 1 waited"),
        (run_of(SMALL, 9.0, 13.5), "took 50% longer"),
        (run_of(SMALL, 9.0), "measured only once"),
    ],
)
def test_what_spoils_a_figure_is_said(spoilt: CoreRun, doubt: str) -> None:
    """A figure whose doubt is not printed is quoted without it."""
    (line,) = core_doubts(result_of(spoilt))
    assert line.startswith(f"core, {spoilt.load.name}: ")
    assert doubt in line
    assert f"doubt: {line}" in text_of(result_of(spoilt))


def test_the_json_keeps_every_repetition() -> None:
    """Medians can't be checked by anybody who has only the medians."""
    stored = json.loads(json.dumps(core_json(WHOLE)))
    first = next(one for one in stored["figures"] if one["key"] == "event_us_1k")
    assert (first["target"], first["best"], first["median"]) == (10, 8.0, 9.0)
    assert first["verdict"] == "met"
    assert stored["runs"][SMALL]["event_us"] == [9.0, 8.0, 12.0]
    assert stored["runs"][LARGE]["load"]["replicas"] == 100
    assert stored["waiting_bytes"] == 1_500.0


def core_that(does: Callable[[], CoreResult]) -> Callable[..., CoreResult]:
    """A stand-in for the process that measures."""

    def run_core(*, core: int | None, python_path: Sequence[str]) -> CoreResult:
        assert core is None or core in usable_cores()
        assert python_path
        return does()

    return run_core


def test_the_core_alone_is_measured_printed_and_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who works on the core must not wait for two minutes of sockets."""
    monkeypatch.setattr(run, "run_core", core_that(lambda: WHOLE))
    path = tmp_path / "core.json"
    assert run.run_bench(Options(json_path=path, only=("core",))) == 0
    stored = json.loads(path.read_text())
    assert stored["core"] == json.loads(json.dumps(core_json(WHOLE)))
    assert set(stored) == {"when", "machine", "core"}
    assert "scheduler core by itself" in capsys.readouterr().out


def test_a_core_that_breaks_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CI must not call a crash a measurement."""

    def broken() -> CoreResult:
        raise StartFailed("it broke")

    monkeypatch.setattr(run, "run_core", core_that(broken))
    assert run.run_bench(Options(json_path=tmp_path / "x.json", only=("core",))) == 1
    assert "it broke" in capsys.readouterr().err


def test_an_unknown_part_is_refused_with_the_names_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A slip of the pen must not start a run of minutes."""
    assert run.run_bench(Options(only=("cores",))) == 2
    assert "overhead, core" in capsys.readouterr().err


def test_a_process_that_fails_is_told_from_one_that_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its output would be read as figures."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StartFailed, match="could not be measured"):
        launch_core(core=None)
