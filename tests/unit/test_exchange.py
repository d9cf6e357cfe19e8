"""One exchange with an engine that says what the test tells it: stalls, ends, and departures."""

import asyncio
from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gateway.api.auth import Asked
from gateway.api.disconnect import ClientStalledError
from gateway.api.exchange import Exchange, RetryElsewhereError
from gateway.api.life import Life
from gateway.api.reply import Reply
from gateway.api.routes import CHAT, MESSAGES, RESPONSES, Route
from gateway.api.shapes import shape_of
from gateway.api.stored import Places
from gateway.api.surroundings import Surroundings
from gateway.api.wire import parse
from gateway.core.messages import Fault, Outcome, Usage
from gateway.errors import GatewayError, UpstreamFailedError, UpstreamTimeoutError
from gateway.upstream.connection import Answer, Connection
from gateway.upstream.fleet import Fleet
from gateway.upstream.takers import Heard, Meter
from tests.support.raw_engine import chunked
from tests.support.sockets import Socket

TOKEN = b'data: {"id":"1","choices":[{"delta":{"content":"x"}}]}\n\n'
FINISH = b'data: {"id":"1","choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
CREATED = (
    b'event: response.created\ndata: {"response":{"id":"resp_1"},"type":"response.created"}\n\n'
)
KEEP_ALIVE = b": keep-alive\n\n"


class Engine:
    """An engine's client with one connection, at the other end of which is the test."""

    def __init__(self) -> None:
        self.socket = Socket()
        self.connection = Connection(
            buffer_bytes_max=1 << 20, on_idle=lambda *_: None, heard=Heard(), clock=lambda: 0.0
        )
        self.connection.connection_made(self.socket)

    def client(self, name: str) -> "Engine":
        """As `Fleet.client`."""
        return self

    def engine_priority(self, name: str, tier: int, tiers: int) -> None:
        """As `Fleet.engine_priority`."""

    async def send(self, path: bytes, body: object, *, headers: bytes, meter: Meter) -> Answer:
        """As `EngineClient.send`: returns with the headers."""
        answer = self.connection.begin(b"POST", meter)
        try:
            await answer.head()
        except BaseException:
            answer.close()
            raise
        return answer

    def begins(self, status: bytes = b"200 OK", kind: bytes = b"text/event-stream") -> None:
        """It sends its headers."""
        head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
        self.connection.data_received(head % (status, kind))

    def says(self, *pieces: bytes) -> None:
        """It sends these."""
        for piece in pieces:
            self.connection.data_received(chunked(piece))

    def ends(self) -> None:
        """The body is complete."""
        self.connection.data_received(b"0\r\n\r\n")


@dataclass
class Ticket:
    """A grant that remembers how it ended."""

    replica: str = "gpu0"
    waited_s: float = 0.0
    position: int = 0
    ends: list[tuple[Outcome, Usage | None]] = field(default_factory=list)
    faults: list[Fault | None] = field(default_factory=list)
    bounces: int = 0

    def recallable(self, task: object = None) -> AbstractContextManager[None]:
        """Nobody recalls it."""
        return nullcontext()

    async def give_back(self) -> None:
        """Nobody recalled it."""
        raise AssertionError

    def first_token(self) -> None:
        """The engine began."""

    def movable(self, end: Callable[[], bool] | None) -> None:
        """Nobody moves it."""

    def finish(
        self,
        outcome: Outcome,
        usage: Usage | None = None,
        tpot_s: float | None = None,
        fault: Fault | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        """Only the first end counts, as in the product."""
        self.ends.append((outcome, usage))
        self.faults.append(fault)

    async def bounce(self) -> None:
        """Back in the queue, for ever."""
        self.bounces += 1
        await asyncio.Event().wait()


class Bench:
    """One exchange under test, and everything around it."""

    def __init__(self, life: Life) -> None:
        self.now = 100.0
        self.engine, self.ticket = Engine(), Ticket()
        self.written: list[bytes] = []
        self.statuses: list[int] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        shape = shape_of(life.route)
        around = Surroundings(
            cast(Fleet, self.engine), cast(Any, None), 1, lambda: self.now, Places()
        )
        reply = self.reply = Reply(self._send, b"id", shape)
        reply.streams = life.call is not None and life.call.streams
        self.exchange = Exchange(life, reply, self.ticket, around)
        self.task: asyncio.Task[None] = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.exchange.run()
        finally:
            task = asyncio.current_task()
            assert task is not None
            self.cancelling = task.cancelling()

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self.may_write.wait()
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])
        else:
            self.written.append(message["body"])

    async def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def give_up(self) -> GatewayError:
        """The watch finds it stalled; what comes of it."""
        self.exchange.give_up(self.task)
        with pytest.raises((GatewayError, RetryElsewhereError)) as caught:
            await self.task
        assert self.cancelling == 0, "it would strike whatever comes next in the same task"
        if isinstance(caught.value, RetryElsewhereError):
            assert caught.value.replica == "gpu0"
            return caught.value.error
        assert isinstance(caught.value, GatewayError)
        return caught.value


async def begun(
    route: Route = CHAT, *, streams: bool = True, model: str = "m", wants_usage: bool = True
) -> Bench:
    """An exchange whose request was just sent."""
    life = Life(request_id="abc", route=route, began_at=99.0)
    flag = b"true" if streams else b"false"
    options = b""
    if route is CHAT and wants_usage:
        options = b',"stream_options":{"include_usage":true}'
    body = b'{"model":"%b","stream":%b%b}' % (model.encode(), flag, options)
    life.call = await parse(route, body, 8)
    life.model = "m"
    life.asked = Asked("acme", "alice", 0, None)
    life.next_request(frozenset())
    bench = Bench(life)
    await bench.settle()
    return bench


async def test_a_stall_before_the_headers_sends_the_request_elsewhere() -> None:
    """Nothing had reached the client: another engine may still answer."""
    bench = await begun()
    assert isinstance(await bench.give_up(), UpstreamTimeoutError)
    assert bench.ticket.ends == [(Outcome.FAILED, None)]
    assert bench.engine.socket.is_ended
    assert bench.statuses == []


async def test_a_stall_behind_keep_alives_is_one_before_it_began() -> None:
    """vLLM sends its 200 and its comments while its core is frozen."""
    bench = await begun()
    bench.engine.begins()
    bench.engine.says(KEEP_ALIVE, KEEP_ALIVE)
    await bench.settle()
    assert (bench.exchange.silent_since, bench.exchange.has_begun) == (100.0, False)
    assert isinstance(await bench.give_up(), UpstreamTimeoutError)
    assert bench.ticket.ends == [(Outcome.FAILED, None)]
    assert bench.statuses == []


async def test_a_stall_in_the_middle_is_told_to_the_client_and_charged() -> None:
    """What was passed on cannot be taken back, and a second engine would repeat it."""
    bench = await begun()
    bench.engine.begins()
    bench.engine.says(TOKEN, TOKEN)
    await bench.settle()
    assert isinstance(await bench.give_up(), UpstreamTimeoutError)
    assert bench.ticket.ends[0] == (Outcome.FAILED, Usage(output_tokens=2))
    assert b"".join(bench.written) == TOKEN + TOKEN
    assert bench.engine.socket.is_ended


async def test_a_stalled_plain_answer_is_tried_elsewhere() -> None:
    """Half of it may be here; none of it was passed on."""
    bench = await begun(streams=False)
    bench.engine.begins(kind=b"application/json")
    bench.engine.says(b'{"half":')
    await bench.settle()
    assert isinstance(await bench.give_up(), UpstreamTimeoutError)
    assert bench.ticket.ends == [(Outcome.FAILED, None)]
    assert bench.statuses == []


@pytest.mark.parametrize("leaves_first", [True, False])
@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_client_that_leaves_a_stalled_engine_has_left(
    leaves_first: bool, has_begun: bool
) -> None:
    """Taken for the stall alone, the request would be sent to another engine for nobody."""
    bench = await begun()
    if has_begun:
        bench.engine.begins()
        bench.engine.says(TOKEN)
        await bench.settle()
    if leaves_first:
        bench.task.cancel()
    bench.exchange.give_up(bench.task)
    if not leaves_first:
        bench.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench.task
    assert bench.cancelling == 1, "whoever made it takes it back"


async def test_silence_after_a_slow_read_counts_from_the_end_of_it() -> None:
    """What the engine said meanwhile is just on its way, and may take a turn of the loop."""
    bench = await begun()
    bench.engine.begins()
    bench.engine.says(TOKEN)
    await bench.settle()
    bench.may_write.clear()
    bench.engine.says(TOKEN)
    await bench.settle()
    bench.now = 160.0
    bench.exchange.look_at_client(bench.now)
    assert bench.exchange.silent_since is None
    bench.may_write.set()
    await bench.settle()
    assert bench.exchange.silent_since == 160.0
    bench.now = 161.0
    bench.engine.says(TOKEN)
    await bench.settle()
    assert bench.exchange.silent_since == 161.0
    bench.exchange.give_up(bench.task, Fault.STUCK)
    assert bench.exchange.silent_since is None, "once is enough"
    await asyncio.wait([bench.task])
    assert bench.ticket.faults[0] is Fault.STUCK


async def test_silence_counts_from_the_last_output_and_not_while_the_client_is_slow() -> None:
    """A reader that pauses is no fault of the engine's."""
    bench = await begun()
    assert (bench.exchange.silent_since, bench.exchange.has_begun) == (100.0, False)
    bench.engine.begins()
    bench.now = 103.0
    bench.engine.says(TOKEN)
    await bench.settle()
    assert (bench.exchange.silent_since, bench.exchange.has_begun) == (103.0, True)
    bench.may_write.clear()
    bench.now = 104.0
    bench.engine.says(TOKEN)
    await bench.settle()
    assert (bench.exchange.silent_since, bench.exchange.writing_since) == (None, 104.0)
    bench.may_write.set()
    await bench.settle()
    assert (bench.exchange.silent_since, bench.exchange.writing_since) == (104.0, None)
    bench.task.cancel()


async def test_a_client_that_takes_all_but_the_end_can_be_cut_off() -> None:
    """It would hold what is left of the answer for as long as it likes."""
    bench = await begun()
    bench.engine.begins()
    bench.engine.says(TOKEN)
    await bench.settle()
    bench.may_write.clear()
    bench.now = 105.0
    bench.engine.says(DONE)
    bench.engine.ends()
    await bench.settle()
    assert bench.ticket.ends == [(Outcome.DONE, Usage(output_tokens=1))], "its slot is free"
    assert bench.exchange.writing_since == 105.0
    bench.may_write.set()
    await bench.task


async def test_a_reader_that_stops_while_its_stream_is_given_up_can_still_be_cut_off() -> None:
    """What a rewriter holds back is written first, and that may never end."""
    bench = await begun(wants_usage=False)
    bench.engine.begins()
    bench.engine.says(TOKEN)
    await bench.settle()
    bench.engine.says(FINISH)
    await bench.settle()
    bench.may_write.clear()
    bench.now = 120.0
    bench.exchange.give_up(bench.task)
    await bench.settle()
    assert not bench.task.done()
    assert bench.exchange.writing_since == 120.0
    bench.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench.task


@pytest.mark.parametrize("said", [(), (KEEP_ALIVE,), (CREATED,)])
async def test_a_stream_that_ends_before_it_began_is_tried_elsewhere(
    said: tuple[bytes, ...],
) -> None:
    """A 200 that is followed by nothing is a failure which only the gateway can still mend."""
    bench = await begun(RESPONSES if said == (CREATED,) else CHAT)
    bench.engine.begins()
    bench.engine.says(*said)
    bench.engine.ends()
    with pytest.raises(RetryElsewhereError) as caught:
        await bench.task
    assert isinstance(caught.value.error, UpstreamFailedError)
    assert bench.ticket.ends == [(Outcome.FAILED, None)]
    assert bench.statuses == []


async def test_a_stream_that_says_nothing_and_ends_well_is_an_answer() -> None:
    """A model may have nothing to say."""
    bench = await begun(MESSAGES)
    bench.engine.begins()
    bench.engine.says(STOP)
    bench.engine.ends()
    await bench.task
    assert b"".join(bench.written) == STOP
    assert bench.ticket.ends == [(Outcome.DONE, Usage(output_tokens=0))]


async def test_a_stream_without_its_end_is_no_success() -> None:
    """Its client would take it for one."""
    bench = await begun(MESSAGES)
    bench.engine.begins()
    bench.engine.says(DELTA)
    bench.engine.ends()
    with pytest.raises(UpstreamFailedError):
        await bench.task
    assert bench.ticket.ends == [(Outcome.FAILED, Usage(output_tokens=1))]
    assert not bench.reply.is_finished, "the error event is still to come"


async def test_a_busy_engine_is_left_and_the_request_waits() -> None:
    """Nothing is silent meanwhile: nobody was asked."""
    bench = await begun()
    bench.engine.begins(b"503 Service Unavailable")
    bench.engine.says(b'{"error":{"message":"The engine is currently busy"}}')
    bench.engine.ends()
    await bench.settle()
    assert bench.ticket.bounces == 1
    assert bench.ticket.ends == []
    bench.task.cancel()


class SlowClient:
    """A client's side of the connection, of which so many bytes are not taken yet."""

    def __init__(self) -> None:
        self.left = 0
        self.is_aborted = False
        self._taken = asyncio.Event()

    def answer(self, status: int, headers: object, body: bytes) -> bool:
        """Never whole."""
        return False

    def push(self, data: bytes, framed: bytes = b"") -> bool:
        """Taken, and too much."""
        self.left += len(data)
        return False

    async def drained(self) -> None:
        """Never."""
        await self._taken.wait()

    def unsent(self) -> int:
        """What it has not taken."""
        return self.left

    def abort(self) -> None:
        """The end."""
        self.is_aborted = True


async def slowly_read() -> tuple[Bench, SlowClient]:
    """A stream whose client stopped taking it at instant 105."""
    bench, slow = await begun(), SlowClient()
    bench.reply.direct = slow
    bench.engine.begins()
    bench.engine.says(TOKEN)
    await bench.settle()
    bench.now = 105.0
    bench.engine.says(TOKEN)
    await bench.settle()
    assert bench.exchange.writing_since == 105.0
    return bench, slow


async def test_a_client_that_takes_a_little_now_and_then_is_not_stalled() -> None:
    """A kernel takes megabytes before it asks for more: that is minutes of slow reading."""
    bench, slow = await slowly_read()
    bench.exchange.look_at_client(120.0)
    assert bench.exchange.writing_since == 105.0, "nothing to compare with yet"
    slow.left -= 1
    bench.exchange.look_at_client(130.0)
    assert bench.exchange.writing_since == 130.0
    bench.exchange.look_at_client(140.0)
    assert bench.exchange.writing_since == 130.0
    bench.exchange.cut_off(bench.task)
    with pytest.raises(ClientStalledError):
        await bench.task


async def test_a_client_that_is_cut_off_pays_for_what_was_made() -> None:
    """And its request ends as that, not as an error inside the server."""
    bench, _ = await slowly_read()
    bench.exchange.cut_off(bench.task)
    with pytest.raises(ClientStalledError):
        await bench.task
    assert bench.cancelling == 0
    assert bench.ticket.ends == [(Outcome.CANCELLED, Usage(output_tokens=2))]


async def test_a_cut_while_the_engine_is_given_up_is_one_end() -> None:
    """Two of our own cancellations must not look like one from elsewhere."""
    bench, _ = await slowly_read()
    bench.exchange.give_up(bench.task)
    bench.exchange.cut_off(bench.task)
    with pytest.raises(ClientStalledError):
        await bench.task
    assert bench.cancelling == 0


@pytest.mark.parametrize(
    ("first", "is_error"),
    [(b'data: {"choices":["', False), (b'data: {"error":{"message":"', True)],
)
async def test_a_first_event_of_megabytes_is_not_gathered(first: bytes, is_error: bool) -> None:
    """An error of 114 MB would be held four times over; an answer that long is passed on."""
    bench = await begun()
    bench.engine.begins()
    bench.engine.says(first + b"x" * (600 << 10))
    await bench.settle()
    assert not bench.written
    bench.engine.says(b"x" * (600 << 10))
    await bench.settle()
    if is_error:
        with pytest.raises(RetryElsewhereError):
            await bench.task
        return
    assert sum(map(len, bench.written)) > 1 << 20
    bench.task.cancel()
    await asyncio.wait([bench.task])
