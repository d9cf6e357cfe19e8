"""Counting what an engine's answer holds, on its bytes: no decode and no JSON parse per chunk.

A meter sees every byte as it arrives, before the relay does, so the slot can be returned when the
upstream ends however slowly the client reads. It never changes a byte.
"""

import re
from collections.abc import Callable

from gateway.core.messages import Usage

PARTIAL_EVENT_BYTES_MAX = 1 << 20
"""An event longer than this is no longer looked into, only relayed."""
TAIL_BYTES = 4_096
"""The usage of a plain answer stands in its last bytes (vLLM, SGLang, TGI, llama.cpp)."""

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")
_END_OF_LINE = re.compile(rb"\r\n|\n|\r")
_ERROR = re.compile(rb'\s*\{\s*(?:"error"\s*:|"type"\s*:\s*"error")')
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d+)')
_INPUT = re.compile(rb'"input_tokens"\s*:\s*(\d+)')
_COMPLETION = re.compile(rb'"(?:completion_tokens|output_tokens)"\s*:\s*(\d+)')
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d+)')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')


def usage_in(data: bytes) -> Usage | None:
    """The last usage object in `data` (JSON text or an event), or None.

    A quote inside a JSON string is escaped, so model output can never look like the key.
    """
    starts = [found.end() for found in _USAGE.finditer(data)]
    if not starts:
        return None
    tail = data[starts[-1] :]
    prompt = _PROMPT.search(tail) or _INPUT.search(tail)
    completion, cached = _COMPLETION.search(tail), _CACHED.search(tail)
    return Usage(
        prompt_tokens=int(prompt[1]) if prompt else 0,
        output_tokens=int(completion[1]) if completion else 0,
        cached_tokens=int(cached[1]) if cached else 0,
    )


class StreamMeter:
    """Meter of a server-sent event stream. Feed it every byte once, in order."""

    __slots__ = (
        "_clock", "_on_first", "_partial", "_usage_event", "error_event", "events", "first_at",
        "is_done", "last_at",
    )  # fmt: skip

    def __init__(self, clock: Callable[[], float], on_first: Callable[[], None]) -> None:
        self._clock = clock
        self._on_first = on_first
        self._partial = b""
        self._usage_event: bytes | None = None
        self.events = 0
        """Complete data events so far, `[DONE]` and errors not counted."""
        self.first_at: float | None = None
        self.last_at: float | None = None
        """Instant of the last data event; comments do not count as life."""
        self.error_event: bytes | None = None
        self.is_done = False

    def feed(self, data: bytes) -> None:
        """Take in the next bytes. Cheap when they hold whole events, as engines send them."""
        seen = len(self._partial)
        if seen:
            data = self._partial + data
            self._partial = b""
        if not data.endswith(b"\n\n"):
            data = self._cut(data, seen)
            if not data:
                return
        begun = data.count(b"\n\ndata:")
        if (
            b"\r" in data
            or data.count(b"\ndata:") != begun  # other fields, or data of several lines
            or b"[DONE]" in data
            or b'"error"' in data
        ):
            self._feed_each(data)
            return
        if b'"usage"' in data and _USAGE.search(data):
            self._usage_event = data
        count = begun + data.startswith(b"data:")
        if count:
            self._count(count)

    @property
    def usage(self) -> Usage | None:
        """The last usage the engine sent, or None."""
        return usage_in(self._usage_event) if self._usage_event is not None else None

    @property
    def tpot_s(self) -> float | None:
        """(last - first)/(tokens - 1); None for fewer than two tokens."""
        usage = self.usage
        tokens = usage.output_tokens if usage else self.events
        if self.first_at is None or self.last_at is None or tokens < 2:
            return None
        return (self.last_at - self.first_at) / (tokens - 1)

    def _feed_each(self, data: bytes) -> None:
        """Look into each of the complete events in `data`."""
        count = 0
        for event in _BLANK_LINE.split(data):
            payload = _data_of(event)
            if payload is None:
                continue
            if payload == b"[DONE]":
                self.is_done = True
            elif _ERROR.match(payload):
                self.error_event = payload
            else:
                count += 1
                if _USAGE.search(payload):
                    self._usage_event = payload
        if count:
            self._count(count)

    def _count(self, count: int) -> None:
        self.last_at = self._clock()
        self.events += count
        if self.first_at is None:
            self.first_at = self.last_at
            self._on_first()

    def _cut(self, data: bytes, seen: int) -> bytes:
        """Keep what follows the last blank line for later; return what is complete.

        The first `seen` bytes hold no blank line, but perhaps the beginning of one.
        """
        end = 0
        for found in _BLANK_LINE.finditer(data, max(0, seen - 3)):
            end = found.end()
        rest = data[end:]
        self._partial = rest if len(rest) <= PARTIAL_EVENT_BYTES_MAX else b""
        return data[:end]


class PlainMeter:
    """Meter of a plain (JSON) answer: keeps its tail, where the usage stands."""

    __slots__ = ("_clock", "_tail", "first_at", "last_at", "size")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
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
        self._tail = (self._tail + data)[-TAIL_BYTES:]

    @property
    def usage(self) -> Usage | None:
        """The usage at the end of the body, or None."""
        return usage_in(self._tail)


def _data_of(event: bytes) -> bytes | None:
    """The data of `event`, lines joined by a newline; None where it has no data line."""
    lines = [
        line[5:].removeprefix(b" ")
        for line in _END_OF_LINE.split(event)
        if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None
