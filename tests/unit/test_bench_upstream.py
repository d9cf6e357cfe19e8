"""The fake engine over a real socket, in this process."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, cast

import pytest

from gateway.bench.ticker import Ticker
from gateway.bench.upstream import BODY_BYTES_MAX, Engine, Pace, start

FAST = Pace(interval_us=1_000)
WAIT_S = 10.0


class Caller:
    """One keep-alive connection to the engine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, method: str, path: str, body: bytes = b"") -> None:
        """Send one request."""
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)

    async def head(self) -> tuple[int, str]:
        """The status and the header block of the answer that comes next."""
        text = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_S)).decode()
        return int(text.split()[1]), text

    async def whole(self) -> tuple[int, bytes]:
        """The status and the body of an answer with a length."""
        status, text = await self.head()
        found = re.search(r"content-length: (\d+)", text)
        assert found is not None
        return status, await asyncio.wait_for(self.reader.readexactly(int(found[1])), WAIT_S)

    async def chunks(self) -> list[bytes]:
        """All chunks of a chunked answer but the last, empty one."""
        found: list[bytes] = []
        while True:
            size = int(await asyncio.wait_for(self.reader.readline(), WAIT_S), 16)
            content = await self.reader.readexactly(size + 2)
            if not size:
                return found
            found.append(content[:-2])

    async def call(self, path: str, **body: Any) -> tuple[int, bytes]:
        """POST a JSON body; the status and body of the plain answer."""
        self.send("POST", path, json.dumps(body).encode())
        return await self.whole()

    async def stream(self, path: str = "/v1/chat/completions", **body: Any) -> list[bytes]:
        """POST a request for a stream; its chunks."""
        self.send("POST", path, json.dumps(body | {"stream": True}).encode())
        status, _ = await self.head()
        assert status == 200
        return await self.chunks()

    async def running(self) -> float:
        """The number of requests in progress by the engine's own metrics."""
        self.send("GET", "/metrics")
        _, text = await self.whole()
        found = re.search(rb"num_requests_running\{.*\} (\S+)", text)
        assert found is not None
        return float(found[1])


class FakeEngine:
    """A listening engine and ways to it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.callers: list[Caller] = []

    async def caller(self) -> Caller:
        """A new connection."""
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.port))
        self.callers.append(caller)
        return caller


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """An engine that sends an event each millisecond."""
    server = await start(0, FAST)
    engine = FakeEngine(server.sockets[0].getsockname()[1])
    try:
        yield engine
    finally:
        for caller in engine.callers:
            caller.writer.close()
        server.close()
        await server.wait_closed()


async def test_a_plain_request_gets_json(engine: FakeEngine) -> None:
    """It is the unit of the commonest figure: CPU per request."""
    caller = await engine.caller()
    status, body = await caller.call("/v1/chat/completions", messages=[], max_tokens=5)
    assert status == 200
    assert json.loads(body)["object"] == "chat.completion"
    status, body = await caller.call("/v1/completions", prompt="x")
    assert json.loads(body)["object"] == "text_completion"


@pytest.mark.parametrize("events", [1, 2, 20])
async def test_a_stream_has_as_many_events_as_tokens_were_asked_for(
    engine: FakeEngine, events: int
) -> None:
    """CPU per event divides by what arrived: it has to be what was asked for."""
    chunks = await (await engine.caller()).stream(messages=[], max_tokens=events)
    stamped = [chunk for chunk in chunks if b"@T" in chunk]
    assert len(stamped) == events
    assert b'"role":"assistant"' in chunks[0]
    assert b'"finish_reason":"length"' in chunks[-2]
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert len(chunks) == events + 3


@pytest.mark.parametrize("events", [1, 4, 9])
async def test_several_events_may_leave_in_one_write(engine: FakeEngine, events: int) -> None:
    """Engines send what a step made together; the count of events stays what was asked for."""
    caller = await engine.caller()
    assert (await caller.call("/bench/pace?interval_us=1000&events_per_write=4"))[0] == 200
    chunks = await caller.stream(messages=[], max_tokens=events)
    found = [re.search(rb"@T(\d+)@", chunk) for chunk in chunks]
    stamps = [match[1] for match in found if match is not None]
    assert len(stamps) == events
    assert len(set(stamps)) == -(-events // 4)
    assert chunks[-1] == b"data: [DONE]\n\n"


async def test_usage_comes_only_when_asked_for(engine: FakeEngine) -> None:
    """A gateway that must strip the chunk it asked for itself is measured doing so."""
    caller = await engine.caller()
    plain = await caller.stream(messages=[], max_tokens=2)
    asked = await caller.stream(messages=[], max_tokens=2, stream_options={"include_usage": True})
    assert not any(b'"usage"' in chunk for chunk in plain)
    assert b'"completion_tokens":2' in asked[-2]


async def test_stamps_are_monotonic_and_paced(engine: FakeEngine) -> None:
    """A stream that rushes or stands still is not the load that the report names."""
    chunks = await (await engine.caller()).stream(messages=[], max_tokens=20)
    found = [re.search(rb"@T(\d+)@", chunk) for chunk in chunks]
    stamps = [int(match[1]) for match in found if match is not None]
    assert stamps == sorted(stamps)
    assert stamps[-1] - stamps[0] > 15 * 1_000_000


async def test_one_connection_serves_request_after_request(engine: FakeEngine) -> None:
    """Reconnecting each time would measure the kernel's handshakes."""
    caller = await engine.caller()
    for _ in range(20):
        assert (await caller.call("/v1/chat/completions", messages=[]))[0] == 200
    assert len(await caller.stream(messages=[], max_tokens=1)) == 4


async def test_running_requests_are_counted_while_they_run(engine: FakeEngine) -> None:
    """The gateway places by this gauge."""
    streaming, looking = await engine.caller(), await engine.caller()
    streaming.send(
        "POST", "/v1/chat/completions", json.dumps({"stream": True, "max_tokens": 10_000}).encode()
    )
    await streaming.head()
    assert await looking.running() == 1
    streaming.writer.close()
    for _ in range(100):
        if not await looking.running():
            break
        await asyncio.sleep(0.01)
    assert await looking.running() == 0


async def test_a_delayed_answer_waits_and_is_counted(engine: FakeEngine) -> None:
    """Latency of the engine must be possible to set, or queues can't be seen at all."""
    waiting, looking = await engine.caller(), await engine.caller()
    assert (await looking.call("/bench/pace?interval_us=1000&delay_us=60000"))[0] == 200
    began_s = asyncio.get_running_loop().time()
    waiting.send("POST", "/v1/chat/completions", b"{}")
    assert await looking.running() == 1
    assert (await waiting.whole())[0] == 200
    assert asyncio.get_running_loop().time() - began_s > 0.05
    assert await looking.running() == 0


@pytest.mark.parametrize(
    "query",
    ["", "interval_us=0", "interval_us=x", "delay_us=5", "interval_us=5&events_per_write=0"],
)
async def test_a_pace_that_is_none_is_refused(engine: FakeEngine, query: str) -> None:
    """A typo in a load would silently be measured at some other rate."""
    assert (await (await engine.caller()).call(f"/bench/pace?{query}"))[0] == 400


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"max_tokens":"many"}'])
async def test_a_body_that_is_no_request_gets_400(engine: FakeEngine, body: bytes) -> None:
    """A gateway that damages bodies must show up as errors, not as fast answers."""
    caller = await engine.caller()
    caller.send("POST", "/v1/chat/completions", body)
    assert (await caller.whole())[0] == 400
    assert await caller.running() == 0


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models", 200),
        ("/health", 200),
        ("/ping", 200),
        ("/version", 200),
        ("/metrics", 200),
        ("/metrics?x=1", 200),
        ("/load", 404),
    ],
)
async def test_what_routers_probe_is_there(engine: FakeEngine, path: str, status: int) -> None:
    """A router that finds no model or health route never becomes ready."""
    caller = await engine.caller()
    caller.send("GET", path)
    assert (await caller.whole())[0] == status


async def test_an_unknown_route_is_404(engine: FakeEngine) -> None:
    """A gateway that asks for a route the engine lacks must not be answered as if it had it."""
    assert (await (await engine.caller()).call("/v1/embeddings"))[0] == 404


@pytest.mark.parametrize("noise", [b"\x16\x03\x01 tls?\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
async def test_bytes_that_are_not_http_end_the_connection(engine: FakeEngine, noise: bytes) -> None:
    """A hung connection would be read as a slow gateway."""
    caller = await engine.caller()
    caller.writer.write(noise)
    assert await asyncio.wait_for(caller.reader.read(), WAIT_S) == b""


async def test_pipelined_requests_end_the_connection(engine: FakeEngine) -> None:
    """One request at a time is all it can do; answers in a wrong order would be worse."""
    caller = await engine.caller()
    caller.send("POST", "/v1/chat/completions", b'{"stream":true,"max_tokens":1000}')
    await caller.head()
    caller.send("POST", "/v1/chat/completions", b"{}")
    rest = await asyncio.wait_for(caller.reader.read(), WAIT_S)
    assert b"[DONE]" not in rest


async def test_a_body_without_end_ends_the_connection(engine: FakeEngine) -> None:
    """An unbounded buffer in the measuring side would be measured too."""
    caller = await engine.caller()
    caller.send("POST", "/v1/chat/completions", b" " * (BODY_BYTES_MAX + 1))
    assert await asyncio.wait_for(caller.reader.read(), WAIT_S) == b""


@pytest.mark.parametrize(
    ("due_ns", "expected_ns"), [(0, 2_000_000), (1, 4_000_000), (2_000_000, 4_000_000)]
)
def test_in_a_burst_all_streams_share_the_beat(due_ns: int, expected_ns: int) -> None:
    """Real engines send all streams' tokens at once: the worst case for jitter."""
    assert Pace(interval_us=2_000, is_burst=True).next_ns(due_ns) == expected_ns


def test_streams_that_start_together_are_set_apart() -> None:
    """Events of all streams at one instant are a load of bursts, whatever its rate."""
    pace = Pace(interval_us=10_000)
    engine = Engine(pace, cast("Ticker", None))
    seconds_ns = sorted(pace.second_ns(0, engine.next_phase()) for _ in range(100))
    gaps_ns = [later - sooner for sooner, later in pairwise(seconds_ns)]
    assert 5_000_000 <= seconds_ns[0] < seconds_ns[-1] < 15_000_000
    assert max(gaps_ns) < 300_000


def test_the_mean_of_all_phases_is_one_interval() -> None:
    """A shift on average would be another rate than the one that was asked for."""
    pace = Pace(interval_us=10_000)
    engine = Engine(pace, cast("Ticker", None))
    mean_ns = sum(pace.second_ns(0, engine.next_phase()) for _ in range(1_000)) / 1_000
    assert mean_ns == pytest.approx(10_000_000, rel=0.01)


def test_a_pace_without_sense_is_a_mistake() -> None:
    """An interval of zero would be an endless turn of the loop."""
    with pytest.raises(AssertionError):
        Pace(interval_us=0)
    with pytest.raises(AssertionError):
        Pace(delay_us=-1)
    with pytest.raises(AssertionError):
        Pace(events_per_write=0)
