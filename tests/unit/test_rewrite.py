"""The few bytes that may differ: the alias and the tier used, however the stream is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.rewrite import HELD_BYTES_MAX, Rewrite
from tests.support.sse_reference import payloads_of

TRICKS = (
    "model",
    '"model":"x"',
    "service_tier",
    '"service_tier":null',
    "北京🙂",
    "\\",
    "data: {",
    "",
)
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


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[object], bytes]:
    """(values, their events) in any framing, with comments and the end."""
    values: list[object] = []
    stream = b""
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            stream += b": keep-alive\n\n"
        content = draw(st.sampled_from(TRICKS) | st.text(max_size=5))
        chunk: dict[str, object] = {**CHUNK, "choices": [{"delta": {"content": content}}]}
        if draw(st.booleans()):
            chunk["service_tier"] = draw(st.sampled_from([None, "default"]))
        end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
        values.append(chunk)
        stream += event(chunk, end, draw(st.sampled_from(["", " "])))
    return values, stream + b"data: [DONE]\n\n"


@given(streams(), st.data())
def test_only_model_and_tier_differ_wherever_the_stream_is_cut(
    made: tuple[list[object], bytes], data: st.DataObject
) -> None:
    """Four of five chained rewriters of another gateway lost characters at the cuts."""
    values, stream = made
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    left = through(both(), chunks)
    *events, done = payloads_of(left)
    assert done == b"[DONE]"
    expected = [
        {**v, "model": "alias", "service_tier": "flex"} for v in values if isinstance(v, dict)
    ]
    assert [json.loads(payload) for payload in events] == expected
    assert left.count(b": keep-alive\n\n") == stream.count(b": keep-alive\n\n")


@given(streams(), st.data())
def test_what_needs_no_change_keeps_its_bytes(
    made: tuple[list[object], bytes], data: st.DataObject
) -> None:
    """Held back and let go again, nothing is lost or doubled."""
    _, stream = made
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert through(Rewrite(model=None, service_tier=None), chunks) == stream


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
    assert len(left) == held


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


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b'"text"', b"{half", b"\xff", b'{"x":' + b"[" * 300 + b"]" * 300 + b"}"]
)
def test_an_answer_that_cannot_be_changed_passes_unchanged(body: bytes) -> None:
    """The client gets what the engine said, and no 500."""
    assert both().plain(body) == body
