"""A gateway as a process of its own, whose memory can be watched."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from gateway.bench.process import sample_tree
from tests.chaos.fleet import until
from tests.e2e.processes import ended
from tests.support.ports import free_port

READY_S_MAX = 30.0
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Site:
    """A running gateway."""

    port: int
    process: "subprocess.Popen[bytes]"
    http: httpx.AsyncClient

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def rss_mb(self) -> float:
        """Its memory now."""
        return sample_tree(self.process.pid).rss_bytes / MB

    async def ready(self) -> dict[str, Any]:
        """What `/readyz` says."""
        told: dict[str, Any] = (await self.http.get("/readyz")).json()
        return told

    async def freed(self, within_s: float) -> None:
        """Wait until nothing waits and nothing is granted. Raises TimeoutError."""
        await until(self._is_free, within_s)

    async def _is_free(self) -> bool:
        held = await self.ready()
        return not (held["granted"] or held["waiting"])


@asynccontextmanager
async def site(
    folder: Path,
    replicas: Sequence[str],
    environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Site]:
    """`fairgate serve` before `replicas`, once all of them are up."""
    port = free_port()
    listen = {"host": "127.0.0.1", "port": port}
    config = folder / f"fairgate-{port}.yaml"
    config.write_text(json.dumps({"listen": listen, "replicas": list(replicas), **settings}))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    process = subprocess.Popen(command, env={**os.environ, **(environ or {})})  # noqa: ASYNC220 - returns at once
    url = f"http://127.0.0.1:{port}"
    with ended(process):
        async with httpx.AsyncClient(base_url=url, timeout=10.0) as http:
            running = Site(port, process, http)
            await until(partial(_all_up, running, len(replicas)), READY_S_MAX)
            yield running


async def _all_up(running: Site, replicas: int) -> bool:
    with suppress(httpx.HTTPError, KeyError):
        told = (await running.ready())["replicas"].values()
        return sum(bool(each["up"]) for each in told) == replicas
    return False


def slope_mb_per_min(samples: Sequence[tuple[float, float]], after_s: float) -> float:
    """The trend of (instant, MB) since `after_s`."""
    times, sizes = zip(*(each for each in samples if each[0] >= after_s), strict=True)
    return statistics.linear_regression(times, sizes).slope * 60
