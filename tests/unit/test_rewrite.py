"""The few bytes that may differ: the alias and the tier used, in single stories."""

import json

import pytest

from gateway.api.rewrite import Rewrite
from gateway.api.whole import HELD_BYTES_MAX
from gateway.upstream.sse import Events
from tests.support.shared import shared_path
from tests.support.sse_reference import payloads_of

CHUNK = {"id": "1", "object": "chat.completion.chunk", "model": "real", "choices": [{"index": 0}]}


def both() -> Rewrite:
    """An alias was used and a tier was asked for."""
    return Rewrite(model="alias", service_tier="flex")


def event(value: object, end: str = "\n", space: str = " ") -> bytes:
    """One event."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f"data:{space}{text}{end}{end}".encode()


def through(rewrite: Rewrite, chunks: list[bytes]) -> bytes:
    """What leaves in the end."""
    return b"".join([*(rewrite.chunk(chunk) for chunk in chunks), rewrite.rest()])


def test_whole_events_leave_at_once() -> None:
    """A client that waits for its next token must not wait for the one after it."""
    rewrite = both()
    assert rewrite.chunk(event(CHUNK)[:-1]) == b""
    assert rewrite.chunk(b"\n" + event(CHUNK)[:5]).endswith(b"\n\n")
    assert rewrite.rest() == event(CHUNK)[:5]
    assert rewrite.rest() == b""


@pytest.mark.parametrize("content", ["service_tier", "model", '"service_tier": "x"'])
def test_text_that_names_a_field_is_not_taken_for_it(content: str) -> None:
    """A model may well speak about its own interface."""
    chunk = {**CHUNK, "choices": [{"delta": {"content": content}}]}
    (payload,) = payloads_of(through(both(), [event(chunk)]))
    assert json.loads(payload) == {**chunk, "model": "alias", "service_tier": "flex"}


def test_a_name_with_a_backslash_is_put_in_as_it_is() -> None:
    """In a replacement pattern it would be a group reference."""
    alias = 'org\\1/\\g<1> "quoted" 北京'
    (payload,) = payloads_of(through(Rewrite(model=alias, service_tier=None), [event(CHUNK)]))
    assert json.loads(payload) == {**CHUNK, "model": alias}
    assert json.loads(Rewrite(model=alias, service_tier=None).plain(b'{"model":"m"}')) == {
        "model": alias
    }


@pytest.mark.parametrize(
    "stream",
    [
        b'data: {"error":{"message":"no"}}\n\n',
        b"data: [DONE]\n\n",
        b"data: 7\n\n",
        b": queued position=1\n\n",
        b"event: ping\n\n",
        b"\n\n",
    ],
)
def test_what_is_no_chunk_passes_unchanged(stream: bytes) -> None:
    """Errors, comments and the end are not the model's."""
    assert through(both(), [stream]) == stream


def test_an_empty_object_stays_valid() -> None:
    """Some engines send one as their last event."""
    (payload,) = payloads_of(through(both(), [b"data: {}\n\n"]))
    assert json.loads(payload) == {"service_tier": "flex"}


def test_an_event_without_end_is_not_held_for_ever() -> None:
    """It passes unchanged rather than fill the memory."""
    rewrite = both()
    piece = b"x" * (64 << 10)
    held = 0
    left = b""
    while not left:
        left = rewrite.chunk(piece)
        held += len(piece)
        assert held <= HELD_BYTES_MAX + len(piece)
    assert left + rewrite.rest() == b"x" * held


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"real","usage":{"a":1}}',
         {"model": "alias", "usage": {"a": 1}, "service_tier": "flex"}),
        (b'{"service_tier":null,"model":"real"}', {"service_tier": "flex", "model": "alias"}),
        (b'{"data":[]}', {"data": [], "service_tier": "flex"}),
    ],
)  # fmt: skip
def test_a_plain_answer_gets_alias_and_tier(body: bytes, expected: object) -> None:
    """Half of the users want the alias back; OpenAI's answers say the tier."""
    assert json.loads(both().plain(body)) == expected


def test_a_plain_answer_keeps_every_other_byte() -> None:
    """Numbers, escapes and spaces are the engine's; a client may have signed or hashed them."""
    body = b' { "logprob": -1.0e-05, "model" : "real",\n "text": "\\u5317", "n": 1.50 } \n'
    changed = Rewrite(model="alias", service_tier=None).plain(body)
    assert changed == body.replace(b'"real"', b'"alias"')
    nested = b'{"metadata":{"model":"mine"},"model":"real"}'
    assert Rewrite(model="alias", service_tier=None).plain(nested) == (
        b'{"metadata":{"model":"mine"},"model":"alias"}'
    )
    assert Rewrite(model=None, service_tier=None, strips_usage=True).plain(body) == body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b'"text"',
        b"{half",
        b'{"model":"real"',
        b"\xff",
        b'{"model":"\xff"}',
        b'{"a":NaN}',
        b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}",
    ],
)
def test_an_answer_that_cannot_be_changed_passes_unchanged(body: bytes) -> None:
    """The client gets what the engine said, and no 500."""
    assert both().plain(body) == body


def test_named_events_carry_the_alias_inside() -> None:
    """The client asked for the alias; its metadata may have a model of its own."""
    events = (
        b'event: response.created\ndata: {"response":{"metadata":{"model":"mine"},"model":"real",'
        b'"service_tier":"auto"},"model":"outside"}\n\n'
        b'event: response.output_text.delta\ndata: {"delta":"model"}\n\n'
    )
    rewrite = Rewrite(model="alias", service_tier="flex", events=Events.RESPONSE)
    assert rewrite.chunk(events) == events.replace(b'"real"', b'"alias"').replace(b"auto", b"flex")
    start = b'event: message_start\ndata: {"type":"message_start","message":{"model":"real"}}\n\n'
    rewrite = Rewrite(model="alias", service_tier=None, events=Events.MESSAGE)
    assert rewrite.chunk(start) == start.replace(b'"real"', b'"alias"')


@pytest.mark.parametrize("kind", [Events.RESPONSE, Events.MESSAGE])
@pytest.mark.parametrize(
    "event",
    [
        b'event: error\ndata: {"error":{"message":"no"},"message":{"model":"m"}}\n\n',
        b'event: response.created\ndata: {"response":null,"message":"model"}\n\n',
        b'event: x\ndata: {"response":\n\n',
        b"event: ping\n\n",
    ],
)
def test_a_named_event_without_a_model_passes(kind: Events, event: bytes) -> None:
    """Errors, pings and what is no JSON are not the model's."""
    assert Rewrite(model="alias", service_tier="flex", events=kind).chunk(event) == event


@pytest.mark.parametrize(
    ("recording", "kind", "times"),
    [
        ("chat_stream.http", Events.CHUNKS, 7),
        ("completion_batch_stream.http", Events.CHUNKS, 6),
        ("responses_stream.http", Events.RESPONSE, 3),
        ("messages_stream.http", Events.MESSAGE, 1),
    ],
)
@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_recordings_differ_in_the_model_only(
    recording: str, kind: Events, times: int, size: int
) -> None:
    """vLLM 0.32.0, byte for byte."""
    _, stream = shared_path("fixtures", "http", recording).read_bytes().split(b"\r\n\r\n", 1)
    rewrite = Rewrite(model="alias", service_tier=None, events=kind)
    left = through(rewrite, [stream[at : at + size] for at in range(0, len(stream), size)])
    assert left == stream.replace(b'"model":"tiny"', b'"model":"alias"')
    assert left.count(b'"model":"alias"') == times


def test_engines_that_put_the_choices_first_are_known() -> None:
    """llama.cpp's chunks begin with their content and end with the model."""
    chunk = b'data: {"choices":[{"content":"model"}],"id":"1","model":"real","object":"x"}\n\n'
    rewrite = Rewrite(model='a\\1"', service_tier=None)
    assert rewrite.chunk(chunk * 2) == chunk.replace(b'"real"', b'"a\\\\1\\""') * 2
    last = chunk.replace(b'"object"', b'"timings":{"n":1},"object"')
    assert rewrite.chunk(last) == last.replace(b'"real"', b'"a\\\\1\\""')
