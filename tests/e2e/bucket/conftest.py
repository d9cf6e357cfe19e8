"""A real S3 server, moto's, behind a line that can break; without it all is skipped aloud."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import ended
from tests.support.batches import reached
from tests.support.chaos_proxy import NONE, ChaosProxy, Trouble, chaos_proxy
from tests.support.ports import free_port

READY_S_MAX = 60.0
NAME = "answers"


@dataclass(slots=True)
class Store:
    """The server of buckets."""

    proxy: ChaosProxy
    """The way that a gateway takes to it."""
    http: httpx.AsyncClient
    """A way of our own."""

    async def make_bucket(self) -> None:
        """It is there."""
        (await self.http.put(f"/{NAME}")).raise_for_status()

    async def refuse(self) -> None:
        """From now on it knows no key."""
        (await self.http.post("/moto-api/reset-auth", content=b"0")).raise_for_status()

    async def permit(self) -> None:
        """Any key is as good as another."""
        (await self.http.post("/moto-api/reset-auth", content=b"inf")).raise_for_status()

    async def go_down(self) -> None:
        """Nobody listens, and open connections break."""
        await self.proxy.set(Trouble(refuses=True))
        self.proxy.reset_all()

    async def fall_silent(self) -> None:
        """Nothing passes in either direction, and no end either."""
        await self.proxy.set(Trouble(blackhole=True, accepts_only=True))

    async def come_back(self) -> None:
        """As before."""
        await self.proxy.set(NONE)

    async def objects(self) -> int:
        """How many there are."""
        return (await self.http.get(f"/{NAME}?list-type=2")).text.count("<Key>")


@contextmanager
def serving_buckets(folder: Path) -> Iterator[int]:
    """The server as a process of its own; yields its port."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (
        (folder / "moto.log").open("wb") as log,
        ended(subprocess.Popen(command, stdout=log, stderr=log)),
    ):
        yield port


async def _await_up(http: httpx.AsyncClient) -> None:
    async def is_up() -> bool:
        try:
            return (await http.get("/moto-api/")).status_code == 200
        except httpx.HTTPError:
            await asyncio.sleep(0.1)
            return False

    await reached(is_up, READY_S_MAX)


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A server without any bucket, which is what the environment names."""
    reason = "SKIPPED: pip install s3fs 'moto[s3]' flask flask-cors"
    for name in ("s3fs", "moto", "flask_cors"):
        pytest.importorskip(name, reason=reason)
    with serving_buckets(tmp_path) as port:
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
            chaos_proxy(port) as proxy,
        ):
            await _await_up(http)
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFAIRGATE")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
            monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            yield Store(proxy, http)
