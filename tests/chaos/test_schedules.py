"""Random failures on sockets: nothing leaks, nothing is said twice, and the next one is served."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from time import monotonic

import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.chaos.conftest import Say
from tests.chaos.judge import Oracle
from tests.chaos.schedule import schedule
from tests.chaos.trial import carried_out, complaints

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_200)]

AT_ONCE = 3
"""Schedules mostly wait; one that is repeated by its seed is alone."""


@pytest.fixture
async def oracle() -> AsyncIterator[Oracle]:
    """An engine alone, that nothing happens to."""
    async with running_emulator(EmulatorOptions(profile="instant")) as engine:
        oracle = Oracle(engine.url)
        yield oracle
        await oracle.aclose()


async def test_whatever_goes_wrong_nothing_is_lost(
    seeds: list[int], oracle: Oracle, say: Say
) -> None:
    """Each seed is a night on which replicas failed in an order that nobody thought of."""
    verdicts, began_at, left = [], monotonic(), iter(seeds)

    async def carry_out() -> None:
        for seed in left:
            verdict = await carried_out(schedule(seed), oracle)
            verdicts.append(verdict)

    with complaints() as logged:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(carry_out())
    ends = sum((each.ends for each in verdicts), Counter[str]())
    say(f"{len(seeds)} schedules in {monotonic() - began_at:.0f} s: {dict(ends)}")
    wrong = [str(each) for each in verdicts if each.wrong]
    assert not wrong, "\n\n".join(("", *wrong))
    assert not logged, "\n".join((f"logged in schedules {seeds}", *logged))


def test_a_seed_means_the_same_schedule_everywhere() -> None:
    """A failure that cannot be had again is never mended."""
    assert str(schedule(17)) == str(schedule(17))
    assert schedule(17) == schedule(17) != schedule(18)
