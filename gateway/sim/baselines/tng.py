"""Turns between users before a gate on the engine's queue, as TNG's LLM server has it.

TNG, "Efficient Request Queueing" (2025): users take turns, request by request, whatever a request
costs; the next goes to an engine whose own queue, as its metrics showed it last, holds fewer than
three. What was sent since then counts until it begins, or a burst would pass between two scrapes.
"""

from collections import OrderedDict, deque

from gateway.sim.baselines.central import Central
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Decisions, Report

QUEUE_LIMIT = 3

Client = tuple[str, str]
"""(tenant, user)."""


class Turns:
    """See `central.Queue`: one request of each user that waits, round and round."""

    def __init__(self) -> None:
        self._queues: OrderedDict[Client, deque[Job]] = OrderedDict()
        """In the order of their turns."""

    def put(self, job: Job, *, is_back: bool) -> None:
        """See `Queue.put`."""
        queue = self._queues.setdefault((job.tenant, job.user), deque())
        if is_back:
            queue.appendleft(job)
        else:
            queue.append(job)

    def head(self) -> Job | None:
        """See `Queue.head`."""
        return next(iter(self._queues.values()))[0] if self._queues else None

    def take(self) -> Job:
        """See `Queue.take`."""
        client = next(iter(self._queues))
        job = self._queues[client].popleft()
        self._queues.move_to_end(client)
        self._prune(client)
        return job

    def drop(self, job: Job) -> None:
        """See `Queue.drop`."""
        client = (job.tenant, job.user)
        self._queues[client].remove(job)
        self._prune(client)

    def produced(self, job: Job, tokens: int) -> None:
        """See `Queue.produced`; turns are requests, not tokens."""

    def _prune(self, client: Client) -> None:
        if not self._queues[client]:
            del self._queues[client]


class Tng(Central):
    """See the module."""

    def __init__(self, *, queue_limit: int = QUEUE_LIMIT) -> None:
        super().__init__(Turns())
        self._limit = queue_limit
        self._waiting_there: dict[int, int] = {}
        """By replica, as reported last."""
        self._in_report: dict[int, set[int]] = {}
        """By replica: unstarted requests that the last report may have counted."""

    def has_room(self, replica: int, job: Job) -> bool:
        """See `Central.has_room`: few enough wait there, as far as it is known."""
        unstarted, told = self.unstarted[replica].keys(), self._in_report.get(replica, set())
        still_there = min(self._waiting_there.get(replica, 0), len(unstarted & told))
        return still_there + len(unstarted - told) < self._limit

    def reported(self, replica: int, report: Report, now: float) -> Decisions:
        """See `Dispatch.reported`."""
        if report.told.waiting is None:
            return ()
        self._waiting_there[replica] = int(report.told.waiting)
        self._in_report[replica] = set(self.unstarted[replica])
        return self.release()

    def back(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.back`; it has forgotten its queue."""
        self._waiting_there[replica] = 0
        return super().back(replica, now)
