"""What a load run is asked and answers, across the boundary of its process."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from gateway.bench.load_spec import LoadResult, LoadSpec
from tests.support.bench_runs import quantiles, result, usage

FULL = LoadSpec(
    port=8080,
    connections=200,
    stream=True,
    events=64,
    events_per_s=5_000.0,
    events_per_write=4,
    requests_per_s=500.0,
    upstream_port=9001,
    alone_s=0.75,
    ramp_s=1.0,
    warm_s=0.25,
    window_s=3.0,
    path="/v1/completions",
    model="other",
    key="secret",
    body_bytes=100,
    watch="12,34",
)


def body_of(spec: LoadSpec) -> dict[str, object]:
    """The JSON of the spec's request."""
    body = json.loads(spec.request_bytes().partition(b"\r\n\r\n")[2])
    assert isinstance(body, dict)
    return body


def head_of(spec: LoadSpec) -> str:
    """The header block of the spec's request."""
    return spec.request_bytes().partition(b"\r\n\r\n")[0].decode()


@pytest.mark.parametrize("spec", [LoadSpec(port=1), FULL])
def test_a_spec_survives_the_command_line(spec: LoadSpec) -> None:
    """A field lost on the way would be a load that nobody asked for."""
    assert LoadSpec.from_arguments(spec.to_arguments()) == spec


def test_the_example_sets_every_field() -> None:
    """A new field would escape the test above."""
    defaults = LoadSpec(port=1)
    assert all(
        getattr(FULL, f.name) != getattr(defaults, f.name)
        for f in fields(LoadSpec)
        if f.name != "events"
    )


def test_a_port_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    """Without one the load would go who knows where."""
    with pytest.raises(SystemExit):
        LoadSpec.from_arguments([])
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        {"connections": 0},
        {"events": 0},
        {"events_per_write": 0},
        {"window_s": -1.0},
        {"alone_s": -1.0},
        {"events_per_s": -5.0},
        {"requests_per_s": -5.0},
    ],
)
def test_a_load_without_sense_is_refused(wrong: dict[str, Any]) -> None:
    """A run that can only measure nothing should say so at once."""
    with pytest.raises(ValueError, match=r"must be|cannot be"):
        replace(FULL, **wrong)


def test_the_rate_of_all_streams_sets_the_pace_of_one() -> None:
    """200 streams at 5,000 events a second are 40 ms between two events of a stream."""
    assert replace(FULL, events_per_write=1).interval_us == 40_000
    assert LoadSpec(port=1).interval_us == 0


def test_several_events_a_write_keep_the_rate() -> None:
    """Otherwise four events a write would be four times the load that the report names."""
    assert FULL.events_per_write == 4
    assert FULL.interval_us == 160_000


def test_a_run_is_as_long_as_all_its_parts() -> None:
    """A process that is given less time than its load takes is killed before it reports."""
    assert FULL.length_s == 0.75 + 1.0 + 0.25 + 3.0


def test_watched_pids_are_numbers() -> None:
    """The tree of a pid that was misread would be empty, and the gateway free of charge."""
    assert FULL.watched_pids == [12, 34]
    assert LoadSpec(port=1).watched_pids == []


def test_a_stream_asks_for_usage_as_real_clients_do() -> None:
    """Without the option, a gateway that accounts has to add and strip it: another load."""
    body = body_of(replace(FULL, path="/v1/chat/completions"))
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_tokens"] == 64
    assert "stream" not in body_of(LoadSpec(port=1))


def test_each_route_gets_its_kind_of_prompt() -> None:
    """A chat body on the completions route would be measured as an error."""
    assert "prompt" in body_of(FULL)
    assert "messages" in body_of(LoadSpec(port=1))


def test_the_key_goes_into_the_header_and_only_there() -> None:
    """With auth on, a load without its key measures 401s."""
    assert "authorization: Bearer secret" in head_of(FULL)
    assert "authorization" not in head_of(LoadSpec(port=1))


def test_the_length_of_the_request_is_true() -> None:
    """One byte off, and every request would hang or be cut."""
    for spec in (FULL, LoadSpec(port=1)):
        head, _, body = spec.request_bytes().partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head


def test_the_body_grows_by_what_was_asked() -> None:
    """The cost of large bodies is asked for by this option alone."""
    small, large = LoadSpec(port=1), LoadSpec(port=1, body_bytes=10_000)
    sizes = [len(spec.request_bytes().partition(b"\r\n\r\n")[2]) for spec in (small, large)]
    assert sizes[1] - sizes[0] == 10_000


def test_a_result_survives_its_json() -> None:
    """The report is made in another process than the measurement."""
    measured = replace(
        result(
            requests=10,
            error_kinds={"status 500": 2},
            latency_us=quantiles(1.0, 2.0),
            own_cpu_s=0.5,
            machine_cpu_s=1.5,
        ),
        watched={"12": usage(0.25, rest_bytes=100, rss_bytes=200)},
    )
    assert LoadResult.from_json(measured.to_json()) == measured


@pytest.mark.parametrize("line", ["", "{}", "no json"])
def test_what_is_no_result_is_refused(line: str) -> None:
    """A load generator that died must not be read as one that saw nothing."""
    with pytest.raises((ValueError, KeyError)):
        LoadResult.from_json(line)


def test_the_share_of_others_is_what_is_neither_ours_nor_watched() -> None:
    """On a shared machine it is the reason to measure again."""
    measured = replace(
        result(own_cpu_s=0.5, machine_cpu_s=2.0), watched={"1": usage(0.5), "2": usage(0.2)}
    )
    assert measured.foreign_cpu_share == pytest.approx(0.4)
    assert result(own_cpu_s=0.5, machine_cpu_s=0.4).foreign_cpu_share == 0.0
