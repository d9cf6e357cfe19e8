"""How late the loop is."""

import asyncio
import time

from gateway.runtime.lag import LOOK_EVERY_S, WINDOW_S, LagMeter
from tests.support.jumping import run_jumping


async def test_a_loop_that_is_held_up_is_seen() -> None:
    """The first question when all requests are slow at once."""
    seen: list[float] = []
    meter = LagMeter(seen.append)
    meter.start()
    await asyncio.sleep(LOOK_EVERY_S / 2)
    time.sleep(LOOK_EVERY_S + 0.1)  # noqa: ASYNC251 - that is the fault
    await asyncio.sleep(LOOK_EVERY_S * 3)
    meter.stop()
    assert meter.longest_s >= 0.1
    assert max(seen) == meter.longest_s
    count = len(seen)
    await asyncio.sleep(LOOK_EVERY_S * 2)
    assert len(seen) == count


def test_the_longest_lag_is_forgotten_after_two_windows() -> None:
    """A hiccup of last week must not stand in the graph for ever."""

    async def main() -> None:
        meter = LagMeter()
        meter.start()
        await asyncio.sleep(1.0)
        meter._longest = 3.0
        await asyncio.sleep(WINDOW_S)
        assert meter.longest_s == 3.0
        await asyncio.sleep(WINDOW_S)
        assert meter.longest_s < 0.001
        meter.stop()

    run_jumping(main())
