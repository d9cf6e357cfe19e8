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
from gateway.emulator.faults import Fault, FaultKind, Faults
from gateway.emulator.meters import Meters
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.refusals import crashed
from gateway.emulator.vocabulary import Vocabulary
from gateway.sim.replica import Engine

BACKLOG = 2048
KEEP_ALIVE_S = 5
"""uvicorn's default: how long an idle connection is kept."""
DEATH_EXIT_S = 0.54
"""From the death of the engine core to the end of the process, as measured."""
FINISHED_POLL_S = 0.25
"""How often an engine that was told to stop looks whether it has finished."""
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
        self._is_ending = False

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

    async def wait_exit(self) -> int:
        """Wait until a real engine's process would be gone; returns its exit status.

        That is after `terminate`, once nothing hangs any more, and after `core-dead`.
        """
        while not self.faults.is_ending:
            self._faults_changed.clear()
            await self._faults_changed.wait()
        if self.faults.is_active(FaultKind.CORE_DEAD):
            await asyncio.sleep(DEATH_EXIT_S)
            return 1
        while self._app.in_flight:  # noqa: ASYNC110 - nothing tells, and nobody is in a hurry
            await asyncio.sleep(FINISHED_POLL_S)
        return 0

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
        self._refuse_if_told()
        if self._is_ending and not self.faults.is_ending:
            self._driver.lose_all(crashed())
            for connection in tuple(self._state.connections):
                assert isinstance(connection, Connection)
                connection.reset()
        self._is_ending = self.faults.is_ending
        self._faults_changed.set()
        self._driver.follow_faults()

    def _refuse_if_told(self) -> None:
        if self.faults.is_refusing and self._listener is not None:
            self._stop_listening()
            for connection in tuple(self._state.connections):
                connection.shutdown()

    async def _keep_listening(self) -> None:
        while True:
            self._faults_changed.clear()
            look_again_s = self._look_again_s()
            self._refuse_if_told()
            if self._listener is None and not self.faults.is_refusing:
                await self._listen()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(look_again_s):
                    await self._faults_changed.wait()
                continue
            if self.faults.is_active(FaultKind.TERMINATE) and not self._app.in_flight:
                self.faults.inject(Fault(FaultKind.TERMINATE))

    def _look_again_s(self) -> float | None:
        change_s = self.faults.change_s()
        if change_s is None or not self.faults.is_active(FaultKind.TERMINATE):
            return change_s
        return min(change_s, FINISHED_POLL_S)

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


def serve(options: EmulatorOptions, *, on_ready: Callable[[str], None] | None = None) -> int:
    """Run one emulator as this process; returns its exit status.

    SIGINT, or a second SIGTERM, ends it at once. SIGTERM is what it is to vLLM: with
    `shutdown_timeout_s` requests finish first, and what is left then hangs until its client leaves.
    SIGUSR1 freezes the engine core, and thaws it again; SIGUSR2 kills it.

    Args:
        options: what to emulate.
        on_ready: told the URL once it listens.

    Raises:
        ValueError: options that make no sense.
        OSError: the port is taken.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(options, on_ready or _ignore))


async def _serve(options: EmulatorOptions, on_ready: Callable[[str], None]) -> int:
    loop = asyncio.get_running_loop()
    stopped = loop.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(0)

    async with running_emulator(options) as emulator:
        faults = emulator.faults

        def terminate() -> None:
            if faults.is_active(FaultKind.TERMINATE):
                stop()
            else:
                faults.inject(Fault(FaultKind.TERMINATE, options.shutdown_timeout_s))

        def freeze_or_thaw() -> None:
            if faults.is_active(FaultKind.FREEZE):
                faults.clear(FaultKind.FREEZE)
            else:
                faults.inject(Fault(FaultKind.FREEZE))

        loop.add_signal_handler(signal.SIGINT, stop)
        loop.add_signal_handler(signal.SIGTERM, terminate)
        if sys.platform != "win32":
            loop.add_signal_handler(signal.SIGUSR1, freeze_or_thaw)
            loop.add_signal_handler(signal.SIGUSR2, faults.inject, Fault(FaultKind.CORE_DEAD))
        on_ready(emulator.url)
        exiting = asyncio.create_task(emulator.wait_exit(), name="exit")
        await asyncio.wait((stopped, exiting), return_when=asyncio.FIRST_COMPLETED)
        exiting.cancel()
        return 0 if stopped.done() else exiting.result()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - there is none on Windows

    return uvloop.new_event_loop


def _nothing() -> None:
    """Nobody follows the faults any more."""


def _ignore(url: str) -> None:
    """Nobody wants to know the URL."""
