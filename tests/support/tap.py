"""A wire between a gateway and an engine on which every byte can be read afterwards.

What the engine said in the very exchange under test is known then, so an answer can be compared
byte for byte although its ids and its times are new each time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httptools

OWN_PATHS = frozenset({"/metrics", "/v1/models", "/health", "/version", "/load", "/ping"})
"""Asked by the gateway for itself."""
PIECE_BYTES = 1 << 16


@dataclass(slots=True)
class Exchanged:
    """One request as it reached the engine, and what came back."""

    method: str = ""
    target: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    """Names in lower case, in order, doubled ones included."""
    body: bytes = b""
    is_sent: bool = False
    """Whether the request was complete."""
    status: int = 0
    answer_headers: list[tuple[str, str]] = field(default_factory=list)
    answer: bytes = b""
    """The body, without the framing."""
    is_answered: bool = False
    """Whether the answer was complete."""

    @property
    def header(self) -> dict[str, str]:
        """Headers of the request; none may be doubled."""
        assert len(dict(self.headers)) == len(self.headers), self.headers
        return dict(self.headers)


class _Asking:
    """Reads requests."""

    def __init__(self, wire: "_Wire") -> None:
        self._wire = wire
        self._now = Exchanged()
        self.parser = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self._now = Exchanged()

    def on_url(self, url: bytes) -> None:
        self._now.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._now.headers.append((name.decode().lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self._now.method = self.parser.get_method().decode()
        self._wire.asked(self._now)

    def on_body(self, data: bytes) -> None:
        self._now.body += data

    def on_message_complete(self) -> None:
        self._now.is_sent = True


class _Answering:
    """Reads answers, each to the oldest request that has none."""

    def __init__(self, wire: "_Wire") -> None:
        self._wire = wire
        self._headers: list[tuple[str, str]] = []
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode().lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        now = self._wire.unanswered[0]
        now.status = self.parser.get_status_code()
        now.answer_headers, self._headers = self._headers, []

    def on_body(self, data: bytes) -> None:
        self._wire.unanswered[0].answer += data

    def on_message_complete(self) -> None:
        self._wire.unanswered.popleft().is_answered = True


class _Wire:
    """One connection."""

    def __init__(self, tap: "Tap") -> None:
        self._tap = tap
        self.unanswered: deque[Exchanged] = deque()
        self._asking, self._answering = _Asking(self), _Answering(self)

    def asked(self, exchanged: Exchanged) -> None:
        """A request began."""
        self.unanswered.append(exchanged)
        if exchanged.target not in OWN_PATHS:
            self._tap.seen.append(exchanged)

    async def up(self, data: bytes) -> None:
        """Bytes to the engine."""
        self._asking.parser.feed_data(data)

    async def down(self, data: bytes) -> None:
        """Bytes from the engine."""
        self._answering.parser.feed_data(data)

    @property
    def is_over(self) -> bool:
        """Whether it is kept for another request that must not come."""
        return self._tap.refuses and not self.unanswered


class Tap:
    """Passes connections on to one engine and remembers what is said on them."""

    def __init__(self, engine_url: str) -> None:
        host, port = engine_url.removeprefix("http://").split(":")
        self._engine = host, int(port)
        self.seen: list[Exchanged] = []
        """All requests that the gateway did not make for itself, oldest first."""
        self.port = 0
        self.refuses = False
        self._server: asyncio.Server | None = None
        self._wires: dict[_Wire, asyncio.StreamWriter] = {}

    async def listen(self) -> None:
        """Accept connections, always on the same port."""
        self.refuses = False
        self._server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Accept no more, and close what is idle; what is under way stays open."""
        assert self._server is not None
        self.refuses = True
        self._server.close()
        for wire, writer in self._wires.items():
            if not wire.unanswered:
                writer.transport.abort()

    @property
    def url(self) -> str:
        """Where the gateway finds the engine."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end on either side."""
        try:
            engine_reader, engine_writer = await asyncio.open_connection(*self._engine)
        except OSError:
            writer.transport.abort()
            return
        wire = _Wire(self)
        self._wires[wire] = writer
        pumps = [
            asyncio.create_task(_pump(reader, engine_writer, wire.up)),
            asyncio.create_task(_pump(engine_reader, writer, wire.down, lambda: wire.is_over)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._wires[wire]
            for pump in pumps:
                pump.cancel()
            engine_writer.transport.abort()
            writer.close()


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    look: Callable[[bytes], Awaitable[None]],
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(PIECE_BYTES):
            await look(data)
            writer.write(data)
            await writer.drain()
            if is_over():
                return


@asynccontextmanager
async def tapped(engine_url: str) -> AsyncIterator[Tap]:
    """A tap before the engine, on a port of its own."""
    tap = Tap(engine_url)
    await tap.listen()
    try:
        yield tap
    finally:
        tap.refuse()
