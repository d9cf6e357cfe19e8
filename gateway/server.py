"""Running the gateway on uvicorn: sockets, signals and what is printed at the start."""

import asyncio
import gc
import logging
import signal
from types import FrameType
from typing import Any, cast

import uvicorn
from rich.console import Console

from gateway import __version__
from gateway.api.inbound import ClientConnection
from gateway.app import Gateway
from gateway.settings import Settings

CLIENT_KEEPALIVE_S = 75
"""Longer than the idle time of common client pools, so that they close first."""
BACKLOG = 2_048
OBJECTS_BETWEEN_LOOKS = 20_000
"""Made and not freed since the garbage collector looked last."""
DRAIN_S = 600
"""After SIGTERM what runs may take this long to end; a second signal ends it at once."""


class GatewayServer(uvicorn.Server):
    """A uvicorn server that stops admitting the moment it is told to stop."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: object = None) -> None:
        """Serve until a signal ends it."""
        self._loop = asyncio.get_running_loop()
        await super().serve()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came: nothing more is admitted, what waits is told so."""
        if self._loop is not None and not self.should_exit:
            self._loop.call_soon_threadsafe(self._gateway.close)
        elif sig == signal.SIGTERM:
            self.force_exit = True
        super().handle_exit(sig, frame)


def server_config(gateway: Gateway, *, host: str, port: int) -> uvicorn.Config:
    """The one way in which uvicorn is set up, for the command and for tests."""
    return uvicorn.Config(
        gateway.asgi,
        host=host,
        port=port,
        loop="uvloop",
        http=cast(Any, ClientConnection),
        ws="none",
        lifespan="on",
        access_log=False,  # 42 us a request; the request log says more
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=CLIENT_KEEPALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
    )


def serve(settings: Settings) -> None:
    """Serve until stopped. Blocks."""
    _set_up_logging()
    gateway = Gateway(settings)
    host, port = settings.listen.host, settings.listen.port
    _announce(gateway, Console(stderr=True))
    _calm_collector()
    GatewayServer(server_config(gateway, host=host, port=port), gateway).run()


def _announce(gateway: Gateway, console: Console) -> None:
    settings = gateway.settings
    base = f"http://{settings.listen.host}:{settings.listen.port}"
    console.print(f"fairgate {__version__} on {base}  (docs: {base}/docs)")
    if settings.is_open:
        console.print("open mode: no API key is configured, so only this machine is served")
    if gateway.admin_key is not None and not settings.is_local:
        console.print(f"admin key for /metrics and /docs, made for this run: {gateway.admin_key}")


def _calm_collector() -> None:
    """Look for garbage cycles seldom: requests make few, and a look costs all that lives."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_LOOKS)


def _set_up_logging() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
