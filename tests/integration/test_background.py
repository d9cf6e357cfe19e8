"""Responses in the background: their work counts, although nobody waits for the answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from gateway.api import background
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.raw_engine import MODELS, SSE_HEAD, chunked, length_of

PATH = "/v1/responses"
BODY = {"model": "raw", "input": "x", "background": True}
CREATED = b'event: response.created\ndata: {"response":{"id":"resp_%d","status":"queued"}}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"delta":"x"}\n\n'
COMPLETED = (
    b'event: response.completed\ndata: {"response":{"id":"resp_%d","status":"completed",'
    b'"usage":{"input_tokens":3,"output_tokens":7}}}\n\n'
)


def plain(status: bytes, body: bytes) -> bytes:
    """A whole answer."""
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


@dataclass
class Keeper:
    """An engine that answers at once and works on, as vLLM does, whoever is connected."""

    statuses: dict[int, str] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    looks: int = 0
    """How often a status was asked for."""
    forgets: bool = False
    hides: bool = False
    """Whether it answers such questions with a fault."""
    port: int = 0
    streams: dict[int, asyncio.StreamWriter] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def end(self, number: int, status: str = "completed") -> None:
        """The work on a response is over."""
        self.statuses[number] = status

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(length_of(head))
                method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
                await self._answer(method, path, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _answer(
        self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        if method == "POST" and path == PATH:
            self._create(json.loads(body), writer)
        elif path.startswith(PATH + "/"):
            number = int(path.removesuffix("/cancel").rpartition("_")[2])
            if method == "POST":
                self.statuses[number] = "cancelled"
            self.looks += method == "GET"
            writer.write(self._stored(number, is_cancel=method == "POST"))
        elif path == "/v1/models":
            writer.write(plain(b"200 OK", MODELS))
        else:
            writer.write(plain(b"404 Not Found", b"{}"))
        await writer.drain()

    def _create(self, fields: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        number = len(self.asked)
        self.asked.append(fields)
        if not fields.get("background"):
            writer.write(plain(b"200 OK", b'{"id":"resp_%d","status":"completed"}' % number))
            return
        self.statuses[number] = "queued"
        if fields.get("stream"):
            self.streams[number] = writer
            writer.write(SSE_HEAD + chunked(CREATED % number))
        else:
            writer.write(plain(b"200 OK", b'{"id":"resp_%d","status":"queued"}' % number))

    def _stored(self, number: int, *, is_cancel: bool) -> bytes:
        if self.hides and not is_cancel:
            return plain(b"500 No", b'{"error":{"message":"no"}}')
        if self.forgets:
            return plain(b"404 Not Found", b'{"error":{"message":"no such response"}}')
        told: dict[str, Any] = {"id": f"resp_{number}", "status": self.statuses[number]}
        if told["status"] == "completed":
            told["usage"] = {"input_tokens": 3, "output_tokens": 7}
        return plain(b"200 OK", json.dumps(told).encode())


@dataclass
class Site:
    """A gateway before such an engine, of one slot."""

    engine: Keeper
    running: Running
    http: httpx.AsyncClient

    @property
    def granted(self) -> int:
        """Slots that are taken."""
        return len(self.running.gateway.scheduler.granted)

    async def metric(self, line: str) -> bool:
        """Whether this line is told."""
        return line in (await self.http.get("/metrics")).text


@asynccontextmanager
async def site(**overrides: Any) -> AsyncIterator[Site]:
    """The shortest queue in the engine, so that what exceeds the slot waits here."""
    engine = Keeper()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.port = server.sockets[0].getsockname()[1]
    replica = {"url": engine.url, "max_num_seqs": 1}
    tiers = [{"name": "only", "queue_limit": 0}]
    async with (
        server,
        running_gateway(replica, wait_ready=False, tiers=tiers, **overrides) as running,
        client(running) as http,
    ):
        await eventually(lambda: running.gateway.scheduler.replicas)
        yield Site(engine, running, http)


@pytest.fixture
def asks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a gateway that has no time to lose."""
    monkeypatch.setattr(background, "ASK_S_MIN", 0.02)
    monkeypatch.setattr(background, "ASK_S_MAX", 0.02)


async def test_its_slot_is_taken_until_the_engine_is_done(asks_often: None) -> None:
    """It would run beside all that the scheduler knows of, and nobody's share would hold."""
    async with site() as at:
        answer = await at.http.post(PATH, json=BODY)
        assert (answer.status_code, answer.json()["status"]) == (200, "queued")
        assert at.granted == 1
        second = asyncio.create_task(at.http.post(PATH, json={**BODY, "background": False}))
        await eventually(lambda: at.engine.looks > 3)
        assert len(at.engine.asked) == 1, "the other one waits here"
        assert (await at.http.get("/healthz")).status_code == 200
        at.engine.end(0)
        assert (await second).status_code == 200
        await eventually(lambda: at.running.in_flight == 0)
        assert await at.metric('tokens_total{kind="output",tier="only"} 7.0')


@pytest.mark.parametrize("streams", [True, False])
async def test_it_waits_in_the_queue_like_any_other(streams: bool, asks_often: None) -> None:
    """An engine that answers at once would else be given all there is at once."""
    async with site() as at:
        await at.http.post(PATH, json=BODY)
        waiting = asyncio.create_task(at.http.post(PATH, json={**BODY, "stream": streams}))
        await eventually(lambda: at.running.gateway.scheduler.waiting)
        assert len(at.engine.asked) == 1
        waiting.cancel()
        await eventually(lambda: not at.running.gateway.scheduler.waiting)
        assert len(at.engine.asked) == 1, "who leaves the queue is not sent"
        at.engine.end(0)
        await eventually(lambda: at.running.in_flight == 0)


async def test_cancelling_frees_it_at_once() -> None:
    """Asked only now and then, the engine would stand idle meanwhile."""
    async with site() as at:
        answer = await at.http.post(PATH, json=BODY)
        await eventually(lambda: at.engine.looks > 2)
        cancelled = await at.http.post(f"{PATH}/{answer.json()['id']}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        await eventually(lambda: at.running.in_flight == 0, 0.2)


@pytest.mark.parametrize("status", ["incomplete", "failed", "cancelled", "unheard of"])
async def test_whatever_ends_it_frees_it(status: str, asks_often: None) -> None:
    """A slot that is lost is never found again."""
    async with site() as at:
        await at.http.post(PATH, json=BODY)
        at.engine.end(0, status)
        await eventually(lambda: at.running.in_flight == 0)


@pytest.mark.parametrize("how", ["forgets", "hides"])
async def test_an_engine_that_knows_nothing_of_it_any_more_frees_it(
    how: str, asks_often: None
) -> None:
    """It was started anew, or is in no state to answer."""
    async with site() as at:
        await at.http.post(PATH, json=BODY)
        setattr(at.engine, how, True)
        await eventually(lambda: at.running.in_flight == 0)


async def test_it_is_waited_for_no_longer_than_the_limit(
    asks_often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM leaves one `queued` for ever whose work failed."""
    monkeypatch.setattr(background, "BACKGROUND_S_MAX", 0.3)
    async with site() as at:
        await at.http.post(PATH, json=BODY)
        assert at.granted == 1
        await eventually(lambda: at.running.in_flight == 0)
        assert at.engine.looks > 3


@pytest.mark.parametrize("stays", [True, False])
async def test_its_events_are_left_and_the_work_goes_on(stays: bool, asks_often: None) -> None:
    """The engine does not stop for a client that leaves, so its slot is not free."""
    async with site() as at:
        body = {**BODY, "stream": True}
        async with at.http.stream("POST", PATH, json=body) as answer:
            events = answer.aiter_bytes()
            assert await anext(events) == CREATED % 0
            at.engine.streams[0].write(chunked(DELTA))
            assert await anext(events) == DELTA
            if stays:
                at.engine.streams[0].write(chunked(COMPLETED % 0) + b"0\r\n\r\n")
                assert await anext(events) == COMPLETED % 0
        if not stays:
            await eventually(lambda: at.engine.looks > 3)
            assert at.granted == 1
            at.engine.end(0)
        await eventually(lambda: at.running.in_flight == 0)
        assert await at.metric('tokens_total{kind="output",tier="only"} 7.0')


async def test_events_of_what_was_cancelled_end_with_an_error() -> None:
    """vLLM never ends them: its client, and its slot, would wait for ever."""
    async with site() as at:
        async with at.http.stream("POST", PATH, json={**BODY, "stream": True}) as answer:
            events = answer.aiter_bytes()
            assert await anext(events) == CREATED % 0
            await at.http.post(f"{PATH}/resp_0/cancel")
            rest = b"".join([data async for data in events])
        assert rest.startswith(b"event: error\n")
        assert rest.count(b'"response_cancelled"') == 2
        await eventually(lambda: at.running.in_flight == 0)


async def test_it_does_not_keep_a_gateway_from_leaving() -> None:
    """Nobody can come back through this one to fetch it."""
    async with site(shutdown__limit_s=30) as at:
        await at.http.post(PATH, json=BODY)
        assert at.granted == 1
        at.running.server.leave(0.0)
        await eventually(lambda: at.running.server.should_exit, 2.0)
        assert at.running.in_flight == 0


async def test_a_response_that_was_not_queued_is_not_asked_about() -> None:
    """An engine without a background does the work at once."""
    async with site() as at:
        answer = await at.http.post(PATH, json={**BODY, "background": None})
        assert answer.json()["status"] == "completed"
        await eventually(lambda: at.running.in_flight == 0)
        assert at.engine.looks == 0
