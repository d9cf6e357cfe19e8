"""One queue before all engines: whoever is next goes when a replica has room for it.

Holds what every central dispatcher must keep straight; who is next is decided by the queue that it
is given, and whether a replica has room by a subclass.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Deaf, Decisions, Machine, Sent, Truth


class Queue(Protocol):
    """Decides who is next, and hears what each has cost."""

    def put(self, job: Job, *, is_back: bool) -> None:
        """One more waits; `is_back`: it was released before, and is first among its own."""
        ...

    def head(self) -> Job | None:
        """Who is next; it stays."""
        ...

    def take(self) -> Job:
        """The head is released."""
        ...

    def drop(self, job: Job) -> None:
        """It waits no more."""
        ...

    def produced(self, job: Job, tokens: int) -> None:
        """So many tokens more of its answer were made."""
        ...


class Central(Deaf, ABC):
    """Releases the head of the queue to the least outstanding replica that has room for it."""

    def __init__(self, queue: Queue) -> None:
        self.outstanding: list[int] = []
        """By replica: requests sent there that have not ended."""
        self.unstarted: list[dict[int, Job]] = []
        """By replica: those of them without a first token."""
        self.machines: Sequence[Machine] = ()
        self._queue = queue
        self._waiting: dict[int, Job] = {}
        self._at: dict[int, tuple[Job, int]] = {}
        """(request, replica) by number, of those that were released."""
        self._told: dict[int, int] = {}
        """Tokens of each answer that the queue has heard of."""
        self._is_shut: list[list[bool]] = []
        """By replica: lost, draining."""

    @abstractmethod
    def has_room(self, replica: int, job: Job) -> bool:
        """Whether that replica should get this request now."""

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """See `Dispatch.begin`."""
        self.machines = machines
        self.outstanding = [0] * len(machines)
        self.unstarted = [{} for _ in machines]
        self._is_shut = [[False, False] for _ in machines]
        return ()

    def arrived(self, job: Job, now: float) -> Decisions:
        """See `Dispatch.arrived`."""
        self._wait(job, is_back=False)
        return self.release()

    def first_token(self, number: int, now: float) -> Decisions:
        """See `Dispatch.first_token`."""
        job, replica = self._at[number]
        self.unstarted[replica].pop(number, None)
        self._hear(job, 1)
        return self.release()

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.ended`."""
        self._hear(self._at[number][0], output_tokens)
        self._free(number)
        self._told.pop(number, None)
        return self.release()

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.left`."""
        if number in self._at:
            return self.ended(number, now, output_tokens=output_tokens)
        self.forget(self._waiting[number])
        return self.release()

    def broke(
        self,
        number: int,
        now: float,
        *,
        replica: int,
        output_tokens: int,
        was_sent: bool,
        goes_on: bool,
    ) -> Decisions:
        """See `Dispatch.broke`; a replica that broke gets nothing until it is back."""
        self._is_shut[replica][0] = True
        job = self._free(number)
        if goes_on:
            self._wait(job, is_back=True)
        else:
            self._told.pop(number, None)
        return self.release()

    def lost(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.lost`."""
        self._is_shut[replica][0] = True
        return ()

    def back(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.back`."""
        self._is_shut[replica][0] = False
        return self.release()

    def drained(self, replica: int, now: float, *, is_draining: bool) -> Decisions:
        """See `Dispatch.drained`."""
        self._is_shut[replica][1] = is_draining
        return self.release()

    @property
    def waiting(self) -> int:
        """How many are in the queue."""
        return len(self._waiting)

    def forget(self, job: Job) -> None:
        """It waits no more."""
        self._queue.drop(self._waiting.pop(job.number))
        self._told.pop(job.number, None)

    def release(self) -> list[Sent]:
        """All that may go now."""
        out: list[Sent] = []
        while (job := self._queue.head()) is not None:
            replica = self._choose(job)
            if replica is None:
                break
            self._queue.take()
            del self._waiting[job.number]
            self._at[job.number] = (job, replica)
            self.outstanding[replica] += 1
            self.unstarted[replica][job.number] = job
            out.append(Sent(job.number, replica))
        return out

    def _choose(self, job: Job) -> int | None:
        open_to_it = [
            replica
            for replica, shut in enumerate(self._is_shut)
            if not any(shut) and self.has_room(replica, job)
        ]
        return min(open_to_it, key=self.outstanding.__getitem__, default=None)

    def _wait(self, job: Job, *, is_back: bool) -> None:
        self._waiting[job.number] = job
        self._queue.put(job, is_back=is_back)

    def _free(self, number: int) -> Job:
        job, replica = self._at.pop(number)
        self.outstanding[replica] -= 1
        self.unstarted[replica].pop(number, None)
        return job

    def _hear(self, job: Job, tokens: int) -> None:
        more = tokens - self._told.get(job.number, 0)
        if more > 0:
            self._told[job.number] = tokens
            self._queue.produced(job, more)
