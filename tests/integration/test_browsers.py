"""A web page that talks to the gateway: what its browser asks before, and reads after."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.emulator.options import EmulatorOptions
from tests.support.asks import PLAIN, STREAMS, Ask
from tests.support.house import House, house

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = "https://chat.example"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone() -> AsyncIterator[House]:
    """A gateway that one page may use, for all tests of this file."""
    engine = EmulatorOptions(profile="instant", embeddings=True)
    async with house(engine, listen={"cors_origins": [PAGE]}) as built:
        yield built


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/responses/resp_1"])
async def test_a_browser_that_asks_first_is_told_yes(alone: House, path: str) -> None:
    """It asks before each request with a key or a JSON body."""
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    for origin, expected in ((PAGE, PAGE), ("https://evil.example", None)):
        answer = await alone.http.options(path, headers={"origin": origin, **asks})
        assert answer.headers.get("access-control-allow-origin") == expected
    assert alone.seen == []


@pytest.mark.parametrize("ask", [PLAIN[0], PLAIN[3], STREAMS[0]], ids=str)
async def test_a_browser_may_read_the_answer(alone: House, ask: Ask) -> None:
    """Asked and allowed, it would still hide an answer without this header from its page."""
    answer = await alone.post(ask, origin=PAGE)
    assert answer.headers["access-control-allow-origin"] == PAGE
    refused = await alone.post(ask, b"{", origin=PAGE)
    assert refused.headers["access-control-allow-origin"] == PAGE, "errors are read too"
    other = await alone.post(ask, origin="https://evil.example")
    assert "access-control-allow-origin" not in other.headers


async def test_without_a_page_nothing_is_said_of_pages(alone: House) -> None:
    """Programs send no origin."""
    answer = await alone.post(PLAIN[0])
    assert not [name for name in answer.headers if name.startswith("access-control")]
