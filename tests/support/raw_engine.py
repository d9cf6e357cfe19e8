"""An engine whose answers are written byte for byte by the test."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

MODELS = b'{"object":"list","data":[{"id":"raw","object":"model","max_model_len":1024}]}'
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def chunked(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class RawEngine:
    """Answers every POST with `writes`, one write each, then closes if `closes`.

    A GET of a stored response is answered with `gets` in the same way.
    """

    def __init__(self) -> None:
        self.writes: Sequence[bytes] = ()
        self.closes = False
        self.gets: Sequence[bytes] = ()
        self.closes_gets = False
        self.keeps_gets_open = False
        """Whether nothing follows on what answers a GET, not even the end of the connection."""
        self.gets_told = 0
        """How many were answered with `gets`."""
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = length_of(head)
                if length:
                    await reader.readexactly(length)
                is_stored = head.startswith(b"GET /v1/responses/")
                if head.startswith(b"POST") or is_stored:
                    for data in self.gets if is_stored else self.writes:
                        writer.write(data)
                        await writer.drain()
                        await asyncio.sleep(0)
                    self.gets_told += is_stored
                    if is_stored and self.keeps_gets_open:
                        await reader.read()
                    if self.closes_gets if is_stored else self.closes:
                        return
                elif b"/v1/models" in head.split(b"\r\n")[0]:
                    writer.write(_plain(b"200 OK", MODELS))
                else:
                    writer.write(_plain(b"404 Not Found", b"{}"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def running_raw_engine() -> AsyncIterator[RawEngine]:
    """A raw engine on a port of its own."""
    engine = RawEngine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.port = server.sockets[0].getsockname()[1]
    async with server:
        yield engine


def _plain(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def length_of(head: bytes) -> int:
    """Bytes of the body that follows; 0 where it has none."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0
