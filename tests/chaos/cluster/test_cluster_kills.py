"""Gateways and Redis that die, under load: nobody is hurt but who was connected to the dead one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster.house import house, join
from tests.chaos.cluster.load import load
from tests.chaos.cluster.verdict import RECOVERY_S, judge, told
from tests.chaos.cluster.watching import taken_s, watched
from tests.chaos.conftest import Say
from tests.support.redis_server import RedisServer, running_redis

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

BEFORE_S = 4.0
AFTER_S = 8.0
DEGRADED_S = 1.0
"""Detection takes 0.2 s; the rest is that `/readyz` is asked for it."""
AWAY_S = 5.0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One Redis, which forgets everything when it ends."""
    folder = tmp_path / "redis"
    folder.mkdir()
    with running_redis(folder, ("--save", "", "--appendonly", "no")) as server:
        yield server


async def test_the_leader_is_killed(tmp_path: Path, redis: RedisServer, say: Say) -> None:
    """Its own clients lose their connections; no one else loses anything, and another one leads."""
    async with house(tmp_path, redis.url) as found, watched(found) as full:
        async with load(found) as asked:
            await asyncio.sleep(BEFORE_S)
            leader = await found.chief(RECOVERY_S)
            leader.kill()
            recovery_s = await taken_s(found.is_whole, RECOVERY_S)
            await asyncio.sleep(AFTER_S)
        say(f"leader killed: whole after {recovery_s:.2f} s; {told(asked, found, full)}")
        await judge(found, asked, full)


async def test_a_follower_is_killed_and_another_joins(
    tmp_path: Path, redis: RedisServer, say: Say
) -> None:
    """What it had is given up, and whoever takes its place is one of them at once."""
    async with house(tmp_path, redis.url) as found, watched(found) as full:
        async with load(found) as asked:
            await asyncio.sleep(BEFORE_S)
            (await found.follower()).kill()
            await asyncio.sleep(AFTER_S)
            assert await found.is_whole()
            await join(found, "late", redis.url)
            await found.whole(RECOVERY_S)
        say(f"follower killed: {told(asked, found, full)}")
        await judge(found, asked, full)


async def test_redis_is_killed(tmp_path: Path, redis: RedisServer, say: Say) -> None:
    """Each decides alone meanwhile, within its part; with an empty Redis they are one again."""
    async with house(tmp_path, redis.url) as found, watched(found) as full:
        async with load(found) as asked:
            await asyncio.sleep(BEFORE_S)
            redis.kill()
            alone_s = await taken_s(lambda: found.all_alone(found.members), DEGRADED_S)
            await asyncio.sleep(AWAY_S)
            redis.start()
            recovery_s = await taken_s(found.is_whole, RECOVERY_S)
            await asyncio.sleep(AFTER_S)
        say(
            f"Redis killed: alone after {alone_s:.2f} s, one again {recovery_s:.2f} s after its "
            f"start; {told(asked, found, full)}"
        )
        await judge(found, asked, full)
