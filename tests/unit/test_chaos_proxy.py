"""The bad line that failure tests are run over: each trouble is what it says, and ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.chaos_proxy import NONE, ChaosProxy, Trouble, chaos_proxy
from tests.support.gateway import eventually

SOON_S = 0.1


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say everything back, until there is an end or the word for it."""
    while data := await reader.read(1000):
        writer.write(data)
        if b"end" in data:
            break
    writer.close()


@asynccontextmanager
async def line() -> AsyncIterator[tuple[ChaosProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A proxy before an echo, and a connection through it."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with chaos_proxy(server.sockets[0].getsockname()[1]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        yield proxy, reader, writer
        writer.close()
    server.close()


async def silent(reader: asyncio.StreamReader) -> bool:
    """Whether nothing comes for a while, not even an end."""
    try:
        await asyncio.wait_for(reader.read(1), SOON_S)
    except TimeoutError:
        return True
    return False


async def test_without_trouble_bytes_and_ends_pass() -> None:
    """All that is seen behind it would be its own doing."""
    async with line() as (proxy, reader, writer):
        writer.write(b"end")
        assert await reader.read() == b"end"
        await eventually(lambda: proxy.open == 0)


async def test_a_refusing_line_refuses_and_leaves_what_is_open() -> None:
    """A listener that closes does not end streams."""
    async with line() as (proxy, reader, writer):
        writer.write(b"a")
        await reader.readexactly(1)
        await proxy.set(Trouble(refuses=True))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"b")
        assert await reader.readexactly(1) == b"b"
        await proxy.set(NONE)
        _, other = await asyncio.open_connection("127.0.0.1", proxy.port)
        other.close()


@pytest.mark.parametrize(
    "trouble", [Trouble(blackhole=True), Trouble(stalls_after=0), Trouble(latency_s=0.3)]
)
async def test_what_is_held_up_comes_in_the_end(trouble: Trouble) -> None:
    """A stall that loses bytes would be another fault than the one that is tested."""
    async with line() as (proxy, reader, writer):
        await proxy.set(trouble)
        writer.write(b"a")
        assert await silent(reader)
        await proxy.set(NONE)
        assert await asyncio.wait_for(reader.readexactly(1), 5) == b"a"


async def test_a_stall_strikes_after_so_many_bytes() -> None:
    """Half an answer is another case than none."""
    async with line() as (proxy, reader, writer):
        await proxy.set(Trouble(stalls_after=3))
        writer.write(b"abcdef")
        assert await reader.readexactly(3) == b"abc"
        assert await silent(reader)


async def test_bytes_one_by_one_are_the_same_bytes() -> None:
    """Whoever needs whole lines in one read would fail elsewhere only."""
    async with line() as (proxy, reader, writer):
        await proxy.set(Trouble(one_byte=True))
        writer.write(b"abcdef")
        assert await reader.readexactly(6) == b"abcdef"


async def test_a_half_open_line_keeps_the_end_to_itself() -> None:
    """A peer that vanished behind a firewall never says so."""
    async with line() as (proxy, reader, writer):
        await proxy.set(Trouble(half_open=True))
        writer.write(b"end")
        assert await reader.readexactly(3) == b"end"
        assert await silent(reader)
        await proxy.set(NONE)
        assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_a_line_that_only_accepts_leads_somewhere_later() -> None:
    """Full accept queues look like this."""
    async with line() as (proxy, _, _):
        await proxy.set(Trouble(accepts_only=True))
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"a")
        assert await silent(reader)
        await proxy.set(NONE)
        assert await asyncio.wait_for(reader.readexactly(1), 5) == b"a"
        writer.close()


async def test_a_reset_is_one_and_ends_both_sides() -> None:
    """An orderly end is another case."""
    async with line() as (proxy, reader, writer):
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.reset_all()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 5)
        await eventually(lambda: proxy.open == 0)
