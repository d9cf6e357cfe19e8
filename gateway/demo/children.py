"""The demo's own processes: where they listen, when one has died, and that none outlives the demo.

Each is ended by its own process id. What they are for is not known here.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gateway.bench.launch import environment, log_tail

HOST = "127.0.0.1"
STOP_WAIT_S = 3.0
PORTS_TRIED_MAX = 100


class ChildFailedError(Exception):
    """A process of the demo ended, or never became ready; the text holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One running process."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    def failure(self, what: str) -> ChildFailedError:
        """`what` went wrong with it, and the end of its log."""
        return ChildFailedError(f"{self.name} {what}\n{log_tail(self.log)}".rstrip())


class Children:
    """Processes that live as long as this context; all are ended when it is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[Child] = []

    async def __aenter__(self) -> "Children":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        running = [child.process for child in self._children if child.process.returncode is None]
        for process in running:
            _signal(process.terminate)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_WAIT_S):
                for process in running:
                    await process.wait()
        for process in running:
            if process.returncode is None:
                _signal(process.kill)
                await process.wait()

    async def start(self, name: str, arguments: Sequence[str]) -> Child:
        """Run `fairgate` with these arguments; its output goes to a log of its own."""
        log = self._folder / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "gateway", *arguments),
                env=environment(os.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                # A terminal sends Ctrl-C to its whole group; these end when the demo says so.
                start_new_session=True,
            )
        child = Child(name=name, process=process, log=log)
        self._children.append(child)
        return child

    async def watch(self) -> None:
        """Wait for one of them to end. Raises ChildFailedError then."""
        waits = {asyncio.create_task(child.process.wait()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        child = waits[next(iter(done))]
        raise child.failure(f"ended with status {child.process.returncode}")


def free_port_from(first: int) -> int:
    """The first loopback port from `first` on that nobody listens on.

    Raises:
        ChildFailedError: none among `PORTS_TRIED_MAX`.
    """
    for port in range(first, first + PORTS_TRIED_MAX):
        with socket.socket() as probe, suppress(OSError):
            # As servers do: a port on which connections merely linger is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            probe.listen()
            return port
    raise ChildFailedError(f"no free port in {first}..{first + PORTS_TRIED_MAX - 1}")


def _signal(send: Callable[[], None]) -> None:
    with suppress(ProcessLookupError):
        send()
