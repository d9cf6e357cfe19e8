"""Reasons to doubt a measurement are said, and only when there are any."""

from dataclasses import replace

import pytest

from gateway.bench.doubts import doubts, fell_short, has_work, missing_share
from gateway.bench.figures import Run
from gateway.bench.harness import Measurement
from gateway.bench.scenarios import Scenario
from tests.support.bench_runs import (
    machine,
    measurement,
    plan,
    result,
    run,
    scenario,
    usage,
)

PLAIN = scenario("plain", connections=32)
STREAMS = scenario("streams", stream=True, connections=200, events_per_s=5_000)


def doubts_of(*runs: Run, one: Scenario = PLAIN, load_average: float = 0.0) -> list[str]:
    """What is doubted when these runs, one a round, are all there is."""
    rounds = [{one.name: each} for each in runs]
    return doubts(
        plan(one, rounds=len(runs)), machine(load_average), measurement(*rounds, target="nginx")
    )


def test_a_clean_run_is_not_doubted() -> None:
    """Warnings that are always there are read by nobody."""
    assert doubts_of(run(result(requests=10))) == []
    assert doubts_of(run(result(events=10_000, open_connections=200)), one=STREAMS) == []


def test_errors_are_named_with_their_place() -> None:
    """A fast gateway that answers one request in ten with 502 is not fast."""
    found = doubts_of(run(result(requests=10, error_kinds={"status 502": 3})))
    assert found == ["round 1, plain, nginx: 3 errors {'status 502': 3}"]


def test_a_run_in_which_nothing_arrived_is_named() -> None:
    """A gateway that hangs makes no error within the window, only silence."""
    nothing = run(result())
    assert not has_work(nothing)
    assert doubts_of(nothing) == ["round 1, plain, nginx: nothing arrived"]


def test_a_contender_that_failed_is_named_with_its_log() -> None:
    """A column of dashes without a reason sends the reader to the source."""
    measured = Measurement(rounds=[{}], failures={"haproxy": "did not start: no such file"})
    assert doubts(plan(PLAIN), machine(), measured) == [
        "haproxy failed: did not start: no such file"
    ]


def test_a_machine_that_was_busy_before_is_doubted() -> None:
    """Latencies on it are those of its scheduler."""
    assert doubts_of(run(result(requests=1)), load_average=1.5) == [
        "the machine was busy before the run: load average 1.5"
    ]


def test_other_processes_are_summed_up_in_one_line() -> None:
    """On a shared machine they are in every run: fifty lines would hide the rest."""
    quiet = run(result(requests=10, machine_cpu_s=0.1))
    busy = run(result(requests=10, machine_cpu_s=0.5))
    busier = run(result(requests=10, machine_cpu_s=0.8))
    assert doubts_of(quiet, busy, busier, busy) == [
        "other processes took up to 40% of a core in 3 of 4 runs, most in round 3, plain, nginx"
    ]


def test_missing_events_are_doubted() -> None:
    """CPU per event looks best at a rate that is not kept."""
    found = doubts_of(run(result(events=8_000, open_connections=200)), one=STREAMS)
    assert found == [
        "up to 20% of what was asked for did not arrive in 1 of 1 runs, "
        "most in round 1, streams, nginx"
    ]


def test_requests_of_an_open_loop_that_did_not_come_back_are_doubted() -> None:
    """Its latencies are those of a queue that grows as long as one measures."""
    one = scenario("steady", connections=32, requests_per_s=500)
    assert fell_short(one, run(result(requests=900)))
    assert not fell_short(one, run(result(requests=990)))


def test_streams_that_are_not_open_are_doubted() -> None:
    """Memory per stream of half the streams is not the memory of all."""
    one = scenario("streams", stream=True, connections=1_000)
    assert missing_share(one, run(result(events=9, open_connections=600))) == pytest.approx(0.4)
    assert not fell_short(one, run(result(events=9, open_connections=990)))


def test_a_single_stream_has_no_pace_to_keep() -> None:
    """Its next request waits for the last one: fewer events than the pace are no fault."""
    single = scenario("single", stream=True, connections=1, events_per_s=1_000)
    assert doubts_of(run(result(events=500, open_connections=1)), one=single) == []


def test_clients_at_their_limit_are_doubted_in_streams_only() -> None:
    """Plain requests come in a closed loop that takes all it gets; a paced load should not."""
    load = result(events=10_000, requests=10, own_cpu_s=1.0, open_connections=200)
    busy = run(load, upstream_cpu_s=0.98)
    assert doubts_of(busy, one=STREAMS) == [
        "engine and clients took up to 99% of a core in 1 of 1 runs, "
        "most in round 1, streams, nginx"
    ]
    assert doubts_of(busy, one=PLAIN) == []


def test_with_a_core_for_each_the_busier_one_counts() -> None:
    """Half a core each is no limit where they do not share one."""
    rounds = [
        {
            STREAMS.name: run(
                result(events=10_000, own_cpu_s=1.0, open_connections=200), upstream_cpu_s=1.2
            )
        }
    ]
    many = replace(machine(), cores=8)
    assert doubts(plan(STREAMS), many, measurement(*rounds)) == []
    assert len(doubts(plan(STREAMS), machine(), measurement(*rounds))) == 1


def test_the_contenders_own_work_is_nobody_elses() -> None:
    """Only what is neither engine, clients nor contender counts as a disturbance."""
    load = result(requests=10, own_cpu_s=1.0, machine_cpu_s=1.1)
    assert doubts_of(run(load, contender=usage(5.0))) == []
