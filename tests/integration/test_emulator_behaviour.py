"""The emulated engine under load, with clients that leave, and with each fault switched on."""

import asyncio
import gzip
import json
import re
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "a b", "max_tokens": 5000, "stream": True}
SHORT: dict[str, Any] = {"prompt": "a b", "max_tokens": 4}


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


async def opened(emulator: Emulator, body: dict[str, Any]) -> tuple[asyncio.StreamReader, Any]:
    """A request on a connection of its own, not yet answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
    data = json.dumps(body).encode()
    head = f"POST {COMPLETION} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    return reader, writer


# --- queueing ---------------------------------------------------------------------------------


async def test_headers_come_at_once_and_the_first_event_when_the_engine_starts() -> None:
    """A gateway that takes the 200 for the start would commit to a queue it cannot see."""
    async with running(max_num_seqs=1) as (emulator, client):
        _, first = await opened(emulator, LONG)
        await wait_until(lambda: emulator.engine.running == 1)
        async with client.stream("POST", COMPLETION, json=LONG) as waiting:
            assert waiting.status_code == 200
            assert (emulator.engine.running, emulator.engine.waiting) == (1, 1)
            first.close()
            event = await anext(waiting.aiter_lines())
            assert event.startswith("data: ")


async def test_metrics_and_load_tell_the_queue() -> None:
    """Scraped gauges are what the gateway corrects its ledger with."""
    async with running(max_num_seqs=2, kv_blocks=1000) as (emulator, client):
        writers = [(await opened(emulator, LONG))[1] for _ in range(5)]
        await wait_until(lambda: emulator.engine.counters.generation_tokens > 5)
        page = (await client.get("/metrics")).text
        assert 'vllm:num_requests_running{engine="0",model_name="emulated"} 2.0' in page
        assert 'vllm:num_requests_waiting{engine="0",model_name="emulated"} 3.0' in page
        assert (await client.get("/load")).json() == {"server_load": 5}
        for writer in writers:
            writer.close()
        await wait_until(lambda: emulator.engine.running + emulator.engine.waiting == 0)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
async def test_the_scheduling_policy_decides_who_is_next(policy: str) -> None:
    """The tier passed as engine priority would be lost, or be believed where it is ignored."""
    async with running(max_num_seqs=1, scheduling_policy=policy) as (emulator, client):
        _, blocker = await opened(emulator, LONG)
        await wait_until(lambda: emulator.engine.running == 1)
        ended: list[int] = []

        async def ask(priority: int) -> None:
            await client.post(COMPLETION, json={**SHORT, "priority": priority})
            ended.append(priority)

        async with asyncio.TaskGroup() as asking:
            for count, priority in enumerate((10, 5, -3), start=1):
                asking.create_task(ask(priority))
                await wait_until(lambda count=count: emulator.engine.waiting == count)
            blocker.close()
    assert ended == ([10, 5, -3] if policy == "fcfs" else [-3, 5, 10])


async def test_the_queue_limit_is_answered_with_busy() -> None:
    """Backpressure of the engine is a case the gateway must take, not pass on."""
    async with running(max_num_queued_reqs=1) as (emulator, client):
        blocker = await opened(emulator, LONG)
        await wait_until(lambda: emulator.engine.running == 1)
        answer = await client.post(COMPLETION, json=SHORT)
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "Service Unavailable"
        assert "retry-after" not in answer.headers
        page = (await client.get("/metrics")).text
        blocker[1].close()
    assert (
        'vllm:admission_rejections_total{model_name="emulated",reason="max_num_queued_reqs"} 1'
        in page
    )


async def test_a_stream_that_lost_the_race_gets_the_busy_error_after_its_200() -> None:
    """The trap in which a gateway passes an error on as an answer."""
    async with running(max_num_queued_reqs=1, faults=("busy-race",)) as (emulator, client):
        assert (await client.post(COMPLETION, json=SHORT)).status_code == 200
        blocker = await opened(emulator, LONG)
        await wait_until(lambda: emulator.engine.running == 1)
        answer = await client.post(COMPLETION, json=LONG)
        plain = await client.post(COMPLETION, json=SHORT)
        blocker[1].close()
    assert answer.status_code == 200
    first, done = answer.text.removesuffix("\n\n").split("\n\n")
    assert json.loads(first.removeprefix("data: "))["error"]["code"] == 503
    assert done == "data: [DONE]"
    assert plain.status_code == 503


async def test_the_engine_keeps_its_pace() -> None:
    """Latencies measured against the emulator would be those of the event loop."""
    async with running(speed=2.0) as (_, client):
        began = time.monotonic()
        await client.post(COMPLETION, json={"prompt": "a", "max_tokens": 40})
        took_s = time.monotonic() - began
    assert 0.38 <= took_s < 3


# --- clients that leave -----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("manner", ["close", "half-close", "reset"])
async def test_a_client_that_leaves_frees_its_slot(manner: str, stream: bool) -> None:
    """Slots held by the dead are the commonest leak of this kind of product."""
    async with running(max_num_seqs=1) as (emulator, _):
        reader, writer = await opened(emulator, {**LONG, "stream": stream})
        _, waiting = await opened(emulator, LONG)
        await wait_until(lambda: emulator.engine.running == emulator.engine.waiting == 1)
        if manner == "half-close":
            writer.write_eof()
        elif manner == "reset":
            writer.transport.abort()
        else:
            writer.close()
        await wait_until(lambda: emulator.engine.waiting == 0)
        assert emulator.engine.counters.aborted == 1
        waiting.close()
        await wait_until(lambda: emulator.engine.running == 0)
        emulator.engine.check_invariants()
        assert emulator.engine.kv_use == 0
        del reader


async def test_all_sequences_of_a_request_are_freed_together() -> None:
    """n > 1 would leak all but one."""
    async with running(max_num_seqs=8) as (emulator, _):
        _, writer = await opened(emulator, {**LONG, "prompt": ["a", "b"], "n": 2})
        await wait_until(lambda: emulator.engine.running == 4)
        writer.close()
        await wait_until(lambda: emulator.engine.running == 0)


async def test_what_was_received_is_remembered() -> None:
    """Tests could not ask which headers and bytes were forwarded."""
    async with running() as (emulator, client):
        await client.post(COMPLETION, json=SHORT, headers={"X-Thing": "1"})
        received = emulator.received[-1]
    assert (received.method, received.path) == ("POST", COMPLETION)
    assert ("x-thing", "1") in received.headers
    assert json.loads(received.body) == SHORT


# --- faults -----------------------------------------------------------------------------------


async def stream_of(client: httpx.AsyncClient, **more: Any) -> list[str]:
    """The events of a stream of eight tokens."""
    body = {"prompt": "a b", "max_tokens": 8, "stream": True, "temperature": 0, **more}
    async with client.stream("POST", COMPLETION, json=body) as response:
        return [line async for line in response.aiter_lines() if line]


@pytest.mark.parametrize(
    ("fault", "status", "type"),
    [
        ("error-500", 500, "InternalServerError"),
        ("draining", 500, "InternalServerError"),
        ("busy", 503, "Service Unavailable"),
    ],
)
async def test_a_fault_before_the_headers_is_an_error_answer(
    fault: str, status: int, type: str
) -> None:
    """Retrying elsewhere could not be tried."""
    async with running(faults=(f"{fault}*1",)) as (_, client):
        answer = await client.post(COMPLETION, json=SHORT)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, type)
        assert (await client.get("/health")).status_code == 200
        assert (await client.post(COMPLETION, json=SHORT)).status_code == 200


async def test_dying_before_the_headers_resets_the_connection() -> None:
    """The failure that may be retried without any doubt."""
    async with running(faults=("die-before*1",)) as (_, client):
        with pytest.raises(httpx.TransportError):
            await client.post(COMPLETION, json=SHORT)
        assert (await client.post(COMPLETION, json=SHORT)).status_code == 200


@pytest.mark.parametrize("fault", ["die-midstream:3*1", "close-midstream:3*1"])
async def test_a_stream_breaks_off_after_so_many_events(fault: str) -> None:
    """Continuation begins with exactly this."""
    async with running(faults=(fault,)) as (emulator, client):
        with pytest.raises(httpx.TransportError):
            await stream_of(client)
        assert len(await stream_of(client)) == 9
        await wait_until(lambda: emulator.engine.running == 0)


async def test_an_orderly_close_delivers_the_events_before_it() -> None:
    """Which tokens were already sent is what continuation starts from."""
    async with running(faults=("close-midstream:3",)) as (emulator, _):
        reader, writer = await opened(emulator, {**SHORT, "stream": True})
        answer = await reader.read(-1)
        writer.close()
    assert answer.count(b"data: ") == 3
    assert not answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("fault", ["die-midstream", "close-midstream"])
async def test_a_plain_answer_is_cut_in_half(fault: str) -> None:
    """A short body must not be taken for an answer."""
    async with running(faults=(fault,)) as (_, client):
        with pytest.raises(httpx.TransportError):
            await client.post(COMPLETION, json=SHORT)


async def test_an_error_in_the_stream_is_followed_by_done() -> None:
    """[DONE] is no sign of success, and somebody must have tried."""
    async with running(faults=("error-midstream:2",)) as (_, client):
        events = await stream_of(client)
        plain = await client.post(COMPLETION, json=SHORT)
    assert len(events) == 4
    assert json.loads(events[2].removeprefix("data: "))["error"]["code"] == 500
    assert events[3] == "data: [DONE]"
    assert plain.status_code == 500


@pytest.mark.parametrize(("fault", "speaks"), [("stall:2", False), ("stall-keepalive:2", True)])
async def test_a_stalled_stream_says_nothing_or_only_comments(fault: str, speaks: bool) -> None:
    """A watchdog that counts bytes would be fooled by the comments."""
    async with running(faults=(fault,), sse_keep_alive_s=0.02) as (emulator, _):
        reader, writer = await opened(emulator, {**SHORT, "stream": True})
        await asyncio.sleep(0.2)
        answer = await reader.read(1 << 16)
        assert answer.count(b"data: ") == 2
        assert (answer.count(b": keep-alive\n\n") > 2) == speaks
        writer.close()


async def test_keep_alive_comments_fill_the_silence_before_the_first_token() -> None:
    """A parser that wants the role event first would break."""
    async with running(speed=0.1, sse_keep_alive_s=0.05) as (emulator, _):
        reader, writer = await opened(emulator, {**SHORT, "stream": True})
        answer = await reader.readuntil(b"data: ")
        assert answer.count(b": keep-alive") >= 2
        writer.close()


async def test_a_fault_can_strike_a_stream_that_is_running() -> None:
    """Engines do not wait for the next request to die."""
    async with (
        running() as (emulator, client),
        client.stream("POST", COMPLETION, json=LONG) as response,
    ):
        lines = response.aiter_lines()
        await anext(lines)
        emulator.faults.inject("close-midstream:0")
        with pytest.raises(httpx.TransportError):
            [line async for line in lines]


async def test_a_frozen_engine_makes_no_token_and_stays_healthy() -> None:
    """/health is no sign of life; only progress is."""
    async with (
        running() as (emulator, client),
        client.stream("POST", COMPLETION, json=LONG) as response,
    ):
        await anext(response.aiter_lines())
        emulator.faults.inject("freeze")
        await asyncio.sleep(0.05)
        steps = emulator.engine.counters.steps
        await asyncio.sleep(0.05)
        assert emulator.engine.counters.steps == steps
        assert (await client.get("/health")).status_code == 200
        emulator.faults.clear("freeze")
        await wait_until(lambda: emulator.engine.counters.steps > steps)


async def test_a_freeze_for_a_time_thaws_by_itself() -> None:
    """From the command line nobody could end it."""
    async with running() as (emulator, client):
        began = time.monotonic()
        emulator.faults.inject("freeze:0.1")
        await client.post(COMPLETION, json=SHORT)
        assert time.monotonic() - began >= 0.1


async def test_refused_connections_are_refused_and_later_taken_again() -> None:
    """A replica that is restarted must be found again."""
    async with running() as (emulator, client):
        reader, _writer = await asyncio.open_connection("127.0.0.1", emulator.port)
        emulator.faults.inject("refuse")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", emulator.port)
        assert await reader.read() == b""
        emulator.faults.inject("refuse:0.05")
        await asyncio.sleep(0.5)
        assert (await client.get("/health")).status_code == 200


async def test_an_unhealthy_engine_says_so_and_still_serves() -> None:
    """Health and work are two things."""
    async with running(faults=("unhealthy",)) as (_, client):
        assert (await client.get("/health")).status_code == 503
        assert (await client.post(COMPLETION, json=SHORT)).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_dribbled_bytes_are_the_same_bytes(stream: bool) -> None:
    """A parser that needs whole lines in one read would fail in production only."""
    body = {**SHORT, "temperature": 0, "max_tokens": 1, "stream": stream}
    async with running(faults=("dribble",)) as (emulator, client):
        headers = {"x-request-id": "same"}
        slow = await client.post(COMPLETION, json=body, headers=headers)
        emulator.faults.clear()
        fast = await client.post(COMPLETION, json=body, headers=headers)
    created = re.compile(r'"created":\d+')
    assert created.sub("", slow.text) == created.sub("", fast.text)


async def test_tokens_that_come_during_a_slow_write_share_an_event() -> None:
    """Events would be taken for tokens, which they are not in the real engine either."""
    async with running(faults=("dribble",), speed=100.0) as (_, client):
        events = await stream_of(client, max_tokens=40, return_token_ids=True)
    ids = [json.loads(event[6:])["choices"][0]["token_ids"] for event in events[:-1]]
    assert sum(map(len, ids)) == 40
    assert len(ids) < 40


@pytest.mark.parametrize("stream", [True, False])
async def test_gzip_is_a_complete_gzip_body(stream: bool) -> None:
    """A relay that reads events must not read compressed bytes."""
    async with running(faults=("gzip",)) as (_, client):
        request = client.build_request("POST", COMPLETION, json={**SHORT, "stream": stream})
        response = await client.send(request, stream=True)
        raw = b"".join([part async for part in response.aiter_raw()])
    assert response.headers["content-encoding"] == "gzip"
    text = gzip.decompress(raw)
    assert text.startswith(b"data: {" if stream else b'{"id"')


async def test_stale_gauges_repeat_and_zero_gauges_hide() -> None:
    """Decisions on old reports are where gateways overload engines."""
    async with running() as (emulator, client):
        running_line = 'vllm:num_requests_running{engine="0",model_name="emulated"} '

        async def gauge() -> str:
            page = (await client.get("/metrics")).text
            return page.partition(running_line)[2].partition("\n")[0]

        emulator.faults.inject("stale-gauges")
        assert await gauge() == "0.0"
        _, writer = await opened(emulator, LONG)
        await wait_until(lambda: emulator.engine.counters.steps > 2)
        assert await gauge() == "0.0"
        emulator.faults.clear()
        assert await gauge() == "1.0"
        emulator.faults.inject("zero-gauges:0.5")
        assert await gauge() == "0.0"
        await asyncio.sleep(0.5)
        assert await gauge() == "1.0"
        writer.close()


async def test_slow_metrics_are_slow() -> None:
    """A scrape that waits must not hold up anything."""
    async with running(faults=("slow-metrics:0.1",)) as (_, client):
        began = time.monotonic()
        assert (await client.get("/metrics")).status_code == 200
        assert time.monotonic() - began >= 0.1


async def test_faults_are_set_and_cleared_over_http() -> None:
    """An emulator in another process could not be broken on demand."""
    async with running() as (emulator, client):
        answer = await client.post("/_fault", json={"inject": ["busy", "stall:4*2"]})
        assert answer.json() == {"active": ["busy:0", "stall:4*2"]}
        assert emulator.faults.cut is not None
        assert (await client.post(COMPLETION, json=SHORT)).status_code == 503
        assert (await client.post("/_fault", json={"clear": ["busy"]})).json()["active"] == [
            "stall:4*2"
        ]
        assert (await client.post("/_fault", json={"clear": True})).json() == {"active": []}
        wrongs: list[Any] = [{"inject": ["boom"]}, {"clear": ["boom"]}, [], {"inject": 5}]
        for wrong in wrongs:
            assert (await client.post("/_fault", json=wrong)).status_code == 400
        assert (await client.get("/_fault")).json() == {"active": []}


# --- the process ------------------------------------------------------------------------------


async def is_well(client: httpx.AsyncClient) -> bool:
    """Whether the emulator takes connections, and says so."""
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


async def test_served_as_a_process_it_tells_its_url_and_ends_on_sigterm() -> None:
    """`fairgate emulate` and the demo would leave processes behind."""
    code = (
        "from gateway.emulator.options import EmulatorOptions as O\n"
        "from gateway.emulator.server import serve\n"
        "serve(O(profile='instant'), on_ready=lambda url: print(url, flush=True))"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    async with httpx.AsyncClient(base_url=url, timeout=5) as client:
        assert len(await stream_of(client)) == 9
        await client.post("/_fault", json={"inject": ["die-midstream:3*1", "freeze:0.1"]})
        with pytest.raises(httpx.TransportError):
            await stream_of(client)
        await client.post("/_fault", json={"inject": ["refuse:0.3"]})
        with pytest.raises(httpx.TransportError):
            await client.get("/health")
        async with asyncio.timeout(10):
            while not await is_well(client):  # noqa: ASYNC110 - in another process
                await asyncio.sleep(0.05)
    process.terminate()
    assert await process.wait() == 0


async def test_leaving_the_block_ends_everything_although_clients_hang() -> None:
    """Test suites would hang on the emulator of the test before."""
    async with running(faults=("stall:0", "slow-metrics:60")) as (emulator, _):
        reader, _ = await opened(emulator, LONG)
        await reader.readuntil(b"\r\n\r\n")
        port = emulator.port
    with pytest.raises(OSError, match="Connect"):
        socket.create_connection(("127.0.0.1", port), timeout=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"profile": "none"},
        {"speed": 0},
        {"models": ()},
        {"output_jitter": 2},
        {"faults": ("boom",)},
    ],
)
async def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """A typing error would give an engine other than the one asked for."""
    with pytest.raises(ValueError, match=r"\w"):
        async with running(**wrong):
            pass
