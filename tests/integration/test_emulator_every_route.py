"""Each fault on each route of the emulated engine, streamed and not, in the route's own shape."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "a b", "max_tokens": 6},
    "/v1/responses": {"input": "a b", "max_output_tokens": 6},
    "/v1/messages": {**CHAT, "model": "emulated"},
    "/v1/audio/transcriptions": {},
    "/v1/audio/translations": {},
}
POOLING: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": ["a", "b"]},
    "/v1/score": {"text_1": "a", "text_2": ["b", "c"]},
    "/score": {"text_1": "a", "text_2": ["b", "c"]},
    "/v1/rerank": {"query": "a", "documents": ["b", "c"]},
    "/rerank": {"query": "a", "documents": ["b", "c"]},
    "/pooling": {"input": ["a", "b"]},
    "/classify": {"input": ["a", "b"]},
}
FRONT_END: dict[str, dict[str, Any]] = {
    "/v1/messages/count_tokens": {"model": "emulated", "messages": CHAT["messages"]},
    "/tokenize": {"prompt": "a b"},
    "/detokenize": {"tokens": [5, 6]},
}
EVERY = GENERATING | POOLING | FRONT_END
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
AUDIO = ("/v1/audio/transcriptions", "/v1/audio/translations")


@asynccontextmanager
async def running(
    *faults: str, **options: Any
) -> AsyncIterator[tuple[Emulator, httpx.AsyncClient]]:
    """An emulator of all routes, and a client."""
    filled = {"profile": "instant", "embeddings": True, **options}
    async with (
        running_emulator(EmulatorOptions(**filled, faults=faults)) as emulator,
        httpx.AsyncClient(base_url=emulator.url, timeout=5) as client,
    ):
        yield emulator, client


async def ask(client: httpx.AsyncClient, path: str, *, stream: bool = False) -> httpx.Response:
    """A request that the route takes."""
    if path in AUDIO:
        fields = {"stream": "true"} if stream else {}
        return await client.post(path, files={"file": ("a.wav", b"RIFF" * 20)}, data=fields)
    return await client.post(path, json={**EVERY[path], **({"stream": True} if stream else {})})


async def read_stream(client: httpx.AsyncClient, path: str, *, into: list[bytes]) -> None:
    """Ask for a stream and read it as it is on the wire."""
    if path in AUDIO:
        form = {"stream": "true"}
        request = client.stream("POST", path, files={"file": ("a.wav", b"RIFF")}, data=form)
    else:
        request = client.stream("POST", path, json={**GENERATING[path], "stream": True})
    async with request as response:
        async for part in response.aiter_raw():
            into.append(part)  # noqa: PERF401 - what came before a break is wanted too


def error_of(path: str, answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which must have the route's shape."""
    body: dict[str, Any] = answer.json()
    if path in ANTHROPIC:
        assert body["type"] == "error"
        assert body["error"].keys() == {"type", "message"}
    else:
        assert body["error"]["code"] == answer.status_code
    error: dict[str, Any] = body["error"]
    return error


async def test_every_route_answers_by_post_and_by_nothing_else() -> None:
    """A gateway that relays sixteen routes would be tested on six of them."""
    async with running() as (emulator, client):
        for path in EVERY:
            answer = await ask(client, path)
            assert (path, answer.status_code) == (path, 200)
            assert answer.headers["content-type"] == "application/json"
            assert (await client.get(path)).status_code in (404, 405)
            assert emulator.received[-1].path == path
        assert emulator.engine.running == emulator.engine.waiting == 0
        emulator.engine.check_invariants()


@pytest.mark.parametrize(
    ("fault", "status", "type"),
    [
        ("error-500", 500, "InternalServerError"),
        ("draining", 500, "InternalServerError"),
        ("busy", 503, "Service Unavailable"),
        ("error-midstream", 500, "InternalServerError"),
    ],
)
async def test_an_error_has_the_shape_of_its_route(fault: str, status: int, type: str) -> None:
    """Clients of one vendor cannot read the errors of the other."""
    async with running() as (emulator, client):
        for path in EVERY:
            emulator.faults.inject(f"{fault}*1")
            answer = await ask(client, path)
            assert (path, answer.status_code) == (path, status)
            assert error_of(path, answer)["type"] == type
            assert (await ask(client, path)).status_code == 200


@pytest.mark.parametrize("fault", ["die-before", "die-midstream", "close-midstream"])
async def test_a_connection_breaks_on_every_route(fault: str) -> None:
    """Half an answer must not be taken for one, wherever it comes from."""
    async with running() as (emulator, client):
        for path in EVERY:
            emulator.faults.inject(f"{fault}*1")
            with pytest.raises(httpx.TransportError):
                await ask(client, path)
            assert (await ask(client, path)).status_code == 200


async def test_an_answer_can_fail_to_come_on_every_route() -> None:
    """A gateway without a timeout would wait for ever."""
    async with running("stall") as (_, client), asyncio.TaskGroup() as asking:
        asked = [asking.create_task(ask(client, path)) for path in EVERY]
        done, _ = await asyncio.wait(asked, timeout=0.2)
        assert not done
        for one in asked:
            one.cancel()


async def test_bodies_can_be_compressed_and_dribbled_on_every_route() -> None:
    """A reader that needs whole lines, or plain ones, would fail in production only."""
    async with running("gzip", "dribble") as (_, client):
        for path in EVERY:
            answer = await ask(client, path)
            assert answer.headers["content-encoding"] == "gzip"
            assert answer.json()


@pytest.mark.parametrize("fault", ["die-midstream:2", "close-midstream:2"])
async def test_a_stream_breaks_after_so_many_events(fault: str) -> None:
    """What was sent before the break is what the client has to live with."""
    async with running(fault) as (emulator, client):
        for path in GENERATING:
            parts: list[bytes] = []
            with pytest.raises(httpx.TransportError):
                await read_stream(client, path, into=parts)
            if fault.startswith("close"):
                assert (path, b"".join(parts).count(b"data: ")) == (path, 2)
            assert emulator.engine.running == 0


async def test_a_failing_stream_tells_it_in_the_words_of_its_route() -> None:
    """A stream that just ends looks like success to most clients."""
    async with running("error-midstream:3") as (_, client):
        for path in GENERATING:
            answer = await ask(client, path, stream=True)
            assert answer.status_code == 200
            blocks = answer.text.removesuffix("\n\n").split("\n\n")
            assert blocks[3:] == failure_of(path, blocks[3])


def failure_of(path: str, block: str) -> list[str]:
    """The blocks that a failed stream ends with, `block` being the error, which is looked at."""
    data = json.loads(block.partition("data: ")[2])
    if path == "/v1/messages":
        assert block.startswith("event: error\n")
        assert data["error"]["type"] == "internal_error"
        return [block]
    if path == "/v1/responses":
        assert block.startswith("event: error\n")
        assert (data["type"], data["code"], data["sequence_number"]) == ("error", "500", 3)
        return [block]
    assert data["error"]["code"] == 500
    return [block, "data: [DONE]"]


async def test_a_stream_that_lost_the_race_says_so_after_its_200() -> None:
    """The trap in which a gateway passes an error on as an answer."""
    async with running("busy-race") as (_, client):
        for path in GENERATING:
            answer = await ask(client, path, stream=True)
            assert answer.status_code == 200
            blocks = answer.text.removesuffix("\n\n").split("\n\n")
            first = 2 if path == "/v1/responses" else 0
            assert "busy" in blocks[first] or "validation errors" in blocks[first]
            assert (await ask(client, path)).status_code == 503


@pytest.mark.parametrize("fault", ["stall:2", "stall-keepalive:2"])
async def test_a_stalled_stream_is_kept_alive_in_the_words_of_its_route(fault: str) -> None:
    """Pings and comments are bytes, but no sign of life of the engine."""
    async with (
        running(fault, sse_keep_alive_s=0.02) as (_, client),
        asyncio.TaskGroup() as asking,
    ):
        read: dict[str, list[bytes]] = {path: [] for path in GENERATING}
        asked = [
            asking.create_task(read_stream(client, path, into=parts))
            for path, parts in read.items()
        ]
        done, _ = await asyncio.wait(asked, timeout=0.3)
        assert not done
        for one in asked:
            one.cancel()
    for path, parts in read.items():
        sent = b"".join(parts)
        alive = b"event: ping\n" if path == "/v1/messages" else b": keep-alive\n"
        assert (path, sent.count(alive) > 1) == (path, "keepalive" in fault)
        assert sent.replace(b"event: ping\ndata: ", b"").count(b"data: ") == 2


async def test_streams_dribble_and_compress_without_losing_a_byte() -> None:
    """Events that arrive byte by byte must still be events."""
    ends = {"/v1/messages": b'"message_stop"}', "/v1/responses": b'"response.completed"}'}
    async with running("dribble", "gzip") as (_, client):
        for path in GENERATING:
            parts: list[bytes] = []
            await read_stream(client, path, into=parts)
            text = gzip.decompress(b"".join(parts))
            assert text.endswith(ends.get(path, b"data: [DONE]") + b"\n\n")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_on_every_route(stream: bool) -> None:
    """Fixing the leak on one route and leaving it on the others is the usual story."""
    async with running(profile="demo") as (emulator, client), asyncio.timeout(10):
        for count, path in enumerate(GENERATING, start=1):
            request = asyncio.create_task(ask(client, path, stream=stream))
            while not emulator.engine.running:  # noqa: ASYNC110 - happens beyond a socket
                await asyncio.sleep(0.002)
            request.cancel()
            while emulator.engine.running:  # noqa: ASYNC110 - same
                await asyncio.sleep(0.002)
            emulator.engine.check_invariants()
            assert emulator.engine.kv_use == 0
            assert (path, emulator.engine.counters.aborted) == (path, count)


async def test_tokens_are_counted_by_what_a_route_does() -> None:
    """Rates computed from the counters would be wrong by the share of some route."""
    async with running() as (emulator, client):
        for path in EVERY:
            counters = emulator.engine.counters
            before = counters.prompt_tokens, counters.generation_tokens
            await ask(client, path)
            counters = emulator.engine.counters
            assert (path, counters.generation_tokens > before[1]) == (path, path in GENERATING)
            assert (path, counters.prompt_tokens > before[0]) == (path, path not in FRONT_END)


async def test_a_full_queue_refuses_on_every_route_that_uses_the_engine() -> None:
    """Backpressure would be seen on the routes that happen to be tested."""
    async with running("freeze", max_num_queued_reqs=1) as (emulator, client):
        blocker = asyncio.create_task(ask(client, "/v1/completions"))
        async with asyncio.timeout(5):
            while not emulator.engine.running:  # noqa: ASYNC110 - happens beyond a socket
                await asyncio.sleep(0.002)
        for path in GENERATING | POOLING:
            answer = await ask(client, path)
            assert (path, answer.status_code) == (path, 503)
            assert "busy" in error_of(path, answer)["message"]
        for path in FRONT_END:
            assert (await ask(client, path)).status_code == 200
        blocker.cancel()


async def test_pooling_routes_exist_only_when_asked_for() -> None:
    """A text model's engine knows none of them, and the gateway must pass its 404 on."""
    async with running(embeddings=False) as (_, client):
        assert {(await ask(client, path)).status_code for path in POOLING} == {404}
