"""The process above the workers: it starts them, hears signals, reaps who died, and serves nobody.

What a worker does is not known here; when one is started and told to go is decided by `Crew`.
"""

import logging
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from types import FrameType
from typing import Protocol, assert_never, cast

from gateway.runtime.berth import READY_VARIABLE
from gateway.runtime.crew import Crew, Kill, Order, Start, StepAside

LOGGER = logging.getLogger("fairgate.workers")
LEAVE = (signal.SIGTERM, signal.SIGINT)
ROLL = signal.SIGUSR2
"""Tells the supervisor to replace all workers, and a worker that it was replaced."""
AT_ONCE = signal.SIGUSR1
"""Tells a worker that it has no more time: a second signal that ends came to the supervisor."""
AGAIN = signal.SIGHUP
LOOK_S_MAX = 60.0
"""It looks this often, whatever happens."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process, and where it says that it serves."""

    process: "subprocess.Popen[bytes]"
    ready: int
    """The end of a pipe for reading; this side closes it."""


class House(Protocol):
    """Where the workers are: how one is started, and what is cleared away behind it."""

    def spawn(self, place: int) -> Spawned:
        """Start a worker. Raises OSError where that cannot be done now."""

    def ended(self, pid: int) -> None:
        """This process is gone."""

    def vacate(self, place: int) -> None:
        """Nobody is there, and nobody will be for a while: let nobody knock."""


class Supervisor:
    """Keeps a crew of processes."""

    def __init__(
        self,
        crew: Crew,
        house: House,
        *,
        hears_again: bool,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`hears_again`: SIGHUP goes to the workers, and is not the end."""
        self._crew = crew
        self._house = house
        self._hears_again = hears_again
        self._clock = clock
        self._spawned: dict[int, Spawned] = {}
        self._place: dict[int, int] = {}
        self._behind: set[int] = set()
        """Those that were starting when all were to read the settings again."""
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Blocks until all have ended; the exit status for the whole."""
        with ExitStack() as stack:
            self.listen(stack.enter_context(self._signals()))
            stack.callback(self._selector.close)
            while not self._crew.is_over:
                self.look()
                self.turn()
        return self.status

    @property
    def status(self) -> int:
        """What the whole exits with."""
        status = self._crew.status
        return status if status >= 0 else 128 - status

    def listen(self, signals: socket.socket) -> None:
        """Hear the signals that come as bytes from this socket."""
        self._selector.register(signals, selectors.EVENT_READ)

    def look(self) -> None:
        """Do what is due."""
        for order in self._crew.look(self._clock()):
            self._carry_out(order)

    def turn(self) -> None:
        """Blocks until something happens, or it is time to look again."""
        if self._crew.is_over:
            return
        at = self._crew.next_at()
        left_s = LOOK_S_MAX if at is None else min(LOOK_S_MAX, max(0.0, at - self._clock()))
        for key, _ in self._selector.select(left_s):
            if key.data is None:
                for number in cast(socket.socket, key.fileobj).recv(4096):
                    self._heard(number)
            elif key.data in self._spawned:  # else it was reaped just now, with its pipe
                self._said(key.data)

    def _carry_out(self, order: Order) -> None:
        match order:
            case Start():
                self._start(order.place)
            case StepAside():
                LOGGER.info("worker %d steps aside", order.pid)
                self._tell(order.pid, ROLL)
            case Kill():
                LOGGER.warning("worker %d is killed: it had its time", order.pid)
                self._tell(order.pid, signal.SIGKILL)
                self._reap(order.pid, self._spawned[order.pid].process.wait())
            case _:
                assert_never(order)

    def _start(self, place: int) -> None:
        try:
            spawned = self._house.spawn(place)
        except OSError as error:
            LOGGER.error("no worker can be started in place %d: %s", place, error)
            self._crew.failed(place, self._clock())
            return
        pid = spawned.process.pid
        self._spawned[pid], self._place[pid] = spawned, place
        self._selector.register(spawned.ready, selectors.EVENT_READ, pid)
        self._crew.started(place, pid, self._clock())
        LOGGER.info("worker %d was started in place %d", pid, place)

    def _said(self, pid: int) -> None:
        """A worker wrote into its pipe: it serves. Or the pipe ended with it."""
        ready = self._spawned[pid].ready
        self._selector.unregister(ready)
        serves = bool(os.read(ready, 1))
        os.close(ready)
        self._spawned[pid] = Spawned(self._spawned[pid].process, -1)
        if serves:
            LOGGER.info("worker %d serves", pid)
            if pid in self._behind:
                self._behind.discard(pid)
                self._tell(pid, AGAIN)
            for order in self._crew.ready(pid, self._clock()):
                self._carry_out(order)

    def _heard(self, number: int) -> None:
        if number == signal.SIGCHLD:
            for pid, spawned in list(self._spawned.items()):
                status = spawned.process.poll()
                if status is not None:
                    self._reap(pid, status)
        elif number in LEAVE and self._crew.is_stopping:
            self._tell_all(AT_ONCE)
        elif number in LEAVE:
            self._crew.stop(self._clock())
            for place in self._crew.places:
                self._house.vacate(place.number)
            self._tell_all(number)
        elif number == ROLL:
            LOGGER.info("all workers are replaced, one after another")
            self._crew.roll()
        elif number == AGAIN:
            for pid, spawned in self._spawned.items():
                if spawned.ready < 0:
                    self._tell(pid, AGAIN)
                else:  # It would be the end of one that does not listen yet.
                    self._behind.add(pid)

    def _reap(self, pid: int, status: int) -> None:
        spawned, place = self._spawned.pop(pid), self._place.pop(pid)
        self._behind.discard(pid)
        if spawned.ready >= 0:
            self._selector.unregister(spawned.ready)
            os.close(spawned.ready)
            if self._crew.is_stopping and -status in (*LEAVE, AT_ONCE):
                status = 0  # It was told to go before it listened to such words.
        level = logging.INFO if status == 0 else logging.ERROR
        LOGGER.log(level, "worker %d ended with status %d", pid, status)
        now = self._clock()
        self._crew.ended(pid, status, now)
        self._house.ended(pid)
        due_at = self._crew.places[place].due_at
        if due_at is not None and due_at > now:
            self._house.vacate(place)

    def _tell_all(self, number: int) -> None:
        for pid in self._crew.pids:
            self._tell(pid, number)

    def _tell(self, pid: int, number: int) -> None:
        with suppress(ProcessLookupError):
            self._spawned[pid].process.send_signal(number)

    @contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """The signals that matter, as bytes to read from a socket."""
        reading, writing = socket.socketpair()
        reading.setblocking(False)
        writing.setblocking(False)
        numbers = [*LEAVE, ROLL, signal.SIGCHLD, *([AGAIN] if self._hears_again else [])]
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        old = {number: signal.signal(number, _nothing) for number in numbers}
        try:
            yield reading
        finally:
            for number, action in old.items():
                signal.signal(number, action)
            signal.set_wakeup_fd(before)
            reading.close()
            writing.close()


def spawned(command: list[str], environ: Mapping[str, str], inherited: Iterable[int]) -> Spawned:
    """A worker in a process group of its own: what is typed at a terminal goes to its supervisor.

    `inherited` are descriptors that it gets besides the one that is named in `READY_VARIABLE`.
    """
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - our own command line again
            command,
            env={**environ, READY_VARIABLE: str(writing)},
            pass_fds=[writing, *inherited],
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return Spawned(process, reading)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """The number was written already, and is read by the loop."""
