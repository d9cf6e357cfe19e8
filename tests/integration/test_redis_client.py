"""Clients of Redis: whoever is cancelled in the middle of a command ends."""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.tenancy.store.redis_client import client
from tests.support.redis_server import RedisServer, running_redis

CANCELLATIONS = 300
SOON_S = 0.003


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all."""
    with running_redis(Path(tmp_path_factory.mktemp("redis"))) as running:
        yield running


async def lost(redis: Any, command: Callable[[Any], Awaitable[object]]) -> int:
    """How many of so many cancellations a loop of that command outlived."""
    chance, count = random.Random(1), 0

    async def again_and_again() -> bool:
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():
            await command(redis)
        return True

    for _ in range(CANCELLATIONS):
        running = asyncio.get_running_loop().create_task(again_and_again())
        await asyncio.sleep(chance.random() * SOON_S)
        running.cancel()
        await asyncio.wait([running])
        count += not running.cancelled()
    await redis.aclose()
    return count


async def ping(redis: Any) -> None:
    """One command."""
    await redis.ping()


async def transaction(redis: Any) -> None:
    """Several, after a look at what must not change meanwhile."""
    async with redis.pipeline(transaction=True) as pipe:
        await pipe.watch("a")
        pipe.multi()
        pipe.set("a", "1")
        await pipe.execute()


async def budgeted(redis: Any) -> None:
    """Within a time."""
    async with asyncio.timeout(5.0):
        await redis.ping()


@pytest.mark.parametrize("command", [ping, transaction, budgeted])
async def test_whoever_is_cancelled_in_a_command_ends(
    server: RedisServer, command: Callable[[Any], Awaitable[object]]
) -> None:
    """A gateway that is stopped would work on batches for ever."""
    redis = client(server.url, connections_max=4, wait_s=5.0, socket_s=5.0)
    assert await lost(redis, command) == 0


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="wait_for loses nothing any more")
async def test_the_plain_client_loses_cancellations(server: RedisServer) -> None:
    """Control: a judge that never finds one finds nothing."""
    assert await lost(Redis.from_url(server.url, socket_timeout=5.0), ping) > 0


async def test_answers_are_those_of_their_commands_after_cancellations(
    server: RedisServer,
) -> None:
    """A batch would be told what another one was asked."""
    redis = client(server.url, connections_max=1, wait_s=5.0, socket_s=5.0)

    async def told(word: str) -> None:
        assert await redis.echo(word) == word.encode()

    chance = random.Random(2)
    for number in range(CANCELLATIONS):
        running = asyncio.get_running_loop().create_task(told(f"a{number}"))
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled() or running.exception() is None
        await told(f"b{number}")
    await redis.aclose()
