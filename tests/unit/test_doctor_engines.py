"""What `fairgate check --live` says of engines: each fault once, with why and how to mend it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gateway.check import Finding
from gateway.doctor import engine_answers
from gateway.doctor.engine_answers import EngineAnswers, Flags, answers_of, flags_in
from gateway.doctor.engines import of_engine, of_versions
from gateway.doctor.run import as_document, status_of
from gateway.upstream.replicas import ReplicaAddress, ReplicaStatus

STATES = (
    'vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="awake"}} {}\n'
    'vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="weights_offloaded"}} {}\n'
    'vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="discard_all"}} 0.0\n'
)
"""As a vLLM 0.32 tells it."""
NOW = datetime(2026, 11, 30, tzinfo=UTC)
AT = ReplicaAddress("gpu0-8000", "http://gpu0:8000", max_num_seqs=64)
UP = ReplicaStatus(
    up=True, engine="vllm", slots=64, models={"m": None}, cards={"m": {"owned_by": "vllm"}}
)
WELL: dict[str, Any] = {
    "version": "0.32.0", "metrics": "vllm:num_requests_running 0", "needs_key": True,
    "flags": Flags(max_num_seqs=64, policy="fcfs", shutdown_timeout_s=60.0),
    "clock_ahead_s": 0.4, "took_s": 0.01, "hangs_up_after_s": None,
}  # fmt: skip


def found(
    address: ReplicaAddress = AT, status: ReplicaStatus = UP, **answers: Any
) -> list[Finding]:
    """What is wrong with an engine that answers well but for `answers`."""
    told = of_engine(address, status, EngineAnswers(**{**WELL, **answers}), NOW)
    return [each for each in told if each.level != "ok"]


def test_an_engine_that_is_well_is_one_line() -> None:
    """Whoever reads forty replicas must see the one that is not."""
    told = list(of_engine(AT, UP, EngineAnswers(**WELL), NOW))
    assert [(each.level, each.what) for each in told] == [("ok", "vllm 0.32.0")]


BARE = ReplicaAddress("a", "http://10.0.0.7:8000")
KEYED = ReplicaAddress("a", "http://10.0.0.7:8000", max_num_seqs=64, api_key="k")
PRIORITY = ReplicaAddress("a", "http://a:1", max_num_seqs=64, scheduling_policy="priority")
TGI = ReplicaStatus(up=True, engine="tgi", slots=64)


@pytest.mark.parametrize(
    ("address", "status", "answers", "level", "what"),
    [
        (AT, UP, {"metrics": "python_gc_objects 1"}, "error", "without any figure of the engine"),
        (AT, UP, {"version": "0.11.0"}, "warning", "cannot finish its work"),
        (AT, UP, {"metrics": STATES.format("0.0", "1.0")}, "warning", "it sleeps"),
        (AT, UP, {"flags": Flags(max_num_seqs=64)}, "note", "cannot be seen"),
        (
            AT, UP, {"flags": Flags(max_num_seqs=64, shutdown_timeout_s=0.0)},
            "warning", "--shutdown-timeout 0",
        ),
        (
            AT, UP, {"flags": Flags(max_num_seqs=32, shutdown_timeout_s=9.0)},
            "error", "32 sequences at a time, and 64",
        ),
        (
            BARE, ReplicaStatus(up=True, engine="vllm"), {"flags": Flags(shutdown_timeout_s=9.0)},
            "warning", "neither told nor set",
        ),
        (
            AT, UP, {"flags": Flags(policy="priority", shutdown_timeout_s=9.0)},
            "warning", "its scheduling policy is priority",
        ),
        (PRIORITY, TGI, {"flags": Flags()}, "warning", "tgi has no priorities"),
        (PRIORITY, UP, {"version": "0.8.5", "flags": Flags()}, "error", "refuses requests"),
        (AT, UP, {"hangs_up_after_s": 2.0}, "warning", "after 2.0 s of idling"),
        (AT, UP, {"took_s": 1.5}, "warning", "its metrics take 1.5 s"),
        (AT, UP, {"needs_key": False}, "note", "asks for no key"),
        (KEYED, UP, {}, "warning", "sent in clear"),
        (AT, UP, {"clock_ahead_s": 90.0}, "warning", "90 s ahead of"),
        (AT, UP, {"clock_ahead_s": -90.0}, "warning", "90 s behind"),
        (AT, UP, {"certificate_until": NOW + timedelta(days=3)}, "warning", "for 3 more days"),
        (AT, UP, {"certificate_until": NOW - timedelta(days=3)}, "warning", "for 0 more days"),
    ],
)  # fmt: skip
def test_each_fault_says_what_why_and_how_to_mend_it(
    address: ReplicaAddress, status: ReplicaStatus, answers: dict[str, Any], level: str, what: str
) -> None:
    """A finding without a cure is a riddle at three in the morning."""
    (only,) = [each for each in found(address, status, **answers) if what in each.what]
    assert only.level == level
    assert only.why
    assert only.hint
    assert only.where == address.name


@pytest.mark.parametrize(
    ("address", "answers"),
    [
        (AT, {"hangs_up_after_s": 5.0}),
        (AT, {"clock_ahead_s": 4.0}),
        (AT, {"certificate_until": NOW + timedelta(days=90)}),
        (ReplicaAddress("a", "http://127.0.0.1:1", max_num_seqs=64), {"needs_key": False}),
        (AT, {"version": None, "flags": Flags()}),
        (AT, {"version": "nightly"}),
    ],
)
def test_what_is_usual_is_no_finding(address: ReplicaAddress, answers: dict[str, Any]) -> None:
    """A doctor who always finds something is not asked again."""
    assert found(address, **answers) == []


def test_replicas_of_one_model_with_different_versions_are_told() -> None:
    """Half of an upgrade looks like one bad machine."""
    told = {
        "a": (UP, EngineAnswers(version="0.31.0")),
        "b": (UP, EngineAnswers(version="0.32.0")),
        "c": (UP, EngineAnswers()),
    }
    (only,) = of_versions(told)
    assert "0.31.0: a; 0.32.0: b" in only.what
    assert list(of_versions({"a": told["a"], "c": told["c"]})) == []


@pytest.mark.parametrize(
    ("info", "flags"),
    [
        (
            "scheduler_config=SchedulerConfig(max_num_seqs=128, policy='priority'), "
            "shutdown_timeout=30, ",
            Flags(max_num_seqs=128, policy="priority", shutdown_timeout_s=30.0),
        ),
        (
            '{"vllm_config": {"scheduler_config": {"max_num_seqs": 4, "policy": "fcfs"}}}',
            Flags(max_num_seqs=4, policy="fcfs"),
        ),
        ('{"vllm_config": "max_num_seqs=4, policy=\\"fcfs\\""}', Flags(max_num_seqs=4)),
        ("", Flags()),
        ("max_num_seqs=None, long_max_num_seqs=9, policy=other", Flags()),
    ],
)
def test_flags_are_read_in_each_form_in_which_they_are_told(info: str, flags: Flags) -> None:
    """A flag that is read wrong sends an operator after a fault that is none."""
    found = flags_in(info)
    assert (found.max_num_seqs, found.shutdown_timeout_s) == (
        flags.max_num_seqs,
        flags.shutdown_timeout_s,
    )
    assert flags.policy in (None, found.policy)


async def test_what_an_engine_answers_is_noted() -> None:
    """Each answer may be missing, and none of them ends the examination."""

    def engine(request: httpx.Request) -> httpx.Response:
        has_key = request.headers.get("authorization") == "Bearer k"
        match request.url.path:
            case "/version":
                return httpx.Response(200, json={"version": "0.32.0"})
            case "/metrics":
                raise httpx.ReadError("broken")
            case "/server_info":
                # The text form, which vLLM gives unasked, has none of these.
                is_whole = request.url.params.get("config_format") == "json"
                scheduler = {"max_num_seqs": 4, "policy": "priority"} if is_whole else {}
                config = {"scheduler_config": scheduler, "shutdown_timeout": 30}
                return httpx.Response(200, json={"vllm_config": config if is_whole else "model=m"})
        date = {"date": "Mon, 30 Nov 2026 00:00:00 GMT"}
        return httpx.Response(200 if has_key else 401, headers=date, json={})

    told = await answers_of(
        KEYED, wall=lambda: NOW.timestamp() - 60, transport=httpx.MockTransport(engine)
    )
    flags = Flags(max_num_seqs=4, policy="priority", shutdown_timeout_s=30.0)
    assert (told.version, told.metrics, told.flags) == ("0.32.0", None, flags)
    assert (told.needs_key, told.clock_ahead_s) == (True, 60.5)


async def test_a_clock_is_read_before_the_connection_is_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That takes seconds, by which each engine would seem to be late."""
    now = NOW.timestamp()

    async def idled(*_: object) -> tuple[None, None]:
        nonlocal now
        now += 4.5
        return None, None

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 00:00:00 GMT\r\n"
            b"connection: close\r\ncontent-length: 0\r\n\r\n"
        )
        writer.close()

    monkeypatch.setattr(engine_answers, "_idled", idled)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        address = ReplicaAddress("a", f"http://127.0.0.1:{port}")
        told = await answers_of(address, wall=lambda: now)
    assert told.clock_ahead_s == 0.5


def test_the_status_and_the_document_tell_the_worst() -> None:
    """A deployment that goes on over an error, or stops at a note, trusts no check."""
    fine, note = Finding("ok", "a", "b"), Finding("note", "a", "b")
    warning, error = Finding("warning", "a", "b"), Finding("error", "a", "b", "mend", "why")
    assert [status_of(each) for each in ([fine, note], [fine, warning], [warning, error])] == [
        0,
        1,
        2,
    ]
    told = as_document([fine, error])
    assert told["counts"] == {"error": 1, "warning": 0, "note": 0, "ok": 1}
    assert told["findings"] == [
        {"severity": "ok", "where": "a", "what": "b", "mend": None, "why": None},
        {"severity": "error", "where": "a", "what": "b", "mend": "mend", "why": "why"},
    ]
