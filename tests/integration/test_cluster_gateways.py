"""Three gateways over a real Redis, the whole way from a client to an engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gateway.cluster.follower import Phase
from gateway.cluster.member import Member
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.support.child import Child, child
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import HeldEngine, running_held_engine
from tests.support.redis_server import RedisServer, running_redis

RECOVERY_S = 3.0
SETTLES_S = 3.0
TIERS = [{"name": "only", "queue_limit": 0, "patience_s": 60}]


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """A Redis of the test's own."""
    with running_redis(tmp_path, ("--save", "")) as server:
        yield server


@dataclass
class House:
    """Some gateways that are one."""

    gateways: list[Running]

    @property
    def members(self) -> list[Member]:
        """Of each gateway."""
        return [each.gateway.seat.member for each in self.gateways if each.gateway.seat is not None]

    @property
    def leader(self) -> int | None:
        """Which of them leads."""
        found = [at for at, member in enumerate(self.members) if member.led]
        return found[0] if len(found) == 1 else None

    def are_one(self) -> bool:
        """Whether one leads, the others follow it, and each knows of all."""
        if any(len(member.gateways) < len(self.members) for member in self.members):
            return False
        phases = sorted(f.phase.value for m in self.members for f in m.followers.values())
        others = [Phase.FOLLOWING.value] * (len(self.members) - 1)
        return phases == sorted([*others, Phase.LEADING.value])

    def is_empty(self) -> bool:
        """Whether nothing is open anywhere."""
        return not any(each.in_flight for each in self.gateways) and not any(
            member.away or member.owners for member in self.members
        )


@asynccontextmanager
async def house(
    redis: RedisServer, replicas: Sequence[Mapping[str, object]]
) -> AsyncIterator[House]:
    """So many gateways before the same replicas."""
    async with AsyncExitStack() as stack:
        found = House([])
        for number in range(3):
            running = running_gateway(
                *replicas, redis__url=redis.url, redis__name=f"g{number}", tiers=TIERS
            )
            found.gateways.append(await stack.enter_async_context(running))
        await eventually(found.are_one)
        yield found


def asked(engine: HeldEngine) -> list[str]:
    """Who is at the engine, in order of arrival."""
    return [json.loads(each.body)["user"] for each in engine.here]


def body(user: str) -> dict[str, object]:
    """A stream for a user."""
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "raw", "messages": messages, "max_tokens": 5, "stream": True, "user": user}


async def test_users_of_three_gateways_share_one_line(redis: RedisServer) -> None:
    """Whoever fills one gateway's queue would starve whoever came through another one."""
    async with running_held_engine(1) as engine, AsyncExitStack() as stack:
        one = {"url": engine.url, "max_num_seqs": 1}
        found = await stack.enter_async_context(house(redis, [one]))
        clients = [await stack.enter_async_context(client(each)) for each in found.gateways]
        tasks = []
        for at, users in enumerate(("aaaa", "b", "c")):
            for user in users:
                task = asyncio.create_task(
                    clients[at].post("/v1/chat/completions", json=body(user))
                )
                tasks.append(task)
                await asyncio.sleep(0.05)
        order = []
        for _ in range(6):
            await eventually(lambda: len(engine.here) == 1)
            held = engine.here[0]
            order.append(asked(engine)[0])
            held.begin()
            held.event()
            held.finish()
            await eventually(lambda held=held: held.is_left.is_set())  # type: ignore[misc]  # a default binds it
        answers = await asyncio.gather(*tasks)
        await eventually(found.is_empty, 5.0)
    assert [answer.status_code for answer in answers] == [200] * 6
    assert order == ["a", "b", "c", "a", "a", "a"]


async def test_no_engine_gets_more_than_its_slots(redis: RedisServer) -> None:
    """Three gateways that each fill an engine would make its own queue the line that counts."""
    options = EmulatorOptions(profile="demo", speed=4.0, max_num_seqs=3)
    most = 0
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running_emulator(options)) for _ in range(2)]
        replicas = [{"url": each.url, "max_num_seqs": 3} for each in engines]
        found = await stack.enter_async_context(house(redis, replicas))
        clients = [await stack.enter_async_context(client(each)) for each in found.gateways]
        content = {**body("u"), "model": "emulated", "max_tokens": 20}
        tasks = [
            asyncio.create_task(
                clients[at % 3].post("/v1/chat/completions", json={**content, "user": f"u{at % 5}"})
            )
            for at in range(60)
        ]
        while not all(task.done() for task in tasks):
            for engine in engines:
                most = max(most, engine.engine.running + engine.engine.waiting)
            await asyncio.sleep(0.002)
        answers = [task.result() for task in tasks]
        await eventually(found.is_empty, 5.0)
    assert {answer.status_code for answer in answers} == {200}
    assert most == 3


async def test_a_lost_redis_divides_the_slots_and_is_told(redis: RedisServer) -> None:
    """Requests would hang until Redis is back, or each gateway would take all slots for itself."""
    async with running_held_engine(6) as engine, AsyncExitStack() as stack:
        one = {"url": engine.url, "max_num_seqs": 6}
        found = await stack.enter_async_context(house(redis, [one]))
        clients = [await stack.enter_async_context(client(each)) for each in found.gateways]
        redis.pause()
        await eventually(lambda: all(member.is_apart for member in found.members), 1.5)
        tasks = [
            asyncio.create_task(clients[at % 3].post("/v1/chat/completions", json=body(f"u{at}")))
            for at in range(12)
        ]
        await eventually(lambda: len(engine.here) >= 5, 3.0)
        await asyncio.sleep(0.3)
        alone = len(engine.here)
        told = (await clients[0].get("/readyz")).json()["cluster"]
        redis.resume()
        await eventually(found.are_one, SETTLES_S)
        while not all(task.done() for task in tasks):
            for held in engine.here:
                held.begin()
                held.finish()
                await held.is_left.wait()
            await asyncio.sleep(0.01)
        answers = [task.result() for task in tasks]
        await eventually(found.is_empty, 5.0)
    assert {answer.status_code for answer in answers} == {200}
    assert alone == 6
    assert told["degraded"]
    assert [each["phase"] for each in told["pools"].values()] == ["alone"]


@pytest.mark.timeout(180)
async def test_a_killed_leader_is_followed_by_another_within_three_seconds(
    redis: RedisServer, tmp_path: Path
) -> None:
    """What waits at the living gateways would wait for ever for the word of a dead one."""
    async with running_held_engine(1) as engine, AsyncExitStack() as stack:
        children: list[Child] = []
        for name in "abc":
            (tmp_path / name).mkdir()
            one = {"url": engine.url, "max_num_seqs": 1}
            started = child(
                tmp_path / name, one, redis={"url": redis.url, "name": name}, tiers=TIERS
            )
            children.append(await stack.enter_async_context(started))
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=each.url, timeout=20.0))
            for each in children
        ]
        leader = await _leader(clients)
        tasks = [
            asyncio.create_task(clients[at].post("/v1/chat/completions", json=body(f"u{at}")))
            for at in range(3)
            if at != leader
        ]
        await eventually(lambda: len(engine.here) == 1)
        children[leader].process.kill()
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        for held in engine.here:
            held.begin()
            held.finish()
        await eventually(lambda: len(engine.asked) == 2, RECOVERY_S)
        took_s = asyncio.get_running_loop().time() - began
        for held in engine.here:
            held.begin()
            held.finish()
        answers = await asyncio.gather(*tasks)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert took_s < RECOVERY_S


async def _leader(clients: Sequence[httpx.AsyncClient]) -> int:
    async with asyncio.timeout(10.0):
        while True:
            phases = []
            for each in clients:
                with suppress(httpx.TransportError):
                    told = (await each.get("/readyz")).json()["cluster"]
                    phases += [pool["phase"] for pool in told["pools"].values()]
            if sorted(phases) == ["following"] * (len(clients) - 1) + ["leading"]:
                return phases.index("leading")
            await asyncio.sleep(0.05)
