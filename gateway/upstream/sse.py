"""Counting what an engine's answer holds, on its bytes: no decode and no JSON parse per chunk.

A meter sees every byte as it arrives, before the relay does, so the slot can be returned when the
upstream ends however slowly the client reads. It never changes a byte.
"""

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from gateway.core.messages import Usage
from gateway.upstream.chunks import CR, LF
from gateway.upstream.figures import larger, parsed, response_id_of, usage_of, usages_in
from gateway.upstream.frames import end_of_events, events_in, read_event

PARTIAL_EVENT_BYTES_MAX = 1 << 20
"""An event longer than this is no longer looked into, only relayed."""
TAIL_BYTES = 4_096
"""The usage of a plain answer stands in its last bytes (vLLM, SGLang, TGI, llama.cpp)."""
RESPONSE_TAIL_BYTES = 64 << 10
"""SGLang's responses repeat the client's tools after the usage."""

USAGE: Final = b'"usage"'
_CHUNK: Final = b'data: {"'
"""How a chunk begins, as engines write it."""
_CHUNK_BYTES: Final = 8
_ERROR = re.compile(rb'\s*\{\s*(?:"error"\s*:\s*[^\sn]|"type"\s*:\s*"error")')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')


class Events(Enum):
    """What an event stream is made of, and so how it ends."""

    CHUNKS = auto()
    """OpenAI's chunks: data alone, `[DONE]` at the end."""
    RESPONSE = auto()
    """OpenAI's Responses: named events, the last one `response.completed` or the like."""
    MESSAGE = auto()
    """Anthropic's: named events, `message_stop` at the end."""


_OUTPUT = {
    Events.CHUNKS: b"",
    Events.RESPONSE: b".delta\ndata: {",
    Events.MESSAGE: b"event: content_block_delta\ndata: {",
}
"""How the lines of a named event with output meet, as engines write them.

A JSON string holds no newline, so model output can never look like it.
"""
_RESPONSE_STARTS = frozenset((b"response.created", b"response.queued", b"response.in_progress"))
_RESPONSE_ENDS = frozenset(
    (b"response.completed", b"response.incomplete", b"response.failed", b"response.cancelled")
)


class StreamMeter:
    """Meter of a server-sent event stream. Feed it every byte once, in order.

    Output begins with the first chunk, or with the first delta of named events: engines announce
    a response or a message before they begin to work on it (vLLM 0.32: `response.created`).
    """

    __slots__ = (
        "_clock", "_has_total", "_kind", "_on_first", "_output", "_partial", "_usage",
        "_usage_event", "error_event", "events", "first_at", "ident", "is_done", "last_at",
    )  # fmt: skip

    def __init__(
        self,
        clock: Callable[[], float],
        on_first: Callable[[], None],
        events: Events = Events.CHUNKS,
    ) -> None:
        self._clock = clock
        self._on_first = on_first
        self._kind = events
        self._output = _OUTPUT[events]
        self._partial = b""
        self._usage: Usage | None = None
        self._has_total = events is not Events.MESSAGE
        self._usage_event: bytes | None = None
        self.events = 0
        """Complete events with output so far; the end, errors and announcements not counted."""
        self.first_at: float | None = None
        self.last_at: float | None = None
        """Instant of the last data event since then; pings and comments do not count as life."""
        self.error_event: bytes | None = None
        """Data of the last error; it may come with or without an end."""
        self.is_done = False
        self.ident: bytes | None = None
        """Id of the response that the first event announces (Responses only)."""

    def feed(self, data: bytes) -> None:
        """Take in the next bytes. Cheap when they hold whole events, as engines send them."""
        seen = len(self._partial)
        if seen:
            data = self._partial + data
            self._partial = b""
        size = len(data)
        if (  # one chunk, and neither an error nor the end: those begin otherwise
            size > _CHUNK_BYTES + 2
            and data.find(b"\n") == size - 2
            and data[size - 1] == LF
            and data[:_CHUNK_BYTES] == _CHUNK
            and data[_CHUNK_BYTES] not in b"et"
            and CR not in data
            and not self._output
        ):
            if data.find(USAGE) >= 0 and _USAGE.search(data):
                self._usage_event = data
            self._count(1)
            return
        if not data.endswith(b"\n\n"):
            data = self._cut(data, seen)
            if not data:
                return
        if self._output:
            self._feed_named(data)
            return
        begun = data.count(b"\n\ndata:")
        if (
            CR in data
            or data.count(b"\ndata:") != begun  # other fields, or data of several lines
            or data.find(b"[DONE]") >= 0
            or data.find(b'"error"') >= 0
        ):
            self._feed_each(data)
            return
        if data.find(USAGE) >= 0 and _USAGE.search(data):
            self._usage_event = data
        count = begun + data.startswith(b"data:")
        if count:
            self._count(count)

    @property
    def usage(self) -> Usage | None:
        """The last usage the engine sent, or None.

        A message begins with its prompt's; until its total comes, the output so far stands.
        """
        if not self._has_total and self._usage is not None:
            return larger(self._usage, Usage(output_tokens=self.events))
        if self._usage_event is not None:
            usages = usages_in(self._usage_event)
            self._usage, self._usage_event = usages[-1] if usages else None, None
        return self._usage

    @property
    def tpot_s(self) -> float | None:
        """(last - first)/(tokens - 1); None for fewer than two tokens."""
        usage = self.usage
        tokens = usage.output_tokens if usage else self.events
        if self.first_at is None or self.last_at is None or tokens < 2:
            return None
        return (self.last_at - self.first_at) / (tokens - 1)

    def _feed_named(self, data: bytes) -> None:
        """Complete named events; most often nothing but output."""
        count = data.count(self._output)
        if (
            count
            and data.count(b"\n") == 3 * count
            and data.count(b"\n\n") == count
            and data.startswith(b"event: ")
            and CR not in data
        ):
            self._count(count)
        else:
            self._feed_each(data)

    def _feed_each(self, data: bytes) -> None:
        """Look into each of the complete events in `data`."""
        count = 0
        for event in events_in(data):
            name, payload = read_event(event)
            if payload is None:
                continue
            if self._kind is Events.CHUNKS:
                count += self._take_chunk(payload)
            else:
                count += self._take_named(name, payload)
        if count:
            self._count(count)

    def _take_chunk(self, payload: bytes) -> bool:
        """One chunk; whether it is output."""
        if payload == b"[DONE]":
            self.is_done = True
            return False
        if _ERROR.match(payload):
            self.error_event = payload
            return False
        if payload.find(USAGE) >= 0 and _USAGE.search(payload):
            self._usage_event = payload
        return True

    def _take_named(self, name: bytes, payload: bytes) -> bool:
        """One named event; whether it is output."""
        if self._kind is Events.RESPONSE:
            is_known = name.startswith(b"response.") or name == b"error"
        else:
            is_known = bool(name) and name != b"message"  # what an event without a name is called
        fields: Any = None
        if not is_known:
            fields = parsed(payload)
            name = _type_of(fields)
        if name in (b"error", b"response.failed") or _ERROR.match(payload):
            self.error_event = payload
            if name != b"response.failed":
                return False
        if self._kind is Events.RESPONSE:
            return self._take_response(name, payload)
        return self._take_message(name, payload)

    def _take_response(self, name: bytes, payload: bytes) -> bool:
        """One event of a response; whether it is output."""
        if name.endswith(b".delta"):
            return True
        is_end = name in _RESPONSE_ENDS
        if is_end or (self.ident is None and name in _RESPONSE_STARTS):
            fields = parsed(payload)
            response = fields.get("response") if isinstance(fields, dict) else None
            if self.ident is None:
                ident = response_id_of(response)
                self.ident = ident.encode() if ident is not None else None
            if is_end:
                self.is_done = True
                fields = response.get("usage") if isinstance(response, dict) else None
                self._usage = usage_of(fields)
        elif name.startswith(b"response."):
            self._lives()
        return False

    def _take_message(self, name: bytes, payload: bytes) -> bool:
        """One event of a message; whether it is output."""
        if name == b"content_block_delta":
            return True
        if name == b"message_stop":
            self.is_done = True
            return False
        if name in (b"message_start", b"message_delta"):
            fields = parsed(payload)
            if isinstance(fields, dict):
                inner = fields.get("message") if name == b"message_start" else fields
                usage = usage_of(inner.get("usage")) if isinstance(inner, dict) else None
                self._usage = larger(self._usage, usage)
                self._has_total |= usage is not None and name == b"message_delta"
        if name and name != b"ping":
            self._lives()
        return False

    def _lives(self) -> None:
        """An event without output; before the first output it shows nothing."""
        if self.first_at is not None:
            self.last_at = self._clock()

    def _count(self, count: int) -> None:
        self.last_at = self._clock()
        self.events += count
        if self.first_at is None:
            self.first_at = self.last_at
            self._on_first()

    def _cut(self, data: bytes, seen: int) -> bytes:
        """Keep what follows the last blank line for later; return what is complete."""
        end = end_of_events(data, seen)
        rest = data[end:]
        self._partial = rest if len(rest) <= PARTIAL_EVENT_BYTES_MAX else b""
        return data[:end]


class PlainMeter:
    """Meter of a plain (JSON) answer: keeps its tail, where the usage stands."""

    __slots__ = ("_clock", "_tail", "_tail_bytes", "first_at", "last_at", "size")

    def __init__(self, clock: Callable[[], float], *, tail_bytes: int = TAIL_BYTES) -> None:
        self._clock = clock
        self._tail_bytes = tail_bytes
        self._tail = b""
        self.size = 0
        self.first_at: float | None = None
        self.last_at: float | None = None

    def feed(self, data: bytes) -> None:
        """Take in the next bytes."""
        self.last_at = self._clock()
        if self.first_at is None:
            self.first_at = self.last_at
        self.size += len(data)
        self._tail = (self._tail + data)[-self._tail_bytes :]

    @property
    def usage(self) -> Usage | None:
        """The usage near the end of the body, or None.

        Of several the largest: the others are what the client wrote, in the schema of a tool.
        """
        found = usages_in(self._tail)
        return found[0] if len(found) == 1 else max(found, key=_total, default=None)


def meter_of(
    events: Events | None, clock: Callable[[], float], on_first: Callable[[], None] | None
) -> StreamMeter | PlainMeter:
    """The meter of a route whose streams are made of `events`; `on_first` None: of no stream."""
    if on_first is not None and events is not None:
        return StreamMeter(clock, on_first, events)
    if events is Events.RESPONSE:
        return PlainMeter(clock, tail_bytes=RESPONSE_TAIL_BYTES)
    return PlainMeter(clock)


def _total(usage: Usage) -> int:
    return usage.prompt_tokens + usage.output_tokens


def _type_of(fields: Any) -> bytes:
    """The type of an event that has no name of its own; empty where it has none."""
    kind = fields.get("type") if isinstance(fields, dict) else None
    return kind.encode("utf-8", "replace") if isinstance(kind, str) else b""
