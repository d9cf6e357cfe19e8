"""Dispatchers that every load balancer has: turns, fewest outstanding, one central queue.

None of them knows tiers, tenants or users; the engines serve first come, first served.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Deaf, Decisions, Machine, Refused, Sent, Truth


class Forwarding(Deaf, ABC):
    """Sends each request on the moment it comes; which replica, a subclass says."""

    def __init__(self) -> None:
        self.outstanding: list[int] = []
        """By replica: requests sent there that have not ended."""
        self._at: dict[int, int] = {}
        self._stranded: list[int] = []
        """Those that came while no replica was usable."""
        self._is_lost: list[bool] = []
        self._is_draining: list[bool] = []

    @abstractmethod
    def choose(self, usable: Sequence[int]) -> int:
        """One of these replicas; there is at least one."""

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """See `Dispatch.begin`."""
        self.outstanding = [0] * len(machines)
        self._is_lost = [False] * len(machines)
        self._is_draining = [False] * len(machines)
        return ()

    def arrived(self, job: Job, now: float) -> Decisions:
        """See `Dispatch.arrived`."""
        return self._send(job.number)

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.ended`."""
        return self._gone(number)

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.left`."""
        return self._gone(number)

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
        """See `Dispatch.broke`; a replica that broke is not chosen until it is back."""
        self._is_lost[replica] = True
        self._gone(number)
        return self._send(number) if goes_on else ()

    def lost(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.lost`."""
        self._is_lost[replica] = True
        return ()

    def back(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.back`."""
        self._is_lost[replica] = False
        return self._send_stranded()

    def drained(self, replica: int, now: float, *, is_draining: bool) -> Decisions:
        """See `Dispatch.drained`."""
        self._is_draining[replica] = is_draining
        return self._send_stranded()

    def usable(self) -> list[int]:
        """Replicas that may be sent to."""
        return [
            replica
            for replica in range(len(self.outstanding))
            if not (self._is_lost[replica] or self._is_draining[replica])
        ]

    def _send(self, number: int) -> Decisions:
        usable = self.usable()
        if not usable:
            self._stranded.append(number)
            return ()
        replica = self.choose(usable)
        self._at[number] = replica
        self.outstanding[replica] += 1
        return (Sent(number, replica),)

    def _send_stranded(self) -> Decisions:
        stranded, self._stranded = self._stranded, []
        return [decision for number in stranded for decision in self._send(number)]

    def _gone(self, number: int) -> Decisions:
        replica = self._at.pop(number, None)
        if replica is None:
            self._stranded.remove(number)
        else:
            self.outstanding[replica] -= 1
        return ()


class RoundRobin(Forwarding):
    """One after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0

    def choose(self, usable: Sequence[int]) -> int:
        """See `Forwarding.choose`."""
        self._turn += 1
        return usable[self._turn % len(usable)]


class LeastOutstanding(Forwarding):
    """The replica with the fewest requests of ours; ties to the lowest index."""

    def choose(self, usable: Sequence[int]) -> int:
        """See `Forwarding.choose`."""
        return min(usable, key=self.outstanding.__getitem__)


class Fifo(Deaf):
    """One queue for all; a request goes to the least outstanding replica with a free slot."""

    def __init__(self, *, waiting_max: int | None = None) -> None:
        """`waiting_max`: most that may wait; None: any number."""
        self._waiting_max = waiting_max
        self._queue: deque[int] = deque()
        self._running: dict[int, int] = {}
        self._outstanding: list[int] = []
        self._slots: list[int] = []
        self._is_lost: list[bool] = []
        self._is_draining: list[bool] = []

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """See `Dispatch.begin`."""
        self._slots = [machine.config.max_num_seqs for machine in machines]
        self._outstanding = [0] * len(machines)
        self._is_lost = [False] * len(machines)
        self._is_draining = [False] * len(machines)
        return ()

    def arrived(self, job: Job, now: float) -> Decisions:
        """See `Dispatch.arrived`."""
        self._queue.append(job.number)
        out = self._release()
        if self._waiting_max is not None and len(self._queue) > self._waiting_max:
            self._queue.pop()
            return [*out, Refused(job.number, reason="queue_full")]
        return out

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.ended`."""
        self._free(number)
        return self._release()

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.left`."""
        if number in self._running:
            self._free(number)
        else:
            self._queue.remove(number)
        return self._release()

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
        """See `Dispatch.broke`; it goes back to the head."""
        self._is_lost[replica] = True
        self._free(number)
        if goes_on:
            self._queue.appendleft(number)
        return self._release()

    def lost(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.lost`."""
        self._is_lost[replica] = True
        return ()

    def back(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.back`."""
        self._is_lost[replica] = False
        return self._release()

    def drained(self, replica: int, now: float, *, is_draining: bool) -> Decisions:
        """See `Dispatch.drained`."""
        self._is_draining[replica] = is_draining
        return self._release()

    def _free(self, number: int) -> None:
        self._outstanding[self._running.pop(number)] -= 1

    def _release(self) -> list[Sent]:
        out: list[Sent] = []
        while self._queue:
            free = [
                replica
                for replica, slots in enumerate(self._slots)
                if self._outstanding[replica] < slots
                and not (self._is_lost[replica] or self._is_draining[replica])
            ]
            if not free:
                break
            replica = min(free, key=self._outstanding.__getitem__)
            number = self._queue.popleft()
            self._running[number] = replica
            self._outstanding[replica] += 1
            out.append(Sent(number, replica))
        return out
