"""A real gateway on a real socket, inside the test's own loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic, time
from types import MappingProxyType

import httpx

from gateway.app import Gateway
from gateway.server import GatewayServer, server_config
from gateway.settings import load_settings
from gateway.tenancy.spending import Sums
from gateway.tenancy.store.memory import MemoryStore
from gateway.tenancy.store.port import Store

READY_S_MAX = 10.0
STEP_S = 0.005


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that listens."""

    gateway: Gateway
    server: GatewayServer
    url: str

    @property
    def operators_url(self) -> str:
        """Where operators are listened to."""
        listener = self.server.servers[-1]
        return f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"

    @property
    def in_flight(self) -> int:
        """Everything the scheduler still holds, waiting or granted."""
        return len(self.gateway.scheduler.waiting) + len(self.gateway.scheduler.granted)


@asynccontextmanager
async def running_gateway(
    *replicas: str | Mapping[str, object],
    wait_ready: bool = True,
    clock: Callable[[], float] = monotonic,
    environ: Mapping[str, str] = MappingProxyType({}),
    store: Store | None = None,
    wall: Callable[[], float] = time,
    sums: Sums | None = None,
    **overrides: object,
) -> AsyncIterator[Running]:
    """A gateway before `replicas`; `overrides` are dotted settings with `__` for the dot.

    `store`: None: one in memory. `wall` tells seconds since 1970. `sums`: see `Gateway`.
    """
    values: Mapping[str, object] = {
        "replicas": replicas,
        "scheduling.scrape_interval_s": 0.1,
        # Engines and clients share this loop, and make it late.
        "bounds.loop_lag_s": 0,
        **{name.replace("__", "."): value for name, value in overrides.items()},
    }
    settings = load_settings(config=None, environ=environ, overrides=values)
    store = MemoryStore() if store is None else store
    gateway = Gateway(settings, clock, store=store, wall=wall, sums=sums)
    config = server_config(gateway, host="127.0.0.1", port=0)
    config.loop = "none"
    server = GatewayServer(config, gateway)
    task = asyncio.get_running_loop().create_task(server._serve())
    try:
        await eventually(lambda: server.started or task.done())
        if task.done():
            task.result()
        port = server.servers[0].sockets[0].getsockname()[1]
        running = Running(gateway, server, f"http://127.0.0.1:{port}")
        if wait_ready:
            usable = gateway.scheduler.replicas
            await eventually(lambda: sum(r.is_usable for r in usable.values()) == len(replicas))
        yield running
    finally:
        server.should_exit = True
        await task


async def eventually(condition: Callable[[], object], within_s: float = READY_S_MAX) -> None:
    """Wait until `condition()` holds; AssertionError when it does not in time."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - conditions here are not events of the product
            await asyncio.sleep(STEP_S)


def client(running: Running, **headers: str) -> httpx.AsyncClient:
    """A plain HTTP client of the gateway."""
    return httpx.AsyncClient(base_url=running.url, headers=headers, timeout=20.0)
