"""The wheel that paces all streams of the fake engine with one timer."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from gateway.bench.ticker import TICK_NS, Ticker, Wheel


class Stepper:
    """A stream that notes when it was stepped and goes on for a number of steps."""

    def __init__(self, steps: int, interval_ns: int, due_ns: int = 0) -> None:
        self.left = steps
        self.interval_ns = interval_ns
        self.due_ns = due_ns
        self.stepped_ns: list[int] = []

    def step(self, now_ns: int) -> int | None:
        """Note the instant."""
        self.stepped_ns.append(now_ns)
        self.left -= 1
        self.due_ns += self.interval_ns
        return self.due_ns if self.left else None


class FakeLoop:
    """A clock and the one timer that runs on it."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.timers: list[tuple[int, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Remember the timer."""
        self.timers.append((self.now_ns + round(delay_s * 1e9), callback))

    def turn(self) -> None:
        """Run the timer that is set."""
        (self.now_ns, callback), self.timers = self.timers[0], self.timers[1:]
        callback()


def advance_by_ticks(wheel: Wheel, count: int, *, start: int = 1) -> None:
    """Let `count` slots begin, one by one."""
    for tick in range(start, start + count):
        wheel.advance(tick * TICK_NS)


def test_a_step_is_never_early() -> None:
    """An event sent before its time would hide a delay that the gateway adds."""
    wheel, stream = Wheel(), Stepper(1, 0)
    wheel.schedule(stream, 3 * TICK_NS + 1, 0)
    advance_by_ticks(wheel, 3)
    assert not stream.stepped_ns
    advance_by_ticks(wheel, 1, start=4)
    assert stream.stepped_ns == [4 * TICK_NS]


def test_a_stream_keeps_its_pace() -> None:
    """The pace times the streams is the load; a slow clock would flatter the gateway."""
    wheel, stream = Wheel(), Stepper(10, 5 * TICK_NS, due_ns=TICK_NS)
    wheel.schedule(stream, TICK_NS, 0)
    advance_by_ticks(wheel, 60)
    assert stream.stepped_ns == [(1 + 5 * i) * TICK_NS for i in range(10)]
    assert wheel.waiting == 0


def test_an_interval_that_is_no_whole_number_of_ticks_is_kept_on_average() -> None:
    """Rounding each interval up would make 200 streams at 5,000/s deliver less than that."""
    wheel, stream = Wheel(), Stepper(101, TICK_NS * 5 // 2, due_ns=TICK_NS)
    wheel.schedule(stream, TICK_NS, 0)
    advance_by_ticks(wheel, 260)
    assert stream.left == 0
    assert stream.stepped_ns[-1] - stream.stepped_ns[0] == 250 * TICK_NS


def test_after_a_stall_a_stream_catches_up_one_step_a_tick() -> None:
    """A burst of everything missed would be a load that no engine makes, or an endless turn."""
    wheel, stream = Wheel(), Stepper(20, TICK_NS, due_ns=TICK_NS)
    wheel.schedule(stream, TICK_NS, 0)
    wheel.advance(10 * TICK_NS)
    assert len(stream.stepped_ns) == 1
    advance_by_ticks(wheel, 5, start=11)
    assert len(stream.stepped_ns) == 6


def test_many_streams_of_one_slot_are_all_stepped() -> None:
    """A thousand streams that share a millisecond must not lose one."""
    wheel, streams = Wheel(), [Stepper(2, TICK_NS, due_ns=TICK_NS) for _ in range(1_000)]
    for stream in streams:
        wheel.schedule(stream, TICK_NS, 0)
    assert wheel.waiting == 1_000
    advance_by_ticks(wheel, 3)
    assert {stream.left for stream in streams} == {0}
    assert wheel.waiting == 0


def test_a_wheel_that_was_idle_for_long_does_not_turn_through_the_gap() -> None:
    """The first request after a pause would be held up by a walk through empty slots."""
    wheel, first, second = Wheel(), Stepper(1, 0), Stepper(1, 0)
    wheel.schedule(first, TICK_NS, 0)
    wheel.advance(TICK_NS)
    much_later_ns = 10**9 * TICK_NS
    wheel.schedule(second, much_later_ns + TICK_NS, much_later_ns)
    wheel.advance(much_later_ns + TICK_NS)
    assert second.stepped_ns == [much_later_ns + TICK_NS]


def test_the_ticker_sets_one_timer_for_any_number_of_streams() -> None:
    """A timer a stream costs more than the rest of the fake engine together."""
    loop = FakeLoop()
    ticker = Ticker(cast("Any", loop), clock=lambda: loop.now_ns)
    streams = [Stepper(3, TICK_NS, due_ns=TICK_NS) for _ in range(50)]
    for stream in streams:
        ticker.schedule(stream, TICK_NS)
    for _ in range(5):
        assert len(loop.timers) <= 1
        if loop.timers:
            loop.turn()
    assert {stream.left for stream in streams} == {0}


def test_the_ticker_rests_when_nothing_waits_and_starts_again() -> None:
    """An idle engine that wakes a thousand times a second steals the core it shares."""
    loop = FakeLoop()
    ticker = Ticker(cast("Any", loop), clock=lambda: loop.now_ns)
    ticker.schedule(Stepper(1, 0), TICK_NS)
    loop.turn()
    assert not loop.timers
    again = Stepper(1, 0)
    ticker.schedule(again, loop.now_ns + TICK_NS)
    loop.turn()
    assert len(again.stepped_ns) == 1


async def test_the_ticker_runs_on_a_real_loop() -> None:
    """The pieces above are of no use if the loop's own timer does not drive them."""
    done = asyncio.Event()

    class Once:
        def step(self, now_ns: int) -> int | None:
            done.set()
            return None

    Ticker(asyncio.get_running_loop()).schedule(Once(), 0)
    await asyncio.wait_for(done.wait(), 5)
