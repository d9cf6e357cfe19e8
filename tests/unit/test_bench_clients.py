"""One client of the load generator, against scripted answers."""

import asyncio
from typing import Any, cast

import pytest

from gateway.bench.arrivals import ClosedLoop
from gateway.bench.clients import HEAD_BYTES_MAX, Client, Framing
from gateway.bench.load_spec import LoadSpec
from gateway.bench.replies import DONE, LAST_CHUNK, STREAM_HEAD, chat_shape, chunk, plain
from gateway.bench.tally import ERROR_KINDS_MAX, Tally


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

    def __init__(self, *, stream: bool = False, events: int = 1, is_checked: bool = False) -> None:
        self.tally = Tally()
        self.tally.is_recording = True
        self.transport = FakeTransport()
        self.client = Client(
            LoadSpec(port=1, stream=stream, events=events),
            self.tally,
            ClosedLoop(),
            request=b"REQUEST",
            framing=Framing() if is_checked else None,
        )
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
    assert talk.tally.events == 3
    assert len(talk.tally.ttft_ns) == 1
    assert len(talk.tally.latency_ns) == 1
    assert not talk.tally.error_kinds


@pytest.mark.parametrize("size", [7, 64, 220, 237, 1_000])
async def test_reads_of_any_size_count_every_event(size: int) -> None:
    """A stamp that two reads share must be counted once, and its event not be missed."""
    talk = Talk(stream=True, events=20, is_checked=True)
    whole = whole_stream(events=20)
    talk.answer(*(whole[at : at + size] for at in range(0, len(whole), size)))
    assert talk.tally.events == 20
    assert len(talk.tally.chunk_delay_ns) <= 20
    assert len(talk.tally.latency_ns) == 1
    assert not talk.tally.error_kinds


async def test_several_events_in_one_read_are_all_counted() -> None:
    """A gateway may put into one write what arrived in one turn; the events are delivered."""
    talk = Talk(stream=True, events=40)
    talk.answer(whole_stream(events=40))
    assert talk.tally.events == 40
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


async def test_a_plain_answer_may_come_in_chunks() -> None:
    """Some gateways do not keep the length; their answer ends all the same."""
    talk = Talk(is_checked=True)
    head, _, body = plain('{"id":"x"}').partition(b"\r\n\r\n")
    length = head.index(b"content-length")
    end = head.index(b"\r\n", length)
    chunked = head[:length] + b"Transfer-Encoding: chunked" + head[end:] + b"\r\n\r\n"
    talk.answer(chunked + chunk(body), LAST_CHUNK)
    assert len(talk.tally.latency_ns) == 1
    assert not talk.tally.error_kinds


async def test_a_wrong_framing_is_an_error_for_a_client_that_checks() -> None:
    """A gateway that breaks chunk sizes breaks every real client, however fast it is."""
    talk = Talk(stream=True, is_checked=True)
    talk.answer(whole_stream(events=1).replace(b"dc\r\n", b"dd\r\n"))
    assert sum(talk.tally.error_kinds.values()) == 1
    assert not talk.tally.latency_ns


async def test_headers_may_be_written_in_any_case() -> None:
    """HTTP does not care, and peers differ."""
    talk = Talk()
    talk.answer(plain("{}").replace(b"content-length:", b"Content-Length:"))
    assert len(talk.tally.latency_ns) == 1


async def test_a_head_without_end_is_an_error() -> None:
    """Else one connection that never ends its head fills the memory of the measuring side."""
    talk = Talk()
    talk.answer(b"HTTP/1.1 200 OK\r\n" + b"x" * HEAD_BYTES_MAX)
    assert talk.tally.error_kinds == {"not http": 1}


async def test_a_request_is_timed_from_the_instant_it_was_due() -> None:
    """In an open loop the wait for a free connection is part of what a user waits."""
    talk = Talk()
    talk.answer(plain("{}"))
    talk.client.ask(0)
    talk.answer(plain("{}"))
    assert talk.tally.latency_ns[-1] > talk.tally.latency_ns[0]


async def test_a_closed_connection_takes_no_request() -> None:
    """A request that is given to it would be lost, and counted nowhere."""
    talk = Talk()
    talk.client.connection_lost(None)
    assert talk.client.ask(0) is False
