"""Which worker processes there should be: when one is started, stepped aside, or given up.

It decides and does nothing itself: what a process is, how it is started and how it is told, is not
known here. Instants are seconds of the caller's clock.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

READY_S_MAX = 120.0
"""A worker that does not serve by then is given up."""
STEADY_S = 60.0
"""A worker that lived so long failed for another reason than the one before it."""
FAILURES_MAX = 16
"""More are not counted."""
PAUSE_S = 1.0
PAUSE_S_MAX = 30.0
"""The first that dies is replaced at once, the next one after `PAUSE_S`, and then twice as late
each time, up to this: a fault that all have must not become a storm of starts."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker for this place."""

    place: int


@dataclass(frozen=True, slots=True)
class StepAside:
    """Tell this process that another one has its place: it takes nothing new and ends."""

    pid: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End this process: it had its time."""

    pid: int


Order = Start | StepAside | Kill


@dataclass(slots=True)
class Worker:
    """One process, and since when."""

    pid: int
    since: float
    is_ready: bool = False


@dataclass(slots=True)
class Place:
    """Room for one worker, and for a moment for the one that follows it."""

    number: int
    due_at: float | None = 0.0
    """When the next one is to be started; None: there is one."""
    worker: Worker | None = None
    successor: Worker | None = None
    leaving: dict[int, float] = field(default_factory=dict)
    """Those that stepped aside and have not ended, and until when they may take."""
    failures: int = 0
    """Of workers that did not live long, one after another."""

    def pids(self) -> Iterable[int]:
        """All that are here."""
        for each in (self.worker, self.successor):
            if each is not None:
                yield each.pid
        yield from self.leaving


class Crew:
    """All places; `status` is what the whole should exit with."""

    def __init__(self, count: int, *, leaves_within_s: float) -> None:
        """`leaves_within_s`: so long a worker may take to go; whoever takes longer is killed."""
        self._leaves_within_s = leaves_within_s
        self.places = tuple(Place(number) for number in range(count))
        self.status = 0
        self.is_stopping = False
        self._kill_at: float | None = None
        self._was_ready = False
        """Whether any worker ever served: before that a failure is one of all."""
        self._rolling: deque[int] = deque()
        """Places whose worker is still to be replaced."""

    @property
    def pids(self) -> list[int]:
        """All processes."""
        return [pid for place in self.places for pid in place.pids()]

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to look after."""
        return self.is_stopping and not self.pids

    @property
    def is_rolling(self) -> bool:
        """Whether workers are being replaced by new ones."""
        return bool(self._rolling)

    def look(self, now: float) -> list[Order]:
        """What is to be done now."""
        if self.is_stopping:
            is_late = self._kill_at is not None and now >= self._kill_at
            return [Kill(pid) for pid in self.pids] if is_late else []
        orders: list[Order] = [
            Start(place.number)
            for place in self.places
            if place.due_at is not None and now >= place.due_at
        ]
        orders += [
            Kill(each.pid)
            for place in self.places
            for each in (place.worker, place.successor)
            if each is not None and not each.is_ready and now >= each.since + READY_S_MAX
        ]
        orders += [
            Kill(pid) for place in self.places for pid, at in place.leaving.items() if now >= at
        ]
        return orders + self._roll_on()

    def next_at(self) -> float | None:
        """When to look again, if nothing happens before; None: not for that."""
        if self.is_stopping:
            return self._kill_at
        instants = [place.due_at for place in self.places if place.due_at is not None]
        instants += [
            each.since + READY_S_MAX
            for place in self.places
            for each in (place.worker, place.successor)
            if each is not None and not each.is_ready
        ]
        instants += [at for place in self.places for at in place.leaving.values()]
        return min(instants, default=None)

    def started(self, number: int, pid: int, now: float) -> None:
        """The process `pid` was started for the place `number`."""
        place = self.places[number]
        place.due_at = None
        if place.worker is None:
            place.worker = Worker(pid, now)
        else:
            assert place.successor is None, "one successor at a time"
            place.successor = Worker(pid, now)

    def ready(self, pid: int, now: float) -> list[Order]:
        """The process `pid` serves; whom it follows steps aside."""
        self._was_ready = True
        for place in self.places:
            if place.worker is not None and place.worker.pid == pid:
                place.worker.is_ready = True
            elif place.successor is not None and place.successor.pid == pid:
                old, place.worker = place.worker, place.successor
                place.worker.is_ready, place.successor = True, None
                if old is not None:
                    place.leaving[old.pid] = now + self._leaves_within_s
                    return [StepAside(old.pid)]
        return []

    def ended(self, pid: int, status: int, now: float) -> None:
        """The process `pid` ended, with this exit status."""
        for place in self.places:
            if pid in place.leaving:
                del place.leaving[pid]
            elif place.successor is not None and place.successor.pid == pid:
                place.successor = None
                self._rolling.clear()
            elif place.worker is not None and place.worker.pid == pid:
                self._lost(place, place.worker, status, now)

    def failed(self, number: int, now: float) -> None:
        """The place is empty, since its worker died or none could be started."""
        place = self.places[number]
        pause_s = PAUSE_S * 2.0 ** (place.failures - 1) if place.failures else 0.0
        place.failures = min(place.failures + 1, FAILURES_MAX)
        place.due_at = now + min(PAUSE_S_MAX, pause_s)

    def roll(self) -> None:
        """Replace every worker by a new one, one place after another."""
        if not self.is_stopping:
            self._rolling = deque(place.number for place in self.places)

    def stop(self, now: float) -> None:
        """Start nothing any more; whoever takes too long to go is killed."""
        self._stop(now + self._leaves_within_s)

    def _stop(self, kill_at: float) -> None:
        self.is_stopping = True
        self._rolling.clear()
        self._kill_at = kill_at

    def _lost(self, place: Place, worker: Worker, status: int, now: float) -> None:
        place.worker, place.successor = place.successor, None
        if self.is_stopping:
            self.status = self.status or status
            return
        if not self._was_ready and status:
            # It could not start, and neither will another: its port is taken, or a file is wrong.
            self.status = status
            self._stop(now)
            return
        if place.worker is not None:
            return
        if worker.is_ready and now - worker.since >= STEADY_S:
            place.failures = 0
        self.failed(place.number, now)

    def _roll_on(self) -> list[Order]:
        """Start the next successor, once the last one has its place."""
        if not self._rolling or any(place.successor is not None for place in self.places):
            return []
        place = self.places[self._rolling[0]]
        if place.worker is None or not place.worker.is_ready or place.leaving:
            # An empty place gets a new worker anyway; two leaving at once would be many processes.
            return []
        self._rolling.popleft()
        return [Start(place.number)]
