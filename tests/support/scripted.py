"""A server that plays a script on raw sockets: what it says, and how it ends each exchange."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

Then = Literal["keep", "close", "reset", "hang", "deaf"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the script: written piece by piece, then the connection is kept or ended.

    `hang` says nothing more and waits until the other side ends it; `deaf` does not even read.
    Said `early`, it is said to
    the head of a request whose body nobody reads.
    """

    pieces: tuple[bytes, ...] = ()
    then: Then = "keep"
    early: bool = False


def plain(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    """A whole answer with its length."""
    head = b"".join(b"%b\r\n" % header for header in headers)
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, head, len(body), body)


def chunk(data: bytes) -> bytes:
    """One HTTP chunk; of nothing: the last."""
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class ScriptedServer:
    """Answers each request with the next line; remembers which connection brought what."""

    def __init__(self) -> None:
        self.script: deque[Line] = deque()
        self.requests: list[tuple[int, bytes]] = []
        """(number of the connection, the whole request)."""
        self.connections = 0
        self.ended = asyncio.Queue[int]()
        """Numbers of connections that the other side ended."""
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def will(self, *pieces: bytes, then: Then = "keep", early: bool = False) -> None:
        """Add a line to the script."""
        self.script.append(Line(pieces, then, early))

    def hang_up(self) -> None:
        """End all connections, as uvicorn does to idle ones."""
        for writer in self._writers:
            writer.close()

    def reset(self) -> None:
        """Break all connections off."""
        for writer in self._writers:
            _reset(writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self._writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        number = self.connections
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line = self.script.popleft() if self.script else Line(then="hang")
                body = b"" if line.early else await reader.readexactly(_length(head))
                self.requests.append((number, head + body))
                await _say(writer, line.pieces)
                if line.then == "reset":
                    _reset(writer)
                if line.then in ("close", "reset"):
                    return
                if line.then == "deaf":
                    await asyncio.Event().wait()
                if line.then == "hang":
                    await reader.read()
                    self.ended.put_nowait(number)
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.put_nowait(number)
        finally:
            writer.close()

    async def wait_closed(self) -> None:
        """End every connection and wait for its task."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def scripted_server() -> AsyncIterator[ScriptedServer]:
    """A scripted server on a port of its own."""
    scripted = ScriptedServer()
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()
        await scripted.wait_closed()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


async def _say(writer: asyncio.StreamWriter, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
