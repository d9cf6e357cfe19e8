"""A fast fake engine: answers like vLLM at a set pace, for about the cost of its system calls.

It decides nothing about load: how long a stream is comes from the request, how fast it goes from
the pace. One process: `python -m gateway.bench.upstream --port N`.
"""

import argparse
import asyncio
import gc
import time
from dataclasses import dataclass
from typing import cast
from urllib.parse import parse_qs

import httptools
import orjson
import uvloop

from gateway.bench import replies
from gateway.bench.ticker import Ticker

EVENTS_DEFAULT = 64
BACKLOG = 4096
BODY_BYTES_MAX = 1 << 20
GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, less their whole part, lie evenly in [0, 1) however many there are."""


@dataclass(slots=True, kw_only=True)
class Pace:
    """How fast the engine is; a delay below a millisecond but 0 is rounded up to one."""

    delay_us: int = 0
    interval_us: int = 20_000
    events_per_write: int = 1
    """How many events of one stream leave together."""
    is_burst: bool = False
    """Align all streams to one beat, as the steps of a real engine do."""

    def __post_init__(self) -> None:
        assert self.delay_us >= 0, "a delay cannot be negative"
        assert self.interval_us > 0, "an interval must be positive"
        assert self.events_per_write > 0, "a write without events is none"

    def first_ns(self, now_ns: int) -> int:
        """When a request that arrives now gets its first event."""
        return self._on_beat(now_ns + self.delay_us * 1_000)

    def second_ns(self, due_ns: int, phase: float) -> int:
        """When the write after a stream's first is due; `phase` in [0, 1) sets streams apart.

        An interval later on average, so that the rate is the one that was asked for.
        """
        return self._on_beat(due_ns + round(self.interval_us * (0.5 + phase) * 1_000))

    def next_ns(self, due_ns: int) -> int:
        """When the write after the one due at `due_ns` is due."""
        return self._on_beat(due_ns + self.interval_us * 1_000)

    def _on_beat(self, due_ns: int) -> int:
        beat_ns = self.interval_us * 1_000
        return -(-due_ns // beat_ns) * beat_ns if self.is_burst else due_ns


class Engine:
    """What all connections of one fake engine share: its pace, ticker and true counters."""

    def __init__(self, pace: Pace, ticker: Ticker) -> None:
        self.pace = pace
        self.ticker = ticker
        self.shapes = {
            b"/v1/chat/completions": replies.chat_shape(),
            b"/v1/completions": replies.completion_shape(),
        }
        self._phase = 0.0
        self.running = 0
        self.tokens = 0
        self.gaps = 0
        self.gaps_ns = 0
        self.firsts = 0
        self.firsts_ns = 0

    def get(self, path: bytes) -> bytes:
        """The answer to a GET."""
        match path:
            case b"/v1/models":
                return replies.MODELS
            case b"/health" | b"/ping":
                return replies.HEALTHY
            case b"/version":
                return replies.VERSION
            case b"/metrics":
                return self._metrics()
        return replies.NOT_FOUND

    def next_phase(self) -> float:
        """Where within an interval the next stream's events lie."""
        self._phase = (self._phase + GOLDEN) % 1
        return self._phase

    def set_pace(self, query: bytes) -> bytes:
        """Take a new pace from `interval_us=..&delay_us=..&events_per_write=..&is_burst=0`."""
        try:
            values = {name: int(value[-1]) for name, value in parse_qs(query.decode()).items()}
            self.pace = Pace(
                delay_us=values.get("delay_us", 0),
                interval_us=values["interval_us"],
                events_per_write=values.get("events_per_write", 1),
                is_burst=bool(values.get("is_burst", 0)),
            )
        except (ValueError, KeyError, AssertionError):
            return replies.BAD_REQUEST
        return replies.HEALTHY

    def count_first(self, waited_ns: int, events: int) -> None:
        """A stream got its first events."""
        self.tokens += events
        self.firsts += 1
        self.firsts_ns += waited_ns

    def count_next(self, gap_ns: int, events: int) -> None:
        """A stream got more events, so long after the last ones."""
        self.tokens += events
        self.gaps += 1
        self.gaps_ns += gap_ns

    def _metrics(self) -> bytes:
        return replies.metrics(
            running=self.running,
            tokens=self.tokens,
            itl=(self.gaps, self.gaps_ns / 1e9),
            ttft=(self.firsts, self.firsts_ns / 1e9),
        )


class EngineConnection(asyncio.Protocol):
    """One client connection with one request at a time; it is also the stream that is paced."""

    __slots__ = (
        "_arrived_ns",
        "_body",
        "_due_ns",
        "_engine",
        "_events",
        "_is_busy",
        "_is_stream",
        "_last_ns",
        "_left",
        "_parser",
        "_shape",
        "_transport",
        "_url",
        "_wants_usage",
    )

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body = b""
        self._is_busy = False
        self._is_stream = False
        self._wants_usage = False
        self._shape = engine.shapes[b"/v1/chat/completions"]
        self._events = 0
        self._left = 0
        self._arrived_ns = 0
        self._due_ns = 0
        self._last_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; anything that is not HTTP, or is pipelined, ends the connection."""
        if self._parser is None or self._is_busy:
            self._close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left: its request ends, and its next step finds nothing to do."""
        self._transport = None
        self._parser = None
        if self._is_busy:
            self._finish()

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        """Called by the parser."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body += body
        if len(self._body) > BODY_BYTES_MAX:
            self._close()

    def on_message_complete(self) -> None:
        """Called by the parser: answer, or start to."""
        assert self._parser is not None
        if self._is_busy:
            self._close()
            return
        path, _, query = self._url.partition(b"?")
        if self._parser.get_method() == b"GET":
            self._write(self._engine.get(path))
        elif path == b"/bench/pace":
            self._write(self._engine.set_pace(query))
        elif (shape := self._engine.shapes.get(path)) is not None:
            self._shape = shape
            self._begin()
        else:
            self._write(replies.NOT_FOUND)

    def step(self, now_ns: int) -> int | None:
        """Send what is due now; return when the next write is due, None after the last."""
        if self._transport is None or not self._is_busy:
            return None
        if not self._is_stream:
            self._write(self._shape.json)
            self._finish()
            return None
        pace = self._engine.pace
        piece = self._shape.content(time.monotonic_ns())
        events = min(self._left, pace.events_per_write)
        if events > 1:
            piece *= events
        if self._left == self._events:
            self._engine.count_first(now_ns - self._arrived_ns, events)
            piece = self._shape.opening + piece
            self._due_ns = pace.second_ns(self._due_ns, self._engine.next_phase())
        else:
            self._engine.count_next(now_ns - self._last_ns, events)
            self._due_ns = pace.next_ns(self._due_ns)
        self._last_ns = now_ns
        self._left -= events
        if self._left:
            self._transport.write(piece)
            return self._due_ns
        self._transport.write(piece + self._closing())
        self._finish()
        return None

    def _begin(self) -> None:
        try:
            call = orjson.loads(self._body)
            self._is_stream = call.get("stream") is True
            if call.get("return_token_ids") is True:
                self._shape = self._shape.telling_ids or self._shape
            self._events = max(1, int(call.get("max_tokens") or EVENTS_DEFAULT))
            self._wants_usage = bool((call.get("stream_options") or {}).get("include_usage"))
        except (ValueError, TypeError, AttributeError):
            self._write(replies.BAD_REQUEST)
            return
        self._is_busy = True
        self._left = self._events
        self._engine.running += 1
        self._arrived_ns = time.monotonic_ns()
        self._due_ns = self._engine.pace.first_ns(self._arrived_ns)
        next_ns: int | None = self._due_ns
        if self._due_ns <= self._arrived_ns:
            next_ns = self.step(self._arrived_ns)
        if next_ns is not None:
            self._engine.ticker.schedule(self, next_ns)

    def _closing(self) -> bytes:
        usage = self._shape.usage(self._events) if self._wants_usage else b""
        return self._shape.finish + usage + replies.DONE + replies.LAST_CHUNK

    def _finish(self) -> None:
        self._is_busy = False
        self._engine.running -= 1

    def _write(self, piece: bytes) -> None:
        if self._transport is not None:
            self._transport.write(piece)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def start(port: int, pace: Pace) -> asyncio.Server:
    """Listen on loopback (port 0: any free one) and answer until the server is closed."""
    loop = asyncio.get_running_loop()
    engine = Engine(pace, Ticker(loop))
    return await loop.create_server(
        lambda: EngineConnection(engine), "127.0.0.1", port, backlog=BACKLOG
    )


async def _serve(port: int, pace: Pace) -> None:
    server = await start(port, pace)
    await server.serve_forever()


def main() -> None:
    """Run one engine until it is told to end."""
    parser = argparse.ArgumentParser(description="a fast fake engine for benchmarks")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay-us", type=int, default=0, help="before the first byte")
    parser.add_argument("--interval-us", type=int, default=20_000, help="between two writes")
    parser.add_argument("--events-per-write", type=int, default=1, help="of one stream")
    parser.add_argument("--burst", action="store_true", help="one beat for all streams")
    chosen = parser.parse_args()
    pace = Pace(
        delay_us=chosen.delay_us,
        interval_us=chosen.interval_us,
        events_per_write=chosen.events_per_write,
        is_burst=chosen.burst,
    )
    # A collection would be measured as the gateway's jitter; a run is too short to need one.
    gc.disable()
    try:
        uvloop.run(_serve(chosen.port, pace))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
