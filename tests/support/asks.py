"""A request for every route, streamed and not: what it says, and what its answer must look like."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.api.routes import ROUTES, Route
from gateway.upstream.sse import Events
from tests.support.sending import FORM_TYPE, form, part
from tests.support.sse_reference import RESPONSE_ENDS, events_of

TURNS = [{"role": "user", "content": "Say something."}]
WAV = b"RIFF" + bytes(range(256)) * 8
MODEL = "emulated"
USAGE = {"stream_options": {"include_usage": True}}
"""Asked for, so that the gateway has nothing to add and nothing to take away."""

FIELDS: Mapping[str, dict[str, Any]] = {
    "chat": {"messages": TURNS, "max_tokens": 6, "temperature": 0},
    "completions": {"prompt": "a b", "max_tokens": 6, "temperature": 0},
    "responses": {"input": "a b", "max_output_tokens": 6, "temperature": 0},
    "messages": {"messages": TURNS, "max_tokens": 6, "temperature": 0},
    "count_tokens": {"messages": TURNS},
    "embeddings": {"input": ["a", "b"]},
    "rerank": {"query": "a", "documents": ["b", "c"]},
    "score": {"text_1": "a", "text_2": ["b", "c"]},
    "pooling": {"input": ["a", "b"]},
    "classify": {"input": ["a", "b"]},
    "tokenize": {"prompt": "a b"},
    "detokenize": {"tokens": [5, 6]},
    "transcriptions": {},
    "translations": {},
}
WRONG: Mapping[str, dict[str, Any]] = {
    "chat": {"max_tokens": 10**6},
    "completions": {"max_tokens": 10**6},
    "responses": {"max_output_tokens": 10**6},
    "messages": {"max_tokens": 10**6},
    "count_tokens": {"messages": []},
    "embeddings": {"input": []},
    "rerank": {"documents": []},
    "score": {"text_1": ["a", "b", "c"]},
    "pooling": {"input": []},
    "classify": {"input": []},
    "tokenize": {"prompt": 7},
    "detokenize": {"tokens": "x"},
    "transcriptions": {"response_format": "srt"},
    "translations": {"response_format": "srt"},
}
"""What makes the engine refuse the request; the gateway itself takes no offence at it."""

BEGINS_AFTER = {
    "chat": 2, "completions": 1, "responses": 5, "messages": 3, "transcriptions": 1,
    "translations": 1,
}  # fmt: skip
"""Events after which a stream has said something, however many tokens are told at once."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    route: Route
    streams: bool = False

    def __str__(self) -> str:
        return f"{self.route.path}{' stream' if self.streams else ''}"

    @property
    def fields(self) -> dict[str, Any]:
        """Its body, as fields."""
        fields = {"model": MODEL, **FIELDS[self.route.name]}
        if not self.streams:
            return fields
        if self.route.is_form:
            return {**fields, "stream": "true", "stream_include_usage": "true"}
        return {**fields, "stream": True, **(USAGE if self.route.tells_usage_if_asked else {})}

    @property
    def is_named(self) -> bool:
        """Whether the events of its stream have names."""
        return self.route.events in (Events.RESPONSE, Events.MESSAGE)

    @property
    def begins_after(self) -> int:
        """Events after which the engine has begun to answer; 0 where it does so all at once."""
        return BEGINS_AFTER[self.route.name] if self.streams else 0

    @property
    def content_type(self) -> str:
        """Of its body."""
        return FORM_TYPE.decode() if self.route.is_form else "application/json"

    def body(self, **changes: Any) -> bytes:
        """Its body with these fields changed."""
        fields = {**self.fields, **changes}
        if not self.route.is_form:
            return json.dumps(fields).encode()
        parts = [part(name, str(value).encode()) for name, value in fields.items()]
        return form(*parts, part("file", WAV, filename="a.wav"))

    def wrong(self) -> bytes:
        """A body that only the engine refuses."""
        return self.body(**WRONG[self.route.name])

    def long(self) -> bytes:
        """A body that keeps an engine busy, where the route lets its client say how long."""
        limits = [name for name in self.route.output_tokens_in if name in self.fields]
        return self.body(**dict.fromkeys(limits, 4_000))

    def raw(self, *lines: str, body: bytes | None = None) -> bytes:
        """The request as it is on the wire, with these header lines, kept alive."""
        body = self.body() if body is None else body
        head = [
            f"POST {self.route.path} HTTP/1.1", "host: gateway",
            f"content-type: {self.content_type}", f"content-length: {len(body)}", *lines,
        ]  # fmt: skip
        return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


PLAIN = tuple(Ask(route) for route in ROUTES.values())
STREAMS = tuple(Ask(route, streams=True) for route in ROUTES.values() if route.events)
EVERY = (*PLAIN, *STREAMS)


def ends_of(ask: Ask, stream: bytes) -> list[str]:
    """All that ends a stream, in order: one word for a success, one for an error."""
    found = []
    for name, data in events_of(stream):
        if ask.route.events is Events.CHUNKS:
            end = _end_of_chunks(data)
        elif data == b"[DONE]":
            end = ""  # after an error: what clients of other routes wait for is no second end
        elif ask.route.events is Events.RESPONSE:
            is_end = name.removeprefix("response.") in RESPONSE_ENDS
            end = "error" if name == "error" else "done" if is_end else ""
        else:
            end = {"error": "error", "message_stop": "done"}.get(name, "")
        if end:
            found.append(end)
    return found


def _end_of_chunks(data: bytes) -> str:
    if data == b"[DONE]":
        return "done"
    return "error" if "error" in json.loads(data) else ""


def error_in(ask: Ask, body: bytes) -> dict[str, Any]:
    """The error of a plain answer, which must have the shape of the route."""
    content = json.loads(body)
    error: dict[str, Any] = content["error"]
    if ask.route.is_anthropic:
        assert content.keys() == {"type", "error"}
        assert content["type"] == "error"
        assert error.keys() == {"type", "message", "code"}
    else:
        assert content.keys() == {"error"}
        assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["code"], str)
    return error


def last_error_in(ask: Ask, stream: bytes) -> dict[str, Any]:
    """The error event of a stream, which must have the shape of the route and stand at its end."""
    events = events_of(stream)
    if not ask.route.is_anthropic:
        assert events.pop() == ("", b"[DONE]")
    name, data = events[-1]
    content = json.loads(data)
    if ask.route.events is Events.CHUNKS:
        assert name == ""
    else:
        assert name == content["type"] == "error"
    if ask.route.events is Events.RESPONSE:
        assert content.keys() >= {"code", "message", "param", "sequence_number"}
    error: dict[str, Any] = content["error"]
    return error
