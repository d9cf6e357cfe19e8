"""Which workers there should be: starts, deaths, replacements, the end."""

from gateway.runtime.crew import (
    FAILURES_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    READY_S_MAX,
    STEADY_S,
    Crew,
    Kill,
    Order,
    Start,
    StepAside,
)

LEAVES_S = 45.0


class Yard:
    """A crew whose processes are numbers; what it orders is done at once."""

    def __init__(self, count: int) -> None:
        self.crew = Crew(count, leaves_within_s=LEAVES_S)
        self.now = 1_000.0
        self.pid = 100
        self.orders: list[Order] = []

    def look(self, serves: bool = True) -> list[Order]:
        """Carry out what is ordered now; whoever is started serves, or not yet."""
        orders = self.crew.look(self.now)
        for order in orders:
            if isinstance(order, Start):
                self.start(order.place, serves)
            elif isinstance(order, Kill):
                self.crew.ended(order.pid, -9, self.now)
        self.orders += orders
        return orders

    def start(self, place: int, serves: bool) -> int:
        """A process for this place."""
        self.pid += 1
        self.crew.started(place, self.pid, self.now)
        if serves:
            self.orders += self.crew.ready(self.pid, self.now)
        return self.pid


def test_every_place_gets_a_worker() -> None:
    """Otherwise `--workers 3` would be two."""
    yard = Yard(3)
    assert yard.look() == [Start(0), Start(1), Start(2)]
    assert yard.look() == []
    assert yard.crew.next_at() is None


def test_a_worker_that_dies_is_replaced_at_once_and_then_ever_more_slowly() -> None:
    """One crash costs a moment; a fault that all have must not become a storm of starts."""
    yard = Yard(1)
    yard.look()
    pauses = []
    for _ in range(FAILURES_MAX + 4):
        yard.crew.ended(yard.pid, -11, yard.now)
        due_at = yard.crew.next_at()
        assert due_at is not None
        pauses.append(due_at - yard.now)
        assert yard.look() == ([Start(0)] if pauses[-1] == 0.0 else [])
        yard.now = due_at
        yard.look()
    assert pauses[:4] == [0.0, PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert pauses[-1] == PAUSE_S_MAX


def test_whoever_lived_long_is_replaced_at_once_again() -> None:
    """A crash a day is no crash loop."""
    yard = Yard(1)
    yard.look()
    for _ in range(3):
        yard.now += STEADY_S
        yard.crew.ended(yard.pid, 1, yard.now)
        assert yard.look() == [Start(0)]


def test_a_place_without_a_worker_does_not_hold_up_the_others() -> None:
    """Each has its own pace."""
    yard = Yard(2)
    yard.look()
    for _ in range(2):
        yard.crew.ended(yard.crew.places[0].worker.pid, 1, yard.now)  # type: ignore[union-attr]  # it has one
        yard.look()
    second = yard.crew.places[1].worker
    assert second is not None
    yard.crew.ended(second.pid, 1, yard.now)
    assert yard.look() == [Start(1)]


def test_what_could_not_start_at_all_ends_with_its_status() -> None:
    """A wrong configuration is an error at the start, as it is of one process."""
    yard = Yard(2)
    yard.look(serves=False)
    yard.crew.ended(yard.pid, 3, yard.now)
    assert yard.crew.is_stopping
    assert yard.look() == [Kill(yard.pid - 1)]
    assert (yard.crew.is_over, yard.crew.status) == (True, 3)


def test_one_that_never_serves_is_given_up() -> None:
    """A worker that hangs in its start would hold its place for ever."""
    yard = Yard(1)
    yard.look()
    yard.crew.ended(yard.pid, 1, yard.now)
    yard.look(serves=False)
    assert yard.crew.next_at() == yard.now + READY_S_MAX
    yard.now += READY_S_MAX
    assert yard.look() == [Kill(yard.pid)]
    assert yard.crew.next_at() == yard.now + PAUSE_S


def test_all_are_replaced_one_after_another_and_none_goes_before_the_next_serves() -> None:
    """A restart that loses nothing: there is always one that accepts."""
    yard = Yard(2)
    yard.look()
    old = yard.crew.pids
    yard.crew.roll()
    assert yard.look(serves=False) == [Start(0)]
    assert yard.look() == []
    assert yard.crew.ready(yard.pid, yard.now) == [StepAside(old[0])]
    assert yard.look(serves=False) == [Start(1)], "the first need not have ended"
    assert yard.crew.ready(yard.pid, yard.now) == [StepAside(old[1])]
    assert sorted(yard.crew.pids) == sorted([*old, yard.pid - 1, yard.pid])
    for pid in old:
        yard.crew.ended(pid, 0, yard.now)
    assert yard.look() == []
    assert not yard.crew.is_rolling


def test_two_rolls_never_make_three_of_one_place() -> None:
    """Streams may keep an old worker for minutes: its memory must not pile up."""
    yard = Yard(1)
    yard.look()
    first = yard.pid
    yard.crew.roll()
    yard.look()
    yard.crew.roll()
    assert yard.look() == []
    yard.crew.ended(first, 0, yard.now)
    assert yard.look() == [Start(0)]


def test_an_old_one_that_does_not_go_is_killed() -> None:
    """One that hangs would keep its memory and its streams for ever, and every later roll back."""
    yard = Yard(1)
    yard.look()
    old = yard.pid
    yard.crew.roll()
    yard.look()
    assert StepAside(old) in yard.orders
    assert yard.crew.next_at() == yard.now + LEAVES_S
    yard.now += LEAVES_S
    assert yard.look() == [Kill(old)]
    assert (yard.crew.pids, yard.crew.next_at()) == ([yard.pid], None)


def test_a_successor_that_fails_leaves_the_old_one_where_it_is() -> None:
    """A bad release must not replace anything, and no further place is tried."""
    yard = Yard(2)
    yard.look()
    old = yard.crew.pids
    yard.crew.roll()
    yard.look(serves=False)
    yard.crew.ended(yard.pid, 1, yard.now)
    assert yard.look() == []
    assert (yard.crew.pids, yard.crew.is_rolling) == (old, False)


def test_an_old_one_that_dies_while_it_is_followed_is_not_replaced_twice() -> None:
    """The one that starts has the place then."""
    yard = Yard(1)
    yard.look()
    old = yard.pid
    yard.crew.roll()
    yard.look(serves=False)
    yard.crew.ended(old, -9, yard.now)
    assert yard.look() == []
    assert yard.crew.ready(yard.pid, yard.now) == []
    assert yard.crew.pids == [yard.pid]


def test_nothing_is_started_once_it_stops_and_what_stays_is_killed() -> None:
    """An orchestrator waits for the whole, and not for ever."""
    yard = Yard(2)
    yard.look()
    first, second = yard.crew.pids
    yard.crew.stop(yard.now)
    yard.crew.roll()
    yard.crew.ended(first, 0, yard.now)
    assert yard.look() == []
    assert yard.crew.next_at() == yard.now + LEAVES_S
    yard.now += LEAVES_S
    assert yard.look() == [Kill(second)]
    assert (yard.crew.is_over, yard.crew.status) == (True, -9)


def test_it_ends_with_the_status_of_whoever_was_not_allowed_to_finish() -> None:
    """Status 0 would say that nothing was cut off."""
    yard = Yard(2)
    yard.look()
    first, second = yard.crew.pids
    yard.crew.stop(yard.now)
    yard.crew.ended(first, 143, yard.now)
    yard.crew.ended(second, 0, yard.now)
    assert (yard.crew.is_over, yard.crew.status) == (True, 143)


def test_one_that_could_not_even_be_started_is_tried_again_later() -> None:
    """For want of memory or of process numbers, which come back."""
    yard = Yard(1)
    yard.crew.look(yard.now)
    yard.crew.failed(0, yard.now)
    yard.crew.failed(0, yard.now)
    assert yard.crew.next_at() == yard.now + PAUSE_S
