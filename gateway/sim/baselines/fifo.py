"""One central queue, first come, first served: a request goes where a slot is free.

Knows no tiers, tenants or users; nothing is ever queued inside an engine.
"""

from collections import deque

from gateway.sim.baselines.central import Central
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Decisions, Refused


class Line:
    """See `central.Queue`: one for all; what comes back stands at its head."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def put(self, job: Job, *, is_back: bool) -> None:
        """See `Queue.put`."""
        if is_back:
            self._jobs.appendleft(job)
        else:
            self._jobs.append(job)

    def head(self) -> Job | None:
        """See `Queue.head`."""
        return self._jobs[0] if self._jobs else None

    def take(self) -> Job:
        """See `Queue.take`."""
        return self._jobs.popleft()

    def drop(self, job: Job) -> None:
        """See `Queue.drop`."""
        self._jobs.remove(job)

    def produced(self, job: Job, tokens: int) -> None:
        """See `Queue.produced`; nobody is charged."""


class Fifo(Central):
    """See the module; ties to the lowest index."""

    def __init__(self, *, waiting_max: int | None = None) -> None:
        """`waiting_max`: most that may wait; None: any number."""
        super().__init__(Line())
        self._waiting_max = waiting_max

    def has_room(self, replica: int, job: Job) -> bool:
        """See `Central.has_room`: a slot is free there."""
        return self.outstanding[replica] < self.machines[replica].config.max_num_seqs

    def arrived(self, job: Job, now: float) -> Decisions:
        """See `Dispatch.arrived`."""
        out = super().arrived(job, now)
        if self._waiting_max is None or self.waiting <= self._waiting_max:
            return out
        self.forget(job)
        return [*out, Refused(job.number, reason="queue_full")]
