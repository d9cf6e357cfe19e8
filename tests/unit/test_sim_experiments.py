"""Experiments: every one runs, tells what it ran with, and is the same for any processes."""

import json
from io import StringIO
from math import inf

import msgspec
import pytest
from rich.console import Console

from gateway.sim.experiments.catalogue import experiment_named, experiments
from gateway.sim.experiments.experiment import Experiment
from gateway.sim.experiments.goodput import GoodputKnobs, goodput_policy, judge_goodput
from gateway.sim.experiments.measures import fairness, good_of, jain
from gateway.sim.experiments.power_user import PowerKnobs, judge_power
from gateway.sim.experiments.report import Measured, Report, Row, needed_width, shown
from gateway.sim.experiments.setting import dispatcher, policy_of, tiers_of
from gateway.sim.experiments.tiered import (
    SHORT_STEPS,
    TARGETS_S,
    HonestKnobs,
    honest,
    judge_honest,
    short_steps_policy,
)
from gateway.sim.world.outcome import Outcome, Status
from tests.support.worlds import STEADY

NAMES = [each.name for each in experiments()]


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """Of the experiment below."""

    sizes: tuple[int, ...] = (1, 2, 3)
    factor: float = 2.0


def points(knobs: Knobs) -> list[Row]:
    """One for each size."""
    return [{"size": size} for size in knobs.sizes]


def product(knobs: Knobs, point: Row, seed: int) -> Measured:
    """Something that depends on all three."""
    return Measured(figures={"product": knobs.factor * int(point["size"]) + seed, "word": "x"})


MADE = Experiment(
    name="made", about="up", knobs=Knobs(), quick={"sizes": (1,)}, points=points, measure=product
)


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_over_in_seconds_when_quick(name: str) -> None:
    """An experiment that nobody runs is broken within a month."""
    report = experiment_named(name).run(quick=True)
    told = json.loads(report.to_json())
    assert told["rows"]
    assert told["seeds"] == [0]
    assert told["fairgate"]
    assert told["python"]
    assert all(row.keys() == told["rows"][0].keys() for row in told["rows"])
    assert report.table().row_count == len(report.rows)


def test_the_report_is_the_same_for_any_number_of_processes() -> None:
    """Figures would depend on the machine."""
    experiment = experiment_named("headroom-sweep")
    one, two = (experiment.run(quick=True, seeds=2, processes=count) for count in (1, 2))
    assert one.to_json() == two.to_json()


def test_rows_are_medians_over_the_seeds() -> None:
    """One lucky seed would make the table."""
    report = MADE.run(seeds=3)
    assert [row["product"] for row in report.rows] == [3.0, 5.0, 7.0]
    assert report.rows[0]["word"] == "x"


def test_progress_counts_every_cell() -> None:
    """A bar that stands still looks like a hang."""
    heard: list[tuple[int, int]] = []
    MADE.run(seeds=2, progress=lambda done, of: heard.append((done, of)))
    assert heard == [(done, 6) for done in range(1, 7)]


def test_parameters_come_as_text_and_lists_with_commas() -> None:
    """A command line has nothing but text."""
    report = MADE.run({"sizes": "4,5", "factor": "0.5"}, seeds=1)
    assert [row["product"] for row in report.rows] == [2.0, 2.5]
    assert report.parameters == {"sizes": (4, 5), "factor": 0.5}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": "1"}, "made has no size; it takes sizes, factor"),
        ({"factor": "much"}, "factor"),
        ({"sizes": "1,two"}, "sizes"),
    ],
)
def test_a_wrong_parameter_is_named(values: dict[str, object], message: str) -> None:
    """The run would go on with something else than was asked for."""
    with pytest.raises(ValueError, match=message):
        MADE.run(values)


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"processes": 0}, {"processes": 65}])
def test_counts_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    """An empty report would look like a result."""
    with pytest.raises(ValueError, match=r"at least one seed|processes must be"):
        MADE.run(**wrong)  # type: ignore[arg-type]  # the keys are those of run


def test_unknown_names_are_told_those_there_are() -> None:
    """A typing error would cost a search."""
    with pytest.raises(ValueError, match="paper-honest"):
        experiment_named("honest")
    with pytest.raises(ValueError, match="fairgate, round-robin"):
        dispatcher("fair", 1)


def test_what_is_infinite_is_null_in_json_and_a_dash_in_text() -> None:
    """A reader of JSON would fail at Infinity."""
    report = Report(name="x", about="y", parameters={}, seeds=(0,), rows=({"a": inf, "b": "w"},))
    assert json.loads(report.to_json())["rows"] == [{"a": None, "b": "w"}]


def test_a_narrow_terminal_cuts_no_figure() -> None:
    """A table in a log file would be unreadable."""
    row: Row = {f"long name {index} s": 1234.5 + index for index in range(20)}
    report = Report(name="x", about="y", parameters={}, seeds=(0,), rows=(row,))
    console = Console(width=40, record=True, file=StringIO())
    console.width = max(console.width, needed_width(report.table(), console))
    console.print(report.table())
    text = console.export_text()
    assert all(shown(value) in text for value in row.values())


def test_jain_is_one_for_equals_and_a_share_for_one_alone() -> None:
    """Fairness would be measured with a bent ruler."""
    assert jain([3, 3, 3]) == pytest.approx(1.0)
    assert jain([4, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([]) == 1.0


def served(rows: list[tuple[str, float, float, int]]) -> Outcome:
    """(user, arrived, first token, output tokens); all sent and ended as they began."""
    outcome = Outcome()
    for number, (user, arrived, first, tokens) in enumerate(rows):
        row = outcome.begin(number, arrived, tier=0, who=("t", user), prompt_tokens=1)
        outcome.sent[row] = outcome.first[row] = outcome.ended[row] = first
        outcome.output[row] = tokens
        outcome.status[row] = Status.DONE
    outcome.lasted_s = 20.0
    return outcome


def test_fairness_counts_only_who_had_something_waiting() -> None:
    """A user who wanted little would make a fair scheduler look unfair."""
    waiting = [
        ("a", 0.0, 5.0, 100),
        ("a", 0.0, 15.0, 100),
        ("b", 0.0, 5.0, 50),
        ("b", 0.0, 15.0, 50),
    ]
    idle = [("c", 3.0, 3.1, 1)]
    middle, least, spans = fairness(served([*waiting, *idle]), every_s=10.0)
    assert spans == 1
    assert middle == least == pytest.approx(jain([201, 101]))


def test_goodput_counts_who_met_the_targets_of_its_tier() -> None:
    """Work that came too late would count as good."""
    outcome = served([("a", 0.0, 0.1, 1), ("a", 0.0, 9.0, 1), ("a", 2.0, 2.1, 1)])
    assert good_of(outcome, tiers_of(4), STEADY) == 2


def test_any_number_of_tiers_has_targets_and_limits_in_order() -> None:
    """A lower tier would be let in where a higher one is not."""
    for count in range(1, 11):
        tiers = tiers_of(count)
        limits = [tier.queue_limit for tier in tiers]
        assert len(tiers) == count
        assert limits == sorted(limits, reverse=True)
    assert [tier.ttft_target_ms for tier in tiers_of(4)] == [500, 1000, 5000, None]


def test_the_verdict_on_tiers_knows_met_and_missed() -> None:
    """A missed target would be printed as met."""
    good: Row = {"p99 ttft 0 s": 0.1, "p99 ttft 1 s": 0.2, "p99 ttft 2 s": 0.4, "p99 ttft 3 s": 9.0}
    means: Row = {"mean ttft s": 1.01, "mean e2e s": 3.2}
    rows: list[Row] = [
        {"dispatcher": "least-outstanding", "mean ttft s": 1.0, "mean e2e s": 3.0},
        {"dispatcher": "fairgate", **good, **means, "p99 ttft 1 s": 0.3},
    ]
    words = [note.rsplit(" ", 1)[1] for note in judge_honest(HonestKnobs(), rows)]
    assert words == ["met", "missed", "met", "met", "met", "missed"]
    rows[1] = {**rows[1], "dispatcher": "fairgate+engine-priority", "p99 ttft 1 s": 0.2}
    words = [note.rsplit(" ", 1)[1] for note in judge_honest(HonestKnobs(), rows)]
    assert words == ["met", "met", "met", "met", "met", "missed"]


def test_the_verdict_on_the_power_user_knows_met_and_missed() -> None:
    """A missed target would be printed as met."""
    rows: list[Row] = [
        {"dispatcher": name, "case": case, "light p99 ttft s": ttft_s, "chunks": 1.0,
         "jain": index, "tokens/s": rate}
        for name, case, ttft_s, index, rate in (
            ("fairgate", "with", 9.0, 1.0, 99.0), ("fairgate", "without", 1.0, 1.0, 50.0),
            ("fairgate", "flood", 9.0, 0.995, 90.0), ("fifo", "with", 9.0, 0.5, 100.0),
            ("fifo", "flood", 9.0, 0.5, 100.0),
        )
    ]  # fmt: skip
    words = [note.rsplit(" ", 1)[1] for note in judge_power(PowerKnobs(), rows)]
    assert words == ["missed", "met", "met", "missed"]


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_lower_tiers_leave_smaller_steps(count: int) -> None:
    """A tier above would wait behind what one below it may leave in an engine."""
    for policy in (goodput_policy(count), short_steps_policy(policy_of(count))):
        limits_s = [tier.prefill_limit_s for tier in policy.tiers]
        assert len(limits_s) == count
        assert limits_s == sorted(limits_s, reverse=True)


def test_short_steps_give_each_tier_its_target_before_first_come_first_served() -> None:
    """Operators are told to set this; with a seed that nobody chose it by."""
    knobs = HonestKnobs()
    figures = honest(knobs, {"dispatcher": SHORT_STEPS}, 7).figures
    found_s = [float(figures[f"p99 ttft {tier} s"]) for tier in range(4)]
    assert all(found <= target for found, target in zip(found_s, TARGETS_S, strict=True)), found_s


def test_the_verdict_on_goodput_names_where_it_is_behind() -> None:
    """A trace on which fairgate loses would not be found."""
    knobs = GoodputKnobs(traces=("x",), loads=(1.25,))
    rows: list[Row] = [
        {"trace": "x", "load": 1.25, "dispatcher": name, "goodput/s": rate, "good": 0.9}
        for name, rate in (("fairgate", 5.0), ("fifo", 5.5), ("vtc", 6.0))
    ]
    notes = judge_goodput(knobs, rows)
    assert len(notes) == 2
    assert "vtc 6.00/s" in notes[0]
    assert "not above fifo" in notes[1]


@pytest.mark.parametrize(("good", "lines"), [(0.999, 1), (1.0, 0)])
def test_nobody_is_asked_to_be_above_a_queue_that_serves_everybody_in_time(
    good: float, lines: int
) -> None:
    """A load that fills no engine would count as a defeat."""
    rows: list[Row] = [
        {"trace": "x", "load": 1.25, "dispatcher": name, "goodput/s": 5.0, "good": good}
        for name in ("fairgate", "fifo")
    ]
    notes = judge_goodput(GoodputKnobs(traces=("x",), loads=(1.25,)), rows)
    assert sum("not above fifo" in note for note in notes) == lines
