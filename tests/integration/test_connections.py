"""The client's connection on a real socket: old clients, kept connections, bodies that are held."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.api.routes import CHAT, TRANSCRIPTIONS
from gateway.emulator.options import EmulatorOptions
from tests.support.asks import PLAIN, STREAMS, Ask
from tests.support.house import House, house
from tests.support.raw_client import exchange

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built() -> AsyncIterator[House]:
    """A gateway before one engine, for all tests of this file."""
    engine = EmulatorOptions(profile="instant", embeddings=True)
    async with house(engine, bounds={"body": "64KiB"}) as whole:
        yield whole


@pytest.fixture
def alone(built: House) -> House:
    """The same, and nothing was asked of it yet."""
    built.forget()
    return built


class Line:
    """One connection that a test reads as it likes."""

    def __init__(self, house: House) -> None:
        self._address = house.running.url.removeprefix("http://").split(":")

    async def __aenter__(self) -> "Line":
        host, port = self._address
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def answer(self) -> tuple[bytes, bytes]:
        """The next head and body; one has a length."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return head, await self.reader.readexactly(int(length or b"0"))


@pytest.mark.parametrize("ask", STREAMS, ids=str)
async def test_an_old_proxy_gets_a_stream_that_ends_with_the_connection(
    alone: House, ask: Ask
) -> None:
    """nginx speaks HTTP/1.0 to what is behind it unless it is told otherwise."""
    asked = ask.raw().replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    answer = await exchange(alone.running.url, asked)
    assert b"transfer-encoding" not in answer.head
    assert b"\r\nconnection: close" in answer.head
    assert answer.body == alone.seen[0].answer


@pytest.mark.parametrize("ask", PLAIN, ids=str)
async def test_an_old_client_gets_a_plain_answer_with_its_length(alone: House, ask: Ask) -> None:
    """And the connection ends, since it asked for no other."""
    answer = await exchange(alone.running.url, ask.raw().replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert b"\r\ncontent-length: %d\r\n" % len(answer.body) in answer.head + b"\r\n"
    assert answer.body == alone.seen[0].answer


async def test_answers_on_one_connection_come_in_the_order_of_their_requests(alone: House) -> None:
    """Sent one after the other or all at once: answers have no names."""
    asks = [ask for ask in PLAIN if not ask.route.is_form]
    async with Line(alone) as line:
        line.writer.write(b"".join(ask.raw() for ask in asks))
        answers = [await line.answer() for _ in asks]
    assert [body for _, body in answers] == [seen.answer for seen in alone.seen]
    assert [seen.target for seen in alone.seen] == [ask.route.path for ask in asks]


async def test_routes_of_all_three_applications_share_a_connection(alone: House) -> None:
    """Health, models and errors are written by FastAPI, through the same connection."""
    targets = ["/healthz", "/v1/models", "/v1/responses/resp_1", "/nothing", "/docs", "/metrics"]
    statuses = []
    async with Line(alone) as line:
        for target in targets:
            line.writer.write(b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % target.encode())
            head, body = await line.answer()
            statuses.append(int(head.split(b" ")[1]))
            assert body
        line.writer.write(PLAIN[0].raw())
        assert (await line.answer())[1] == alone.seen[0].answer
    assert statuses == [200, 200, 404, 404, 200, 200]


@pytest.mark.parametrize("route", [CHAT, TRANSCRIPTIONS], ids=lambda route: route.name)
async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(
    alone: House, route: object
) -> None:
    """curl asks before it sends a large body; a gigabyte would be uploaded to be refused."""
    ask = next(each for each in PLAIN if each.route is route)
    async with Line(alone) as line:
        head = ask.raw().partition(b"\r\n\r\n")[0]
        length = b"content-length: %d" % len(ask.body())
        assert length in head
        head = head.replace(length, b"content-length: 65537\r\nexpect: 100-continue")
        line.writer.write(head + b"\r\n\r\n")
        begun, body = await line.answer()
    assert begun.startswith(b"HTTP/1.1 413 "), begun
    assert b"bounds.body" in body


@pytest.mark.parametrize("route", [CHAT, TRANSCRIPTIONS], ids=lambda route: route.name)
async def test_a_body_that_waits_to_be_asked_for_is_asked_for(alone: House, route: object) -> None:
    """Otherwise curl hesitates for a second before every large prompt."""
    ask = next(each for each in PLAIN if each.route is route)
    async with Line(alone) as line:
        head, _, body = ask.raw("expect: 100-continue").partition(b"\r\n\r\n")
        line.writer.write(head + b"\r\n\r\n")
        begun, _ = await line.answer()
        assert begun == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.writer.write(body)
        assert (await line.answer())[1] == alone.seen[0].answer
