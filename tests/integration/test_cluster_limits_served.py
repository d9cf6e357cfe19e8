"""Limits of three gateways over a real Redis, as clients of all three see them."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from gateway.tenancy.keys import key_hash
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.redis_server import RedisServer, running_redis

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {
    "model": "m", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4,
}  # fmt: skip
MOST = 12
BUDGET = 1_000
CAP = 2
SKEWS_S = (-30.0, 0.0, 30.0)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of the test's own."""
    with running_redis(tmp_path) as server:
        yield server


@asynccontextmanager
async def clients(
    redis: RedisServer, **limits: Any
) -> AsyncIterator[tuple[list[Running], list[httpx.AsyncClient]]]:
    """Alice at each of three gateways; her tenant has these limits."""
    options = EmulatorOptions(profile="instant", max_num_seqs=64, models=("m",))
    async with running_emulator(options) as engine, before(redis, engine.url, **limits) as found:
        yield found


@asynccontextmanager
async def before(
    redis: RedisServer, *replicas: str, **limits: Any
) -> AsyncIterator[tuple[list[Running], list[httpx.AsyncClient]]]:
    """The same, before these replicas."""
    tenant = {"name": "acme", "limits": limits}
    key = {"tenant": "acme", "user": "alice", "key_sha256": key_hash(b"fg-alice")}
    async with AsyncExitStack() as stack:
        found = []
        for skew_s in SKEWS_S:
            running = running_gateway(
                *replicas,
                redis__url=redis.url,
                tenants=[tenant],
                keys=[key],
                wall=partial(_wall, skew_s),
            )
            found.append(await stack.enter_async_context(running))
        await eventually(lambda: all(_is_joined(each) for each in found))
        yield (
            found,
            [
                await stack.enter_async_context(client(each, authorization="Bearer fg-alice"))
                for each in found
            ],
        )


def _wall(skew_s: float) -> float:
    """A clock that is wrong: around today, since a budget is of a month of Redis' clock."""
    return time.time() + skew_s


def _is_joined(running: Running) -> bool:
    seat = running.gateway.seat
    return seat is not None and len(seat.member.gateways) == len(SKEWS_S) and not seat.is_degraded


async def asked(found: list[httpx.AsyncClient], count: int) -> list[httpx.Response]:
    """So many requests at once, spread over all."""
    return await asyncio.gather(
        *(found[number % len(found)].post(CHAT, json=ASK) for number in range(count))
    )


async def test_three_gateways_let_through_one_minutes_requests(redis: RedisServer) -> None:
    """A limit that is multiplied by the number of gateways is found out by the engines."""
    async with clients(redis, requests_per_minute=MOST) as (_, found):
        answers = await asked(found, 30)
        assert Counter(each.status_code for each in answers) == {200: MOST, 429: 30 - MOST}
        left = {each.headers["x-ratelimit-remaining-requests"] for each in answers}
        assert left == {str(number) for number in range(MOST)}


async def test_three_gateways_spend_one_budget(redis: RedisServer) -> None:
    """A budget that is multiplied by the number of gateways is found out by the bill."""
    async with clients(redis, budget={"tokens": BUDGET}) as (_, found):
        spent, sizes, refused = 0, [0], 0
        while not refused:
            for answer in await asked(found, 3):
                refused += answer.status_code == 429
                if answer.is_success:
                    sizes.append(answer.json()["usage"]["total_tokens"])
                    spent += sizes[-1]
        # A request is let in by what it may take at most, three of them at once.
        assert BUDGET - 4 * max(sizes) < spent <= BUDGET


async def test_without_redis_each_has_its_part(redis: RedisServer) -> None:
    """While Redis is away, three times the limit would be let through; or, worse, nothing."""
    async with clients(redis, requests_per_minute=MOST) as (gateways, found):
        redis.kill()
        await eventually(lambda: not any(map(_is_joined, gateways)))
        answers = [await asked([each], 2 * MOST) for each in found]
        for some in answers:
            passed = sum(each.is_success for each in some)
            assert passed == MOST // 3


async def test_who_may_run_how_many_is_counted_over_all_gateways_and_models(
    redis: RedisServer,
) -> None:
    """A cap that each leader of a model counts for itself grows with the number of models."""
    models = ("m", "n", "o")
    options = [
        EmulatorOptions(profile="demo", speed=4.0, max_num_seqs=8, models=(name,))
        for name in models
    ]
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running_emulator(each)) for each in options]
        urls = [each.url for each in engines]
        gateways, found = await stack.enter_async_context(before(redis, *urls, concurrent=CAP))
        await eventually(lambda: _leading(gateways) == [len(models)])
        content = {**ASK, "max_tokens": 20}
        tasks = [
            asyncio.create_task(
                found[at % 3].post(CHAT, json={**content, "model": models[at // 3 % 3]})
            )
            for at in range(27)
        ]
        most = 0
        while not all(task.done() for task in tasks):
            most = max(most, sum(each.engine.running + each.engine.waiting for each in engines))
            await asyncio.sleep(0.002)
        answers = [task.result() for task in tasks]
    assert [answer.status_code for answer in answers] == [200] * 27
    assert most == CAP


def _leading(gateways: list[Running]) -> list[int]:
    """How many pools each gateway leads that leads any."""
    seats = [each.gateway.seat for each in gateways]
    return [len(seat.member.led) for seat in seats if seat is not None and seat.member.led]
