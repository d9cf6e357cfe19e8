"""Running the gateway on uvicorn: sockets, signals and what is printed at the start."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from gateway import __version__
from gateway.api.crowd import ClientConfig
from gateway.api.inbound import ClientConnection
from gateway.app import Gateway, set_log_level
from gateway.runtime.collector import calm_collector
from gateway.runtime.descriptors import connections_for, open_now, raised_limit
from gateway.runtime.shutdown import leave
from gateway.settings import Settings, SettingsError

LOGGER = logging.getLogger("fairgate.server")
CLIENT_KEEPALIVE_S = 75
"""Longer than the idle time of common client pools, so that they close first."""
BACKLOG = 2_048
FLUSH_S = 5.0
"""After its last answer a client may take so long to read the rest of it."""
STEP_S = 0.02
TASKS_S = 1.0
"""Requests whose connection was cut end within this time."""
LIFESPAN_S = 5.0
LOOK_TICKS = 10
"""Of a tenth of a second."""
BODY_S = 300.0
"""A client may take so long to send a body; for a head it has its idle time."""
HURRY_S = 1.0
"""A second signal ends the process within this time, whatever hangs."""


class GatewayServer(uvicorn.Server):
    """A uvicorn server that leaves in steps; a second signal ends it at once.

    `status` is what the process should exit with.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        gateway: Gateway,
        *,
        last_resort: Callable[[float, int], None] = lambda _s, _status: None,
        load: Callable[[], Settings] | None = None,
    ) -> None:
        """`last_resort(s, status)` sees to it that the process ends within `s` seconds.

        `load` reads the settings again, on SIGHUP and in a thread; None: the signal is not ours.
        """
        super().__init__(config)
        self.operators_state = uvicorn.server.ServerState()
        """Connections of operators, where they have a listener of their own."""
        self.status = 0
        self._gateway = gateway
        self._last_resort = last_resort
        self._load = load
        self._loading: asyncio.Task[None] | None = None
        self._is_stale = False
        """Whether the settings changed again while they were read."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._is_told = False
        """Whether a first signal came."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._gateway.asgi_of_operators is not None:
            await self._listen_to_operators(self._gateway.asgi_of_operators)
        if self._load is not None:
            self._loop.add_signal_handler(signal.SIGHUP, self.reload)

    async def _listen_to_operators(self, app: ASGIApp) -> None:
        """A second listener in this process; it ends with the first."""
        port = self._gateway.settings.listen.admin_port
        config = operators_config(self._gateway, app, host=self.config.host, port=port or 0)
        config.load()

        def made() -> asyncio.Protocol:
            connection = ClientConnection(
                config, self.operators_state, self.lifespan.state, asyncio.get_running_loop()
            )
            return cast(asyncio.Protocol, connection)

        try:
            listener = await asyncio.get_running_loop().create_server(
                made, host=config.host, port=config.port, backlog=config.backlog
            )
        except OSError as error:
            LOGGER.error("operators cannot be listened to: %s", error)
            for server in self.servers:
                server.close()
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)
        self.servers.append(listener)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came: leave in steps; at once if it is the second, or nothing runs yet.

        Whoever presses Ctrl-C has no load balancer that must be told first.
        """
        if self._is_told:
            self.status = 128 + sig
            self.force_exit = self.should_exit = True
            self._last_resort(HURRY_S, self.status)
            return
        self._is_told = True
        if self._loop is None or not self.started:
            self.should_exit = True
            return
        lag_s = 0.0 if sig == signal.SIGINT else self._gateway.settings.shutdown.lag_s
        self._loop.call_soon_threadsafe(self.leave, lag_s)

    def leave(self, lag_s: float) -> None:
        """Begin to leave: not ready from now on, and after `lag_s` seconds nothing new comes in."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._leave(lag_s))

    def reload(self) -> None:
        """Read the settings again and go on with them; what is wrong with them is logged."""
        if self._loading is None and self._leaving is None:
            self._loading = asyncio.get_running_loop().create_task(self._reload())
        else:
            self._is_stale = True

    def announce(self) -> None:
        """Not ready any more; each connection ends with its next answer."""
        self._gateway.announce()

    def refuse(self) -> None:
        """Nothing new comes in; connections on which nothing is asked are closed."""
        self._gateway.refuse()
        self._close_idle()

    def inside(self) -> int:
        """Requests that were let in and have not ended."""
        return self._gateway.inside()

    def end(self) -> None:
        """What waits and what runs is over."""
        self._gateway.end()

    async def on_tick(self, counter: int) -> bool:
        """Once a second, cut off clients that take too long to send a body."""
        if counter % LOOK_TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in self._connections():
                connection.look(now, BODY_S)
        over = await super().on_tick(counter)
        self.operators_state.default_headers = self.server_state.default_headers
        return over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close everything. What is still there has had its time: it is cut off."""
        for task in (self._leaving, self._loading):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        if not self.force_exit:
            self._last_resort(FLUSH_S + TASKS_S + LIFESPAN_S + HURRY_S, self.status)
        for server in self.servers:
            server.close()
        for each in sockets or []:
            each.close()
        self._gateway.hang_up()
        self._close_idle()
        await self._until(lambda: not self._connections() or self.force_exit, FLUSH_S)
        for connection in self._connections():
            connection.abort()
        await self._until(lambda: not self._tasks(), HURRY_S / 4 if self.force_exit else TASKS_S)
        for task in self._tasks():
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(HURRY_S / 4 if self.force_exit else LIFESPAN_S):
                await self.lifespan.shutdown()

    async def _reload(self) -> None:
        assert self._load is not None
        try:
            while True:
                self._is_stale = False
                await self._reload_once(self._load)
                if not self._is_stale:
                    return
        finally:
            self._loading = None

    async def _reload_once(self, load: Callable[[], Settings]) -> None:
        try:
            await self._gateway.office.reread(await asyncio.to_thread(load))
        except SettingsError as error:
            LOGGER.error("the settings were read again, and nothing was changed: %s", error)
        except Exception:
            LOGGER.exception("the settings could not be read again")

    async def _leave(self, lag_s: float) -> None:
        try:
            await leave(self, lag_s=lag_s, limit_s=self._gateway.settings.shutdown.limit_s)
        except Exception:
            LOGGER.exception("shutting down failed, and goes on with what is left of it")
        finally:
            self.should_exit = True

    def _close_idle(self) -> None:
        for connection in self._connections():
            connection.shutdown()

    def _connections(self) -> list[ClientConnection]:
        states = (self.server_state, self.operators_state)
        return [
            cast(ClientConnection, connection)
            for state in states
            for connection in state.connections
        ]

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self.server_state.tasks, *self.operators_state.tasks]

    async def _until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Wait until it holds, or for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not condition():  # noqa: ASYNC110 - uvicorn tells of neither by an event
                    await asyncio.sleep(STEP_S)


def server_config(gateway: Gateway, *, host: str, port: int) -> uvicorn.Config:
    """The one way in which uvicorn is set up, for the command and for tests."""
    config = _config(gateway.asgi, host=host, port=port)
    config.crowd, config.surplus = gateway.crowd, gateway.surplus
    return config


def operators_config(gateway: Gateway, app: ASGIApp, *, host: str, port: int) -> uvicorn.Config:
    """The same for the operators' own listener."""
    config = _config(app, host=host, port=port)
    config.crowd, config.surplus = gateway.operators_crowd, app
    return config


def _config(app: ASGIApp, *, host: str, port: int) -> ClientConfig:
    return ClientConfig(
        app,
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
    )


def serve(settings: Settings, load: Callable[[], Settings] | None = None) -> None:
    """Serve until stopped. Blocks. SystemExit where it did not end as it should.

    `load` reads the settings again, on SIGHUP.
    """
    if load is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is somebody to hear it
    _set_up_logging(settings)
    gateway = Gateway(settings)
    host, port = settings.listen.host, settings.listen.port
    gateway.furnish()
    _announce(gateway)
    calm_collector()
    limit = raised_limit()
    gateway.bound_connections(connections_for(limit, open_now()))
    LOGGER.info("at most %d connections of clients (%d open files)", gateway.crowd.most, limit)
    config = server_config(gateway, host=host, port=port)
    server = GatewayServer(config, gateway, last_resort=_exit_within, load=load)
    server.run()
    if server.status:
        raise SystemExit(server.status)


def _exit_within(seconds: float, status: int) -> None:
    """End this process even if a thread hangs, or a task that cannot be cancelled."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(status))
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _announce(gateway: Gateway) -> None:
    settings = gateway.settings
    base = f"http://{settings.listen.host}:{settings.listen.port}"
    apart = settings.listen.admin_port
    theirs = base if apart is None else f"http://{settings.listen.host}:{apart}"
    lines = [f"fairgate {__version__} on {base}  (console: {theirs}/console, docs: {theirs}/docs)"]
    if settings.is_open:
        lines.append("open mode: no API key is configured, so only this machine is served")
    made = gateway.operators.made_key
    if made is not None and not settings.is_local:
        lines.append(
            f"admin key for /console, /admin, /metrics and /docs, made for this run: {made}"
        )
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def _set_up_logging(settings: Settings) -> None:
    """Of others only warnings: httpx would tell of each probe."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    set_log_level(settings)
