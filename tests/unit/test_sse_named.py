"""What the meter makes of streams of named events: Responses, and Anthropic's Messages."""

import pytest

from gateway.core.messages import Usage
from gateway.upstream.sse import Events, StreamMeter
from tests.support.shared import shared_path
from tests.support.sse_reference import read
from tests.unit.test_sse import Clock

CREATED = b'event: response.created\ndata: {"response":{"id":"resp_1","usage":null}}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"delta":"x"}\n\n'
COMPLETED = (
    b'event: response.completed\ndata: {"response":{"id":"resp_1","tools":[{"usage":{}}],"usage":'
    b'{"input_tokens":7,"input_tokens_details":{"cached_tokens":2},"output_tokens":9}}}\n\n'
)
FAILED = (
    b'event: response.failed\ndata: {"response":{"id":"resp_1","error":{"message":"no"},'
    b'"tools":[{"usage":{"output_tokens":0}}],"usage":null}}\n\n'
)
START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
    b'{"input_tokens":7,"output_tokens":0,"cache_read_input_tokens":3}}}\n\n'
)
BLOCK = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{}}\n\n'
TOTAL = b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":5}}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
DONE = b"data: [DONE]\n\n"
SIZES = (1, 5, 1 << 20)


def metered(stream: bytes, kind: Events, size: int = 1 << 20) -> StreamMeter:
    """A meter that was fed `stream` in pieces of `size`."""
    meter = StreamMeter(Clock(), lambda: None, kind)
    for start in range(0, len(stream), size):
        meter.feed(stream[start : start + size])
    return meter


@pytest.mark.parametrize("size", SIZES)
def test_a_response_ends_with_its_last_event_and_tells_its_usage(size: int) -> None:
    """Its engine sends no `[DONE]`; one that follows changes nothing."""
    meter = metered(CREATED + DELTA * 3 + COMPLETED + DONE, Events.RESPONSE, size)
    assert (meter.events, meter.is_done, meter.error_event) == (3, True, None)
    assert meter.usage == Usage(prompt_tokens=7, output_tokens=9, cached_tokens=2)
    assert meter.ident == b"resp_1"


@pytest.mark.parametrize("end", [b"completed", b"incomplete", b"cancelled"])
def test_a_response_has_several_ends(end: bytes) -> None:
    """An answer that was cut by its maximum is no broken stream."""
    stream = CREATED + DELTA + COMPLETED.replace(b"completed", end, 1)
    assert metered(stream, Events.RESPONSE).is_done


@pytest.mark.parametrize("size", SIZES)
def test_a_failed_response_is_an_error_and_an_end(size: int) -> None:
    """The breaker hears of it, and a tool's schema is not its usage."""
    meter = metered(CREATED + DELTA + FAILED, Events.RESPONSE, size)
    assert meter.is_done
    assert meter.error_event is not None
    assert b'"message":"no"' in meter.error_event
    assert (meter.events, meter.usage) == (1, None)


def test_done_alone_does_not_end_a_response() -> None:
    """Its clients wait for `response.completed`; they would take the rest for a success."""
    assert not metered(CREATED + DELTA + DONE, Events.RESPONSE).is_done
    assert not metered(START + BLOCK + DONE, Events.MESSAGE).is_done


@pytest.mark.parametrize("kind", [Events.RESPONSE, Events.MESSAGE])
@pytest.mark.parametrize(
    "stream",
    [
        b'event: error\ndata: {"type":"error","error":{"message":"no"}}\n\n',
        b'data: {"type":"error","message":"no"}\n\n',
        b'data: {"error":{"message":"no"}}\n\n',
        b'event: error\ndata: {"message":"no"}\n\n',
    ],
)
def test_an_error_is_seen_whatever_its_shape(kind: Events, stream: bytes) -> None:
    """One that is missed is charged as a success."""
    meter = metered(stream, kind)
    assert meter.error_event is not None
    assert (meter.events, meter.is_done) == (0, False)


def test_a_message_adds_its_usage_up_from_two_events() -> None:
    """The prompt is told at the start, the output at the end; what was cached belongs to both."""
    meter = metered(START + PING + BLOCK + BLOCK + TOTAL + STOP, Events.MESSAGE)
    assert (meter.events, meter.is_done) == (2, True)
    assert meter.usage == Usage(prompt_tokens=10, output_tokens=5, cached_tokens=3)


def test_a_message_that_is_left_early_is_charged_for_its_output() -> None:
    """Its start says zero output tokens; leaving before the end must not be free."""
    meter = metered(START + BLOCK * 4, Events.MESSAGE)
    assert meter.usage == Usage(prompt_tokens=10, output_tokens=4, cached_tokens=3)


@pytest.mark.parametrize(
    ("kind", "start", "output", "between"),
    [
        (Events.RESPONSE, CREATED, DELTA, DELTA.replace(b".delta\n", b".done\n")),
        (Events.MESSAGE, START, BLOCK, BLOCK.replace(b"_delta\n", b"_stop\n")),
    ],
)
def test_output_begins_with_the_first_delta(
    kind: Events, start: bytes, output: bytes, between: bytes
) -> None:
    """Engines announce a response while it still waits for its turn, and ping meanwhile."""
    clock = Clock()
    begun: list[float] = []
    meter = StreamMeter(clock, lambda: begun.append(clock.now), kind)
    for instant, chunk in [
        (11.0, start), (12.0, PING), (13.0, output), (14.0, output + output), (15.0, between),
        (16.0, PING), (17.0, b": keep-alive\n\n"), (18.0, DONE),
    ]:  # fmt: skip
        clock.now = instant
        meter.feed(chunk)
    assert (begun, meter.first_at, meter.last_at, meter.events) == ([13.0], 13.0, 15.0, 3)


def test_events_without_names_are_known_by_their_type() -> None:
    """OpenAI's own clients look at nothing else."""
    stream = (
        b'data: {"type":"response.created","response":{"id":"resp_2"}}\n\n'
        b'data: {"delta":"x","type":"response.output_text.delta"}\n\n'
        b'data: {"type":"response.completed","response":{"usage":{"output_tokens":1}}}\n\n'
    )
    meter = metered(stream, Events.RESPONSE)
    assert (meter.events, meter.is_done, meter.ident) == (1, True, b"resp_2")
    assert meter.usage == Usage(output_tokens=1)


def test_other_fields_and_lines_of_data_make_no_events_of_their_own() -> None:
    """The quick count must not take two lines of one event for two events."""
    two_in_one = DELTA[:-1] + DELTA
    for stream in (two_in_one + b"event: x\n\n", b": hi\n\n" + two_in_one, b"id: 7\n" + DELTA):
        assert metered(DELTA + stream, Events.RESPONSE).events == 2
        assert metered(stream + DELTA, Events.RESPONSE).events == 2


@pytest.mark.parametrize(
    "response", [b'{"id":"resp_1"}', b'{"metadata":{"id":"resp_9"},"id":"resp_1"}']
)
def test_the_id_is_the_response_s_own_and_read_once(response: bytes) -> None:
    """Who could slip in another one would be given somebody else's answer."""
    first = b'event: response.created\ndata: {"response":%b}\n\n' % response
    meter = metered(first + CREATED.replace(b"resp_1", b"resp_2") + DELTA, Events.RESPONSE)
    assert meter.ident == b"resp_1"


@pytest.mark.parametrize(
    "response", [b"null", b"[]", b"7", b'{"id":7}', b'{"id":""}', b'{"id":"%b"}' % (b"x" * 300)]
)
def test_what_is_no_id_is_none(response: bytes) -> None:
    """The engine may be anything; the table of ids has room for ids only."""
    for name in (b"created", b"completed"):
        stream = b'event: response.%b\ndata: {"response":%b}\n\n' % (name, response)
        assert metered(stream, Events.RESPONSE).ident is None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("recording", "kind", "events", "usage"),
    [
        ("responses_stream.http", Events.RESPONSE, 2, Usage(prompt_tokens=16, output_tokens=4)),
        ("messages_stream.http", Events.MESSAGE, 3, Usage(prompt_tokens=23, output_tokens=4)),
        ("chat_stream_usage.http", Events.CHUNKS, 8, Usage(prompt_tokens=23, output_tokens=6)),
        ("chat_stream_usage_cont.http", Events.CHUNKS, 8, Usage(prompt_tokens=23, output_tokens=6)),
        ("chat_stream.http", Events.CHUNKS, 7, None),
        ("completion_stream.http", Events.CHUNKS, 7, Usage(prompt_tokens=4, output_tokens=6)),
    ],
)
def test_recordings_of_a_real_engine_are_read(
    recording: str, kind: Events, events: int, usage: Usage | None, size: int
) -> None:
    """vLLM 0.32.0, byte for byte."""
    _, stream = shared_path("fixtures", "http", recording).read_bytes().split(b"\r\n\r\n", 1)
    meter = metered(stream, kind, size)
    assert (meter.events, meter.is_done, meter.error_event) == (events, True, None)
    assert meter.usage == usage == read(stream, kind).usage
    assert (meter.ident == b"resp_993de1e4c44f976f") == (kind is Events.RESPONSE)
