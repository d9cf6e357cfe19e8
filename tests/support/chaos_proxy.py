"""A TCP proxy that makes a network bad: between the gateway and an engine, or a client and us.

It knows nothing of HTTP. Troubles may be changed at any time; they strike connections that are open
already, too, except where said otherwise.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tests.support.ports import free_port

PIECE_BYTES = 1 << 16
ONE_BYTE_PAUSE_S = 0.0
CLOSE_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong with the line; the default is nothing."""

    refuses: bool = False
    """Nobody listens. Open connections are left as they are."""
    accepts_only: bool = False
    """New connections are accepted and lead nowhere."""
    blackhole: bool = False
    """Nothing passes in either direction, and no end either: a cable was pulled."""
    latency_s: float = 0.0
    """Before each piece, in both directions; the order stays."""
    one_byte: bool = False
    """Answers come in pieces of one byte each."""
    stalls_after: int | None = None
    """So many more bytes of answers pass on each connection, then none, without an end."""
    half_open: bool = False
    """When the engine ends a connection, the other side is not told."""


NONE = Trouble()


class Line:
    """One connection through the proxy."""

    def __init__(self, proxy: "ChaosProxy", client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._writers = [client]
        self._answered = 0

    async def carry(self, reader: asyncio.StreamReader) -> None:
        """Pass bytes on both ways until one side has ended."""
        (client,) = self._writers
        while self._proxy.trouble.accepts_only:
            await self._proxy.changed()
        try:
            engine_reader, engine = await asyncio.open_connection("127.0.0.1", self._proxy.target)
        except OSError:
            self.reset()
            return
        self._writers.append(engine)
        asking = asyncio.ensure_future(self._pump(reader, engine, answers=False))
        answering = asyncio.ensure_future(self._pump(engine_reader, client, answers=True))
        try:
            await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
            while self._proxy.trouble.half_open and not asking.done():
                change = asyncio.ensure_future(self._proxy.changed())
                await asyncio.wait((asking, change), return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
            await self._proxy.passable()
        finally:
            for pump in (asking, answering):
                pump.cancel()
                with suppress(asyncio.CancelledError):
                    await pump
            for writer in self._writers:
                writer.close()

    def reset(self) -> None:
        """End both sides with a RST."""
        for writer in self._writers:
            raw = writer.get_extra_info("socket")
            if raw is not None and not writer.is_closing():
                with suppress(OSError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(PIECE_BYTES):
                trouble = self._proxy.trouble
                if trouble.latency_s:
                    await asyncio.sleep(trouble.latency_s)
                await self._proxy.passable()
                if answers:
                    await self._answer(writer, data)
                else:
                    await _passed(writer, data)

    async def _answer(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        while data:
            trouble = self._proxy.trouble
            size = 1 if trouble.one_byte else len(data)
            if trouble.stalls_after is not None:
                size = min(size, trouble.stalls_after - self._answered)
                if size <= 0:
                    await self._proxy.changed()
                    continue
                self._answered += size
            else:
                self._answered = 0
            await _passed(writer, data[:size])
            data = data[size:]
            if trouble.one_byte:
                await asyncio.sleep(ONE_BYTE_PAUSE_S)


async def _passed(writer: asyncio.StreamWriter, data: bytes) -> None:
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(data)
    await writer.drain()


class ChaosProxy:
    """Listens on a port of its own; made by `chaos_proxy`."""

    def __init__(self, target: int) -> None:
        self.target = target
        """Port on this machine where the engine listens."""
        self.port = free_port()
        self.trouble = NONE
        self.accepted = 0
        self._lines: dict[Line, asyncio.Task[None]] = {}
        self._listener: asyncio.Server | None = None
        self._change = asyncio.Event()

    @property
    def url(self) -> str:
        """What stands in for the engine's own URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        """Connections that are carried now."""
        return len(self._lines)

    async def set(self, trouble: Trouble) -> None:
        """Be so from now on."""
        self.trouble = trouble
        change, self._change = self._change, asyncio.Event()
        change.set()
        if trouble.refuses and self._listener is not None:
            self._listener.close()
            self._listener = None
        elif not trouble.refuses and self._listener is None:
            await self.listen()

    def reset_all(self) -> None:
        """Break every open connection off."""
        for line, task in list(self._lines.items()):
            line.reset()
            task.cancel()

    async def changed(self) -> None:
        """Wait for another trouble."""
        await self._change.wait()

    async def passable(self) -> None:
        """Wait until the line is no black hole."""
        while self.trouble.blackhole:
            await self.changed()

    async def listen(self) -> None:
        """Take connections, on the same port as before."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def close(self) -> None:
        """End everything."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.reset_all()
        if self._lines:
            await asyncio.wait(self._lines.values(), timeout=CLOSE_WITHIN_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        line = Line(self, writer)
        task = asyncio.ensure_future(line.carry(reader))
        self._lines[line] = task
        try:
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()
        finally:
            del self._lines[line]
            writer.close()


@asynccontextmanager
async def chaos_proxy(target: int) -> AsyncIterator[ChaosProxy]:
    """A proxy before the engine on port `target` of this machine."""
    proxy = ChaosProxy(target)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()
