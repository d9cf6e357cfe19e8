"""The load generator: against scripted answers, and against the fake engine for a moment."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from gateway.bench.load import ERROR_KINDS_MAX, Client, Tally, run_load
from gateway.bench.load_spec import LoadSpec
from gateway.bench.replies import DONE, LAST_CHUNK, STREAM_HEAD, chat_shape, plain
from gateway.bench.upstream import Pace, start

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FakeTransport:
    """Keeps what is written; remembers whether it was cut."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.written.append(data)

    def abort(self) -> None:
        """Remember it."""
        self.is_aborted = True


class Talk:
    """One client, connected to a transport that answers what the test says."""

    def __init__(self, *, stream: bool = False, events: int = 1) -> None:
        self.tally = Tally()
        self.tally.is_recording = True
        self.transport = FakeTransport()
        self.client = Client(LoadSpec(port=1, stream=stream, events=events), b"REQUEST", self.tally)
        self.client.connection_made(cast("asyncio.Transport", cast("Any", self.transport)))

    def answer(self, *pieces: bytes) -> None:
        """Let bytes arrive."""
        for piece in pieces:
            self.client.data_received(piece)


def whole_stream(events: int) -> bytes:
    """All bytes of a stream."""
    shape = chat_shape()
    content = b"".join(shape.content(1) for _ in range(events))
    return shape.opening + content + shape.finish + DONE + LAST_CHUNK


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[int]:
    """A server with its own idea of HTTP; yields its port."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_complete_answer_is_timed_and_asks_for_the_next() -> None:
    """The closed loop is what keeps 32 requests in flight."""
    talk = Talk()
    talk.answer(plain("{}"))
    talk.answer(plain("{}"))
    assert talk.transport.written == [b"REQUEST"] * 3
    assert len(talk.tally.latency_ns) == 2
    assert talk.tally.in_flight == 1
    assert not talk.tally.error_kinds


async def test_an_answer_may_arrive_byte_by_byte() -> None:
    """TCP promises no borders: a stamp or an end that is cut in two must be found all the same."""
    talk = Talk(stream=True, events=3)
    talk.answer(*(bytes([byte]) for byte in whole_stream(events=3)))
    assert len(talk.tally.chunk_delay_ns) == 3
    assert len(talk.tally.latency_ns) == 1
    assert not talk.tally.error_kinds


async def test_several_events_in_one_read_are_all_counted() -> None:
    """A gateway may put into one write what arrived in one turn; the events are delivered."""
    talk = Talk(stream=True, events=40)
    talk.answer(whole_stream(events=40))
    assert len(talk.tally.chunk_delay_ns) == 40
    assert len(talk.tally.ttft_ns) == 1


async def test_the_first_token_is_the_first_stamp_not_the_headers() -> None:
    """A gateway that sends headers early would look faster than its tokens are."""
    talk = Talk(stream=True)
    talk.answer(STREAM_HEAD)
    assert not talk.tally.ttft_ns
    talk.answer(chat_shape().content(1))
    talk.answer(chat_shape().content(2))
    assert len(talk.tally.ttft_ns) == 1


async def test_a_stream_without_its_end_is_an_error() -> None:
    """A gateway that loses the last events would otherwise be praised for it."""
    talk = Talk(stream=True)
    talk.answer(STREAM_HEAD, chat_shape().content(1), LAST_CHUNK)
    assert talk.tally.error_kinds == {"no [DONE]": 1}
    assert talk.transport.is_aborted


@pytest.mark.parametrize("arrived", [0, 3, 5])
async def test_a_stream_with_another_number_of_events_is_an_error(arrived: int) -> None:
    """A refusal told within a stream of status 200 would count as the fastest stream of all."""
    talk = Talk(stream=True, events=4)
    talk.answer(whole_stream(events=arrived))
    assert talk.tally.error_kinds == {"events missing": 1}
    assert not talk.tally.latency_ns


@pytest.mark.parametrize("status", ["401 Unauthorized", "429 Too Many", "502 Bad Gateway"])
async def test_another_status_is_an_error_by_its_number(status: str) -> None:
    """Refusals are cheap: counted as answers they would lower the CPU per request."""
    talk = Talk()
    talk.answer(plain("{}", status=status))
    assert talk.tally.error_kinds == {f"status {status[:3]}": 1}
    assert not talk.tally.latency_ns


async def test_a_connection_lost_in_the_middle_is_an_error_once() -> None:
    """A crash of the gateway must not pass as an end of the run."""
    talk = Talk(stream=True)
    talk.answer(STREAM_HEAD, chat_shape().content(1))
    talk.client.connection_lost(None)
    assert talk.tally.error_kinds == {"connection lost": 1}
    assert talk.tally.in_flight == 0
    assert talk.client.closed.done()


async def test_bytes_that_are_not_http_are_an_error_once() -> None:
    """Garbage after garbage must not count the same request twice."""
    talk = Talk()
    talk.answer(b"\x00\x01\x02\r\n\r\n", b"\x00\x01\x02\r\n\r\n")
    talk.client.connection_lost(None)
    assert sum(talk.tally.error_kinds.values()) == 1
    assert talk.tally.in_flight == 0


async def test_a_server_that_closes_after_its_answer_is_no_error() -> None:
    """Some proxies end a connection after so many requests; that is HTTP, not a failure."""
    talk = Talk()
    talk.answer(plain("{}").replace(b"server:", b"connection: close\r\nserver:"))
    assert talk.transport.is_aborted
    talk.client.connection_lost(None)
    assert not talk.tally.error_kinds
    assert len(talk.tally.latency_ns) == 1


async def test_nothing_is_sent_once_the_run_is_over() -> None:
    """Requests after the window would be cut off, and show up as errors of the gateway."""
    talk = Talk()
    talk.tally.is_stopping = True
    talk.answer(plain("{}"))
    assert talk.transport.written == [b"REQUEST"]
    assert talk.transport.is_aborted


async def test_nothing_counts_outside_the_window() -> None:
    """The first requests pay for imports and connections, and are not what is asked about."""
    talk = Talk()
    talk.tally.is_recording = False
    talk.answer(plain("{}"), plain("{}", status="500 Oops"))
    assert not talk.tally.latency_ns
    assert not talk.tally.error_kinds


def test_kinds_of_errors_are_bounded() -> None:
    """A gateway that invents statuses must not fill the report."""
    tally = Tally()
    tally.is_recording = True
    for status in range(2 * ERROR_KINDS_MAX):
        tally.count_error(f"status {status}")
    assert len(tally.error_kinds) == ERROR_KINDS_MAX + 1
    assert sum(tally.error_kinds.values()) == 2 * ERROR_KINDS_MAX


async def test_load_and_engine_fit_together() -> None:
    """Every figure rests on these two: streams arrive whole, at the pace that was asked for."""
    server = await start(0, Pace())
    port = server.sockets[0].getsockname()[1]
    spec = LoadSpec(
        port=port,
        stream=True,
        connections=10,
        events=5,
        events_per_s=1_000,
        warm_s=0.1,
        window_s=0.3,
        watch=str(os.getpid()),
    )
    async with server:
        measured = await run_load(spec)
    assert measured.errors == 0
    assert measured.requests > 10
    # At most what the pace allows; a busy machine delivers less.
    assert 20 < measured.events < 1.5 * 300
    assert measured.ttft_us is not None
    assert measured.chunk_delay_us is not None
    assert 0 < measured.chunk_delay_us.p50 < 1e6
    own = measured.watched[str(os.getpid())]
    assert own.cpu_s > 0
    assert own.rss_bytes > 0


async def test_plain_requests_and_engine_fit_together() -> None:
    """The other half of the figures: requests in a closed loop."""
    server = await start(0, Pace())
    port = server.sockets[0].getsockname()[1]
    async with server:
        measured = await run_load(LoadSpec(port=port, connections=4, warm_s=0.05, window_s=0.2))
    assert measured.errors == 0
    assert measured.requests > 20
    assert measured.events == 0
    assert measured.open_connections == 4
    assert measured.latency_us is not None
    assert measured.latency_us.p50 <= measured.latency_us.p99


async def test_a_port_where_nobody_listens_is_an_error_for_each_try() -> None:
    """A gateway that is down must not be a run without any requests and without any errors."""
    server = await start(0, Pace())
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    measured = await run_load(LoadSpec(port=port, warm_s=0.0, window_s=0.1))
    assert measured.error_kinds.keys() == {"connect"}
    assert measured.requests == 0


async def test_a_server_that_hangs_up_is_tried_again_at_intervals() -> None:
    """A pause between tries: thousands of refused connections a second are no load worth a name."""
    seen: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with answering(hang_up) as port:
        measured = await run_load(LoadSpec(port=port, warm_s=0.0, window_s=0.2))
    assert measured.error_kinds.keys() == {"connection lost"}
    assert 1 < len(seen) <= 15


async def test_a_pace_can_only_be_set_at_a_fake_engine() -> None:
    """Aimed at a real engine by mistake, a paced load must not start."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(plain("{}", status="404 Not Found"))
        writer.close()

    async with answering(refuse) as port:
        with pytest.raises(OSError, match="no fake engine"):
            await run_load(LoadSpec(port=port, events_per_s=100.0, window_s=0.1))
