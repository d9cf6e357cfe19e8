"""The report: medians of rounds, comparisons, and what it stores."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from gateway.bench import scenarios
from gateway.bench.contenders import FAIRGATE
from gateway.bench.figures import CPU_PER_EVENT_5K, CPU_PER_REQUEST, FIGURES, Run
from gateway.bench.harness import Measurement
from gateway.bench.report import Report, as_json
from gateway.bench.tables import SCALED, rendered
from gateway.bench.targets import DIRECT
from tests.support.bench_runs import machine, plan, quantiles, result, run, scenario, usage

ONE = scenarios.ONE_CLIENT
MANY = scenarios.MANY_CLIENTS
STREAMS = scenarios.STREAMS_5K
LATENCY = next(one for one in FIGURES if one.key == "latency_added_p50_us")


def of_latency(p50_us: float, *, contender: bool = False) -> Run:
    """A run with one client."""
    load = result(requests=10, latency_us=quantiles(p50_us, 2 * p50_us))
    return run(load, contender=usage() if contender else None)


def of_cpu(us_per_request: float, us_per_event: float) -> dict[str, Run]:
    """Runs of a contender that costs this much."""
    return {
        MANY: run(result(requests=1_000), contender=usage(us_per_request / 1e3)),
        STREAMS: run(
            result(events=1_000, open_connections=200), contender=usage(us_per_event / 1e3)
        ),
    }


def report_of(*rounds: dict[str, dict[str, Run]], programs: tuple[str, ...] = ()) -> Report:
    """A report over these rounds, each by target and scenario."""
    return Report(
        machine=machine(),
        plan=plan(*map(scenario, scenarios.SCENARIOS), rounds=len(rounds)),
        log_level="info",
        programs=dict.fromkeys((FAIRGATE.name, *programs), "1.0"),
        measured=Measurement(rounds=list(rounds)),
    )


def text_of(report: Report) -> str:
    """What a terminal of 200 columns would show."""
    out = StringIO()
    Console(file=out, width=200).print(rendered(report))
    return out.getvalue()


def test_a_figure_is_the_median_of_the_rounds() -> None:
    """One round beside a cron job must not decide."""
    rounds = [
        {DIRECT: {ONE: of_latency(40.0)}, "fairgate": {ONE: of_latency(p50, contender=True)}}
        for p50 in (240.0, 9_000.0, 200.0)
    ]
    report = report_of(*rounds)
    assert report.median_of(LATENCY, "fairgate") == pytest.approx(200.0)
    assert report.median_of(LATENCY, DIRECT) == pytest.approx(40.0)


def test_a_difference_is_taken_within_its_round() -> None:
    """Between rounds the machine drifts by more than the gateway adds."""
    rounds = [
        {DIRECT: {ONE: of_latency(base)}, "fairgate": {ONE: of_latency(base + 100, contender=True)}}
        for base in (40.0, 400.0, 4_000.0)
    ]
    assert report_of(*rounds).median_of(LATENCY, "fairgate") == pytest.approx(100.0)


def test_a_round_without_the_figure_is_left_out() -> None:
    """A contender that failed in the last round keeps what it showed before."""
    whole = {DIRECT: {ONE: of_latency(40.0)}, "fairgate": {ONE: of_latency(140.0, contender=True)}}
    report = report_of(whole, {DIRECT: {ONE: of_latency(40.0)}})
    assert report.values(LATENCY, "fairgate") == [pytest.approx(100.0)]
    assert report.median_of(CPU_PER_REQUEST, "fairgate") is None


def row_of(text: str, title: str) -> list[str]:
    """The cells behind a figure's title."""
    row = next(line for line in text.splitlines() if title in line)
    return [cell.strip() for cell in row.split("│")[2:-1]]


def test_the_table_has_targets_values_verdicts_and_dashes() -> None:
    """It is what `make bench` prints."""
    text = text_of(report_of({"fairgate": of_cpu(80.0, 33.0)}))
    assert row_of(text, CPU_PER_REQUEST.title) == ["us", "120", "72", "-", "80", "met"]
    assert row_of(text, CPU_PER_EVENT_5K.title) == ["us", "32", "24", "-", "33", "not met"]
    assert all(figure.title in text for figure in FIGURES)
    assert "Imaginary 1" in text
    assert "python 3.11.7" in text
    assert "log level info" in text


def test_figures_of_scenarios_that_were_not_asked_for_are_left_out() -> None:
    """Twenty rows of dashes hide the one that was measured."""
    report = replace(report_of({}), plan=plan(scenario(ONE)))
    assert {figure.scenario for figure in report.figures} == {ONE}


def test_with_nginx_the_figures_are_scaled_and_said_to_be() -> None:
    """Targets in microseconds say nothing on a machine of another speed; nginx is the yardstick."""
    report = report_of(
        {"fairgate": of_cpu(200.0, 30.0), "nginx": of_cpu(34.0, 26.25)}, programs=("nginx",)
    )
    text = text_of(report)
    cells = row_of(text, CPU_PER_REQUEST.title)
    assert cells == ["us", "120", "72", "-", "200", "not met", "100", "met", "34"]
    assert row_of(text, CPU_PER_EVENT_5K.title)[4:8] == ["30", "met", "20", "stretch"]
    assert f"{SCALED}: not measured" in text
    assert "2.00 times for a request, 1.50 times for an event at 5k/s" in text


def test_without_nginx_nothing_is_scaled() -> None:
    """A factor from nowhere would make any figure good."""
    text = text_of(report_of({"fairgate": of_cpu(80.0, 30.0)}))
    assert SCALED not in text
    assert "machine factor" not in text


def test_a_figure_for_which_less_arrived_than_asked_is_marked() -> None:
    """CPU per event looks best at a rate that is not kept."""
    short = scenario(STREAMS, stream=True, connections=200, events_per_s=5_000)
    report = replace(report_of({"fairgate": of_cpu(80.0, 30.0)}), plan=plan(short))
    assert row_of(text_of(report), CPU_PER_EVENT_5K.title)[4] == "30*"
    assert report.is_short(CPU_PER_EVENT_5K, "fairgate")
    assert not report.is_short(CPU_PER_EVENT_5K, "nginx")


def test_small_and_large_numbers_stay_readable() -> None:
    """Three digits are what the method can tell apart at best."""
    text = text_of(report_of({"fairgate": of_cpu(10_734.6, 23.456)}))
    assert " 10,735 " in text
    assert " 23.5 " in text


def test_each_peer_is_compared_with_the_gateway() -> None:
    """Whoever chooses between two gateways asks how many times, not how many microseconds."""
    report = report_of(
        {"fairgate": of_cpu(100.0, 30.0), "smg": of_cpu(200.0, 27.0)}, programs=("smg",)
    )
    assert report.ratio(CPU_PER_REQUEST, "smg") == pytest.approx(2.0)
    assert report.ratio(CPU_PER_EVENT_5K, "smg") == pytest.approx(0.9)
    ratios = text_of(report).partition("how many times")[2]
    assert row_of(ratios, CPU_PER_REQUEST.title) == ["2.00"]
    assert row_of(ratios, CPU_PER_EVENT_5K.title) == ["0.90"]


def test_a_peer_without_figures_is_not_compared() -> None:
    """A ratio to nothing would be a crash after minutes of measuring."""
    report = report_of({"fairgate": of_cpu(100.0, 30.0), "smg": {}}, programs=("smg",))
    assert report.ratio(CPU_PER_REQUEST, "smg") is None
    assert "how many times" not in text_of(report)


def test_a_difference_below_nothing_has_no_ratio() -> None:
    """Minus three times as fast is not a claim."""
    runs = {
        DIRECT: {ONE: of_latency(100.0)},
        "fairgate": {ONE: of_latency(150.0, contender=True)},
        "smg": {ONE: of_latency(90.0, contender=True)},
    }
    assert report_of(runs, programs=("smg",)).ratio(LATENCY, "smg") is None


def test_versions_are_told_with_the_figures() -> None:
    """A figure without its version cannot be compared with next year's."""
    report = replace(report_of({}), programs={"fairgate": "0.1 (compiled)", "smg": "1.13.0"})
    text = text_of(report)
    assert "0.1 (compiled)" in text
    assert "1.13.0" in text


def test_a_measurement_is_sound_when_every_scenario_ran_without_error() -> None:
    """The exit status must not say 0 for a gateway that answered nothing."""
    good = {"fairgate": {ONE: of_latency(1.0, contender=True)}}
    failed = {"fairgate": {ONE: run(result(requests=5, error_kinds={"status 500": 1}))}}
    silent = {"fairgate": {ONE: run(result())}}
    whole = plan(scenario(ONE), rounds=2)
    assert replace(report_of(good, good), plan=whole).is_sound
    for other in (failed, silent, {}):
        assert not replace(report_of(good, other), plan=whole).is_sound


def test_doubts_are_printed_below_the_table() -> None:
    """A figure whose doubt is only in the JSON is quoted without it."""
    text = text_of(report_of({"fairgate": {ONE: run(result(requests=5, error_kinds={"x": 1}))}}))
    assert "doubt: round 1, one-client, fairgate: 1 errors" in text


def test_the_json_keeps_every_round_and_run() -> None:
    """Medians can't be checked by anybody who has only the medians."""
    rounds = [{"fairgate": of_cpu(us, 30.0)} for us in (100.0, 110.0, 90.0)]
    stored = json.loads(json.dumps(as_json(report_of(*rounds), when="2025-11-29T21:00:00+00:00")))
    first = next(one for one in stored["figures"] if one["key"] == CPU_PER_REQUEST.key)
    assert first["target"] == 120
    assert first["verdict"] == "met"
    assert first["scaled_to_reference"] is None
    assert first["medians"] == {DIRECT: None, "fairgate": pytest.approx(100.0)}
    assert first["rounds"]["fairgate"] == pytest.approx([100.0, 110.0, 90.0])
    assert stored["rounds"][1]["fairgate"][MANY]["load"]["requests"] == 1_000
    assert stored["machine"]["processor"] == "Imaginary 1"
    assert stored["programs"] == {"fairgate": "1.0"}
    assert {one["key"] for one in stored["figures"]} >= {CPU_PER_EVENT_5K.key}
