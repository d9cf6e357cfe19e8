"""An emulated engine that listens: for tests inside their own event loop, or as a process.

Opens and closes the listener, the engine loop and the connections; everything between is elsewhere.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.emulator.app import Application, Received
from gateway.emulator.audio_request import Upload
from gateway.emulator.calls import Card
from gateway.emulator.connection import Connection
from gateway.emulator.driver import Driver
from gateway.emulator.faults import FaultKind, Faults
from gateway.emulator.meters import Meters
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.vocabulary import Vocabulary
from gateway.sim.replica import Engine

BACKLOG = 2048
KEEP_ALIVE_S = 5
"""uvicorn's default: how long an idle connection is kept."""
CLOSING_S_MAX = 5.0
"""How long requests get to notice that their connections are gone."""


class Emulator:
    """One emulated engine. Made by `running_emulator`, which also runs it."""

    def __init__(self, options: EmulatorOptions) -> None:
        loop = asyncio.get_running_loop()
        self.options = options
        self.faults = Faults(loop.time)
        """May be changed at any time."""
        self.engine = Engine(options.engine_profile(), options.engine_config())
        """For reading: running, waiting, kv_use, counters."""
        self.port = options.port
        card = Card(
            models=options.models,
            context_tokens=options.context_tokens(),
            vocabulary=Vocabulary(),
        )
        meters = Meters()
        self._driver = Driver(self.engine, meters, self.faults)
        self._app = Application(
            options, card, driver=self._driver, meters=meters, faults=self.faults
        )
        self._config = Config(
            self._app,
            http=Connection,
            ws="none",
            interface="asgi3",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._state = ServerState()
        self._listener: asyncio.Server | None = None
        self._faults_changed = asyncio.Event()

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://{self.options.host}:{self.port}"

    @property
    def received(self) -> tuple[Received, ...]:
        """The latest requests for inference, oldest first."""
        return tuple(self._app.received)

    @property
    def uploads(self) -> tuple[Upload, ...]:
        """The latest audio files, oldest first."""
        return tuple(self._app.uploads)

    async def open(self) -> None:
        """Listen. Afterwards `port` is known."""
        await self._listen()
        self.faults.on_change = self._follow_faults
        self.faults.inject(*self.options.faults)

    async def run(self) -> None:
        """Work until cancelled, then stop listening and break all connections off."""
        try:
            async with asyncio.TaskGroup() as jobs:
                jobs.create_task(self._driver.run(), name="engine")
                jobs.create_task(self._keep_date(), name="date")
                jobs.create_task(self._keep_listening(), name="listener")
        finally:
            self.faults.on_change = _nothing
            self._stop_listening()
            for connection in tuple(self._state.connections):
                connection.transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the requests have noticed that their connections are gone."""
        requests = tuple(self._state.tasks)
        if requests:
            await asyncio.wait(requests, timeout=CLOSING_S_MAX)
        for request in requests:
            request.cancel()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._connection, self.options.host, self.port, backlog=BACKLOG
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    def _connection(self) -> Connection:
        return Connection(config=self._config, server_state=self._state, app_state={})

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _follow_faults(self) -> None:
        """Refuse at once when told so; listening again takes a turn of the loop."""
        if self.faults.is_active(FaultKind.REFUSE) and self._listener is not None:
            self._stop_listening()
            for connection in tuple(self._state.connections):
                connection.shutdown()
        self._faults_changed.set()
        self._driver.follow_faults()

    async def _keep_listening(self) -> None:
        while True:
            self._faults_changed.clear()
            if self._listener is None and not self.faults.is_active(FaultKind.REFUSE):
                await self._listen()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.faults.left_s(FaultKind.REFUSE)):
                    await self._faults_changed.wait()

    async def _keep_date(self) -> None:
        while True:
            date = formatdate(usegmt=True).encode()
            self._state.default_headers = [(b"date", date), (b"server", b"uvicorn")]
            await asyncio.sleep(1)


@contextlib.asynccontextmanager
async def running_emulator(options: EmulatorOptions | None = None) -> AsyncIterator[Emulator]:
    """An emulator in this event loop, on a loopback port of its own unless told otherwise.

    Raises:
        ValueError: options that make no sense.
        OSError: the port is taken.
    """
    emulator = Emulator(options or EmulatorOptions())
    await emulator.open()
    work = asyncio.create_task(emulator.run(), name="emulator")
    try:
        yield emulator
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        await emulator.wait_closed()


def serve(options: EmulatorOptions, *, on_ready: Callable[[str], None] | None = None) -> None:
    """Run one emulator as this process, until SIGTERM or SIGINT.

    Args:
        options: what to emulate.
        on_ready: told the URL once it listens.

    Raises:
        ValueError: options that make no sense.
        OSError: the port is taken.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(options, on_ready or _ignore))


async def _serve(options: EmulatorOptions, on_ready: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with running_emulator(options) as emulator:
        on_ready(emulator.url)
        await stopped.wait()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - there is none on Windows

    return uvloop.new_event_loop


def _nothing() -> None:
    """Nobody follows the faults any more."""


def _ignore(url: str) -> None:
    """Nobody wants to know the URL."""
