"""Messages between gateways over a real Redis, when it works, freezes, dies and comes back."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.check import Finding, check
from gateway.cluster.messages import Decided, Open, Synced
from gateway.cluster.parts import PART_BYTES
from gateway.cluster.ports import SILENCE_S
from gateway.core.messages import Granted, Request
from gateway.settings import load_settings
from gateway.upstream.replicas import ReplicaAddress, ReplicaStatus
from tests.support.redis_parties import beat, parties, until
from tests.support.redis_server import RedisServer, running_redis

LATE_S = 1.0
"""What a busy machine may add."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that keeps nothing."""
    with running_redis(tmp_path, ("--save", "", "--appendonly", "no")) as found:
        yield found


async def test_what_is_posted_arrives_in_order_and_nowhere_else(server: RedisServer) -> None:
    """A grant that overtakes the refusal before it would be dropped as old."""
    async with parties(server.url, "a", "b", "c") as (a, b, c):
        for number in range(1000):
            a.say(b, number)
            if number % 100 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(b.heard) == 1000)
        assert b.numbers == list(range(1000))
        assert {each.sender for each in b.heard} == {a.own.gateway}
        assert a.heard == c.heard == []


async def test_all_of_one_turn_goes_together(server: RedisServer) -> None:
    """A hundred commands for a hundred messages would cost more than the requests do."""
    async with parties(server.url, "a", "b") as (a, b):
        for number in range(100):
            a.say(b, number)
        await until(lambda: len(b.heard) == 100)
        assert a.own.transport.payloads_sent == 1
        assert b.own.transport.payloads_heard == 1


async def test_a_grant_does_not_wait_for_company(server: RedisServer) -> None:
    """Everybody who waits would wait two milliseconds longer; what nobody waits for may."""
    async with parties(server.url, "a", "b") as (a, b):
        a.say(b, 1)
        granted = Decided(
            a.own.gateway, "pool", epoch=1, session=1, number=2,
            decision=Granted("r", "gpu0", 0.0),
        )  # fmt: skip
        a.own.transport.post(b.own.gateway, granted)
        a.say(b, 3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert a.own.transport.payloads_sent == 1
        await until(lambda: len(b.heard) == 3)
        assert b.heard[1] == granted
        assert b.numbers == [1, 3]


async def test_a_gateway_that_may_not_publish_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rights that lack one command would otherwise look like a fleet of mutes."""
    with running_redis(tmp_path, ("--save", "")) as server:
        async with Redis.from_url(server.url) as raw:
            await raw.acl_setuser(
                "mute", enabled=True, passwords=["+pw"], keys=["*"], channels=["*"],
                categories=["+@all"], commands=["-publish"],
            )  # fmt: skip
        waiting = parties(f"redis://mute:pw@127.0.0.1:{server.port}", "a").__aenter__()
        task = asyncio.create_task(waiting)
        await until(lambda: "NOPERM" in caplog.text)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_fleets_with_another_prefix_hear_nothing_of_it(server: RedisServer) -> None:
    """Two fleets that share one Redis."""
    async with (
        parties(server.url, "a", prefix="one") as (a,),
        parties(server.url, "b", prefix="two") as (b,),
    ):
        a.say(b, 1)
        await until(lambda: a.own.transport.payloads_sent == 1)
        for each in (a, b):
            await each.own.link.ask("PING")
        assert b.heard == []


async def test_a_very_long_message_arrives_whole(server: RedisServer) -> None:
    """A new leader that is told of everything that waits."""
    request = Request(id="r", model="m" * 200, tier=0, tenant="t", user="u", arrived_at=0.0)
    opens = tuple(Open(request, 1.0) for _ in range(10_000))
    async with parties(server.url, "a", "b") as (a, b):
        said = Synced(a.own.gateway, "p", 1, 1, opens)
        a.own.transport.post(b.own.gateway, said)
        a.say(b, 1)
        await until(lambda: len(b.heard) == 2)
        assert b.heard[0] == said
        assert a.own.transport.bytes_sent > 4 * PART_BYTES


async def test_a_frozen_redis_is_noticed_in_time_and_found_again(server: RedisServer) -> None:
    """Requests that wait for a leader's word while Redis hangs with its connections open."""
    async with parties(server.url, "a", "b") as (a, b):
        server.pause()
        began = time.monotonic()
        await until(lambda: a.losses and b.losses)
        assert max(a.losses[0], b.losses[0]) - began < SILENCE_S + LATE_S
        assert min(a.losses[0], b.losses[0]) - began > SILENCE_S / 4
        assert not a.own.transport.is_up
        server.resume()
        await until(lambda: a.own.transport.is_up and b.own.transport.is_up)
        a.say(b, 7)
        await until(lambda: b.numbers == [7])


async def test_a_redis_that_died_is_noticed_at_once_and_found_again(server: RedisServer) -> None:
    """Gateways while Redis is started anew."""
    async with parties(server.url, "a", "b") as (a, b):
        server.kill()
        await until(lambda: a.losses and b.losses)
        a.say(b, 1)
        await until(lambda: len(a.losses) > 1)
        server.start()
        await until(lambda: a.own.transport.is_up and b.own.transport.is_up)
        a.say(b, 2)
        await until(lambda: b.heard)
        assert b.numbers == [2]


async def test_a_gateway_that_was_stopped_does_not_take_redis_for_silent(
    server: RedisServer,
) -> None:
    """A process that a debugger or a suspended machine held up finds all as it was."""
    async with parties(server.url, "a", "b") as (a, b):
        for number in range(3):
            time.sleep(3 * SILENCE_S)  # noqa: ASYNC251 - it is stopped as a whole
            a.say(b, number)
            await until(lambda: len(b.heard) > number)  # noqa: B023 - it is awaited right here
        assert a.losses == b.losses == []


async def test_what_others_publish_there_disturbs_nobody(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway of the next version, started beside the old ones."""
    async with parties(server.url, "a", "b") as (a, b), Redis.from_url(server.url) as raw:
        inbox = f"{{fairgate}}:cluster:to:{b.own.gateway}"
        for payload in (b"", b"\x01w\xc1", b"\x02w\x90", b"hello"):
            await raw.publish(inbox, payload)
        a.say(b, 1)
        await until(lambda: b.heard)
        assert b.heard == [beat(a.own.gateway, 1)]
        assert b.own.transport.foreign == 4
        assert sum("is not understood" in each for each in caplog.messages) == 1


async def test_a_password_a_database_and_a_socket_are_used(tmp_path: Path) -> None:
    """A Redis as it should be run, and one beside the gateway."""
    path = tmp_path / "redis.sock"
    options = ("--save", "", "--requirepass", "pw", "--unixsocket", str(path))
    with running_redis(tmp_path, options) as server:
        async with (
            parties(f"redis://:pw@127.0.0.1:{server.port}/3", "a") as (a,),
            parties(f"unix://:pw@{path}", "b") as (b,),
        ):
            a.say(b, 1)
            await until(lambda: b.numbers == [1])


async def test_a_wrong_password_is_told_without_repeating_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator has to find it, and readers of the log must not."""
    with running_redis(tmp_path, ("--save", "", "--requirepass", "right")) as server:
        waiting = parties(f"redis://:wrong-pw@127.0.0.1:{server.port}", "a").__aenter__()
        task = asyncio.create_task(waiting)
        await until(lambda: "WRONGPASS" in caplog.text)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert f"no way to redis://127.0.0.1:{server.port}" in caplog.text
    assert "wrong-pw" not in caplog.text


async def test_a_redis_that_forgets_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Limits that are forgotten where memory runs out are found out by the bill."""
    options = ("--save", "", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with running_redis(tmp_path, options) as server:
        async with parties(server.url, "a"):
            assert "maxmemory-policy allkeys-lru" in caplog.text


async def test_a_check_says_what_redis_would_do(tmp_path: Path) -> None:
    """Whoever deploys wants to know before, and not from the log of the first night."""
    options = ("--save", "", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with running_redis(tmp_path, options) as server:
        good, bad = await checked(server.url)
        assert (good.level, good.what) == ("ok", "Redis 7.0, allkeys-lru")
        assert good.where == f"redis://127.0.0.1:{server.port}"
        assert (bad.level, "noeviction" in bad.what) == ("warning", True)
        (wrong,) = await checked(server.url.replace("//", "//nobody:secret@"))
        assert (wrong.level, "secret" in wrong.what) == ("error", False)
    (gone,) = await checked(server.url)
    assert gone.level == "error"
    assert "refused" in gone.what or "failed" in gone.what


async def checked(url: str) -> list[Finding]:
    """What is found about Redis."""
    overrides = {"redis.url": url, "replicas": ("http://127.0.0.1:1",)}
    settings = load_settings(config=None, environ={}, overrides=overrides)

    async def probe_once(_: ReplicaAddress) -> ReplicaStatus:
        return ReplicaStatus()

    found = await check(settings, probe_once=probe_once)
    return [each for each in found if "redis" in each.where]
