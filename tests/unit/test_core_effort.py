"""What an event costs does not grow with what waits, nor with the replicas: counted in lines."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from gateway.core import scheduler
from gateway.core.messages import (
    Arrived,
    Event,
    Finished,
    FirstToken,
    Granted,
    Outcome,
    ReplicaFound,
)
from gateway.core.policy import Bounds
from gateway.core.scheduler import Scheduler
from tests.support.parts import a_request
from tests.support.planting import CORE
from tests.support.script import four_tiers

TURNS = 40
EACH_S = 0.01
USERS_SHARE = 0.1
GROWTH_MAX = 1.5
"""For 32 times as much: a heap five levels deeper, but no look at all of it."""

pytestmark = pytest.mark.skipif(
    not str(scheduler.__file__).endswith(".py"), reason="machine code has no lines to count"
)


def lines_of(happens: Callable[[], object]) -> int:
    """Lines of the core that run meanwhile, those of a loop as often as they do."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(str(CORE)):
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        happens()
    finally:
        sys.settrace(before)
    assert lines, "nothing of the core ran"
    return lines


class Crowd:
    """Replicas of few slots, requests of many users before them, and a clock."""

    def __init__(self, *, replicas: int, slots: int) -> None:
        bounds = Bounds(waiting=100_000, waiting_tokens=None)
        self.scheduler = Scheduler(four_tiers(bounds=bounds, warm_up_s=0.0))
        self.now = 0.0
        self.running: list[str] = []
        self._count = 0
        for number in range(replicas):
            self._tell(ReplicaFound(replica=f"r{number:03}", models=frozenset({"m"}), slots=slots))

    def arrive(self, count: int, *, users: int) -> None:
        """So many come, of so many users in all four tiers."""
        for _ in range(count):
            self._count += 1
            number = self._count
            request = a_request(
                f"q{number}", tier=number % 4, user=f"u{number % users}", arrived_at=self.now,
                patience_s=1e6,
            )  # fmt: skip
            self._tell(Arrived(request))

    def turn(self, users: int) -> None:
        """The oldest ends, another one comes, and what is granted begins."""
        begun = len(self.running) - 1
        self._tell(Finished(self.running.pop(0), Outcome.DONE))
        self.arrive(1, users=users)
        for id in self.running[begun:]:
            self._tell(FirstToken(id))

    def lines_of_turns(self, users: int) -> int:
        """Lines that some turns take, after some more."""
        self._turns(users)
        return lines_of(lambda: self._turns(users))

    def _turns(self, users: int) -> None:
        for _ in range(TURNS):
            self.turn(users)

    def _tell(self, event: Event) -> None:
        self.now += EACH_S
        for decision in self.scheduler.handle(event, self.now):
            if isinstance(decision, Granted):
                self.running.append(decision.request_id)


def with_waiting(count: int) -> int:
    """Lines of some turns while so many wait."""
    users = int(count * USERS_SHARE)
    crowd = Crowd(replicas=4, slots=2)
    crowd.arrive(count, users=users)
    lines = crowd.lines_of_turns(users)
    assert len(crowd.scheduler.waiting) > count / 2
    return lines


def with_replicas(count: int) -> int:
    """Lines of some turns on so many replicas, of which each has room."""
    crowd = Crowd(replicas=count, slots=8)
    crowd.arrive(2 * count, users=9)
    lines = crowd.lines_of_turns(9)
    assert not crowd.scheduler.waiting
    return lines


def test_an_event_takes_no_longer_where_more_waits() -> None:
    """Ten thousand waiting would make everybody wait for the scheduler itself."""
    assert with_waiting(6_400) < GROWTH_MAX * with_waiting(200)


def test_an_event_takes_no_longer_where_there_are_more_replicas() -> None:
    """A hundred replicas get a hundred times the requests, from one scheduler."""
    assert with_replicas(128) < GROWTH_MAX * with_replicas(4)
