"""Limits over several gateways, counted in a real Redis: by one clock, to within one request."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.errors import LimitError, QuotaSpentError, RateLimitedError
from gateway.tenancy.limits import Allowance, Holders, Limits, Need, Owner, Reservation
from gateway.tenancy.shared import SharedLimits
from gateway.tenancy.window import SLOTS_MAX
from tests.support.redis_parties import Party, parties, until
from tests.support.redis_server import RedisServer, running_redis

ACME = Owner("tenant", "acme")
KEY = Owner("key", "k1")
ONE = Need(10, 10)


class Sharing:
    """One gateway's limits; its clocks are wrong by `skew_s`."""

    def __init__(self, party: Party, *, gateways: int, skew_s: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        self.party = party
        self.skew_s = skew_s

        def wall() -> float:
            return time.time() + self.skew_s

        self.limits = Limits(loop.time, wall)
        self.shared = SharedLimits(
            self.limits,
            party.own.counters,
            gateways=lambda: gateways,
            clock=loop.time,
            wall=wall,
        )
        party.own.counters.follow(self.shared)

    @property
    def holders(self) -> Holders:
        """All of the request's."""
        return self.limits.holders_of("acme", "", "k1")

    async def tried(self, need: Need = ONE) -> Reservation | LimitError:
        """One request."""
        verdict = await self.shared.reserve(self.holders, need)
        found = verdict.reservation or verdict.refused
        assert found is not None
        return found

    async def taken(self, count: int, need: Need = ONE) -> list[Reservation]:
        """Those of so many at once that passed."""
        found = await asyncio.gather(*(self.tried(need) for _ in range(count)))
        return [each for each in found if isinstance(each, Reservation)]

    def spent(self) -> int:
        """Of the budget, by its own books."""
        books = self.limits.books
        return books.spent((ACME.id, books.periods.month))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that keeps what it acknowledged."""
    with running_redis(tmp_path) as found:
        yield found


@asynccontextmanager
async def three(
    server: RedisServer, allowance: Allowance, **more: Allowance
) -> AsyncIterator[list[Sharing]]:
    """Three gateways whose clocks differ by half a minute each."""
    async with parties(server.url, "a", "b", "c") as found:
        all_three = [
            Sharing(party, gateways=3, skew_s=skew_s)
            for party, skew_s in zip(found, (-30.0, 0.0, 30.0), strict=True)
        ]
        for each in all_three:
            each.limits.configure(
                {ACME: allowance, **{Owner("key", name): its for name, its in more.items()}}
            )
        yield all_three


async def used(sharing: Sharing, field: str, owner: Owner = ACME) -> int:
    """What Redis counts."""
    key = f"{{fairgate}}:cluster:used:{owner.id}"
    answer = await sharing.party.own.link.ask("HGET", key, field)
    assert isinstance(answer, bytes | None)
    return int(answer or 0)


@pytest.mark.parametrize(
    "allowance",
    [
        Allowance(requests_per_minute=50),
        Allowance(tokens_per_minute=500),
        Allowance(budget_tokens=500),
        Allowance(budget_tokens=500, budget_per="day"),
    ],
)
async def test_three_gateways_let_through_exactly_what_one_would(
    server: RedisServer, allowance: Allowance
) -> None:
    """Whoever runs three gateways would pay for three times the budget; clocks differ by 60 s."""
    async with three(server, allowance) as gateways:
        passed = await asyncio.gather(*(each.taken(40) for each in gateways))
        assert sum(map(len, passed)) == 50
        for each in gateways:
            assert isinstance(await each.tried(), LimitError)


async def test_all_limits_are_checked_before_any_is_used(server: RedisServer) -> None:
    """What is refused by the key's limit must not eat the tenant's."""
    async with three(
        server, Allowance(requests_per_minute=100), k1=Allowance(tokens_per_minute=30)
    ) as (a, b, _):
        assert len(await a.taken(2)) == 2
        assert len(await b.taken(5)) == 1
        assert await used(a, "ru") == 3
        assert await used(a, "tu", KEY) == 30


async def test_what_a_refusal_says_is_when_it_passes(server: RedisServer) -> None:
    """A hint that is too early makes every SDK knock twice."""
    async with three(server, Allowance(requests_per_minute=1, budget_tokens=1000)) as (a, b, _):
        (taken,) = await a.taken(1)
        refused = await b.tried()
        assert isinstance(refused, RateLimitedError)
        assert refused.retry_after_s is not None
        assert SLOTS_MAX - 2 < refused.retry_after_s <= SLOTS_MAX
        verdict = await b.shared.reserve(b.holders, ONE)
        requests, tokens = verdict.standings
        assert requests is not None
        assert (requests.most, requests.left, tokens) == (1, 0, None)
        a.shared.settle(taken, 10, is_counted=False)
        assert await used(a, "ru") == 0  # what one line says is in order, what two say is not
        assert len(await b.taken(1)) == 1
        assert b.limits.refusals == {("requests", "tenant"): 2}


async def test_the_end_of_a_request_settles_what_all_count(server: RedisServer) -> None:
    """A maximum of 100,000 tokens that took ten must not lock the tenant out for a month."""
    async with three(server, Allowance(tokens_per_minute=1000, budget_tokens=1000)) as (a, b, _):
        (taken,) = await a.taken(1, Need(900, 900))
        assert await b.taken(1, Need(200, 200)) == []
        a.shared.settle(taken, 50, is_counted=True)
        a.shared.settle(taken, 50, is_counted=True)
        assert len(await a.taken(1, Need(950, 950))) == 1
        assert await used(a, "m") == await used(a, "tu") == 1000
        assert await b.taken(1) == []


async def test_more_than_was_reserved_counts_too(server: RedisServer) -> None:
    """An answer that was longer than predicted."""
    async with three(server, Allowance(tokens_per_minute=1000, budget_tokens=10_000)) as (a, b, _):
        (taken,) = await a.taken(1, Need(100, 1))
        a.shared.settle(taken, 990, is_counted=True)
        assert len(await a.taken(1)) == 1
        assert await b.taken(1, Need(1, 1)) == []
        assert await used(a, "m") == 1000


async def test_a_request_that_is_gone_before_the_answer_has_used_nothing(
    server: RedisServer,
) -> None:
    """Each client that gives up at the wrong moment would take a piece of the budget with it."""
    async with three(server, Allowance(requests_per_minute=5, budget_tokens=100)) as (a, _, _):
        task = asyncio.create_task(a.tried())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await a.party.own.link.ask("PING")
        await a.party.own.link.ask("PING")
        assert (await used(a, "ru"), await used(a, "m")) == (0, 0)
        assert a.spent() == 0


async def test_alone_each_lets_through_its_part_and_at_least_one(server: RedisServer) -> None:
    """While Redis is away three gateways must not let through three times the limit."""
    allowance = Allowance(requests_per_minute=30, tokens_per_minute=900, budget_tokens=300)
    async with three(server, allowance) as gateways:
        server.kill()
        await until(lambda: all(each.shared.is_alone for each in gateways))
        passed = [len(await each.taken(20)) for each in gateways]
        assert passed == [10, 10, 10]
        for each in gateways:
            refused = await each.tried()
            assert isinstance(refused, RateLimitedError | QuotaSpentError)
            assert refused.should_retry
            each.limits.configure({KEY: Allowance(requests_per_minute=2)})
            assert len(await each.taken(5)) == 1


async def test_what_was_let_through_alone_is_told_when_redis_is_back(
    server: RedisServer,
) -> None:
    """Otherwise each blink of Redis is a minute's allowance for free."""
    async with three(server, Allowance(requests_per_minute=30, budget_tokens=1000)) as gateways:
        a, b, _ = gateways
        assert len(await a.taken(5)) == 5
        server.kill()
        await until(lambda: all(each.shared.is_alone for each in gateways))
        (early, late, *_) = await b.taken(5)
        b.shared.settle(early, 4, is_counted=True)
        server.start()
        await until(lambda: not any(each.shared.is_alone for each in gateways))
        await counted(lambda: used(a, "ru"), 10)
        assert await used(a, "m") == 94
        b.shared.settle(late, 0, is_counted=False)
        await counted(lambda: used(a, "ru"), 9)
        assert await used(a, "m") == 84
        assert len(await a.taken(40)) == 21


async def test_a_redis_that_forgot_everything_is_told_of_the_last_minute(tmp_path: Path) -> None:
    """A Redis without a disk that is started anew would hand out every limit a second time."""
    with running_redis(tmp_path, ("--save", "", "--appendonly", "no")) as server:
        async with three(server, Allowance(requests_per_minute=30, budget_tokens=1000)) as gateways:
            a, b, c = gateways
            for each in (a, b):
                (taken, *_) = await each.taken(10)
                each.shared.settle(taken, 5, is_counted=True)
            # What each knows of the others comes from the store.
            for each in gateways:
                each.limits.books.learnt({(ACME.id, _month(each)): 190}, {ACME.id})
                each.limits.books._untold.clear()
            server.kill()
            await until(lambda: all(each.shared.is_alone for each in gateways))
            server.start()
            await until(lambda: not any(each.shared.is_alone for each in gateways))
            await counted(lambda: used(c, "ru"), 20)
            assert len(await c.taken(20)) == 10
            for each in gateways:
                assert each.spent() >= 190


async def test_a_script_that_fails_lets_the_gateway_go_on_alone(server: RedisServer) -> None:
    """A full Redis must not be an outage of the gateway."""
    async with three(server, Allowance(requests_per_minute=30)) as (a, _, _):
        key = f"{{fairgate}}:cluster:used:{ACME.id}"
        await a.party.own.link.ask("SET", key, "of another type")
        assert len(await a.taken(40)) == 10
        await a.party.own.link.ask("DEL", key)
        assert len(await a.taken(1)) == 0 or await used(a, "ru") > 1
        await counted(lambda: used(a, "ru"), 11)


def _month(sharing: Sharing) -> str:
    return sharing.limits.books.periods.month


async def counted(read: Callable[[], Awaitable[int]], wanted: int) -> None:
    """Wait until Redis has counted so much."""
    for _ in range(200):
        if await read() == wanted:
            return
        await asyncio.sleep(0.02)
    assert await read() == wanted
