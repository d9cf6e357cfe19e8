"""How figures follow from runs, and that their targets are the documented ones."""

import pytest

from gateway.bench import scenarios
from gateway.bench.figures import FIGURES, Figure, Runs
from gateway.bench.scenarios import Plan, full_plan, quick_plan
from tests.support.bench_runs import quantiles, result, run, usage


def figure(key: str) -> Figure:
    """The figure with this key."""
    return next(figure for figure in FIGURES if figure.key == key)


def through(key: str, runs: Runs, direct: Runs | None = None) -> float | None:
    """A figure's value for a contender."""
    return figure(key).through(runs, direct or {})


def test_cpu_per_request_is_the_contenders_time_over_all_requests() -> None:
    """The headline: neither the engine's nor the clients' time may be in it."""
    load = result(requests=10_000, own_cpu_s=50.0)
    runs = {scenarios.MANY_CLIENTS: run(load, contender=usage(1.2), upstream_cpu_s=70.0)}
    assert through("cpu_per_request_us", runs) == pytest.approx(120.0)


def test_cpu_per_event_is_over_delivered_events() -> None:
    """An event that never arrived was not paid for."""
    load = result(requests=100, events=5_000)
    runs = {scenarios.STREAMS_5K: run(load, contender=usage(0.15))}
    assert through("cpu_per_event_5k_us", runs) == pytest.approx(30.0)
    assert through("cpu_per_event_20k_us", runs) is None


def test_added_latency_is_the_difference_of_the_same_quantile() -> None:
    """p99 minus p50 would be no figure of anything."""
    direct = {scenarios.ONE_CLIENT: run(result(latency_us=quantiles(40.0, 80.0)))}
    runs = {
        scenarios.ONE_CLIENT: run(result(latency_us=quantiles(240.0, 500.0)), contender=usage())
    }
    assert through("latency_added_p50_us", runs, direct) == pytest.approx(200.0)
    assert through("latency_added_p99_us", runs, direct) == pytest.approx(420.0)


def test_added_delays_are_in_ms() -> None:
    """The targets are; a factor of a thousand would pass any of them."""
    direct = {
        scenarios.FIRST_EVENT: run(result(ttft_us=quantiles(100.0, 200.0))),
        scenarios.STREAMS_5K: run(result(chunk_delay_us=quantiles(10.0, 500.0))),
    }
    runs = {
        scenarios.FIRST_EVENT: run(result(ttft_us=quantiles(600.0, 1_200.0)), contender=usage()),
        scenarios.STREAMS_5K: run(
            result(chunk_delay_us=quantiles(20.0, 2_000.0)), contender=usage()
        ),
    }
    assert through("ttft_added_p50_ms", runs, direct) == pytest.approx(0.5)
    assert through("ttft_added_p99_ms", runs, direct) == pytest.approx(1.0)
    assert through("jitter_added_5k_p99_ms", runs, direct) == pytest.approx(1.5)


def test_what_is_added_needs_both_sides() -> None:
    """With no direct run of the round, the absolute value would pass for the added one."""
    runs = {scenarios.ONE_CLIENT: run(result(latency_us=quantiles(1.0, 2.0)), contender=usage())}
    assert through("latency_added_p50_us", runs, {}) is None
    assert through("latency_added_p50_us", {}, runs) is None


def test_memory_per_stream_is_the_growth_over_the_streams_that_are_open() -> None:
    """Divided by the streams that were asked for, refused ones would make it look small."""
    load = result(open_connections=501, events=1)
    own = usage(rest_bytes=49_000_000, alone_bytes=50_000_000, rss_bytes=60_000_000)
    runs = {scenarios.OPEN_STREAMS: run(load, contender=own)}
    assert through("memory_per_stream_kb", runs) == pytest.approx(20.0)
    assert through("memory_at_rest_mb", runs) == pytest.approx(49.0)
    assert through("open_streams", runs) == 501


def test_memory_without_open_streams_is_unknown() -> None:
    """Nothing was open beside the first: nothing to divide by, and nothing to praise."""
    for open_connections in (0, 1):
        load = result(open_connections=open_connections)
        runs = {scenarios.OPEN_STREAMS: run(load, contender=usage(rss_bytes=5))}
        assert through("memory_per_stream_kb", runs) is None


def test_rates_are_per_second_of_the_window() -> None:
    """The window is measured, not assumed."""
    runs = {
        scenarios.MANY_CLIENTS: run(result(requests=10_000)),
        scenarios.STREAMS_20K: run(result(events=40_000)),
    }
    assert through("requests_per_s", runs) == 5_000
    assert through("events_20k_per_s", runs) == 20_000


def test_a_run_without_work_has_no_figure() -> None:
    """CPU over nothing is a division by zero, at the end of a run of minutes."""
    runs = {
        scenario: run(result(), contender=usage(1.0))
        for scenario in (scenarios.MANY_CLIENTS, scenarios.STREAMS_5K, scenarios.STREAMS_20K)
    }
    assert through("cpu_per_request_us", runs) is None
    assert through("cpu_per_event_5k_us", runs) is None


@pytest.mark.parametrize("one", FIGURES, ids=lambda one: one.key)
def test_no_figure_fails_on_missing_runs(one: Figure) -> None:
    """A contender that fell over half-way still gets the figures it earned."""
    assert one.through({}, {}) is None
    assert one.of({}) is None


def test_the_direct_side_has_no_cpu_figure() -> None:
    """There is no gateway in it whose time could be meant."""
    direct = {scenarios.STREAMS_5K: run(result(events=5_000), upstream_cpu_s=1.0)}
    assert figure("cpu_per_event_5k_us").of(direct) is None


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(72.0, "stretch"), (72.1, "met"), (120.0, "met"), (120.1, "not met"), (None, "")],
)
def test_a_target_is_met_at_its_value_and_below(value: float | None, verdict: str) -> None:
    """The promise is "at most": the value itself keeps it."""
    assert figure("cpu_per_request_us").verdict(value) == verdict


def test_a_figure_without_a_target_has_no_verdict() -> None:
    """Nothing was promised of it."""
    assert figure("requests_per_s").verdict(1.0) == ""


def test_latency_is_told_for_one_client_for_many_and_for_a_steady_rate() -> None:
    """A closed loop of many shows the queue that it makes; a steady rate what a user waits."""
    for key, name in (
        ("latency_added_p99_us", scenarios.ONE_CLIENT),
        ("latency_added_32_p99_us", scenarios.MANY_CLIENTS),
        ("latency_added_steady_p99_us", scenarios.STEADY_RATE),
    ):
        runs = {name: run(result(latency_us=quantiles(100.0, 900.0)), contender=usage())}
        direct = {name: run(result(latency_us=quantiles(40.0, 200.0)))}
        assert through(key, runs, direct) == pytest.approx(700.0)


def test_cpu_per_request_is_told_for_one_client_as_well() -> None:
    """With one client every request wakes the gateway for itself: the dearer end."""
    runs = {scenarios.ONE_CLIENT: run(result(requests=1_000), contender=usage(0.2))}
    assert through("cpu_per_request_1_us", runs) == pytest.approx(200.0)


def test_what_is_scaled_is_scaled_by_a_figure_that_there_is() -> None:
    """A misspelt yardstick is a column of dashes."""
    keys = {one.key for one in FIGURES}
    assert all(one.scaled_by in {None, *keys} for one in FIGURES)


@pytest.mark.parametrize(
    ("key", "target", "stretch"),
    [
        ("cpu_per_request_us", 120, 72),
        ("cpu_per_event_5k_us", 32, 24),
        ("cpu_per_event_20k_us", 28, 20),
        ("latency_added_p50_us", 250, 150),
        ("latency_added_p99_us", 500, None),
        ("ttft_added_p99_ms", 1.0, 0.5),
        ("jitter_added_5k_p99_ms", 2.0, 1.0),
        ("memory_at_rest_mb", 80, 60),
        ("memory_per_stream_kb", 30, 21),
    ],
)
def test_targets_are_the_promised_ones(key: str, target: float, stretch: float | None) -> None:
    """A target that slips in the code is one that is always met."""
    assert (figure(key).target, figure(key).stretch) == (target, stretch)


def test_keys_are_unique() -> None:
    """Two figures of one key would overwrite each other for whoever reads the JSON."""
    assert len({one.key for one in FIGURES}) == len(FIGURES)


@pytest.mark.parametrize("planned", [quick_plan(), full_plan()], ids=lambda one: one.name)
def test_every_scenario_feeds_a_figure_and_every_figure_has_its_scenario(planned: Plan) -> None:
    """A scenario nobody reads costs seconds; a figure without one is a dash for ever."""
    loads = result(
        requests=10,
        events=10,
        open_connections=1_000,
        latency_us=quantiles(1, 2),
        ttft_us=quantiles(1, 2),
        chunk_delay_us=quantiles(1, 2),
    )
    runs = {one.name: run(loads, contender=usage(1.0, rss_bytes=9)) for one in planned.scenarios}
    direct = {one.name: run(loads) for one in planned.scenarios if one.is_paired}
    assert all(one.through(runs, direct) is not None for one in FIGURES)
    for name in runs:
        rest = {other: kept for other, kept in runs.items() if other != name}
        assert any(one.through(rest, direct) is None for one in FIGURES)
