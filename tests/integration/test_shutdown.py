"""How a gateway leaves: announced, shut, emptied, and in the end cut off; on real sockets."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import HeldEngine, running_held_engine

CHAT = {"model": "raw", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
STREAM = {**CHAT, "stream": True}
PATH = "/v1/chat/completions"


@dataclass
class Site:
    """A gateway before an engine of one slot."""

    engine: HeldEngine
    running: Running
    http: httpx.AsyncClient

    def ask(self, body: object) -> "asyncio.Task[httpx.Response]":
        """A request, under way."""
        return asyncio.create_task(self.http.post(PATH, json=body))

    async def fill(self, *, streams: bool = True) -> "list[asyncio.Task[httpx.Response]]":
        """One request that runs, and one that waits."""
        body = STREAM if streams else CHAT
        calls = [self.ask(body)]
        await eventually(lambda: self.engine.here)
        calls.append(self.ask(body))
        await eventually(lambda: self.running.gateway.scheduler.waiting)
        return calls

    def leave(self, lag_s: float = 0.0) -> None:
        """As SIGTERM does."""
        self.running.server.leave(lag_s)

    async def left(self) -> None:
        """The server wants no more."""
        await eventually(lambda: self.running.server.should_exit)


@asynccontextmanager
async def site(limit_s: float = 30.0, **overrides: object) -> AsyncIterator[Site]:
    """The shortest tier queue, so that what exceeds the slot waits here."""
    tiers = [{"name": "only", "queue_limit": 0}]
    async with running_held_engine(1) as engine:
        replica = {"url": engine.url, "max_num_seqs": 1}
        overrides = {"tiers": tiers, "shutdown__limit_s": limit_s, **overrides}
        async with (
            running_gateway(replica, **overrides) as running,  # type: ignore[arg-type]  # free keywords
            client(running) as http,
        ):
            yield Site(engine, running, http)


async def test_it_says_so_first_and_serves_all_the_same() -> None:
    """A load balancer learns late: what it still sends must not fail."""
    async with site() as at:
        at.leave(lag_s=0.6)
        await asyncio.sleep(0.05)
        ready = await at.http.get("/readyz")
        assert (ready.status_code, ready.json()["reason"]) == (503, "shutting down")
        assert (await at.http.get("/healthz")).status_code == 200
        late = at.ask(CHAT)
        await eventually(lambda: at.engine.here)
        at.engine.asked[0].answer(b"{}")
        answer = await late
        assert answer.status_code == 200
        assert answer.headers["connection"] == "close"
        assert not at.running.server.should_exit
        await at.left()


async def test_then_it_refuses_and_says_when_to_come_back() -> None:
    """503 `draining` is the one answer that clients and balancers take elsewhere."""
    async with site() as at:
        running, waiting = await at.fill()
        at.leave()
        await eventually(lambda: at.running.gateway.doors.is_shut)
        for path in (PATH, "/v1/messages", "/v1/responses"):
            answer = await at.http.post(path, json=CHAT)
            assert answer.status_code == 503
            assert answer.headers["connection"] == "close"
            assert answer.headers["retry-after"] == "1"
            assert "shutting down" in answer.text
        assert (await at.http.post(PATH, json=CHAT)).json()["error"]["code"] == "draining"
        assert (await at.http.get("/v1/responses/resp_1")).status_code == 503
        assert (await at.http.get("/readyz")).status_code == 503
        assert (await at.http.get("/metrics")).status_code == 200
        assert not running.done()
        assert not waiting.done()
        at.engine.asked[0].begin()
        at.engine.asked[0].finish()
        await eventually(lambda: len(at.engine.asked) == 2)
        at.engine.asked[1].begin()
        at.engine.asked[1].finish()
        answers = await asyncio.gather(running, waiting)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
        assert not any("error" in answer.text for answer in answers)
        await at.left()


async def test_at_the_limit_each_client_is_told_once_and_the_engine_is_stopped() -> None:
    """A stream that merely ends looks like a success; an engine that goes on is wasted."""
    async with site(limit_s=0.3, keepalive_after_s=0.1) as at:
        running, waiting = await at.fill()
        held = at.engine.asked[0]
        held.begin()
        held.event()
        await asyncio.sleep(0.2)
        at.leave()
        answers = await asyncio.gather(running, waiting)
        for answer in answers:
            assert answer.status_code == 200
            assert answer.text.count('"draining"') == 1
            assert answer.text.endswith("data: [DONE]\n\n")
            assert answer.text.count("[DONE]") == 1
        assert ": queued position=1" in answers[1].text
        await asyncio.wait_for(held.is_left.wait(), 5)
        assert len(at.engine.asked) == 1
        await at.left()
        assert at.running.in_flight == 0


async def test_plain_requests_are_told_with_a_status_at_the_limit() -> None:
    """Nothing of their answers is out, so 503 is still possible, and retried elsewhere."""
    async with site(limit_s=0.2) as at:
        calls = await at.fill(streams=False)
        at.leave()
        for answer in await asyncio.gather(*calls):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "draining"
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["connection"] == "close"
        await asyncio.wait_for(at.engine.asked[0].is_left.wait(), 5)
        await at.left()


async def test_idle_connections_are_closed() -> None:
    """A client pool that keeps one would send its next request into nowhere."""
    async with site() as at:
        held = await at.fill()
        port = int(at.running.url.rpartition(":")[2])
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        used, _fresh = pairs
        used[1].write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await used[0].readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200")
        at.leave()
        for reader, writer in pairs:
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        assert not any(call.done() for call in held)
        for call in held:
            call.cancel()
        await at.left()


async def test_who_never_sends_and_who_never_reads_is_not_waited_for() -> None:
    """One client must not keep a gateway from leaving."""
    async with site(limit_s=0.2) as at:
        port = int(at.running.url.rpartition(":")[2])
        _, sender = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{{"
        sender.write(head.encode())
        reader, deaf = await asyncio.open_connection("127.0.0.1", port, limit=1)
        body = json.dumps(STREAM).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        deaf.write(head.encode() + body)
        await eventually(lambda: at.engine.here)
        at.engine.asked[0].begin()
        for number in range(200):
            at.engine.asked[0].event(number)
        assert at.running.gateway.inside() == 2
        at.leave()
        await at.left()
        began_at = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began_at < 12
    for writer in (sender, deaf):
        writer.close()
    assert reader


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(number: int) -> None:
    """An operator who means it must not wait for ten minutes."""
    async with site() as at:
        calls = await at.fill()
        server = at.running.server
        at.running.server.handle_exit(signal.SIGTERM, None)
        await eventually(lambda: at.running.gateway.doors.is_leaving)
        assert not server.should_exit
        server.handle_exit(number, None)
        began_at = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(answer, httpx.TransportError) for answer in answers)
        await asyncio.wait_for(at.engine.asked[0].is_left.wait(), 5)
        assert asyncio.get_running_loop().time() - began_at < 2
    assert server.status == 128 + number


async def test_a_worker_takes_the_echo_of_a_signal_for_no_second_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """systemd tells the supervisor and each worker, and the supervisor tells each worker too."""
    async with site() as at:
        calls = await at.fill()
        server = at.running.server
        monkeypatch.setattr(server, "_berth", object())
        for _ in range(2):
            server.handle_exit(signal.SIGTERM, None)
        await eventually(lambda: at.running.gateway.doors.is_leaving)
        assert not server.should_exit
        server.end_at_once(signal.SIGTERM)
        await asyncio.gather(*calls, return_exceptions=True)
        monkeypatch.undo()
    assert server.status == 128 + signal.SIGTERM


async def test_ctrl_c_has_no_lag() -> None:
    """Nobody balances load onto a terminal."""
    async with site(shutdown__lag_s=60.0) as at:
        at.running.server.handle_exit(signal.SIGINT, None)
        await at.left()
    assert at.running.server.status == 0
