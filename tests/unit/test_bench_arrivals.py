"""When clients ask again: closed and open loops, under a clock of the test's own."""

import pytest

from gateway.bench.arrivals import OVERDUE_MAX, ClosedLoop, OpenLoop
from gateway.bench.tally import Tally

MS = 1_000_000


class Clock:
    """Nanoseconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        """The time."""
        return self.now_ns


class FakeClient:
    """Notes since when each of its requests was due."""

    def __init__(self, *, is_gone: bool = False) -> None:
        self.due_ns: list[int] = []
        self.is_gone = is_gone

    def ask(self, due_ns: int) -> bool:
        """Note it, unless the connection is gone."""
        if not self.is_gone:
            self.due_ns.append(due_ns)
        return not self.is_gone


class Loop:
    """An open loop of 100 requests a second."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.tally = Tally()
        self.tally.is_recording = True
        self.open = OpenLoop(100.0, self.tally, clock=self.clock)

    def turn_at(self, ms: int) -> None:
        """Let it look at the clock then."""
        self.clock.now_ns = ms * MS
        self.open.turn()


def test_in_a_closed_loop_a_free_client_asks_at_once() -> None:
    """As many requests in flight as there are clients, always."""
    clock, client = Clock(), FakeClient()
    loop = ClosedLoop(clock)
    clock.now_ns = 5
    loop.ready(client)
    assert client.due_ns == [5]


def test_an_open_loop_asks_at_its_rate() -> None:
    """Whether or not the last answer has come: as users do."""
    loop, clients = Loop(), [FakeClient() for _ in range(4)]
    for client in clients:
        loop.open.ready(client)
    for ms in range(35):
        loop.turn_at(ms)
    assert [client.due_ns for client in clients] == [[0], [10 * MS], [20 * MS], [30 * MS]]


def test_a_request_that_found_no_free_client_is_timed_from_when_it_was_due() -> None:
    """Measured from when it was sent at last, a stall of a second would be one slow request."""
    loop, client = Loop(), FakeClient()
    loop.open.ready(client)
    loop.turn_at(0)
    loop.turn_at(10)
    loop.turn_at(20)
    loop.open.ready(client)
    loop.open.ready(client)
    assert client.due_ns == [0, 10 * MS, 20 * MS]


def test_clients_take_turns() -> None:
    """One connection that answers everything is no load of 32 connections."""
    loop, one, two = Loop(), FakeClient(), FakeClient()
    for client in (one, two, one, two):
        loop.open.ready(client)
    for ms in (0, 10, 20, 30):
        loop.turn_at(ms)
    assert one.due_ns == [0, 20 * MS]
    assert two.due_ns == [10 * MS, 30 * MS]


def test_a_client_that_is_gone_is_passed_over() -> None:
    """Its request would vanish, and the rate with it."""
    loop, alive = Loop(), FakeClient()
    loop.open.ready(FakeClient(is_gone=True))
    loop.open.ready(alive)
    loop.turn_at(0)
    assert alive.due_ns == [0]


def test_an_overdue_request_stays_overdue_when_its_client_is_gone() -> None:
    """A run of lost connections must not eat the queue."""
    loop, alive = Loop(), FakeClient()
    loop.turn_at(0)
    loop.open.ready(FakeClient(is_gone=True))
    loop.open.ready(alive)
    assert alive.due_ns == [0]


def test_requests_that_pile_up_without_end_become_errors() -> None:
    """A gateway that stands still must not fill the memory of whoever measures it."""
    loop = Loop()
    loop.turn_at((OVERDUE_MAX + 4) * 10)
    assert loop.tally.error_kinds == {"overdue": 5}


def test_an_open_loop_without_a_rate_is_a_mistake() -> None:
    """It would divide by zero, or ask for ever."""
    with pytest.raises(AssertionError):
        OpenLoop(0.0, Tally())
