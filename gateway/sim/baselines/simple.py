"""Dispatchers that every load balancer has: turns, and fewest outstanding.

None of them knows tiers, tenants or users; the engines serve first come, first served.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Deaf, Decisions, Machine, Sent, Truth


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
