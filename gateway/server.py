"""Running the gateway on uvicorn: sockets and signals, as one process or as one of several."""

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
from rich.console import Console
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from gateway.announced import announce
from gateway.api.crowd import ClientConfig
from gateway.api.inbound import ClientConnection
from gateway.app import Gateway
from gateway.runtime.berth import Berth, Report
from gateway.runtime.collector import calm_collector
from gateway.runtime.descriptors import connections_for, open_now, raised_limit
from gateway.runtime.listening import BACKLOG, adopted, is_listening
from gateway.runtime.shutdown import leave
from gateway.runtime.supervisor import ROLL
from gateway.settings import Settings, SettingsError
from gateway.telemetry.log import set_log_level

LOGGER = logging.getLogger("fairgate.server")
CLIENT_KEEPALIVE_S = 75
"""Longer than the idle time of common client pools, so that they close first."""
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
FOLLOWS_S = 10.0
"""A worker that follows another one takes nothing before it can serve; at most so long."""


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
        berth: Berth | None = None,
        report: Report | None = None,
    ) -> None:
        """`last_resort(s, status)` sees to it that the process ends within `s` seconds.

        `load` reads the settings again, on SIGHUP and in a thread; None: the signal is not ours.
        `berth` and `report`: where it is one of several workers, its place, and who waits for it.
        """
        super().__init__(config)
        self.operators_state = uvicorn.server.ServerState()
        """Connections of operators, where they have a listener of their own."""
        self.status = 0
        self._gateway = gateway
        self._last_resort = last_resort
        self._load = load
        self._berth = berth
        self._report = report
        self._siblings: asyncio.AbstractServer | None = None
        """The listener for the other workers of this machine."""
        self._is_replaced = False
        """Whether another worker has its place."""
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
        follows = sockets is not None and any(map(is_listening, sockets))
        await super().startup([] if follows else sockets)
        if sockets is not None and follows:
            await self._until(lambda: self._gateway.is_ready or self._is_told, FOLLOWS_S)
            made = self._made(self.config, self.server_state)
            for each in sockets:
                self.servers.append(
                    await self._loop.create_server(made, sock=each, backlog=self.config.backlog)
                )
        if self._gateway.asgi_of_operators is not None:
            await self._listen_to_operators(self._gateway.asgi_of_operators)
        self._gateway.listens_at(self.servers[-1].sockets[0].getsockname()[1])
        if self._load is not None:
            self._loop.add_signal_handler(signal.SIGHUP, self.reload)
        if self._berth is not None:
            await self._work_in(self._berth)

    async def _listen_to_operators(self, app: ASGIApp) -> None:
        """A second listener in this process; it ends with the first."""
        loop, port = asyncio.get_running_loop(), self._gateway.settings.listen.admin_port
        config = operators_config(self._gateway, app, host=self.config.host, port=port or 0)
        config.load()
        made = self._made(config, self.operators_state)
        try:
            if self._berth is None:
                listener = await loop.create_server(
                    made, host=config.host, port=config.port, backlog=config.backlog
                )
                self.servers.append(listener)
                return
            for each in adopted(self._berth.operators):
                self.servers.append(
                    await loop.create_server(made, sock=each, backlog=config.backlog)
                )
        except OSError as error:
            LOGGER.error("operators cannot be listened to: %s", error)
            for server in self.servers:
                server.close()
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)

    async def _work_in(self, berth: Berth) -> None:
        """Listen to the siblings and to whoever is above, which is told that this one serves."""
        loop = asyncio.get_running_loop()
        config = operators_config(self._gateway, self._gateway.asgi_of_siblings, host="", port=0)
        config.load()
        made = self._made(config, self.operators_state)
        self._siblings = await loop.create_unix_server(made, path=str(berth.socket))
        loop.add_signal_handler(ROLL, self.step_aside)
        berth.watch(lambda: os.kill(os.getpid(), signal.SIGTERM))
        if self._report is not None:
            self._report.serves()

    def _made(
        self, config: uvicorn.Config, state: uvicorn.server.ServerState
    ) -> Callable[[], asyncio.Protocol]:
        """What makes the connections of one listener."""
        loop, lifespan = asyncio.get_running_loop(), self.lifespan

        def made() -> asyncio.Protocol:
            return cast(asyncio.Protocol, ClientConnection(config, state, lifespan.state, loop))

        return made

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

    def step_aside(self) -> None:
        """Another worker has this one's place: accept nothing more, and leave."""
        self._is_replaced = True
        for server in self.servers:
            server.close()
        self.leave(self._gateway.settings.shutdown.lag_s)

    def announce(self) -> None:
        """Each connection ends with its next answer; not ready any more, unless it is replaced.

        To the outside the workers of one port are one: a load balancer must not turn from them all.
        """
        self._gateway.announce(is_replaced=self._is_replaced)

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
        for server in (*self.servers, *([self._siblings] if self._siblings else [])):
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


def serve(
    settings: Settings,
    load: Callable[[], Settings] | None = None,
    worker: tuple[Berth, Report] | None = None,
) -> None:
    """Serve until stopped. Blocks. SystemExit where it did not end as it should.

    `load` reads the settings again, on SIGHUP. `worker`: this process is one of several.
    """
    if load is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is somebody to hear it
    berth, report = worker or (None, None)
    _set_up_logging(settings)
    gateway = Gateway(settings, berth=berth)
    host, port = settings.listen.host, settings.listen.port
    gateway.furnish()
    if berth is None:
        announce(settings, Console(stderr=True), gateway.operators.made_key)
    calm_collector()
    limit = raised_limit()
    gateway.bound_connections(connections_for(limit, open_now()))
    LOGGER.info("at most %d connections of clients (%d open files)", gateway.crowd.most, limit)
    config = server_config(gateway, host=host, port=port)
    server = GatewayServer(
        config, gateway, last_resort=_exit_within, load=load, berth=berth, report=report
    )
    server.run(None if berth is None else adopted(berth.sockets))
    if server.status:
        raise SystemExit(server.status)


def _exit_within(seconds: float, status: int) -> None:
    """End this process even if a thread hangs, or a task that cannot be cancelled."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(status))
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _set_up_logging(settings: Settings) -> None:
    """Of others only warnings: httpx would tell of each probe."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    set_log_level(settings.log.level)
