"""Random failures on sockets: nothing leaks, nothing is said twice, and the next one is served."""

from collections import Counter
from collections.abc import AsyncIterator
from time import monotonic

import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.chaos.conftest import Say
from tests.chaos.judge import Oracle
from tests.chaos.schedule import schedule
from tests.chaos.trial import carried_out

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_200)]


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
    wrong, ends, began_at = [], Counter[str](), monotonic()
    for seed in seeds:
        verdict = await carried_out(schedule(seed), oracle)
        ends += verdict.ends
        if verdict.wrong:
            wrong.append(str(verdict))
    say(f"{len(seeds)} schedules in {monotonic() - began_at:.0f} s: {dict(ends)}")
    assert not wrong, "\n\n".join(("", *wrong))


def test_a_seed_means_the_same_schedule_everywhere() -> None:
    """A failure that cannot be had again is never mended."""
    assert str(schedule(17)) == str(schedule(17))
    assert schedule(17) == schedule(17) != schedule(18)
