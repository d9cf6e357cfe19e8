"""The pool before one engine: which connection carries a request, and what happens to dead ones."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.core.messages import Fault
from gateway.upstream import client as client_module
from gateway.upstream.client import IDLE_CONNECTIONS_MAX, IDLE_S_MAX, EngineClient
from gateway.upstream.connection import Answer, UpstreamBrokenError
from gateway.upstream.replicas import ReplicaAddress
from tests.support.scripted import CHUNKED_HEAD, ScriptedServer, chunk, plain, scripted_server


class Deaf:
    """A meter that counts nothing."""

    def feed(self, data: bytes) -> None:
        return


class Clock:
    """Moved by the test."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def engine_client(url: str, clock: Clock | None = None, api_key: str | None = None) -> EngineClient:
    """A client of the engine at `url`."""
    address = ReplicaAddress("r", url, api_key=api_key)
    return EngineClient(address, buffer_bytes_max=1 << 16, clock=clock or Clock())


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """An engine that plays a script."""
    async with scripted_server() as scripted:
        yield scripted


@pytest.fixture
def clock() -> Clock:
    """Time as the pool sees it."""
    return Clock()


@pytest.fixture
def client(server: ScriptedServer, clock: Clock) -> EngineClient:
    """Our side."""
    return engine_client(server.url, clock)


async def send(client: EngineClient) -> Answer:
    """A request."""
    return await client.send(b"/x", b"{}", meter=Deaf())


async def exchange(client: EngineClient) -> bytes:
    """A request and its whole small answer."""
    answer = await send(client)
    chunks = []
    while data := await answer.read():
        chunks.append(data)
    return b"".join(chunks)


def carriers(server: ScriptedServer) -> list[int]:
    """Which connection carried each request."""
    return [number for number, _ in server.requests]


async def test_one_connection_carries_one_request_after_another(
    server: ScriptedServer, client: EngineClient
) -> None:
    """A handshake for each request would cost a round trip each."""
    for _ in range(3):
        server.will(plain(b"a"))
        assert await exchange(client) == b"a"
    assert carriers(server) == [0, 0, 0]


async def test_requests_at_the_same_time_have_connections_of_their_own(
    server: ScriptedServer, client: EngineClient
) -> None:
    """How many run at once is the scheduler's business: nothing waits for a pool."""
    for _ in range(20):
        server.will(plain(b"a"))
    await asyncio.gather(*(exchange(client) for _ in range(20)))
    assert sorted(carriers(server)) == list(range(20))


async def test_a_connection_idle_for_too_long_is_not_used_again(
    server: ScriptedServer, client: EngineClient, clock: Clock
) -> None:
    """uvicorn closes after 5 s: a request sent in that moment is lost."""
    server.will(plain(b"a"))
    await exchange(client)
    clock.now += IDLE_S_MAX
    server.will(plain(b"a"))
    await exchange(client)
    clock.now += IDLE_S_MAX + 0.1
    server.will(plain(b"a"))
    await exchange(client)
    assert carriers(server) == [0, 0, 1]
    assert await asyncio.wait_for(server.ended.get(), 5) == 0


async def test_a_connection_that_the_engine_closed_meanwhile_is_replaced_unseen(
    server: ScriptedServer, client: EngineClient
) -> None:
    """A restarted engine must not cost a request for each connection it had."""
    for _ in range(5):
        server.will(plain(b"a"))
    await asyncio.gather(*(exchange(client) for _ in range(5)))
    server.hang_up()
    server.will(plain(b"b"))
    assert await exchange(client) == b"b"
    assert carriers(server)[-1] == 5


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_connection_that_ends_as_the_request_is_sent_is_replaced_once(
    server: ScriptedServer, client: EngineClient, then: str
) -> None:
    """The race that every keep-alive pool has: the engine closes while we send."""
    server.will(plain(b"a"))
    await exchange(client)
    server.will(then="reset" if then == "reset" else "close")
    server.will(plain(b"b"))
    assert await exchange(client) == b"b"
    assert carriers(server) == [0, 0, 1]


async def test_a_new_connection_that_ends_is_not_replaced(
    server: ScriptedServer, client: EngineClient
) -> None:
    """An engine that dies of a request must not get it again from here: the relay decides."""
    server.will(then="close")
    with pytest.raises(UpstreamBrokenError):
        await exchange(client)
    assert carriers(server) == [0]


async def test_an_answer_that_had_begun_is_not_asked_for_again(
    server: ScriptedServer, client: EngineClient
) -> None:
    """The engine was at work on it already."""
    server.will(plain(b"a"))
    await exchange(client)
    server.will(b"HTTP/1.1 20", then="close")
    with pytest.raises(UpstreamBrokenError):
        await exchange(client)
    assert carriers(server) == [0, 0]


@pytest.mark.parametrize(
    "line",
    [
        plain(b"a", b"connection: close"),
        b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na",
        plain(b"a") + b"unasked for",
    ],
)
async def test_a_connection_that_is_not_kept_alive_is_not_used_again(
    server: ScriptedServer, client: EngineClient, line: bytes
) -> None:
    """The next answer on it would be somebody else's bytes, or none."""
    server.will(line)
    server.will(plain(b"b"))
    assert await exchange(client) == b"a"
    assert await exchange(client) == b"b"
    assert carriers(server) == [0, 1]


async def test_an_engine_that_talks_unasked_is_cut_off(
    server: ScriptedServer, client: EngineClient
) -> None:
    """What it says would be taken for the answer to the next request."""
    server.will(plain(b"a"), b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nX")
    assert await exchange(client) == b"a"
    await asyncio.wait_for(server.ended.get(), 5)
    server.will(plain(b"b"))
    assert await exchange(client) == b"b"


async def test_an_answer_abandoned_halfway_leaves_no_connection_behind(
    server: ScriptedServer, client: EngineClient
) -> None:
    """Its rest would be read as the head of the next answer."""
    server.will(CHUNKED_HEAD + chunk(b"half"), then="hang")
    answer = await send(client)
    answer.close()
    server.will(plain(b"b"))
    assert await exchange(client) == b"b"
    assert carriers(server) == [0, 1]


async def test_closing_the_client_closes_what_is_idle_and_leaves_what_runs(
    server: ScriptedServer, client: EngineClient
) -> None:
    """A replica that is removed finishes its streams."""
    server.will(CHUNKED_HEAD, then="hang")
    server.will(plain(b"a"))
    running = await send(client)
    await exchange(client)
    client.close()
    assert await asyncio.wait_for(server.ended.get(), 5) == 1
    assert not running.is_complete
    running.close()
    assert await asyncio.wait_for(server.ended.get(), 5) == 0


async def test_what_ends_after_the_client_was_closed_is_not_kept(
    server: ScriptedServer, client: EngineClient
) -> None:
    """Nobody would ever use the connection again, nor close it."""
    server.will(CHUNKED_HEAD, chunk(b"x"), chunk(b""))
    answer = await send(client)
    client.close()
    while await answer.read():
        continue
    assert await asyncio.wait_for(server.ended.get(), 5) == 0


async def test_the_idle_pool_has_a_bound(
    server: ScriptedServer, client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst must not leave its sockets open for good."""
    assert IDLE_CONNECTIONS_MAX > 2
    monkeypatch.setattr(client_module, "IDLE_CONNECTIONS_MAX", 2)
    for _ in range(4):
        server.will(plain(b"a"))
    await asyncio.gather(*(exchange(client) for _ in range(4)))
    for _ in range(2):
        await asyncio.wait_for(server.ended.get(), 5)
    await asyncio.sleep(0.01)
    assert server.ended.empty()


async def test_nobody_listening_is_told_at_once() -> None:
    """The next replica can be tried at once."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = engine_client(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(UpstreamBrokenError, match="cannot connect") as broken:
            await send(client)
    assert broken.value.is_fresh


async def test_connecting_has_a_short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One dead host has frozen whole fleets: a SYN that nobody answers takes minutes."""
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT_S", 0.02)

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    with pytest.raises(UpstreamBrokenError, match="timed out") as broken:
        await send(engine_client("http://127.0.0.1:1"))
    assert broken.value.is_fresh


async def test_an_engine_that_is_slow_to_answer_has_no_limit(
    server: ScriptedServer, client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prefill is no fault: only connecting is bounded."""
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT_S", 0.05)
    server.will(then="hang")
    waiting = asyncio.get_running_loop().create_task(send(client))
    await asyncio.sleep(0.15)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.wait_for(server.ended.get(), 5) == 0


async def test_the_engines_key_and_prefix_are_sent(server: ScriptedServer) -> None:
    """The engine's own key is the gateway's secret and never the client's."""
    server.will(plain(b""))
    await exchange(engine_client(f"{server.url}/base", api_key="s3cret"))
    request = server.requests[0][1]
    assert request.startswith(b"POST /base/x HTTP/1.1\r\n")
    assert b"authorization: Bearer s3cret\r\n" in request


async def test_an_engine_that_speaks_no_tls_is_unreachable(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handshake that never ends is a broken replica, and no request that waits for ever."""
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT_S", 0.1)
    with pytest.raises(UpstreamBrokenError):
        await send(engine_client(server.url.replace("http:", "https:")))


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), Fault.REFUSED),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), "
                 "[Errno 111] Connect call failed ('127.0.0.1', 1)"), Fault.REFUSED),
        (OSError("Multiple exceptions: [Errno 101] Network is unreachable, "
                 "[Errno 111] Connect call failed ('127.0.0.1', 1)"), Fault.CONNECT),
        (OSError(113, "No route to host"), Fault.CONNECT),
        (socket.gaierror(-2, "Name or service not known"), Fault.CONNECT),
        (TimeoutError(), Fault.CONNECT),
    ],
)  # fmt: skip
async def test_nobody_listens_only_where_all_addresses_refuse(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch, error: OSError, fault: Fault
) -> None:
    """A refusal ends the streams there: a broken route beside it must not."""

    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
    with pytest.raises(UpstreamBrokenError) as caught:
        await send(client)
    assert caught.value.fault is fault


async def test_a_port_without_a_listener_refuses() -> None:
    """The text of the error is what the system says."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(UpstreamBrokenError) as caught:
            await send(engine_client(url))
    assert caught.value.fault is Fault.REFUSED


async def test_what_breaks_later_broke_off_unless_it_was_left(
    server: ScriptedServer, client: EngineClient
) -> None:
    """Our own hanging up says nothing of the engine."""
    server.will(then="close")
    with pytest.raises(UpstreamBrokenError) as caught:
        await send(client)
    assert caught.value.fault is Fault.BROKE_OFF
    server.will(CHUNKED_HEAD + chunk(b"half"), then="hang")
    answer = await send(client)
    await answer.read()
    answer.close()
    with pytest.raises(UpstreamBrokenError) as caught:
        await answer.read()
    assert caught.value.fault is None
