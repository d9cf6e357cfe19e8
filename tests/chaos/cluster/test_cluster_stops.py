"""Gateways and Redis that stand still for 20 s and then go on as if nothing had been."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster.house import are_one, house
from tests.chaos.cluster.load import load
from tests.chaos.cluster.verdict import RECOVERY_S, judge, told
from tests.chaos.cluster.watching import taken_s, watched
from tests.chaos.conftest import Say
from tests.support.redis_server import RedisServer, running_redis

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

BEFORE_S = 4.0
STOPPED_S = 20.0
AFTER_S = 8.0
DEGRADED_S = 1.0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One Redis."""
    folder = tmp_path / "redis"
    folder.mkdir()
    with running_redis(folder, ("--save", "", "--appendonly", "no")) as server:
        yield server


async def test_the_leader_stands_still(tmp_path: Path, redis: RedisServer, say: Say) -> None:
    """It must not grant anything on what it knew, once it goes on: another one leads by then."""
    async with house(tmp_path, redis.url) as found, watched(found) as full:
        async with load(found) as asked:
            await asyncio.sleep(BEFORE_S)
            leader = await found.chief(RECOVERY_S)
            others = [member for member in found.members if member is not leader]
            leader.signal(signal.SIGSTOP)
            recovery_s = await taken_s(lambda: are_one(others), RECOVERY_S)
            await asyncio.sleep(STOPPED_S - recovery_s)
            leader.signal(signal.SIGCONT)
            back_s = await taken_s(found.is_whole, RECOVERY_S)
            await asyncio.sleep(AFTER_S)
        say(
            f"leader stopped: others whole after {recovery_s:.2f} s, all {back_s:.2f} s after it "
            f"went on; {told(asked, found, full)}"
        )
        await judge(found, asked, full)


async def test_a_follower_stands_still(tmp_path: Path, redis: RedisServer, say: Say) -> None:
    """What waits there is not released to nobody; it goes on with what it has."""
    async with house(tmp_path, redis.url) as found, watched(found) as full:
        async with load(found) as asked:
            await asyncio.sleep(BEFORE_S)
            follower = await found.follower()
            follower.signal(signal.SIGSTOP)
            await asyncio.sleep(STOPPED_S)
            follower.signal(signal.SIGCONT)
            back_s = await taken_s(found.is_whole, RECOVERY_S)
            await asyncio.sleep(AFTER_S)
        say(f"follower stopped: whole {back_s:.2f} s after it went on; {told(asked, found, full)}")
        await judge(found, asked, full)


async def test_redis_stands_still(tmp_path: Path, redis: RedisServer, say: Say) -> None:
    """Connections stay open and nothing answers: only time tells, and there is little of it."""
    async with house(tmp_path, redis.url) as found, watched(found) as full:
        async with load(found) as asked:
            await asyncio.sleep(BEFORE_S)
            redis.pause()
            alone_s = await taken_s(lambda: found.all_alone(found.members), DEGRADED_S)
            await asyncio.sleep(STOPPED_S - alone_s)
            redis.resume()
            back_s = await taken_s(found.is_whole, RECOVERY_S)
            await asyncio.sleep(AFTER_S)
        say(
            f"Redis stopped: alone after {alone_s:.2f} s, one again {back_s:.2f} s after it went "
            f"on; {told(asked, found, full)}"
        )
        await judge(found, asked, full)
