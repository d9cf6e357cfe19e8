"""The shared store when Redis is lost, frozen, full or not what it should be; with a real Redis."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.tenancy.store.port import StoreError
from gateway.tenancy.store.redis import PAUSE_S, QUICK_S, SLOW_S, RedisStore
from tests.support.redis_server import RedisServer, running_redis
from tests.support.stores import DEED, all_entries, bodies, drop, put

PERIODS = ["2026-11"]
LATE_S = 1.0
"""What a busy machine may add to a budget."""


class Clock:
    """Time that passes when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that keeps what it acknowledged."""
    with running_redis(tmp_path) as found:
        yield found


@pytest.fixture
def clock() -> Clock:
    """By which the pause after a failure ends."""
    return Clock()


@pytest.fixture
async def store(server: RedisServer, clock: Clock) -> AsyncIterator[RedisStore]:
    """An open one with a record."""
    found = RedisStore(server.url, clock=clock)
    await found.open()
    await found.commit([put("a", {"n": 1})], DEED)
    yield found
    await found.close()


@pytest.fixture
async def raw(server: RedisServer) -> AsyncIterator[Redis]:
    """Redis itself, to look at and to disturb."""
    async with Redis.from_url(server.url) as found:
        yield found


async def test_a_lost_redis_is_told_at_once_and_found_again(
    server: RedisServer, store: RedisStore, clock: Clock
) -> None:
    """Requests while Redis restarts: each waits a moment at most, and nobody restarts gateways."""
    server.kill()
    for call in (store.revision(), store.read(), store.commit([put("b", {})], DEED)):
        began = time.monotonic()
        with pytest.raises(StoreError, match=r"127\.0\.0\.1"):
            await call
        assert time.monotonic() - began < QUICK_S + LATE_S
    server.start()
    clock.now += PAUSE_S
    assert await store.revision() == 1
    assert await store.commit([put("b", {})], DEED) == 2


async def test_a_frozen_redis_costs_one_call_its_budget_and_the_next_ones_nothing(
    server: RedisServer, store: RedisStore, clock: Clock
) -> None:
    """Users of a gateway whose Redis hangs with its connections open."""
    server.pause()
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"did not answer within 0\.1 s"):
        await store.spent(PERIODS)
    assert QUICK_S <= time.monotonic() - began < QUICK_S + LATE_S
    began = time.monotonic()
    for _ in range(100):
        with pytest.raises(StoreError, match="a moment ago"):
            await store.spent(PERIODS)
    assert time.monotonic() - began < LATE_S
    with pytest.raises(StoreError, match=f"did not answer within {SLOW_S:g} s"):
        await store.commit([put("b", {})], DEED)
    server.resume()
    clock.now += PAUSE_S
    # Late answers of the calls before must not be taken for those of these.
    assert await store.revision() in (1, 2)
    await store.spend({("t", "2026-11"): 5})
    assert await store.spent(PERIODS) == {("t", "2026-11"): 5}
    assert (await bodies(store))["a"] == {"n": 1}


async def test_calls_that_were_given_up_leave_no_answer_for_others(store: RedisStore) -> None:
    """One tenant's sums must not be told as another's, since somebody hung up in between."""
    await store.spend({("t", f"2026-{month:02}"): month for month in range(9, 13)})

    async def look(month: int) -> None:
        period = f"2026-{month:02}"
        assert await store.spent([period]) == {("t", period): month}

    for turns in range(12):
        tasks = [asyncio.ensure_future(look(9 + n % 4)) for n in range(8)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for each in tasks[::2]:
            each.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends)


async def test_what_redis_had_on_its_disk_is_there_after_a_crash(
    server: RedisServer, store: RedisStore, clock: Clock
) -> None:
    """With an append-only file that is synced each time, acknowledged means kept."""
    done: list[int] = []

    async def write() -> None:
        for n in range(10_000):
            await store.commit([put("x", {"n": n}), put("y", {"n": n})], DEED)
            done.append(n)

    task = asyncio.ensure_future(write())
    while len(done) < 30:  # noqa: ASYNC110 - a script of Redis tells nobody
        await asyncio.sleep(0.001)
    server.kill()
    with pytest.raises(StoreError):
        await task
    server.start()
    clock.now += PAUSE_S
    found = await bodies(store)
    assert found["x"] == found["y"]
    assert found["x"]["n"] - done[-1] in (0, 1)
    entries = await all_entries(store)
    assert entries[-1] == ("y", {"n": found["y"]["n"] - 1}, found["y"])
    assert len(entries) == 2 * (found["x"]["n"] + 1) + 1


async def test_a_full_redis_refuses_the_whole_commit(store: RedisStore, raw: Redis) -> None:
    """Half a change in a Redis without memory would be found at the next start."""
    await raw.config_set("maxmemory", 1)
    with pytest.raises(StoreError, match="maxmemory"):
        await store.commit([drop("a"), put("b", {})], DEED)
    await raw.config_set("maxmemory", 0)
    assert await bodies(store) == {"a": {"n": 1}}
    assert len(await store.audit()) == 1


@pytest.mark.parametrize("key", ["records", "audit", "answers", "answer_order"])
async def test_a_key_of_somebody_else_keeps_the_whole_commit_out(
    store: RedisStore, raw: Redis, key: str
) -> None:
    """Two programs on one Redis with one prefix: an error, and not half a commit."""
    await raw.delete(f"{{fairgate}}:{key}")
    await raw.set(f"{{fairgate}}:{key}", "x")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await store.commit([put("b", {}), drop("a")], DEED)
    assert await store.revision() == 1
    if key != "records":
        assert await bodies(store) == {"a": {"n": 1}}


async def test_a_newer_schema_is_refused_at_the_start_and_at_each_commit(
    server: RedisServer, store: RedisStore, raw: Redis
) -> None:
    """An old gateway that writes among new ones during an upgrade."""
    await raw.hset("{fairgate}:state", "schema", 99)
    with pytest.raises(StoreError, match=r"schema 99.*use the newer fairgate"):
        await store.commit([put("a", {"n": 2})], DEED)
    other = RedisStore(server.url)
    with pytest.raises(StoreError, match="schema 99"):
        await other.open()
    await other.close()
    assert await bodies(store) == {"a": {"n": 1}}


async def test_what_redis_may_lose_is_said_at_the_start(
    server: RedisServer, store: RedisStore, raw: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator who follows advice for caches, where keys of tenants lie."""
    with caplog.at_level(logging.WARNING, "fairgate.store"):
        await store.open()
        assert caplog.messages == []
        await raw.config_set("maxmemory-policy", "volatile-lru")
        await store.open()
        assert caplog.messages == [], "no key of the store has a time to live"
        await raw.config_set("maxmemory-policy", "allkeys-lru")
        await raw.config_set("appendonly", "no")
        await store.open()
    eviction, append = caplog.messages
    assert "allkeys-lru" in eviction
    assert "appendonly yes" in append
    assert f"127.0.0.1:{server.port}" in eviction


async def test_nothing_expires(store: RedisStore, raw: Redis) -> None:
    """Volatile eviction takes what has a time to live, and time takes it anyway."""
    await store.commit([put("b", {})], DEED)
    await store.spend({("t", "2026-11"): 5})
    keys = await raw.keys("*")
    assert len(keys) == 5
    assert all(str(key).startswith("b'{fairgate}:") for key in keys)
    assert [await raw.ttl(key) for key in keys] == [-1] * len(keys)


async def test_stores_with_other_prefixes_know_nothing_of_each_other(
    server: RedisServer, store: RedisStore
) -> None:
    """Two deployments that share a Redis."""
    other = RedisStore(server.url, prefix="staging")
    await other.open()
    assert await other.revision() == 0
    await other.commit([put("z", {})], DEED)
    assert await bodies(store) == {"a": {"n": 1}}
    await other.close()


async def test_no_message_repeats_the_password(server: RedisServer) -> None:
    """Whoever reads the log, or an answer of the admin API."""
    store = RedisStore(server.url.replace("redis://", "redis://user:s3cret@"))
    with pytest.raises(StoreError) as refusal:
        await store.open()
    assert "s3cret" not in str(refusal.value)
    assert str(server.port) in str(refusal.value)
    await store.close()


async def test_redis_that_is_not_there_is_told_with_its_address() -> None:
    """The commonest mistake of a first start."""
    store = RedisStore("redis://127.0.0.1:1/0")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1"):
        await store.open()
    await store.close()
