"""Leases of pools and the list of gateways, in a real Redis: one leader, and ever newer epochs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.cluster.keys import Keys
from gateway.cluster.lease import CHECKPOINT_KEPT_S, RedisLease
from gateway.cluster.ports import Bid, Leader, LinkError
from tests.support.redis_parties import Party, parties, until
from tests.support.redis_server import RedisServer, running_redis

SHORT_S = 0.4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that keeps nothing."""
    with running_redis(tmp_path, ("--save", "", "--appendonly", "no")) as found:
        yield found


@pytest.fixture
async def two(server: RedisServer) -> AsyncIterator[tuple[Party, Party]]:
    """Two gateways."""
    async with parties(server.url, "a", "b") as (a, b):
        yield a, b


def lease_of(party: Party, lease_s: float = 60.0) -> RedisLease:
    """One that runs out after so long."""
    return RedisLease(party.own.link, Keys("fairgate"), lease_s=lease_s)


def bid(party: Party, **asked: object) -> Bid:
    """Its bid."""
    return Bid(gateway=party.own.gateway, **asked)  # type: ignore[arg-type]  # as each test says


async def test_the_first_takes_a_pool_and_the_second_is_told_who_has_it(
    two: tuple[Party, Party],
) -> None:
    """Two leaders would put twice as much on each engine."""
    a, b = two
    first = await lease_of(a).beat(bid(a, wants=("p",), about="here"))
    second = await lease_of(b).beat(bid(b, wants=("p",), watches=("q",)))
    assert first.leaders == second.leaders
    assert first.leaders["p"].gateway == a.own.gateway
    assert second.gateways == {a.own.gateway: "here", b.own.gateway: ""}


async def test_one_that_is_renewed_keeps_its_epoch(two: tuple[Party, Party]) -> None:
    """Each new epoch makes everybody tell everything again."""
    a, b = two
    lease = lease_of(a, SHORT_S)
    first = await lease.beat(bid(a, wants=("p",)))
    for _ in range(4):
        await asyncio.sleep(SHORT_S / 3)
        assert (await lease.beat(bid(a, wants=("p",)))).leaders == first.leaders
    assert (await lease_of(b).beat(bid(b, watches=("p",)))).leaders == first.leaders


async def test_one_that_was_not_renewed_goes_to_the_next_with_a_greater_epoch(
    two: tuple[Party, Party],
) -> None:
    """A leader that died; and one that was only stopped must find that it leads no more."""
    a, b = two
    lease = lease_of(a, SHORT_S)
    first = await lease.beat(bid(a, wants=("p",)))
    await asyncio.sleep(1.5 * SHORT_S)
    second = await lease_of(b).beat(bid(b, wants=("p",)))
    assert second.leaders["p"].gateway == b.own.gateway
    assert second.leaders["p"].epoch > first.leaders["p"].epoch
    assert list(second.gateways) == [b.own.gateway]
    assert (await lease.beat(bid(a, wants=("p",)))).leaders == second.leaders


async def test_one_that_is_given_back_is_free_at_once(two: tuple[Party, Party]) -> None:
    """A rolling restart must not cost a lease's time for each gateway."""
    a, b = two
    mine, theirs = lease_of(a), lease_of(b)
    first = await mine.beat(bid(a, wants=("p", "q")))
    assert (await mine.beat(bid(a, leaves=("p",), watches=("p",)))).leaders == {}
    second = await theirs.beat(bid(b, wants=("p", "q")))
    assert second.leaders["p"].gateway == b.own.gateway
    assert second.leaders["p"].epoch > first.leaders["p"].epoch
    assert second.leaders["q"] == first.leaders["q"]


async def test_whoever_goes_gives_back_all_that_it_holds(two: tuple[Party, Party]) -> None:
    """The others take over within a heartbeat, and do not wait for it any more."""
    a, b = two
    mine = lease_of(a)
    await mine.beat(bid(a, wants=("p", "q")))
    await mine.beat(bid(a, wants=("p",)))
    assert (await mine.beat(bid(a, goes=True))).gateways == {}
    found = await lease_of(b).beat(bid(b, wants=("p", "q")))
    assert {each.gateway for each in found.leaders.values()} == {b.own.gateway}
    assert list(found.gateways) == [b.own.gateway]


async def test_nobody_gives_back_what_another_one_holds(two: tuple[Party, Party]) -> None:
    """A gateway that was slow to hear that it was replaced."""
    a, b = two
    first = await lease_of(a).beat(bid(a, wants=("p",)))
    theirs = lease_of(b)
    await theirs.beat(bid(b, wants=("p",)))
    assert (await theirs.beat(bid(b, leaves=("p",), watches=("p",)))).leaders == first.leaders
    await theirs.beat(bid(b, goes=True))
    assert (await lease_of(b).beat(bid(b, watches=("p",)))).leaders == first.leaders


async def test_a_checkpoint_is_kept_by_the_holder_alone_and_read_by_the_next(
    two: tuple[Party, Party],
) -> None:
    """Shares that were earned before a change of leaders; a late one must not undo them."""
    a, b = two
    mine, theirs = lease_of(a), lease_of(b)
    assert (await mine.beat(bid(a, wants=("p",)))).kept == {}
    assert (await mine.beat(bid(a, wants=("p",), keeps={"p": b"\x00one"}))).kept == {}
    await theirs.beat(bid(b, wants=("p",), keeps={"p": b"two"}))
    await mine.beat(bid(a, leaves=("p",)))
    await mine.beat(bid(a, keeps={"p": b"three"}))
    assert (await theirs.beat(bid(b, wants=("p",)))).kept == {"p": b"\x00one"}
    assert (await theirs.beat(bid(b, wants=("p",)))).kept == {}


async def test_epochs_grow_although_redis_forgot_everything(
    server: RedisServer, two: tuple[Party, Party]
) -> None:
    """Followers drop what has a lower epoch: they would hear no leader for ever."""
    a, b = two
    mine, theirs = lease_of(a), lease_of(b)
    first = await mine.beat(bid(a, wants=("p",)))
    await theirs.beat(bid(b, watches=("p",)))
    server.kill()
    with pytest.raises(LinkError):
        await mine.beat(bid(a, wants=("p",)))
    server.start()
    await until(lambda: b.own.transport.is_up)
    second = await theirs.beat(bid(b, wants=("p",)))
    assert second.leaders["p"].epoch > first.leaders["p"].epoch


async def test_epochs_grow_beyond_all_that_were_seen(two: tuple[Party, Party]) -> None:
    """A Redis whose clock was wrong for a while, and that then lost what it kept."""
    a, _ = two
    lease = lease_of(a)
    far = 1 << 50
    lease._seen["p"] = far
    assert (await lease.beat(bid(a, wants=("p",)))).leaders["p"] == Leader(a.own.gateway, far + 1)


async def test_a_frozen_redis_fails_a_heartbeat_in_time(
    server: RedisServer, two: tuple[Party, Party]
) -> None:
    """A leader that waits for an answer would not notice that its time is over."""
    a, _ = two
    server.pause()
    try:
        async with asyncio.timeout(2.0):
            with pytest.raises(LinkError, match="said nothing"):
                await lease_of(a).beat(bid(a, wants=("p",)))
    finally:
        server.resume()


async def test_scripts_that_redis_forgot_are_brought_again(
    server: RedisServer, two: tuple[Party, Party]
) -> None:
    """SCRIPT FLUSH by somebody else must not leave the gateways alone for ever."""
    a, _ = two
    await a.own.link.ask("SCRIPT", "FLUSH")
    with pytest.raises(LinkError, match="NOSCRIPT"):
        await lease_of(a).beat(bid(a))
    await until(lambda: a.own.transport.is_up)
    assert list((await lease_of(a).beat(bid(a))).gateways) == [a.own.gateway]


async def test_a_full_redis_makes_gateways_go_on_alone(tmp_path: Path) -> None:
    """Half of a heartbeat must not be done where memory ran out."""
    with running_redis(tmp_path, ("--save", "", "--maxmemory-policy", "noeviction")) as server:
        async with parties(server.url, "a") as (a,):
            await a.own.link.ask("CONFIG", "SET", "maxmemory", "1mb")
            with pytest.raises(LinkError, match="OOM"):
                await lease_of(a).beat(bid(a, wants=("p",)))


async def test_a_checkpoint_is_forgotten_long_before_its_epoch(
    two: tuple[Party, Party], server: RedisServer
) -> None:
    """What ran last month would keep replicas taken, and who had much then would wait now."""
    a, _ = two
    lease = lease_of(a)
    await lease.beat(bid(a, wants=("p",)))
    await lease.beat(bid(a, wants=("p",), keeps={"p": b"one"}))
    _, epoch, checkpoint = Keys("fairgate").of_pool("p")
    async with Redis.from_url(server.url) as redis:
        assert 0 < await redis.ttl(checkpoint) <= CHECKPOINT_KEPT_S
        assert await redis.ttl(epoch) > CHECKPOINT_KEPT_S
