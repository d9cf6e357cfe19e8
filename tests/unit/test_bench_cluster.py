"""What a measurement of several gateways says, from made-up windows; and how it is asked for."""

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from itertools import islice, pairwise
from pathlib import Path

import pytest
from rich.console import Console

from gateway.bench.cluster_cost import Asked, Mark, cost_of, traffic_of
from gateway.bench.cluster_figures import CLUSTER_FIGURES, ClusterFigure
from gateway.bench.cluster_power import Window, answers_of
from gateway.bench.cluster_redis import parse_info
from gateway.bench.cluster_report import (
    cluster_doubts,
    cluster_json,
    cluster_rendered,
    is_sound,
)
from gateway.bench.cluster_site import Engine, count_of, settings
from gateway.bench.cluster_spec import (
    ANSWERS_TOKENS,
    USERS,
    ClusterPlan,
    ClusterResult,
    CostRound,
    CostRun,
    Loads,
    PowerRun,
    Served,
    Traffic,
)
from gateway.bench.load_spec import LoadSpec
from gateway.bench.options import Options
from gateway.bench.replies import MODEL
from gateway.settings import load_settings
from tests.support.bench_runs import machine, quantiles, result, usage

EVEN = {user: Served(requests=100, waited_s=50.0, took_s=100.0) for user in USERS}


def power(
    gateways: int, changed: Mapping[str, Served] | None = None, *, queued: int = 2
) -> PowerRun:
    """One window."""
    users = {**EVEN, **(changed or {})}
    return PowerRun(gateways=gateways, users=users, queued_most=queued, looks=9, errors=0)


def cost(cpu_us: float = 500.0, p50_us: float = 1_000.0, p99_us: float = 3_000.0) -> CostRun:
    """One window."""
    return CostRun(
        requests=900, errors=0, elapsed_s=3.0, cpu_us=cpu_us, p50_us=p50_us, p99_us=p99_us
    )


TRAFFIC = Traffic(
    requests_per_s=300.0, leader_cpu_us=200.0, redis_cpu_us=25.0, commands=3.5, redis_bytes=1_500.0
)


def loads(*cpu_us: float, limited_s: float = 3.0) -> Loads:
    """One way; `limited_s`: in which the processes that are limited answer what they are asked."""
    plain, streams, plain_busy, streams_busy, plain_limited, streams_limited = (
        cost(cpu_us=each) for each in cpu_us
    )
    return Loads(
        plain=plain,
        streams=streams,
        plain_busy=plain_busy,
        streams_busy=streams_busy,
        plain_limited=replace(plain_limited, elapsed_s=limited_s),
        streams_limited=replace(streams_limited, elapsed_s=limited_s),
    )


ROUND = CostRound(
    follower=cost(p50_us=1_900.0, p99_us=9_000.0),
    local=loads(500.0, 2_000.0, 250.0, 1_600.0, 200.0, 1_500.0),
    workers=loads(560.0, 2_400.0, 300.0, 1_760.0, 210.0, 1_800.0, limited_s=2.0),
    apart=loads(700.0, 2_500.0, 240.0, 1_600.0, 200.0, 1_500.0, limited_s=1.5),
    traffic=TRAFFIC,
    full=replace(TRAFFIC, requests_per_s=900.0, leader_cpu_us=125.0),
)
WHOLE = ClusterResult(
    power=(power(3), power(1)), cost=(ROUND,) * 3, requests_per_s=300.0, redis_version="7.0.15"
)


def figure(key: str) -> ClusterFigure:
    """That of this key."""
    return next(one for one in CLUSTER_FIGURES if one.key == key)


@pytest.mark.parametrize(
    ("key", "value", "verdict"),
    [
        ("share_difference", 0.0, "met"),
        ("queued_most", 2.0, "met"),
        ("added_p50_ms", 0.9, "met"),
        ("added_p99_ms", 6.0, "missed"),
        ("cpu_plain", 1.12, "met"),
        ("cpu_streams", 1.2, "missed"),
        ("cpu_plain_busy", 1.2, "missed"),
        ("cpu_streams_busy", 1.1, "met"),
        ("cpu_plain_apart", 1.4, ""),
        ("cpu_streams_apart", 1.25, ""),
        ("cpu_plain_shared", 0.8, ""),
        ("cpu_streams_shared", 0.96, ""),
        ("cpu_plain_busy_us", 250.0, ""),
        ("cpu_plain_limited", 1.05, "met"),
        ("cpu_streams_limited", 1.2, "missed"),
        ("cpu_streams_limited_shared", 1.2, ""),
        ("rate_plain_limited", 1.5, ""),
        ("redis_bytes", 1_500.0, ""),
        ("ceiling_per_s", 8_000.0, ""),
        ("thousand_leading_cores", 0.8, ""),
        ("thousand_redis_percent", 16.0, ""),
        ("thousand_redis_mb_per_s", 9.6, ""),
    ],
)
def test_each_figure_follows_from_its_windows(key: str, value: float, verdict: str) -> None:
    """A target that is judged by another window than its own says nothing."""
    found = figure(key).of(WHOLE)
    assert found == pytest.approx(value)
    assert figure(key).verdict(found) == verdict


def test_the_user_that_differs_most_is_the_figure() -> None:
    """Three who get the same would hide the one who is cheated."""
    cheated = {"light": Served(requests=80, waited_s=40.0, took_s=80.0)}
    found = replace(WHOLE, power=(power(3, cheated), power(1)))
    assert figure("share_difference").of(found) == pytest.approx(100 * (1 - 80 / 380 * 4))
    assert figure("wait_difference").of(found) == 0.0
    late = {"light": Served(requests=100, waited_s=60.0, took_s=110.0)}
    found = replace(WHOLE, power=(power(3, late), power(1)))
    assert figure("wait_difference").of(found) == pytest.approx(10.0)


def test_the_fullest_engine_of_any_window_counts() -> None:
    """One moment of too many is what must not be."""
    found = replace(WHOLE, power=(power(3, queued=2), power(3, queued=7), power(1)))
    assert figure("queued_most").verdict(figure("queued_most").of(found)) == "missed"


def test_what_was_not_measured_is_no_figure_and_not_sound() -> None:
    """A run that broke off must not look like a met target."""
    nothing = replace(WHOLE, power=(), cost=())
    assert {one.of(nothing) for one in CLUSTER_FIGURES} == {None}
    assert is_sound(WHOLE)
    assert not is_sound(nothing)
    starved = {"light": Served(requests=0, waited_s=0.0, took_s=0.0)}
    assert not is_sound(replace(WHOLE, power=(power(3, starved), power(1))))
    assert not is_sound(replace(WHOLE, power=(replace(power(3), errors=1), power(1))))


def test_where_no_process_can_be_limited_the_rest_is_sound() -> None:
    """A container without control groups of its own could measure nothing at all."""
    bare = {"plain_limited": None, "streams_limited": None}
    ways = {way: replace(getattr(ROUND, way), **bare) for way in ("local", "workers", "apart")}
    found = replace(WHOLE, cost=(replace(ROUND, **ways),))
    assert not is_sound(found)
    found = replace(found, unlimited_because="no control groups")
    assert is_sound(found)
    assert [one.of(found) for one in CLUSTER_FIGURES if one.is_limited] == [None] * 10
    assert [line for line in cluster_doubts(found, machine()) if "no control groups" in line]


def test_processes_that_are_limited_have_as_much_to_do_each() -> None:
    """Two that share the load of one are half as busy: what wakes one up costs more for less."""
    load = LoadSpec(port=0, connections=100, stream=True, events=64, events_per_s=500.0)
    assert Asked(load=load).of(2) == load
    twice = Asked(load=load, is_limited=True).of(2)
    assert (twice.connections, twice.events_per_s) == (200, 1_000.0)
    assert twice.interval_us == load.interval_us


def test_errors_and_few_cores_are_told_with_the_figures() -> None:
    """Latencies of ten processes on two cores are no latencies of two machines."""
    workers = replace(ROUND.workers, plain=replace(cost(), errors=4))
    broken = replace(ROUND, workers=workers)
    found = cluster_doubts(replace(WHOLE, cost=(ROUND, broken)), replace(machine(), cores=2))
    assert [line for line in found if "2 cores" in line]
    assert "round 2, workers, plain: 4 errors" in found
    assert not cluster_doubts(WHOLE, replace(machine(), cores=8, load_average=0.1))


def test_the_table_tells_every_figure_and_every_user() -> None:
    """What is stored and never shown is not looked at."""
    console = Console(file=StringIO(), width=200)
    console.print(cluster_rendered(WHOLE, machine()))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert all(one.title in text for one in CLUSTER_FIGURES)
    assert all(f"{user}, {clients} clients" in text for user, clients in USERS.items())
    stored = cluster_json(WHOLE)
    assert {"figures", "power", "cost"} <= stored.keys()


def test_the_page_tells_every_target() -> None:
    """Whoever reads a table of other targets believes that they are met."""
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    for one in CLUSTER_FIGURES:
        row = f"| {one.title} | {one.target} {one.unit} |"
        assert (row in page) is (one.target is not None)


def test_a_request_is_charged_without_what_is_done_anyway() -> None:
    """At a quarter of the load heartbeats would be half of what a request seems to cost."""
    idle = Mark(
        at_s=2.0, requests=0, leader_cpu_s=0.02, redis_cpu_s=0.01, commands=40, redis_bytes=4e3
    )
    done = Mark(
        at_s=4.0, requests=1_000, leader_cpu_s=0.24, redis_cpu_s=0.07, commands=3_080,
        redis_bytes=1_008e3,
    )  # fmt: skip
    found = traffic_of(done, idle, 250.0)
    assert found.leader_cpu_us == pytest.approx(200.0)
    assert found.redis_cpu_us == pytest.approx(50.0)
    assert (found.commands, found.redis_bytes) == (3.0, 1_000.0)
    with pytest.raises(ValueError, match="no request"):
        traffic_of(replace(done, requests=0), idle, 250.0)


def test_marks_are_subtracted_field_by_field() -> None:
    """A field that is left out would be all that was ever done."""
    names = list(Mark.__dataclass_fields__)
    before = Mark(**{name: float(at) for at, name in enumerate(names)})
    after = Mark(**{name: 10.0 + 2 * at for at, name in enumerate(names)})
    since = after.since(before)
    assert [getattr(since, name) for name in names] == [10.0 + at for at in range(len(names))]


def test_streams_count_by_their_events() -> None:
    """Few of those that began in a window end in it."""
    run = replace(
        result(requests=3, events=640, latency_us=quantiles(1e3, 2e3)), watched={"7": usage(0.02)}
    )
    assert cost_of(run, 7, 64).cpu_us == pytest.approx(2_000.0)
    assert cost_of(run, 7).requests == 3
    assert cost_of(replace(run, requests=0), 7).cpu_us == 0.0


def test_only_what_ends_within_the_window_counts() -> None:
    """What began before it filled the engines would count for whoever was first."""
    window = Window(lambda: 0.0, began_s=float("-inf"), ends_s=float("inf"))
    window.ended("power", 0.0, 0.25)
    assert (window.requests, window.waited_s) == ({"power": 1}, {"power": 0.25})
    early = Window(lambda: 0.0, began_s=float("inf"), ends_s=float("inf"))
    early.ended("power", 0.0, 0.25)
    assert not early.requests


def test_clients_ask_for_the_same_in_all_but_not_in_step() -> None:
    """Equal answers end together: then a share hangs on who is late by a few milliseconds."""
    turns = [tuple(islice(answers_of(number), len(ANSWERS_TOKENS))) for number in range(8)]
    assert all(sorted(each) == sorted(ANSWERS_TOKENS) for each in turns)
    assert all(one != other for turn in zip(*turns, strict=True) for one, other in pairwise(turn))
    assert next(islice(answers_of(1), len(ANSWERS_TOKENS), None)) == turns[1][0]


def test_pages_of_redis_and_metrics_are_read_by_whole_names() -> None:
    """A series whose name begins alike would be counted along."""
    page = 'n_count{a="x"} 3.0\nn_count{a="y z"} 4.0\nn_counted 9.0\n# TYPE n_count counter\n'
    assert count_of("n_count", page) == 7
    assert parse_info(b"# Stats\r\ntotal:5\r\nurl:redis://x:1\r\n") == {
        "total": "5",
        "url": "redis://x:1",
    }


def test_the_settings_are_those_of_a_gateway() -> None:
    """A slip would show after a minute of starting processes."""
    found = settings(
        8080, [Engine(port=9001, slots=4)], {"power": "k"}, redis="redis://127.0.0.1:9/0",
        prefix="bench", name="first",
    )  # fmt: skip
    read = load_settings(config=None, environ={}, overrides=dict(found))
    assert read.models[0].name == MODEL
    assert (read.redis.prefix, read.redis.name, read.listen.port) == ("bench", "first", 8080)


def test_several_gateways_are_measured_only_when_asked_for() -> None:
    """Whoever has no Redis still gets a benchmark."""
    assert Options(only=("cluster",)).parts() == ("cluster",)
    assert "cluster" not in Options().parts()


def test_its_plan_follows_the_command_line() -> None:
    """Short while something is tried, long where it is quoted."""
    assert Options().cluster_plan() == ClusterPlan()
    short = Options(rounds=1, seconds=0.5).cluster_plan()
    assert (short.rounds, short.window_s, short.power_s) == (1, 0.5, 2.5)
    assert Options(full=True).cluster_plan().rounds == 2 * ClusterPlan().rounds
    with pytest.raises(ValueError, match="at least one round"):
        Options(rounds=0).cluster_plan()
