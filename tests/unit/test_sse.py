"""What the meters make of single streams: counts, instants, errors, and what is not held."""

import pytest

from gateway.core.messages import Usage
from gateway.upstream.sse import (
    PARTIAL_EVENT_BYTES_MAX,
    RESPONSE_TAIL_BYTES,
    TAIL_BYTES,
    Events,
    PlainMeter,
    StreamMeter,
)

EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"no"}}\n\n'


class Clock:
    """Moved by the test."""

    def __init__(self) -> None:
        self.now = 10.0

    def __call__(self) -> float:
        return self.now


def metered(*chunks: bytes) -> StreamMeter:
    """A meter that was fed these."""
    meter = StreamMeter(Clock(), lambda: None)
    for chunk in chunks:
        meter.feed(chunk)
    return meter


@pytest.mark.parametrize(
    ("stream", "events", "is_done", "error"),
    [
        (b"", 0, False, None),
        (b": keep-alive\n\n", 0, False, None),
        (EVENT * 3, 3, False, None),
        (EVENT + DONE, 1, True, None),
        (DONE + b": keep-alive\n\n", 0, True, None),
        (b"event: end\n" + DONE + b"event: late\nid: 3\n\n", 0, True, None),
        (EVENT + ERROR + DONE, 1, True, b'{"error":{"message":"no"}}'),
        (ERROR + ERROR.replace(b"no", b"later"), 0, False, b'{"error":{"message":"later"}}'),
        (b'event: error\ndata: {"type": "error", "error": {}}\n\n', 0, False,
         b'{"type": "error", "error": {}}'),
        (b'data: {"choices":[{"delta":{"content":"error"}}]}\n\n', 1, False, None),
        (b'data: {"choices":[],"error":null}\n\n', 1, False, None),
        (b'data: {"error":null,"choices":[]}\n\n', 1, False, None),
        (b'data: {"error":"Unauthorized"}\n\n', 0, False, b'{"error":"Unauthorized"}'),
        (b'data: {"text":"x"}\n\n', 1, False, None),
        (b'data: {"choices":[{"delta":{"content":"[DONE]"}}]}\n\n', 1, False, None),
        (b"data: {\ndata: }\n\n", 1, False, None),
        (b"database: 1\n\ndat: 2\n\n", 0, False, None),
        (b": data: 1\n\n", 0, False, None),
        (b"\n\n\n" + EVENT + b"\n\n" + EVENT, 2, False, None),
        (EVENT + b'data: {"half', 1, False, None),
    ],
)  # fmt: skip
def test_events_ends_and_errors_are_told_apart(
    stream: bytes, events: int, is_done: bool, error: bytes | None
) -> None:
    """Each is something else to the bill, to the client and to the breaker."""
    for size in (1, 5, len(stream) or 1):
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        meter = metered(*pieces)
        assert (meter.events, meter.is_done, meter.error_event) == (events, is_done, error)


def test_instants_are_those_of_data_and_not_of_comments() -> None:
    """A frozen engine that sends keep-alives must not look alive."""
    clock = Clock()
    begun: list[float] = []
    meter = StreamMeter(clock, lambda: begun.append(clock.now))
    for instant, chunk in [
        (11.0, b": keep-alive\n\n"), (12.0, EVENT[:9]), (13.0, EVENT[9:]), (14.0, EVENT + EVENT),
        (15.0, b": keep-alive\n\n"), (16.0, DONE),
    ]:  # fmt: skip
        clock.now = instant
        meter.feed(chunk)
    assert (meter.first_at, meter.last_at, begun) == (13.0, 14.0, [13.0])
    assert meter.tpot_s == 0.5


def test_time_per_token_goes_by_the_engines_count() -> None:
    """An engine may send several tokens in one event."""
    clock = Clock()
    meter = StreamMeter(clock, lambda: None)
    meter.feed(EVENT)
    assert meter.tpot_s is None, "one token has no pace"
    clock.now += 4.0
    meter.feed(USAGE)
    assert meter.usage == Usage(prompt_tokens=7, output_tokens=9)
    assert meter.tpot_s == 0.5


def test_the_last_usage_counts() -> None:
    """With continuous usage each chunk has one, growing."""
    meter = metered(USAGE, USAGE.replace(b":9", b":10") + USAGE.replace(b":9", b":11"), EVENT, DONE)
    assert meter.usage == Usage(prompt_tokens=7, output_tokens=11)
    assert metered(EVENT, DONE).usage is None


def test_an_endless_event_is_not_held() -> None:
    """One event of a gigabyte would take the gateway down; the relay passes it on all the same."""
    meter = StreamMeter(Clock(), lambda: None)
    piece = b"x" * (64 << 10)
    meter.feed(b"data: ")
    for _ in range(4 * PARTIAL_EVENT_BYTES_MAX // len(piece)):
        meter.feed(piece)
        assert len(meter._partial) <= PARTIAL_EVENT_BYTES_MAX
    meter.feed(b"\n\n" + EVENT + DONE)
    assert meter.is_done


@pytest.mark.parametrize("kind", list(Events))
def test_an_endless_event_of_any_kind_is_let_go(kind: Events) -> None:
    """Nor may the next event be lost because of it."""
    meter = StreamMeter(Clock(), lambda: None, kind)
    meter.feed(b"event: x\ndata: " + b"x" * PARTIAL_EVENT_BYTES_MAX)
    assert meter._partial == b""
    meter.feed(b"\n\n")
    meter.feed(EVENT[:20])
    assert meter._partial == EVENT[:20]


def test_a_plain_answer_holds_no_more_than_its_tail() -> None:
    """Embeddings have megabytes; the usage stands at their end."""
    clock = Clock()
    meter = PlainMeter(clock)
    for _ in range(100):
        meter.feed(b'"0123456789",' * 1000)
        assert len(meter._tail) <= TAIL_BYTES
        clock.now += 1.0
    meter.feed(b'],"usage":{"prompt_tokens":8,"total_tokens":8}}')
    assert meter.usage == Usage(prompt_tokens=8)
    assert (meter.first_at, meter.last_at) == (10.0, 110.0)
    assert meter.size == 100 * 13_000 + 47


def test_tools_of_the_client_do_not_pose_as_usage() -> None:
    """SGLang repeats them after the usage; a schema may say what it likes."""
    tools = b'"tools":[{"parameters":{"usage":{"input_tokens":0,"output_tokens":1}}}]'
    padding = b'"instructions":"%b"' % (b"x" * TAIL_BYTES)
    body = b'{"usage":{"input_tokens":7,"output_tokens":9},%b,%b}' % (tools, padding)
    meter = PlainMeter(Clock(), tail_bytes=RESPONSE_TAIL_BYTES)
    meter.feed(body)
    assert meter.usage == Usage(prompt_tokens=7, output_tokens=9)
