"""The meter counts on bytes what a patient parser counts on events, however the bytes are cut."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.messages import Usage
from gateway.upstream.sse import PlainMeter, StreamMeter, usage_in
from tests.support.sse_reference import read

TRICKS = (
    "[DONE]", "data: [DONE]", "\n\ndata: [DONE]\n\n", "\r\n\r\n", "data:", "error", '"error"',
    '{"error":1}', "usage", '"usage":{"prompt_tokens":9}', '"usage": {"completion_tokens": 9}',
    "\\", '"', "北京🙂", "\u2028", "\x00", ": comment", "service_tier", "",
)  # fmt: skip
TEXTS = st.one_of(st.sampled_from(TRICKS), st.text(max_size=8))
COUNTS = st.integers(0, 10**6)


@st.composite
def usages(draw: st.DrawFn) -> dict[str, object]:
    """A usage object as vLLM, SGLang or an Anthropic-shaped route writes it."""
    prompt, output = draw(st.sampled_from([("prompt", "completion"), ("input", "output")]))
    fields: dict[str, object] = {f"{prompt}_tokens": draw(COUNTS)}
    fields["total_tokens"] = draw(COUNTS)
    if draw(st.booleans()):
        fields[f"{output}_tokens"] = draw(COUNTS)
    if draw(st.booleans()):
        cached = draw(st.none() | COUNTS)
        fields[f"{prompt}_tokens_details"] = {"audio_tokens": 3, "cached_tokens": cached}
    return fields


@st.composite
def values(draw: st.DrawFn) -> object:
    """The JSON of one event: a chunk, an error, or whatever else an engine sends."""
    text = draw(TEXTS)
    chunk: dict[str, object] = {"id": "x", "choices": [{"delta": {"content": text}}]}
    match draw(st.sampled_from(["chunk", "usage", "null usage", "error", "anthropic", "text"])):
        case "usage":
            chunk["usage"] = draw(usages())
        case "null usage":
            chunk["usage"] = None
        case "error":
            return {"error": {"message": text, "code": 500}}
        case "anthropic":
            return {"type": "error", "error": {"message": text}}
        case "text":
            return text
    return chunk


@st.composite
def framed(draw: st.DrawFn) -> bytes:
    """One event in one of the framings that the standard allows, or a comment."""
    end = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    space = draw(st.sampled_from([" ", ""]))
    before = draw(st.sampled_from(["", "", ": keep-alive", "event: message", "id: 7", "retry: 1"]))
    lines = [before] if before else []
    kind = draw(st.sampled_from(["event", "event", "done", "comment"]))
    if kind == "comment":
        return f": queued{end}{end}".encode()
    payload = "[DONE]"
    if kind == "event":
        indent = draw(st.sampled_from([None, None, 1]))
        separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
        is_ascii = draw(st.booleans())
        value = draw(values())
        payload = json.dumps(value, ensure_ascii=is_ascii, indent=indent, separators=separators)
    lines += [f"data:{space}{line}" for line in payload.split("\n")]
    return (end.join(lines) + end + end).encode()


def usual(value: object) -> bytes:
    """One event as engines write it."""
    text = value if value == "[DONE]" else json.dumps(value, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


STREAMS = st.one_of(
    st.lists(framed(), max_size=8).map(b"".join),
    st.lists((values() | st.just("[DONE]")).map(usual), max_size=8).map(b"".join),
)


def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """`data` cut anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def metered(chunks: list[bytes]) -> StreamMeter:
    """A meter that was fed `chunks`."""
    meter = StreamMeter(lambda: 1.0, lambda: None)
    for chunk in chunks:
        meter.feed(chunk)
    return meter


@given(st.data())
def test_the_meter_reads_what_a_patient_parser_reads(data: st.DataObject) -> None:
    """Users are charged by this count, and a missed end looks like a broken engine."""
    stream = data.draw(STREAMS)
    started: list[bool] = []
    meter = StreamMeter(lambda: 1.0, lambda: started.append(True))
    so_far = b""
    for piece in data.draw(st.composite(pieces)(stream)):
        meter.feed(piece)
        so_far += piece
        # After a CR nobody knows yet whether an LF belongs to it.
        assert so_far.endswith(b"\r") or meter.events == read(so_far).events
    truth = read(stream)
    assert meter.events == truth.events
    assert meter.is_done == truth.is_done
    assert meter.error_event == (truth.errors[-1] if truth.errors else None)
    assert meter.usage == truth.usage
    assert len(started) == (truth.events > 0)
    assert (meter.first_at is not None) == (truth.events > 0)


@given(STREAMS, st.integers(1, 40))
def test_an_unfinished_event_counts_for_nothing(stream: bytes, lost: int) -> None:
    """The connection may break inside an event: half a token was never delivered."""
    cut = stream[:-lost].rstrip(b"\r\n")
    assert metered([cut]).events == read(cut).events


@given(st.binary(max_size=200), st.data())
def test_no_bytes_make_the_meter_fail(noise: bytes, data: st.DataObject) -> None:
    """An exception in the meter would take the stream with it."""
    metered(data.draw(st.composite(pieces)(noise)))


@given(TEXTS, usages(), st.booleans())
def test_the_usage_is_found_and_text_cannot_pose_as_it(
    text: str, usage: dict[str, object], comes_first: bool
) -> None:
    """A prompt that makes the model print a usage object must not change the bill."""
    answer: dict[str, object] = {"choices": [{"message": {"content": text}}]}
    whole = {"usage": usage, **answer} if comes_first else {**answer, "usage": usage}
    body = json.dumps(whole).encode()
    assert usage_in(body) == read(b"data: " + body + b"\n\n").usage
    assert usage_in(json.dumps(answer).encode()) is None


@given(st.lists(st.binary(max_size=50), max_size=20), COUNTS, st.data())
def test_a_plain_answer_is_metered_by_its_tail(
    junk: list[bytes], tokens: int, data: st.DataObject
) -> None:
    """The answer may be long and come in any pieces; its usage stands at the end."""
    body = b"".join(junk) + b'"usage":{"prompt_tokens":1,"completion_tokens":%d}}' % tokens
    meter = PlainMeter(lambda: 2.0)
    for piece in data.draw(st.composite(pieces)(body)):
        meter.feed(piece)
    assert meter.usage == Usage(prompt_tokens=1, output_tokens=tokens)
    assert meter.size == len(body)
