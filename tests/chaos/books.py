"""The scheduler's books, kept a second time from what it is told and what it decides.

Every request that arrived ends exactly once, in one of four ways; nothing is granted twice.
"""

from collections import Counter

from gateway.core.messages import (
    Arrived,
    Bounced,
    Cancelled,
    Decision,
    Event,
    Finished,
    Granted,
    Outcome,
    RecallDone,
    Refused,
)
from gateway.core.scheduler import Scheduler

FAILED = (Outcome.FAILED, Outcome.REJECTED)


class Books:
    """Stands before a real scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.arrived: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        """How many times each request ended."""
        self.ways: Counter[str] = Counter()
        """done, failed, refused, cancelled."""
        self.wrong: list[str] = []
        self._granted: set[str] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def handle(self, event: Event, now: float) -> list[Decision]:
        """See `Scheduler.handle`."""
        self._heard(event)
        decisions = self._scheduler.handle(event, now)
        for decision in decisions:
            match decision:
                case Granted(request_id):
                    if request_id in self._granted:
                        self.wrong.append(f"{request_id} was granted twice")
                    self._granted.add(request_id)
                case Refused(request_id):
                    self._end(request_id, "refused")
        return decisions

    def balance(self) -> list[str]:
        """What does not add up, once nothing is left."""
        wrong = list(self.wrong)
        wrong += [f"{each} arrived {n} times" for each, n in self.arrived.items() if n != 1]
        wrong += [f"{each} ended {n} times" for each, n in self.ended.items() if n != 1]
        wrong += [f"{each} never ended" for each in self.arrived if each not in self.ended]
        wrong += [f"{each} ended and never arrived" for each in self.ended.keys() - self.arrived]
        if self.arrived.total() != self.ways.total():
            wrong.append(f"{self.arrived.total()} arrived, but {dict(self.ways)}")
        return wrong

    def _heard(self, event: Event) -> None:
        match event:
            case Arrived(request):
                self.arrived[request.id] += 1
            case Cancelled(request_id):
                self._left(request_id, "cancelled")
            case Bounced(request_id) | RecallDone(request_id):
                self._granted.discard(request_id)
            case Finished(request_id=request_id, outcome=outcome):
                way = "failed" if outcome in FAILED else outcome.value
                self._left(request_id, way)

    def _left(self, request_id: str, way: str) -> None:
        """An end that is told; told again, it is no end any more."""
        state = self._scheduler
        if request_id in state.waiting or request_id in state.granted:
            self._end(request_id, way)

    def _end(self, request_id: str, way: str) -> None:
        self._granted.discard(request_id)
        self.ended[request_id] += 1
        self.ways[way] += 1
