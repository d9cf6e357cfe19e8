"""The meter counts on bytes what a patient parser counts on events, however the bytes are cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.messages import Usage
from gateway.upstream.figures import usages_in
from gateway.upstream.sse import Events, PlainMeter, StreamMeter
from tests.support import sse_reference
from tests.support.sse_reference import read
from tests.support.streams import (
    COUNTS,
    TEXTS,
    framed,
    framings,
    named_streams,
    pieces,
    usages,
)


@st.composite
def values(draw: st.DrawFn) -> object:
    """The JSON of one event: a chunk, an error, or whatever else an engine sends."""
    text = draw(TEXTS)
    chunk: dict[str, object] = {"id": "x", "choices": [{"delta": {"content": text}}]}
    kinds = ["chunk", "usage", "null usage", "null error", "error", "anthropic", "text"]
    match draw(st.sampled_from(kinds)):
        case "usage":
            chunk["usage"] = draw(usages())
        case "null usage":
            chunk["usage"] = None
        case "null error":
            return {"error": None, **chunk}
        case "error":
            return {"error": {"message": text, "code": 500}}
        case "anthropic":
            return {"type": "error", "error": {"message": text}}
        case "text":
            return text
    return chunk


@st.composite
def chunks_of_any_framing(draw: st.DrawFn) -> bytes:
    """One event, in one of the framings that the standard allows, or a comment."""
    framing = draw(framings())
    match draw(st.sampled_from(["event", "event", "done", "comment"])):
        case "done":
            return framed("[DONE]", framing)
        case "comment":
            return f": queued{framing[0]}{framing[0]}".encode()
    indent = draw(st.sampled_from([None, None, 1]))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    value, is_ascii = draw(values()), draw(st.booleans())
    payload = json.dumps(value, ensure_ascii=is_ascii, indent=indent, separators=separators)
    return framed(payload, framing, draw(st.sampled_from(["", "", "message"])))


def usual(value: object) -> bytes:
    """One event as engines write it."""
    text = value if value == "[DONE]" else json.dumps(value, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


CHUNK_STREAMS = st.one_of(
    st.lists(chunks_of_any_framing(), max_size=8).map(b"".join),
    st.lists((values() | st.just("[DONE]")).map(usual), max_size=8).map(b"".join),
)
STREAMS = {
    Events.CHUNKS: CHUNK_STREAMS,
    Events.RESPONSE: named_streams(Events.RESPONSE),
    Events.MESSAGE: named_streams(Events.MESSAGE),
}
WORDS = st.sampled_from(
    [b"data:", b"data: ", b"event: ", b"response.completed", b"message_start", b".delta", b"{",
     b"}", b'"usage":', b'"error":', b'"response":', b'"id":', b'"type":', b"[DONE]", b'"', b"\\",
     b":", b",", b"\n", b"\n\n", b"\r", b"\r\n", b"null", b"7", b"\xff", "北".encode()]
)  # fmt: skip
NOISE = st.one_of(st.binary(max_size=200), st.lists(WORDS, max_size=60).map(b"".join))


def metered(chunks: list[bytes], kind: Events = Events.CHUNKS) -> StreamMeter:
    """A meter that was fed `chunks`."""
    meter = StreamMeter(lambda: 1.0, lambda: None, kind)
    for chunk in chunks:
        meter.feed(chunk)
    return meter


@pytest.mark.parametrize("kind", list(Events))
@given(data=st.data())
def test_the_meter_reads_what_a_patient_parser_reads(kind: Events, data: st.DataObject) -> None:
    """Users are charged by this count, and a missed end looks like a broken engine."""
    stream = data.draw(STREAMS[kind])
    started: list[bool] = []
    meter = StreamMeter(lambda: 1.0, lambda: started.append(True), kind)
    so_far = b""
    for piece in pieces(data, stream):
        meter.feed(piece)
        so_far += piece
        # After a CR nobody knows yet whether an LF belongs to it.
        assert so_far.endswith(b"\r") or meter.events == read(so_far, kind).events
    truth = read(stream, kind)
    assert meter.events == truth.events
    assert meter.is_done == truth.is_done
    assert meter.error_event == (truth.errors[-1] if truth.errors else None)
    assert meter.usage == truth.usage
    assert meter.ident == truth.ident
    assert len(started) == (truth.events > 0)
    assert (meter.first_at is not None) == (truth.events > 0)
    assert (meter.last_at is not None) == (truth.events > 0)


@pytest.mark.parametrize("kind", list(Events))
@given(data=st.data())
def test_an_unfinished_event_counts_for_nothing(kind: Events, data: st.DataObject) -> None:
    """The connection may break inside an event: half a token was never delivered."""
    stream = data.draw(STREAMS[kind])
    cut = stream[: -data.draw(st.integers(1, 40))].rstrip(b"\r\n")
    assert metered([cut], kind).events == read(cut, kind).events


@pytest.mark.parametrize("kind", list(Events))
@given(noise=NOISE, data=st.data())
def test_no_bytes_make_the_meter_fail(kind: Events, noise: bytes, data: st.DataObject) -> None:
    """An exception in the meter would take the stream with it."""
    meter = metered(pieces(data, noise), kind)
    assert (meter.usage, meter.tpot_s) == (meter.usage, meter.tpot_s)


@given(TEXTS, usages(), st.booleans())
def test_the_usage_is_found_and_text_cannot_pose_as_it(
    text: str, usage: dict[str, object], comes_first: bool
) -> None:
    """A prompt that makes the model print a usage object must not change the bill."""
    answer: dict[str, object] = {"choices": [{"message": {"content": text}}]}
    whole = {"usage": usage, **answer} if comes_first else {**answer, "usage": usage}
    assert usages_in(json.dumps(whole).encode()) == sse_reference.usages_in(whole)
    assert usages_in(json.dumps(answer).encode()) == []


@given(st.lists(st.binary(max_size=50), max_size=20), COUNTS, st.data())
def test_a_plain_answer_is_metered_by_its_tail(
    junk: list[bytes], tokens: int, data: st.DataObject
) -> None:
    """The answer may be long and come in any pieces; its usage stands at the end."""
    body = b"".join(junk) + b'"usage":{"prompt_tokens":1,"completion_tokens":%d}}' % tokens
    meter = PlainMeter(lambda: 2.0)
    for piece in pieces(data, body):
        meter.feed(piece)
    assert meter.usage == Usage(prompt_tokens=1, output_tokens=tokens)
    assert meter.size == len(body)
