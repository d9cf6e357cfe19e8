"""One small, fast replica that keeps responses, and a gateway before it."""

import ssl
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.e2e.processes import serving
from tests.e2e.vllm.engines import running_vllm
from tests.e2e.vllm.tiny.asking import Both
from tests.support.ports import free_port

WAIT_S = 60.0


@pytest.fixture(scope="package")
def engine() -> Iterator[str]:
    """The `tiny` model: random, but the same at temperature 0 whoever asks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")
        with running_vllm(free_port(), model="tiny") as (url,):
            yield url


@pytest.fixture(scope="package")
def gateway(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gateway before it, in open mode."""
    with serving(tmp_path_factory.mktemp("gateway"), free_port(), [engine]) as url:
        yield url


@pytest.fixture
async def both(engine: str, gateway: str) -> AsyncIterator[Both]:
    """A client of each."""
    no_authorities = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # to read them all takes a while
    async with (
        httpx.AsyncClient(base_url=engine, timeout=WAIT_S, verify=no_authorities) as direct,
        httpx.AsyncClient(base_url=gateway, timeout=WAIT_S, verify=no_authorities) as through,
    ):
        yield Both(direct=direct, through=through)
