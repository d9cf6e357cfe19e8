"""Engines that can be broken in every way there is: emulators in this loop, or as processes.

Each may stand behind a line that can be bad. `heal` makes everything well again, so that what is
left over then is the gateway's own doing.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import httpx

from gateway.emulator.faults import parse_fault
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from tests.chaos.schedule import Engine
from tests.support.chaos_proxy import NONE, ChaosProxy, chaos_proxy
from tests.support.ports import free_port

MODEL = "emulated"
START_S_MAX = 60.0
EXIT_S_MAX = 10.0
SERVE = (
    "import sys\n"
    "from gateway.emulator.options import EmulatorOptions\n"
    "from gateway.emulator.server import serve\n"
    "port, slots, speed = sys.argv[1:]\n"
    "sys.exit(serve(EmulatorOptions(port=int(port), max_num_seqs=int(slots), speed=float(speed))))"
)


async def until(look: Callable[[], Awaitable[bool]], within_s: float) -> None:
    """Wait until `look` says so. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not await look():  # noqa: ASYNC110 - what is looked at is another process
            await asyncio.sleep(0.03)


def options_of(engine: Engine, port: int = 0) -> EmulatorOptions:
    """What the emulator is told."""
    return EmulatorOptions(port=port, max_num_seqs=engine.slots, speed=engine.speed)


class Local:
    """An emulator in this loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stack: AsyncExitStack | None = None
        self._changing = asyncio.Lock()
        self.emulator: Emulator | None = None
        self.port = free_port()

    async def start(self) -> None:
        """Listen, on the same port as before; nothing where it runs."""
        async with self._changing:
            if self._stack is None:
                stack = AsyncExitStack()
                running = running_emulator(options_of(self._engine, self.port))
                self.emulator = await stack.enter_async_context(running)
                self._stack = stack

    async def kill(self) -> None:
        """Gone from one moment to the next."""
        async with self._changing:
            stack, self._stack, self.emulator = self._stack, None, None
            if stack is not None:
                await stack.aclose()

    async def inject(self, fault: str) -> None:
        """Break it, where it runs."""
        if self.emulator is not None:
            self.emulator.faults.inject(fault)

    async def clear(self, fault: str) -> None:
        """End what `inject` began."""
        if self.emulator is not None:
            self.emulator.faults.clear(parse_fault(fault).kind)

    async def heal(self) -> None:
        """Run without a fault."""
        await self.start()
        assert self.emulator is not None
        self.emulator.faults.clear()

    async def busy(self) -> int:
        """Sequences that it still works on."""
        assert self.emulator is not None
        return self.emulator.engine.running + self.emulator.engine.waiting


class Process:
    """An emulator as a process of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._process: asyncio.subprocess.Process | None = None
        self._changing = asyncio.Lock()
        """Faults overlap: two of them must not start two processes."""
        self.port = free_port()

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def _runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, on the same port as before; nothing where it runs."""
        async with self._changing:
            await self._start()

    async def _start(self) -> None:
        if self._runs:
            return
        slots, speed = str(self._engine.slots), str(self._engine.speed)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SERVE, str(self.port), slots, speed)
        )
        await until(self._answers, START_S_MAX)

    async def kill(self) -> None:
        """SIGKILL."""
        async with self._changing:
            await self._kill()

    async def _kill(self) -> None:
        if self._process is not None and self._runs:
            self._process.kill()
            await self._process.wait()

    def signal(self, name: str) -> None:
        """Send it a signal, where it runs; what would end it while it starts has nothing to end."""
        is_changing = self._changing.locked() and name != "SIGCONT"
        if self._process is not None and self._runs and not is_changing:
            self._process.send_signal(signal.Signals[name])

    async def inject(self, fault: str) -> None:
        """Break it, where it can be told so."""
        with suppress(httpx.HTTPError):
            await self._tell({"inject": [fault]})

    async def clear(self, fault: str) -> None:
        """End what `inject` began, where it can be told so."""
        with suppress(httpx.HTTPError):
            await self._tell({"clear": [parse_fault(fault).kind]})

    async def heal(self) -> None:
        """Run without a fault; one that was told to stop, or hangs, is replaced."""
        async with self._changing:
            self.signal("SIGCONT")
            try:
                await self._tell({"clear": True})
            except httpx.HTTPError:
                await self._kill()
                await self._start()

    async def busy(self) -> int:
        """Requests that it still has."""
        async with httpx.AsyncClient(timeout=2.0) as client:
            return int((await client.get(f"{self._url}/load")).json()["server_load"])

    async def _answers(self) -> bool:
        async with httpx.AsyncClient(timeout=1.0) as client:
            try:
                return (await client.get(f"{self._url}/health")).status_code == 200
            except httpx.HTTPError:
                return False

    async def _tell(self, faults: dict[str, object]) -> None:
        async with httpx.AsyncClient(timeout=1.0) as client:
            (await client.post(f"{self._url}/_fault", json=faults)).raise_for_status()


@dataclass(slots=True)
class Replica:
    """An engine and the line to it."""

    engine: Local | Process
    line: ChaosProxy | None

    @property
    def url(self) -> str:
        """Where the gateway finds it."""
        return f"http://127.0.0.1:{self.engine.port if self.line is None else self.line.port}"

    @property
    def name(self) -> str:
        """What the gateway calls it."""
        return self.url.removeprefix("http://").replace(":", "-")

    async def heal(self) -> None:
        """Nothing is wrong any more, with it or with the line."""
        await self.engine.heal()
        if self.line is not None:
            await self.line.set(NONE)

    async def idle(self, within_s: float) -> None:
        """Wait until it works on nothing. Raises TimeoutError."""
        await until(self._is_idle, within_s)

    async def _is_idle(self) -> bool:
        return not await self.engine.busy()


@asynccontextmanager
async def running_fleet(engines: Sequence[Engine]) -> AsyncIterator[list[Replica]]:
    """One replica for each."""
    async with AsyncExitStack() as stack:
        replicas = []
        for each in engines:
            engine = Process(each) if each.is_process else Local(each)
            stack.push_async_callback(engine.kill)
            await engine.start()
            line = None
            if each.has_line:
                line = await stack.enter_async_context(chaos_proxy(engine.port))
            replicas.append(Replica(engine, line))
        yield replicas
