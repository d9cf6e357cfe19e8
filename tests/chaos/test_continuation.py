"""One of two engines dies in the middle of streams: they end as if nothing had happened."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from time import monotonic

import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.chaos.abilities import can_continue, tiers
from tests.chaos.clients import Seen, ask
from tests.chaos.conftest import Say
from tests.chaos.fleet import Process, running_fleet
from tests.chaos.judge import Oracle, faults_of, is_served
from tests.chaos.schedule import Client, Engine
from tests.support.gateway import eventually, running_gateway

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_200)]

STREAMS = 16
SLOTS = 16
TOKENS = 120
SPEED = 2.0
"""Steps of 10 ms: a stream takes 1.2 s."""
WAYS = ("kill", "core-dead", "half-chunk:0", "close-midstream:0", "die-midstream:0")
PROCESS_EVERY = 10
"""So often the one that dies is a process, and dies of SIGKILL."""
AT_ONCE = 2
SHARE_MIN = 0.99
STRUCK_MIN = 0.3
"""Of all streams, those that were on the engine that died."""
SHOWN = 5


@pytest.fixture(scope="module", autouse=True)
def _can_continue() -> None:
    """Skip where the product cannot do it yet."""
    if not can_continue():
        pytest.skip("there is no setting tiers[].continuation")


@pytest.fixture
async def oracle() -> AsyncIterator[Oracle]:
    """An engine alone, that nothing happens to."""
    async with running_emulator(EmulatorOptions(profile="instant")) as engine:
        oracle = Oracle(engine.url)
        yield oracle
        await oracle.aclose()


async def test_streams_of_a_dead_engine_go_on_elsewhere_token_for_token(
    request: pytest.FixtureRequest, oracle: Oracle, say: Say
) -> None:
    """A user would see the same words twice, a hole, or an error after a minute of reading."""
    trials = request.config.getoption("--trials", default=100)
    only = request.config.getoption("--seed", default=None)
    seeds = iter(range(trials) if only is None else [only])
    served, struck = Counter[str](), Counter[str]()
    total, wrong, began_at = 0, list[str](), monotonic()

    async def carry_out() -> None:
        nonlocal total
        for seed in seeds:
            way, seens, there = await one_trial(seed, oracle)
            struck[way] += there
            faults = [
                f"{fault}; seed {seed}" for each in seens for fault in faults_of(each, oracle)
            ]
            wrong.extend(faults)
            total += len(seens)
            served[way] += sum(map(is_served, seens))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(carry_out())
    share = served.total() / total
    say(
        f"{served.total()} of {total} streams whole in {monotonic() - began_at:.0f} s: {served}\n"
        f"    of which were where an engine died: {struck}"
    )
    assert not wrong, "\n".join(("", *wrong[:SHOWN], 'again: make chaos ARGS="-k token --seed N"'))
    assert share >= SHARE_MIN
    assert struck.total() >= total * STRUCK_MIN, "too few were there to tell anything"


async def one_trial(seed: int, oracle: Oracle) -> tuple[str, list[Seen], int]:
    """Streams on two engines, one of which dies.

    Returns in which way, what the clients saw, and how many streams were there.
    """
    chance = random.Random(seed)
    is_process = seed % PROCESS_EVERY == 0
    way = "SIGKILL" if is_process else chance.choice(WAYS)
    clients = [
        Client(
            at_s=0.0,
            manner="reads",
            streams=True,
            tells_usage=chance.random() < 0.5,
            is_chat=chance.random() < 0.75,
            tier="standard",
            user=f"u{number}",
            words=f"Story number {chance.randrange(40)}.",
            max_tokens=TOKENS,
            leaves_after_s=0.0,
        )
        for number in range(STREAMS)
    ]
    await oracle.learn(clients)
    engines = [
        Engine(is_process=is_process and not number, has_line=False, slots=SLOTS, speed=SPEED)
        for number in range(2)
    ]
    async with running_fleet(engines) as fleet:
        urls = [{"url": each.url, "max_num_seqs": SLOTS} for each in fleet]
        async with running_gateway(*urls, tiers=tiers(continuation=True)) as running:
            port = int(running.url.rpartition(":")[2])
            asking = [asyncio.ensure_future(ask(port, each, asyncio.Event())) for each in clients]
            await asyncio.sleep(0.2 + chance.random() * 0.8)
            there = running.gateway.scheduler.replicas[fleet[0].name].ledger.sequences
            if way in ("kill", "SIGKILL"):
                await fleet[0].engine.kill()
            else:
                assert not isinstance(fleet[0].engine, Process)
                await fleet[0].engine.inject(way)
            seens = await asyncio.gather(*asking)
            await eventually(lambda: not running.in_flight)
            await fleet[1].idle(5.0)
    return way, seens, there
