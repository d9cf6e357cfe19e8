"""Hypothesis strategies for event streams: what engines send, in every framing, cut anywhere."""

import json
from typing import Any

from hypothesis import strategies as st

from gateway.upstream.sse import Events

TRICKS = (
    "[DONE]", "data: [DONE]", "\n\ndata: [DONE]\n\n", "\r\n\r\n", "data:", "error", '"error"',
    '{"error":1}', "usage", '"usage":{"prompt_tokens":9}', '"usage": {"completion_tokens": 9}',
    ',"usage":null}', "\\", '"', "北京🙂", "\u2028", "\x00", ": comment", "service_tier", "model",
    '"model":"x"', '"service_tier":null', '"finish_reason":"stop"', '"choices":[]', "data: {",
    "event: message_stop", ".delta\ndata: {", "response.completed", "",
)  # fmt: skip
TEXTS = st.one_of(st.sampled_from(TRICKS), st.text(max_size=8))
COUNTS = st.integers(0, 10**6)
COMPACT = (",", ":")
SPACED = (", ", ": ")
Named = tuple[str, dict[str, Any]]


@st.composite
def usages(draw: st.DrawFn) -> dict[str, Any]:
    """A usage object as vLLM, SGLang or an Anthropic-shaped route writes it."""
    prompt, output = draw(st.sampled_from([("prompt", "completion"), ("input", "output")]))
    fields: dict[str, Any] = {f"{prompt}_tokens": draw(COUNTS)}
    fields["total_tokens"] = draw(COUNTS)
    if draw(st.booleans()):
        fields[f"{output}_tokens"] = draw(COUNTS)
    if draw(st.booleans()):
        cached = draw(st.none() | COUNTS)
        fields[f"{prompt}_tokens_details"] = {"audio_tokens": 3, "cached_tokens": cached}
    if prompt == "input" and draw(st.booleans()):
        fields["cache_read_input_tokens"] = draw(COUNTS)
    return fields


def text_of(value: object, separators: tuple[str, str] = COMPACT) -> str:
    """JSON as engines write it: UTF-8, nothing escaped that need not be."""
    return json.dumps(value, ensure_ascii=False, separators=separators)


@st.composite
def framings(draw: st.DrawFn) -> tuple[str, str, str]:
    """(line end, space after the colon, lines before the data)."""
    end = draw(st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"]))
    before = draw(st.sampled_from(["", "", "", ": keep-alive", "id: 7", "retry: 1"]))
    return end, draw(st.sampled_from([" ", " ", ""])), before


def framed(payload: str, framing: tuple[str, str, str], name: str = "") -> bytes:
    """One event; a payload of several lines becomes as many lines of data."""
    end, space, before = framing
    lines = [before] if before else []
    lines += [f"event:{space}{name}"] if name else []
    lines += [f"data:{space}{line}" for line in payload.split("\n")]
    return (end.join(lines) + end + end).encode()


def pieces(data: st.DataObject, stream: bytes) -> list[bytes]:
    """`stream` cut anywhere, now and then into single bytes."""
    if data.draw(st.integers(0, 9)) == 0:
        return [stream[at : at + 1] for at in range(len(stream))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@st.composite
def response_events(draw: st.DrawFn) -> list[Named]:
    """A stream of the Responses API, as vLLM orders it, perhaps without its end."""
    response = {
        "id": f"resp_{draw(st.integers(0, 99))}",
        "metadata": draw(st.sampled_from([None, {"model": "x", "usage": {"input_tokens": 1}}])),
        "model": "real",
        "tools": draw(st.sampled_from([[], [{"parameters": {"usage": {"output_tokens": 5}}}]])),
        "usage": None,
    }
    if draw(st.booleans()):
        response["service_tier"] = draw(st.sampled_from([None, "auto"]))
    events: list[Named] = [
        (f"response.{kind}", {"response": response}) for kind in ("created", "in_progress")
    ]
    kinds = st.sampled_from(
        ["output_text.delta", "reasoning_text.delta", "function_call_arguments.delta",
         "output_text.done", "output_item.added"]
    )  # fmt: skip
    events += [
        (f"response.{kind}", {"delta": draw(TEXTS), "item_id": "msg_1"})
        for kind in draw(st.lists(kinds, max_size=6))
    ]
    match draw(st.sampled_from(["end", "end", "end", "failed", "error", "cut"])):
        case "end":
            end = draw(st.sampled_from(["completed", "incomplete", "cancelled"]))
            events.append((f"response.{end}", {"response": {**response, "usage": draw(usages())}}))
        case "failed":
            error = {"code": "server_error", "message": draw(TEXTS)}
            events.append(("response.failed", {"response": {**response, "error": error}}))
        case "error":
            events.append(("error", {"message": draw(TEXTS), "code": None}))
    for number, (name, value) in enumerate(events):
        value.update(sequence_number=number, type=name)
    return events


@st.composite
def message_events(draw: st.DrawFn) -> list[Named]:
    """A stream of Anthropic's Messages, perhaps without its end."""
    start: dict[str, Any] = {"id": "m", "type": "message", "content": [], "model": "real"}
    if draw(st.booleans()):
        start["usage"] = {"input_tokens": draw(COUNTS), "output_tokens": draw(st.integers(0, 1))}
    events: list[Named] = [("message_start", {"type": "message_start", "message": start})]
    kinds = st.sampled_from(
        ["content_block_delta", "content_block_delta", "content_block_start", "ping"]
    )
    events += [
        (kind, {"type": kind, "delta": {"text": draw(TEXTS)}, "index": 0})
        for kind in draw(st.lists(kinds, max_size=6))
    ]
    match draw(st.sampled_from(["end", "end", "error", "cut"])):
        case "end":
            delta = {"type": "message_delta", "delta": {}, "usage": draw(usages())}
            events += [("message_delta", delta), ("message_stop", {"type": "message_stop"})]
        case "error":
            error = {"type": "overloaded_error", "message": draw(TEXTS)}
            events.append(("error", {"type": "error", "error": error}))
    return events


@st.composite
def named_streams(draw: st.DrawFn, kind: Events) -> bytes:
    """The bytes of such a stream, usually as engines frame it."""
    strategy = response_events() if kind is Events.RESPONSE else message_events()
    usual = draw(st.booleans())
    stream = b""
    for name, value in draw(strategy):
        framing = ("\n", " ", "") if usual else draw(framings())
        indent = None if usual else draw(st.sampled_from([None, None, 1]))
        text = json.dumps(value, ensure_ascii=False, separators=COMPACT, indent=indent)
        told = name if usual else draw(st.sampled_from([name, name, "", "message"]))
        stream += framed(text, framing, told)
        if not usual and draw(st.integers(0, 4)) == 0:
            stream += b": keep-alive\n\n"
    return stream + draw(st.sampled_from([b"", b"data: [DONE]\n\n"]))
