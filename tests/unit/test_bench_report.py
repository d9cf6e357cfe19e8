"""The report: medians of rounds, comparisons, and what it stores."""

import json
from io import StringIO

import pytest
from rich.console import Console

from gateway.bench import scenarios
from gateway.bench.contenders import FAIRGATE
from gateway.bench.figures import CPU_PER_EVENT, CPU_PER_REQUEST, FIGURES, Run
from gateway.bench.harness import DIRECT, Measurement
from gateway.bench.report import Report, as_json, comparisons, rendered
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
        STREAMS: run(result(events=1_000), contender=usage(us_per_event / 1e3)),
    }


def report_of(*rounds: dict[str, dict[str, Run]], programs: tuple[str, ...] = ()) -> Report:
    """A report over these rounds, each by target and scenario."""
    return Report(
        machine=machine(),
        plan=plan(scenario(ONE), rounds=len(rounds)),
        programs=dict.fromkeys((FAIRGATE.name, *programs), "1.0"),
        measured=Measurement(rounds=list(rounds)),
    )


def text_of(report: Report) -> str:
    """What a terminal of 160 columns would show."""
    out = StringIO()
    Console(file=out, width=160).print(rendered(report))
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


def test_the_table_has_targets_values_and_dashes() -> None:
    """It is what `make bench` prints."""
    text = text_of(report_of({"fairgate": of_cpu(80.0, 30.0)}))
    row = next(line for line in text.splitlines() if CPU_PER_REQUEST.title in line)
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["us", "120", "72", "-", "80"]
    assert all(figure.title in text for figure in FIGURES)
    assert "Imaginary 1" in text
    assert "python 3.11.7" in text


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
    assert comparisons(report) == [
        "smg needs 2.00 times the CPU per request and 0.90 times the CPU per event at 5k/s"
    ]


def test_a_peer_without_figures_is_not_compared() -> None:
    """A ratio to nothing would be a crash after minutes of measuring."""
    report = report_of({"fairgate": of_cpu(100.0, 30.0), "smg": {}}, programs=("smg",))
    assert comparisons(report) == []


def test_the_machine_is_put_beside_the_one_of_the_targets() -> None:
    """Targets in microseconds say nothing on a machine of another speed; nginx is the yardstick."""
    report = report_of(
        {"fairgate": of_cpu(100.0, 30.0), "nginx": of_cpu(34.0, 26.25)}, programs=("nginx",)
    )
    assert comparisons(report)[0] == (
        "this machine: nginx needs 2.00 times the CPU per request and 1.50 times the CPU per event"
        " of the machine on which the targets were set"
    )


def test_a_measurement_is_sound_when_every_scenario_ran_without_error() -> None:
    """The exit status must not say 0 for a gateway that answered nothing."""
    good = {"fairgate": {ONE: of_latency(1.0, contender=True)}}
    failed = {"fairgate": {ONE: run(result(requests=5, error_kinds={"status 500": 1}))}}
    silent = {"fairgate": {ONE: run(result())}}
    assert report_of(good, good).is_sound
    assert not report_of(good, failed).is_sound
    assert not report_of(good, silent).is_sound
    assert not report_of(good, {}).is_sound


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
    assert first["medians"] == {DIRECT: None, "fairgate": pytest.approx(100.0)}
    assert first["rounds"]["fairgate"] == pytest.approx([100.0, 110.0, 90.0])
    assert stored["rounds"][1]["fairgate"][MANY]["load"]["requests"] == 1_000
    assert stored["machine"]["processor"] == "Imaginary 1"
    assert stored["programs"] == {"fairgate": "1.0"}
    assert {one["key"] for one in stored["figures"]} >= {CPU_PER_EVENT.key}
