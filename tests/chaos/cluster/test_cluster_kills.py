"""Gateways and Redis that die, under load: nobody is hurt but who was connected to the dead one."""

import asyncio
from pathlib import Path

import pytest

from tests.chaos.cluster.house import join
from tests.chaos.cluster.verdict import AFTER_S, DEGRADED_S, RECOVERY_S, tried
from tests.chaos.cluster.watching import taken_s
from tests.chaos.conftest import Say
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

AWAY_S = 5.0


async def test_the_leader_is_killed(tmp_path: Path, redis: RedisServer, say: Say) -> None:
    """Its own clients lose their connections; no one else loses anything, and another one leads."""
    async with tried(tmp_path, redis.url, say) as case:
        (await case.house.chief(RECOVERY_S)).kill()
        recovery_s = await taken_s(case.house.is_whole, RECOVERY_S)
        case.figures = f"leader killed: whole after {recovery_s:.2f} s"


async def test_a_follower_is_killed_and_another_joins(
    tmp_path: Path, redis: RedisServer, say: Say
) -> None:
    """What it had is given up, and whoever takes its place is one of them at once."""
    async with tried(tmp_path, redis.url, say) as case:
        (await case.house.follower()).kill()
        await asyncio.sleep(AFTER_S)
        assert await case.house.is_whole()
        await join(case.house, "late", redis.url)
        await case.house.whole(RECOVERY_S)
        case.figures = "follower killed"


async def test_redis_is_killed(tmp_path: Path, redis: RedisServer, say: Say) -> None:
    """Each decides alone meanwhile, within its part; with an empty Redis they are one again."""
    async with tried(tmp_path, redis.url, say) as case:
        redis.kill()
        alone_s = await taken_s(lambda: case.house.all_alone(case.house.members), DEGRADED_S)
        await asyncio.sleep(AWAY_S)
        redis.start()
        recovery_s = await taken_s(case.house.is_whole, RECOVERY_S)
        case.figures = (
            f"Redis killed: alone after {alone_s:.2f} s, one again {recovery_s:.2f} s after its "
            "start"
        )
