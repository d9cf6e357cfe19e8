"""A way to an engine that cuts answers off: what the loss of a machine in mid-stream looks like."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

STREAM = b"text/event-stream"


class CuttingProxy:
    """Passes everything on, and ends the next event streams after so many bytes of the engine's."""

    def __init__(self, engine: str) -> None:
        parts = urlsplit(engine)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self.cuts: list[int] = []
        """For the event streams to come, in order; the ones after them are whole."""
        self.done = 0
        """How many streams were cut."""
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the gateway's, and the one to the engine that belongs to it."""
        engine_reader, engine_writer = await asyncio.open_connection(self._host, self._port)
        there = asyncio.create_task(_copied(reader, engine_writer))
        try:
            left: int | None = None
            while data := await engine_reader.read(65536):
                if STREAM in data and self.cuts:
                    left = self.cuts.pop(0)
                if left is not None:
                    data, left = data[:left], left - len(data[:left])
                writer.write(data)
                await writer.drain()
                if left == 0:
                    self.done += 1
                    return
        except ConnectionError:
            return
        finally:
            there.cancel()
            writer.close()
            engine_writer.transport.abort()


@asynccontextmanager
async def cutting(engine: str) -> AsyncIterator[CuttingProxy]:
    """A way to `engine` on a port of its own."""
    proxy = CuttingProxy(engine)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
