"""An engine that answers only when and what the test says, and knows who left it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.support.raw_engine import MODELS, SSE_HEAD, chunked

EVENT = b'data: {"model":"raw","choices":[{"delta":{"content":"%d"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
BACKLOG = 4_096
"""Of connections not yet accepted; one dropped from it is tried again after a second."""
METRICS = "vllm:num_requests_running %d\nvllm:num_requests_waiting %d\n"


@dataclass(eq=False)
class Held:
    """One request that waits for its answer."""

    id: str
    body: bytes
    writer: asyncio.StreamWriter
    is_left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the other side ended the connection."""

    def begin(self) -> None:
        """Headers of a stream, as vLLM sends them: long before it starts."""
        self.writer.write(SSE_HEAD)

    def event(self, number: int = 1) -> None:
        """One token."""
        self.writer.write(chunked(EVENT % number))

    def finish(self) -> None:
        """The end of a stream."""
        self.writer.write(chunked(DONE) + b"0\r\n\r\n")
        self.writer.close()

    def answer(self, body: bytes) -> None:
        """A whole plain answer."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.writer.write(head % len(body) + body)
        self.writer.close()


class HeldEngine:
    """Keeps every POST until it is answered, and says that it runs `slots` at once."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.asked: list[Held] = []
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def here(self) -> list[Held]:
        """Requests that are still connected and not answered."""
        return [held for held in self.asked if not held.is_left.is_set()]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = [line.partition(": ") for line in head.split("\r\n")]
                headers = {name.lower(): value for name, _, value in lines}
                if head.startswith("POST"):
                    body = await reader.readexactly(int(headers["content-length"]))
                    await self._hold(Held(headers["x-request-id"], body, writer), reader)
                    break
                status, content = self._page(head.split(" ")[1])
                length = f"content-length: {len(content)}"
                writer.write(f"HTTP/1.1 {status}\r\n{length}\r\n\r\n".encode() + content)
        writer.close()

    def _page(self, path: str) -> tuple[str, bytes]:
        running = min(self.slots, len(self.here))
        pages = {
            "/v1/models": MODELS,
            "/metrics": (METRICS % (running, len(self.here) - running)).encode(),
        }
        return ("200 OK", pages[path]) if path in pages else ("404 Not Found", b"{}")

    async def _hold(self, held: Held, reader: asyncio.StreamReader) -> None:
        self.asked.append(held)
        try:
            await reader.read()
        finally:
            held.is_left.set()


@asynccontextmanager
async def running_held_engine(slots: int) -> AsyncIterator[HeldEngine]:
    """An engine on a port of its own."""
    engine = HeldEngine(slots)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, backlog=BACKLOG)
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()
        for held in engine.asked:
            held.writer.transport.abort()
