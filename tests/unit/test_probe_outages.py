"""A probe loses its replica and finds it again, whatever is at the other end of the line."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from gateway.core.messages import Event, ReplicaFound, ReplicaLost, ReplicaRefused, ReplicaReported
from gateway.upstream.probe import ANSWER_BYTES_MAX, METRICS_BYTES_MAX, Probe
from gateway.upstream.replicas import ReplicaAddress
from tests.support.probing import (
    HUNG,
    REFUSED,
    SERVER_INFO,
    SGLANG_CARD,
    TINY,
    Engine,
    Watch,
    cards,
    json,
    kinds,
    text,
)

# --- lost and back --------------------------------------------------------------------------------


async def test_a_replica_is_lost_after_three_silent_rounds_once() -> None:
    """A saturated engine that misses one probe was flapped out of service 23 times in 2.3 hours."""
    engine = Engine()
    watch = Watch(engine)
    await watch.round()
    watch.news()
    engine.down = HUNG
    for misses in (1, 2):
        status = await watch.round()
        assert (status.up, status.misses, watch.news()) == (True, misses, [])
    status = await watch.round()
    assert not status.up
    assert watch.news() == [ReplicaLost("r1")]
    await watch.round()
    assert watch.news() == []
    assert (await watch.round()).last_success_at == 101.0


async def test_a_replica_whose_streams_flow_is_too_busy_and_not_lost() -> None:
    """An engine at its limit answers no probe in time; losing it would refuse everybody."""
    engine = Engine()
    flows = True
    watch = Watch(engine, is_heard=lambda: flows)
    await watch.round()
    engine.down = HUNG
    for _ in range(5):
        assert (await watch.round()).up
    flows = False
    for _ in range(3):
        status = await watch.round()
    assert not status.up


async def test_it_is_known_when_a_replica_was_last_away() -> None:
    """What was sent there before may be sent to whoever listens there now."""
    engine = Engine()
    watch = Watch(engine)
    assert (await watch.round()).away_at is None
    engine.down = HUNG
    assert [(await watch.round()).away_at for _ in range(3)] == [None, None, watch.now]
    engine.down = None
    lost_at = watch.now
    assert (await watch.round()).away_at == lost_at
    engine.down = REFUSED
    assert (await watch.round()).away_at == watch.now > lost_at


async def test_an_answer_in_between_starts_the_count_anew() -> None:
    """Three misses spread over an hour are no outage."""
    engine = Engine()
    watch = Watch(engine)
    await watch.round()
    for _ in range(3):
        engine.down = HUNG
        await watch.round()
        await watch.round()
        engine.down = None
        assert (await watch.round()).misses == 0
    assert "ReplicaLost" not in kinds(watch.told)


async def test_two_refused_connections_are_enough() -> None:
    """A vLLM that got SIGTERM closes its door at once and hangs its streams: each second counts."""
    engine = Engine()
    watch = Watch(engine)
    await watch.round()
    watch.news()
    engine.down = REFUSED
    assert (await watch.round()).up
    assert watch.news() == [ReplicaRefused("r1")]
    asked = len(engine.asked)
    status = await watch.round()
    assert watch.news() == [ReplicaRefused("r1"), ReplicaLost("r1")]
    assert status.last_error == "GET /metrics: connection refused"
    assert engine.asked[asked:] == ["/metrics"]


async def test_after_a_first_refusal_the_second_look_comes_quickly() -> None:
    """The streams on an engine that closed its door hang until it is known to be lost."""
    engine = Engine()
    watch = Watch(engine)
    await watch.round()
    engine.down = REFUSED
    await watch.run(rounds=3)
    assert watch.pauses == [0.25, 1.0, 1.0]
    assert watch.told[-1] == ReplicaLost("r1")


async def test_a_refusal_and_a_timeout_are_not_two_refusals() -> None:
    """A restart of a proxy in front must not cost the replica."""
    engine = Engine()
    watch = Watch(engine, misses_to_lose=10)
    await watch.round()
    for failure in (REFUSED, HUNG, REFUSED, HUNG):
        engine.down = failure
        assert (await watch.round()).up


async def test_silent_metrics_alone_lose_nothing() -> None:
    """An engine without metrics still serves."""
    engine = Engine()
    watch = Watch(engine)
    await watch.round()
    watch.news()
    for answer in (HUNG, text("no", 500), text("<html>"), text("node_load1 7\n")):
        engine.answers["/metrics"] = answer
        status = await watch.round()
        assert status.up
        assert status.misses == 0
        assert status.detail is not None
    assert watch.news() == []


async def test_the_first_success_brings_a_lost_replica_back_with_its_new_models() -> None:
    """An engine restarted with another model must not be offered under the old one."""
    engine = Engine()
    watch = Watch(engine)
    await watch.round()
    engine.down = REFUSED
    await watch.round()
    await watch.round()
    watch.news()
    engine.down = None
    engine.answers = {
        "/v1/models": cards(SGLANG_CARD),
        "/server_info": json(SERVER_INFO),
        "/metrics": text("sglang:num_running_reqs 0.0\n"),
    }
    status = await watch.round()
    found, reported = watch.news()
    assert found == ReplicaFound(
        replica="r1", models=frozenset({"q"}), slots=52, context_tokens=4096
    )
    assert isinstance(reported, ReplicaReported)
    assert (status.up, status.engine, status.last_error) == (True, "sglang", None)


async def test_a_quick_restart_is_noticed_though_nothing_was_lost() -> None:
    """One refused connection is a restart as likely as not: what it serves is asked again."""
    engine = Engine()
    watch = Watch(engine)
    await watch.round()
    engine.down = REFUSED
    await watch.round()
    engine.down = None
    engine.answers["/v1/models"] = cards({**TINY, "id": "other"})
    assert (await watch.round()).models == {"other": 1024}


async def test_a_restarted_engine_is_asked_anew_for_its_slots() -> None:
    """Restarted with half the slots, it would be given twice what it can run."""
    engine = Engine({"/v1/models": cards(SGLANG_CARD), "/server_info": json(SERVER_INFO)})
    watch = Watch(engine)
    assert (await watch.round()).slots == 52
    engine.down = REFUSED
    await watch.round()
    engine.down = None
    engine.answers["/server_info"] = json({"max_running_requests": 26})
    assert (await watch.round()).slots == 26


async def test_what_comes_back_may_be_another_kind_of_engine() -> None:
    """Under the old dialect its priorities would be turned round."""
    engine = Engine()
    watch = Watch(engine)
    assert (await watch.round()).engine == "vllm"
    engine.down = REFUSED
    await watch.round()
    await watch.round()
    engine.down = None
    engine.answers = {"/v1/models": cards(SGLANG_CARD)}
    assert (await watch.round()).engine == "sglang"


async def test_a_replica_that_never_answered_is_not_lost() -> None:
    """The scheduler never heard of it; a loss would be a line in the log each second."""
    engine = Engine(down=REFUSED)
    watch = Watch(engine)
    for _ in range(5):
        status = await watch.round()
    assert watch.news() == []
    assert (status.up, status.misses) == (False, 5)


# --- bounds and secrets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "bytes_max"), [("/metrics", METRICS_BYTES_MAX), ("/v1/models", ANSWER_BYTES_MAX)]
)
async def test_an_answer_beyond_its_bound_is_cut_off(path: str, bytes_max: int) -> None:
    """One broken engine must not eat the gateway's memory."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65_536
            yield b"#" * 65_536

    engine = Engine()
    engine.answers[path] = lambda: httpx.Response(200, content=endless())
    status = await Watch(engine).round()
    assert status.last_error == f"GET {path}: more than {bytes_max} bytes"
    assert sent <= bytes_max + 2 * 65_536


async def test_a_compressed_answer_is_not_unfolded() -> None:
    """A few kilobytes of gzip can hold gigabytes."""
    engine = Engine()
    engine.answers["/metrics"] = lambda: httpx.Response(
        200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"\x1f\x8b")
    )
    status = await Watch(engine).round()
    assert status.last_error == "GET /metrics: compressed against our wish"
    assert engine.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("body", ["[" * 100_000, "{", '"x"', "\x00", '{"data":{"id":"m"}}'])
async def test_models_that_are_no_list_of_models_are_no_answer(body: str) -> None:
    """A proxy's idea of JSON must not crash the probe."""
    engine = Engine({"/v1/models": text(body)})
    watch = Watch(engine)
    assert not (await watch.round()).up
    assert watch.news() == []


async def test_the_key_is_sent_to_the_engine_and_shown_to_nobody() -> None:
    """An engine's key in a log or on a status page is a leak."""
    engine = Engine()
    watch = Watch(engine, api_key="sk-secret")
    status = await watch.round()
    assert engine.headers["authorization"] == "Bearer sk-secret"
    engine.down = httpx.LocalProtocolError("Illegal header value b'Bearer sk-secret'")
    status = await watch.round()
    assert status.last_error is not None
    address = ReplicaAddress("r1", "http://bob:sk-secret@engine:8000", api_key="sk-secret")
    for shown in (repr(address), repr(status), status.last_error):
        assert "secret" not in shown


async def test_why_a_connection_cannot_be_made_is_quoted() -> None:
    """'ConnectError' alone does not tell a wrong name from a wrong certificate."""
    engine = Engine(down=httpx.ConnectError("[Errno -2] Name or service not known"))
    status = await Watch(engine).round()
    assert status.last_error == "GET /v1/models: [Errno -2] Name or service not known"


# --- over real sockets ----------------------------------------------------------------------------


@dataclass
class SocketEngine:
    """A tiny HTTP server that counts connections; `dribbles` sends a byte now and then for ever."""

    dribbles: bool = False
    connections: int = 0
    url: str = ""

    async def __aenter__(self) -> "SocketEngine":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/engine/"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                if self.dribbles:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
                    while True:
                        writer.write(b"#")
                        await asyncio.sleep(0.01)
                answer = Engine().answers[request.split()[1].decode().removeprefix("/engine")]
                assert not isinstance(answer, httpx.Response | Exception)
                body = answer().content
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def socket_probe(url: str, told: list[Event], timeout_s: float = 2.0) -> Probe:
    """A probe with its real transport."""
    clock = asyncio.get_running_loop().time
    address = ReplicaAddress("r1", url)
    return Probe(address, tell=told.append, clock=clock, timeout_s=timeout_s)


async def test_one_connection_is_kept_for_all_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection a second is a port a second; and a proxy variable must not capture it."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    told: list[Event] = []
    async with SocketEngine() as engine:
        probe = socket_probe(engine.url, told)
        for _ in range(3):
            assert (await probe.probe_once()).up
        await probe.aclose()
    assert engine.connections == 1
    assert kinds(told) == ["ReplicaFound", *["ReplicaReported"] * 3]


async def test_a_dribbled_answer_ends_at_the_timeout() -> None:
    """A byte now and then resets every read timeout: the probe would hang for ever."""
    async with SocketEngine(dribbles=True) as engine:
        probe = socket_probe(engine.url, [], timeout_s=0.05)
        status = await probe.probe_once()
        await probe.aclose()
    assert status.last_error == "GET /v1/models: no answer within 0.05 s"


async def test_a_closed_port_is_recognised_as_refused() -> None:
    """Only a real refusal may cut the patience short; this is what one looks like."""
    async with SocketEngine() as engine:
        url = engine.url
    probe = socket_probe(url, [])
    status = await probe.probe_once()
    await probe.aclose()
    assert status.last_error == "GET /metrics: connection refused"
