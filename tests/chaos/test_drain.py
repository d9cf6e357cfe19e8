"""Every replica is drained, replaced and used again under load: no client hears of it."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from gateway.core.messages import DrainAsked
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.chaos.clients import Seen, ask
from tests.chaos.conftest import Say
from tests.chaos.fleet import Local, running_fleet
from tests.chaos.judge import Oracle, faults_of, is_served
from tests.chaos.schedule import LENGTHS, TIERS, WORDS, Client, Engine
from tests.support.gateway import Running, eventually, running_gateway

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

ENGINES = (Engine(is_process=False, has_line=False, slots=4, speed=2.0),) * 3
CLIENTS = 24
"""Twice as many as there are slots: the ones that stay are full."""
ROUNDS = 2
AWAY_S = 0.3


def asked_by(chance: random.Random, number: int) -> Client:
    """One request of a mixed load."""
    streams = chance.random() < 0.8
    return Client(
        at_s=0.0,
        manner="reads",
        streams=streams,
        tells_usage=chance.random() < 0.5,
        is_chat=chance.random() < 0.75,
        tier=chance.choice(TIERS),
        user=f"u{number}",
        words=chance.choice(WORDS),
        max_tokens=chance.choice(LENGTHS),
        leaves_after_s=0.0,
    )


async def test_a_rolling_drain_under_load_fails_nobody(say: Say) -> None:
    """Every update of the engines would cost users their streams."""
    over, seens = asyncio.Event(), list[Seen]()
    async with running_emulator(EmulatorOptions(profile="instant")) as alone:
        oracle = Oracle(alone.url)
        async with AsyncExitStack() as stack:
            fleet = await stack.enter_async_context(running_fleet(ENGINES))
            gateway = running_gateway(*[each.url for each in fleet])
            running = await stack.enter_async_context(gateway)
            port = int(running.url.rpartition(":")[2])

            async def keep_asking(number: int) -> None:
                chance = random.Random(number)
                while not over.is_set():
                    seens.append(await ask(port, asked_by(chance, number), asyncio.Event()))

            async with asyncio.TaskGroup() as clients:
                for number in range(CLIENTS):
                    clients.create_task(keep_asking(number))
                await asyncio.sleep(0.5)
                for replica in fleet * ROUNDS:
                    assert isinstance(replica.engine, Local)
                    await replaced(running, replica.name, replica.engine)
                over.set()
            await eventually(lambda: running.in_flight == 0)
        await oracle.learn([seen.client for seen in seens])
        wrong = [fault for seen in seens for fault in faults_of(seen, oracle)]
        await oracle.aclose()
    served = sum(map(is_served, seens))
    say(f"{ROUNDS * len(ENGINES)} replicas replaced one by one, {served} of {len(seens)} served")
    assert not wrong, "\n".join(wrong)
    assert served == len(seens)


async def replaced(running: Running, name: str, engine: Local) -> None:
    """Drain it, put another engine in its place, and use that one."""
    tell = running.gateway.dispatcher.tell
    replica = running.gateway.scheduler.replicas[name]
    assert replica.is_usable
    tell(DrainAsked(name))
    await eventually(lambda: not replica.ledger.grants, 20.0)
    await engine.kill()
    await asyncio.sleep(AWAY_S)
    await engine.start()
    tell(DrainAsked(name, draining=False))
    await eventually(lambda: replica.is_usable, 20.0)
    await eventually(lambda: replica.ledger.grants, 20.0)
