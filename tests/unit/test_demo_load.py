"""The demo's users, against an emulated engine in the same event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import httpx
import pytest

from gateway.demo.load import FAILED_PAUSE_S, AnswerFailedError, Load, answered, brings_token
from gateway.demo.plan import LIGHT_USERS, POWER_USER, Phase
from gateway.demo.tally import Tally
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    """An engine whose steps take next to no time."""
    async with running_emulator(EmulatorOptions(models=("demo",), speed=100.0)) as emulator:
        yield emulator


@asynccontextmanager
async def running_load(engine: Emulator, *, is_flooded: bool) -> AsyncIterator[Tally]:
    """What users see who send to `engine` for as long as this context lasts."""
    phase = Phase(name="endless", policy="fifo", is_flooded=is_flooded, pause_s=0.05, length_s=None)
    tally = Tally(user.name for user in phase.users)
    load = asyncio.create_task(Load(engine.url, phase, tally, Random(1)).run())
    try:
        yield tally
    finally:
        load.cancel()
        with suppress(asyncio.CancelledError):
            await load


async def wait_until(is_so: Callable[[], bool]) -> None:
    """Return once `is_so()`; fails after twenty seconds."""
    async with asyncio.timeout(20.0):
        while True:
            if is_so():
                return
            await asyncio.sleep(0.01)


async def test_every_light_user_asks_and_is_answered(engine: Emulator) -> None:
    """A user without requests has an empty row in the table."""
    async with running_load(engine, is_flooded=False) as tally:
        accounts = [tally.accounts[user.name] for user in LIGHT_USERS]
        await wait_until(lambda: all(len(account.answered_s) >= 2 for account in accounts))
        assert tally.failed == 0
        assert all(account.tokens >= LIGHT_USERS[0].output_tokens_max for account in accounts)


async def test_users_say_who_they_are() -> None:
    """Without the header the gateway would take all of them for one user."""
    async with running_emulator(EmulatorOptions(models=("demo",))) as engine:

        def seen() -> set[str]:
            return {dict(request.headers)["x-fairgate-user"] for request in engine.received}

        async with running_load(engine, is_flooded=True):
            await wait_until(lambda: seen() == {"alice", "bob", "carol", "batch-bot"})


async def test_the_power_user_always_has_as_many_requests_open() -> None:
    """A flood that pauses is no flood."""
    options = EmulatorOptions(models=("demo",), faults=("freeze",))
    async with (
        running_emulator(options) as engine,
        running_load(engine, is_flooded=True) as tally,
    ):
        await wait_until(lambda: len(engine.received) >= POWER_USER.outstanding)
        assert tally.accounts[POWER_USER.name].waiting == POWER_USER.outstanding


async def test_the_end_of_a_phase_breaks_off_what_runs() -> None:
    """Otherwise the next phase would begin in the queue of the one before."""
    phase = Phase(name="short", policy="fifo", is_flooded=True, pause_s=0.05, length_s=0.5)
    tally = Tally(user.name for user in phase.users)
    async with running_emulator(EmulatorOptions(models=("demo",))) as engine:
        await Load(engine.url, phase, tally, Random(1)).run()
        assert tally.failed == 0
        await wait_until(lambda: not (engine.engine.running or engine.engine.waiting))


async def test_a_refused_power_user_pauses() -> None:
    """Hammering a gateway that refuses would take the processor from everybody."""
    clock = asyncio.get_running_loop().time
    options = EmulatorOptions(models=("demo",), faults=("error-500",))
    async with running_emulator(options) as engine:
        began_at = clock()
        async with running_load(engine, is_flooded=True) as tally:
            account = tally.accounts[POWER_USER.name]
            await wait_until(lambda: account.failed > POWER_USER.outstanding)
            waves = 1 + (clock() - began_at) / FAILED_PAUSE_S
            assert account.sent <= waves * POWER_USER.outstanding
            assert tally.complaint is not None
            assert tally.complaint.startswith("500: ")


@pytest.mark.parametrize("fault", ["error-500", "error-midstream", "close-midstream", "refuse"])
async def test_every_failure_is_told_as_one(engine: Emulator, fault: str) -> None:
    """A stream cut in the middle must not count as an answer."""
    engine.faults.inject(fault)
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as client:
        with pytest.raises((AnswerFailedError, httpx.HTTPError)):
            async for _ in answered(client, LIGHT_USERS[0], 1):
                pass


async def test_each_token_is_counted_once(engine: Emulator) -> None:
    """The shares in the table are shares of these."""
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as client:
        events = [has_token async for has_token in answered(client, LIGHT_USERS[0], 1)]
    assert events[0] is False
    assert sum(events) == LIGHT_USERS[0].output_tokens_max


def test_an_error_event_is_no_token() -> None:
    """After headers are out, this is the only form in which a failure arrives."""
    with pytest.raises(AnswerFailedError, match="out of memory"):
        brings_token('{"error": {"message": "out of memory"}}')
    assert brings_token('{"choices": [{"delta": {"content": "x"}}]}') is True
    assert brings_token('{"choices": []}') is False
