"""The scheduler: events in, decisions out.

`handle(event, now)` is synchronous and pure: no clock, no randomness, no I/O, no logging. The
gateway, a simulator and a cluster's leader can all run the same object. Each event touches few
replicas, and only those are looked at again.
"""

from math import inf
from typing import Final, assert_never

from gateway.core import admission, arrival, change, endings, fleet, transfer
from gateway.core.messages import (
    Adopted,
    Arrived,
    Bounced,
    Cancelled,
    Closed,
    Decision,
    Disowned,
    DrainAsked,
    Event,
    Finished,
    FirstToken,
    Outcome,
    PolicyChanged,
    Progressed,
    Readmitted,
    RecallDone,
    RecallTooLate,
    ReplicaFound,
    ReplicaLost,
    ReplicaRefused,
    ReplicaRemoved,
    ReplicaReported,
    WakeWanted,
    Withdrawn,
    Woke,
)
from gateway.core.state import State

RECHECK_S: Final = 0.5
"""While requests wait, gates that open with time alone are looked at again this often."""


class Scheduler(State):
    """All scheduling state of one or more pools, and the one way to change it."""

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take in one event at instant `now` (seconds, never going back) and decide."""
        out: list[Decision] = []
        match event:
            case Arrived():
                arrival.arrived(self, event.request, now=now, out=out)
            case Finished():
                endings.finished(self, event, now=now, out=out)
            case FirstToken():
                endings.started(self, event.request_id, now=now, out=out)
            case Progressed():
                endings.progressed(self, event, now=now, out=out)
            case ReplicaReported():
                fleet.reported(self, event, now=now, out=out)
            case Cancelled():
                ended = Finished(event.request_id, Outcome.CANCELLED)
                endings.finished(self, ended, now=now, out=out)
            case Bounced():
                endings.bounced(self, event.request_id, now=now, out=out)
            case RecallDone():
                endings.recalled(self, event.request_id, now=now, out=out)
            case RecallTooLate():
                endings.kept(self, event.request_id)
            case Adopted():
                endings.adopted(self, event, now=now)
            case Disowned():
                endings.disowned(self, event.request_id, now=now, out=out)
            case Withdrawn():
                transfer.withdrawn(self, event.request_ids, now=now)
            case Readmitted():
                transfer.readmitted(self, event.requests, now=now, out=out)
            case ReplicaFound():
                fleet.found(self, event, now=now, out=out)
            case ReplicaRefused():
                fleet.refused(self, event.replica, now=now)
            case ReplicaLost():
                fleet.lost(self, event.replica, now=now)
            case ReplicaRemoved():
                fleet.removed(self, event.replica)
            case DrainAsked():
                fleet.drain(self, event, now=now, out=out)
            case PolicyChanged():
                change.policy_changed(self, event, now=now, out=out)
            case Closed():
                change.close(self, now=now, out=out)
            case Woke():
                change.woke(self, now=now, out=out)
            case _:
                assert_never(event)
        if self.room.requests:
            # What was asked for while nothing waited may be too late for what does now.
            if self.wake_at is None or not now < self.wake_at <= now + RECHECK_S:
                self._ask_to_wake(now, out)
        elif self.due_at < inf and (self.wake_at is None or self.wake_at <= now):
            self._ask_to_wake(now, out)
        return out

    def place_of(self, request_id: str, now: float) -> tuple[int, float | None] | None:
        """(estimated position, expected wait in seconds) of a waiting request; None if it is not.

        O(requests of that user), O(1) for its newest: for entering the queue, and for a comment
        now and then.
        """
        waiting = self.waiting.get(request_id)
        if waiting is None:
            return None
        pool = self.pool_by_model[waiting.request.model]
        in_line = admission.position(pool, waiting, caps=self.caps)
        return in_line, admission.wait_s(pool, in_line, now)

    def _ask_to_wake(self, now: float, out: list[Decision]) -> None:
        if self.wake_at is not None and self.wake_at > now:
            self.due_at = min(self.due_at, self.wake_at)
        at = self.due_at
        first = self.room.deadlines.first() if self.room.requests else None
        if first is not None:
            at = min(at, first.deadline, now + RECHECK_S)
        if at == self.due_at:
            self.due_at = inf
        self.wake_at = at
        out.append(WakeWanted(at))
