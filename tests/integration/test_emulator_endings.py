"""The emulated engine at its end: told to stop, coreless, frozen, and taken up by another."""

import asyncio
import itertools
import json
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from gateway.emulator.vocabulary import REPLACEMENT

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
TURN = {"role": "user", "content": "Tell a story."}
LONG: dict[str, Any] = {"prompt": "a b", "max_tokens": 5000, "stream": True, "temperature": 0}
SHORT: dict[str, Any] = {"prompt": "a b", "max_tokens": 20}
DONE = "data: [DONE]"


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[Emulator, httpx.AsyncClient]]:
    """An emulator with a step of 2 ms, and a client."""
    filled = {"profile": "demo", "speed": 10.0, **options}
    async with (
        running_emulator(EmulatorOptions(**filled)) as emulator,
        httpx.AsyncClient(base_url=emulator.url, timeout=5) as client,
    ):
        yield emulator, client


async def wait_until(condition: Any, *, timeout_s: float = 10.0) -> None:
    """Polls, since what is waited for happens beyond a socket."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.002)


class Stream:
    """A stream that is read in the background, on a connection of its own."""

    def __init__(self, port: int, path: str = COMPLETION, body: dict[str, Any] = LONG) -> None:
        self.text = ""
        self.is_over = False
        self._task = asyncio.create_task(self._read(port, path, json.dumps(body).encode()))

    @property
    def events(self) -> list[str]:
        """All that came, comments too."""
        return re.findall(r"^(?:data)?: .*$", self.text, re.MULTILINE)

    async def _read(self, port: int, path: str, body: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        try:
            while part := await reader.read(1 << 16):
                self.text += part.decode()
        except ConnectionError:
            pass
        finally:
            self.is_over = True
            writer.close()

    async def begun(self, events: int = 3) -> None:
        """Wait for so many events."""
        await wait_until(lambda: len(self.events) >= events)

    async def ended(self) -> None:
        """Wait for the end of the connection."""
        await asyncio.wait_for(self._task, 10)

    def leave(self) -> None:
        """Hang up."""
        self._task.cancel()


async def is_refused(port: int) -> bool:
    """Whether nobody listens."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


# --- taken up by another ----------------------------------------------------------------------


@dataclass
class Told:
    """What a stream said."""

    ids: list[int]
    text: str
    prompt: list[int]
    reason: str | None
    clean_ids: int
    """So many ids are told completely by the text."""


async def told_by(client: httpx.AsyncClient, path: str, body: dict[str, Any], events: int) -> Told:
    """The first `events` events with choices, or all of them."""
    told = Told([], "", [], None, 0)
    asked = {"temperature": 0, "stream": True, "return_token_ids": True, **body}
    async with client.stream("POST", path, json=asked) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            (choice,) = chunk["choices"]
            told.prompt = (
                chunk.get("prompt_token_ids") or choice.get("prompt_token_ids") or (told.prompt)
            )
            text = choice["delta"]["content"] if path == CHAT else choice["text"]
            told.ids += choice.get("token_ids") or []
            told.text += text
            if text:
                told.clean_ids = len(told.ids)
            told.reason = choice["finish_reason"]
            events -= 1
            if not events:
                break
    return told


@pytest.mark.parametrize("cut", [1, 2, 5, 17, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50])
async def test_a_chat_is_taken_up_by_its_ids_on_another_engine(cut: int) -> None:
    """What a gateway does with a broken stream is judged by this, so it must be exact here."""
    body = {"messages": [TURN], "max_tokens": 300, "ignore_eos": False}
    async with (
        running(mean_tokens=90, speed=100.0) as (_, one),
        running(mean_tokens=90) as (_, two),
    ):
        whole = await told_by(one, CHAT, body, -1)
        cut_off = await told_by(one, CHAT, body, cut + 1)
        kept = cut_off.ids[: cut_off.clean_ids]
        rest = await told_by(
            two,
            COMPLETION,
            {"prompt": cut_off.prompt + kept, "max_tokens": 300 - len(kept)},
            -1,
        )
    assert rest.prompt == cut_off.prompt + kept
    assert kept + rest.ids == whole.ids
    assert cut_off.text + rest.text == whole.text
    assert rest.reason == whole.reason == "stop"
    assert REPLACEMENT not in whole.text


async def test_ids_are_those_of_tokenize_and_their_text_that_of_detokenize() -> None:
    """Text across a cut may be asked for from the engine, and must be the stream's."""
    async with running(profile="instant") as (_, client):
        told = await told_by(client, CHAT, {"messages": [TURN], "max_tokens": 64}, -1)
        tokens = await client.post("/tokenize", json={"messages": [TURN]})
        text = await client.post("/detokenize", json={"tokens": told.ids})
    assert tokens.json()["tokens"] == told.prompt
    assert text.json()["prompt"].rstrip(REPLACEMENT) == told.text


async def test_usage_and_limits_count_the_ids_of_a_prompt() -> None:
    """The usage of a continued stream is added up from its parts."""
    async with running(profile="instant", mean_tokens=5) as (_, client):
        asked = {"prompt": [300, 301, 302], "max_tokens": 40, "temperature": 0}
        short = (await client.post(COMPLETION, json=asked)).json()
        long = (await client.post(COMPLETION, json={**asked, "ignore_eos": True})).json()
        least = (await client.post(COMPLETION, json={**asked, "min_tokens": 30})).json()
    assert short["choices"][0]["finish_reason"] == "stop"
    assert short["usage"]["completion_tokens"] < 40
    assert long["choices"][0]["finish_reason"] == "length"
    usage = long["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 40)
    assert least["usage"]["completion_tokens"] >= 30


async def test_unseeded_samples_differ_and_greedy_answers_do_not() -> None:
    """A test that compares samples would pass on an engine that only pretends to draw."""
    async with running(profile="instant") as (_, client):

        async def text(**more: object) -> str:
            answer = await client.post(COMPLETION, json={**SHORT, **more})
            return str(answer.json()["choices"][0]["text"])

        assert await text(temperature=0.8) != await text(temperature=0.8)
        assert await text(temperature=0.8, seed=5) == await text(temperature=0.8, seed=5)
        assert await text(temperature=0) == await text(temperature=0)


# --- told to stop -----------------------------------------------------------------------------


@pytest.mark.parametrize("keep_alive_s", [0.0, 0.02])
async def test_told_to_stop_nobody_listens_and_what_runs_hangs(keep_alive_s: float) -> None:
    """The silence that no byte-counting watchdog sees, with comments flowing through it."""
    async with running(sse_keep_alive_s=keep_alive_s) as (emulator, client):
        stream = Stream(emulator.port)
        await stream.begun()
        plain = asyncio.create_task(client.post(COMPLETION, json={**SHORT, "max_tokens": 5000}))
        await wait_until(lambda: emulator.engine.running == 2)
        emulator.faults.inject("terminate")
        assert await is_refused(emulator.port)
        await asyncio.sleep(0.05)
        said = stream.text.count("data: ")
        await asyncio.sleep(0.2)
        assert stream.text.count("data: ") == said
        assert (stream.text.count(": keep-alive") > 3) == bool(keep_alive_s)
        assert not stream.is_over
        assert not plain.done()
        emulator.faults.clear()
        await stream.ended()
        with pytest.raises(httpx.TransportError):
            await plain
        assert DONE not in stream.text
        await wait_until(lambda: emulator.engine.running == 0)
        assert (await client.post(COMPLETION, json=SHORT)).status_code == 200


async def test_told_to_stop_with_time_left_it_finishes_what_runs() -> None:
    """The only sign of an engine that drains is the error of new requests."""
    async with running() as (emulator, client):
        stream = Stream(emulator.port, body={**LONG, "max_tokens": 200})
        await stream.begun()
        emulator.faults.inject("terminate:30")
        answer = await client.post(COMPLETION, json=SHORT)
        assert answer.status_code == 500
        assert "cannot schedule new futures" in answer.text
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        await wait_until(lambda: DONE in stream.text)
        await asyncio.sleep(0.6)
        assert await is_refused(emulator.port)


async def test_time_that_is_not_enough_ends_in_the_same_silence() -> None:
    """A drain that is too short looks well at first."""
    async with running() as (emulator, _):
        stream = Stream(emulator.port)
        await stream.begun()
        emulator.faults.inject("terminate:0.2")
        before = len(stream.events)
        await asyncio.sleep(0.15)
        assert len(stream.events) > before
        assert not await is_refused(emulator.port)
        await asyncio.sleep(0.2)
        assert await is_refused(emulator.port)
        before = len(stream.events)
        await asyncio.sleep(0.1)
        assert len(stream.events) == before
        assert not stream.is_over
        stream.leave()


# --- the core ---------------------------------------------------------------------------------


async def test_the_death_of_the_core_is_told_to_everybody() -> None:
    """[DONE] after an error, 500 with a healthy connection, and only then nobody."""
    async with running() as (emulator, client):
        stream = Stream(emulator.port)
        await stream.begun()
        plain = asyncio.create_task(client.post(COMPLETION, json={**SHORT, "max_tokens": 5000}))
        await wait_until(lambda: emulator.engine.running == 2)
        emulator.faults.inject("core-dead")
        assert (await client.get("/health")).status_code == 503
        assert (await client.post(COMPLETION, json=SHORT)).status_code == 500
        assert (await plain).status_code == 500
        await wait_until(lambda: DONE in stream.text)
        error, done = stream.events[-2:]
        assert json.loads(error[6:])["error"]["type"] == "InternalServerError"
        assert done == DONE
        assert emulator.engine.running == 0
        await asyncio.sleep(0.3)
        assert await is_refused(emulator.port)
        emulator.faults.clear()
        await asyncio.sleep(0.05)
        assert (await client.post(COMPLETION, json=SHORT)).status_code == 200


async def test_a_frozen_core_has_healthy_figures_that_stand_still() -> None:
    """Progress is the only sign of life, in the streams and in the figures."""
    async with running() as (emulator, client):
        stream = Stream(emulator.port)
        await stream.begun()
        emulator.faults.inject("freeze")
        await asyncio.sleep(0.05)
        late = Stream(emulator.port)
        await wait_until(lambda: "200 OK" in late.text)
        pages = []
        for _ in range(2):
            pages.append((await client.get("/metrics")).text)
            await asyncio.sleep(0.05)
        assert pages[0] == pages[1]
        assert 'vllm:num_requests_running{engine="0",model_name="emulated"} 1.0' in pages[0]
        assert (await client.get("/health")).status_code == 200
        assert not late.events
        emulator.faults.clear("freeze")
        await late.begun()
        stream.leave()
        late.leave()


# --- the rest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("looks", range(8))
async def test_a_fault_that_ends_between_two_looks_is_over_all_the_same(looks: int) -> None:
    """Whoever saw it on, and then heard that nothing will change, would wait for ever."""
    async with running(profile="instant") as (emulator, client):
        ticks = itertools.count(asyncio.get_running_loop().time(), 0.001)
        emulator.faults._clock = lambda: next(ticks)
        ends_s = 0.001 * looks + 0.0005
        emulator.faults.inject(f"freeze:{ends_s}")
        answer = await client.post(COMPLETION, json=SHORT)
        assert answer.status_code == 200
        emulator.faults.inject(f"refuse:{ends_s}")
        async with asyncio.timeout(10):
            while await is_refused(emulator.port):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.005)


async def test_half_an_event_and_a_reset() -> None:
    """What a relay does with half an event is a case of its own."""
    async with running(faults=("half-chunk:3",)) as (emulator, client):
        stream = Stream(emulator.port)
        await stream.ended()
        last = stream.text.rpartition("\r\n")
        promised = int(last[0].rpartition("\r\n")[2], 16)
        assert 0 < len(last[2].encode()) == promised // 2
        assert len(stream.events) == 4
        with pytest.raises(httpx.TransportError):
            await client.post(COMPLETION, json=SHORT)


async def test_a_slow_answer_is_whole_in_the_end() -> None:
    """Slow is not dead, however long the headers take."""
    async with running(faults=("slow:0.2*1",)) as (_, client):
        began = time.monotonic()
        assert (await client.post(COMPLETION, json=SHORT)).status_code == 200
        assert time.monotonic() - began >= 0.2
        began = time.monotonic()
        assert (await client.post(COMPLETION, json=SHORT)).status_code == 200


async def test_metrics_that_fail_say_nothing_else() -> None:
    """An engine whose figures fail still serves."""
    async with running(faults=("no-metrics*1",)) as (_, client):
        assert (await client.get("/metrics")).status_code == 500
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.post(COMPLETION, json=SHORT)).status_code == 200


# --- the process ------------------------------------------------------------------------------


@asynccontextmanager
async def process_with(*flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """`fairgate emulate` as a child, and its port."""
    code = (
        "import sys\n"
        "from gateway.emulator.options import EmulatorOptions as O\n"
        "from gateway.emulator.server import serve\n"
        "options = O(profile='demo', speed=10.0, shutdown_timeout_s=float(sys.argv[1]))\n"
        "sys.exit(serve(options, on_ready=lambda url: print(url, flush=True)))"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *flags), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    try:
        yield process, int(url.rpartition(":")[2])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_process_hangs_after_sigterm_until_its_clients_leave() -> None:
    """Exactly this made gateways hold slots for streams that were dead."""
    async with process_with("0") as (process, port):
        stream = Stream(port)
        await stream.begun()
        process.terminate()
        await asyncio.sleep(0.3)
        assert await is_refused(port)
        said = stream.text
        await asyncio.sleep(0.2)
        assert stream.text == said
        assert process.returncode is None
        stream.leave()
        assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_a_second_sigterm_ends_a_process_at_once() -> None:
    """Nobody would get rid of it."""
    async with process_with("30") as (process, port):
        stream = Stream(port)
        await stream.begun()
        process.terminate()
        await asyncio.sleep(0.1)
        assert process.returncode is None
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 5) == 0
        await stream.ended()


async def test_signals_freeze_thaw_and_kill_the_core_of_a_process() -> None:
    """The API server lives on while its core does not."""
    async with process_with("0") as (process, port):
        stream = Stream(port)
        await stream.begun()
        process.send_signal(signal.SIGUSR1)
        await asyncio.sleep(0.1)
        said = len(stream.events)
        await asyncio.sleep(0.1)
        assert len(stream.events) == said
        process.send_signal(signal.SIGUSR1)
        await wait_until(lambda: len(stream.events) > said)
        process.send_signal(signal.SIGUSR2)
        await stream.ended()
        assert stream.events[-1] == DONE
        assert await asyncio.wait_for(process.wait(), 5) == 1
