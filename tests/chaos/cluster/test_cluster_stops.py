"""Gateways and Redis that stand still for 20 s and then go on as if nothing had been."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.chaos.cluster.house import are_one
from tests.chaos.cluster.verdict import DEGRADED_S, RECOVERY_S, tried
from tests.chaos.cluster.watching import taken_s
from tests.chaos.conftest import Say
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

STOPPED_S = 20.0


async def test_the_leader_stands_still(tmp_path: Path, redis: RedisServer, say: Say) -> None:
    """It must not grant anything on what it knew, once it goes on: another one leads by then."""
    async with tried(tmp_path, redis.url, say) as case:
        leader = await case.house.chief(RECOVERY_S)
        others = [member for member in case.house.members if member is not leader]
        leader.signal(signal.SIGSTOP)
        recovery_s = await taken_s(lambda: are_one(others), RECOVERY_S)
        await asyncio.sleep(STOPPED_S - recovery_s)
        leader.signal(signal.SIGCONT)
        back_s = await taken_s(case.house.is_whole, RECOVERY_S)
        case.figures = (
            f"leader stopped: others whole after {recovery_s:.2f} s, all {back_s:.2f} s after it "
            "went on"
        )


async def test_a_follower_stands_still(tmp_path: Path, redis: RedisServer, say: Say) -> None:
    """What waits there is not released to nobody; it goes on with what it has."""
    async with tried(tmp_path, redis.url, say) as case:
        follower = await case.house.follower()
        follower.signal(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        follower.signal(signal.SIGCONT)
        back_s = await taken_s(case.house.is_whole, RECOVERY_S)
        case.figures = f"follower stopped: whole {back_s:.2f} s after it went on"


async def test_redis_stands_still(tmp_path: Path, redis: RedisServer, say: Say) -> None:
    """Connections stay open and nothing answers: only time tells, and there is little of it."""
    async with tried(tmp_path, redis.url, say) as case:
        redis.pause()
        alone_s = await taken_s(lambda: case.house.all_alone(case.house.members), DEGRADED_S)
        await asyncio.sleep(STOPPED_S - alone_s)
        redis.resume()
        back_s = await taken_s(case.house.is_whole, RECOVERY_S)
        case.figures = (
            f"Redis stopped: alone after {alone_s:.2f} s, one again {back_s:.2f} s after it went on"
        )
