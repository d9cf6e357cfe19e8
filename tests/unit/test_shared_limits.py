"""Limits over several gateways, counted in a place that can be lost: what each lets through."""

import asyncio
from collections.abc import Sequence

import pytest

from gateway.errors import BeyondLimitError, QuotaSpentError, RateLimitedError
from gateway.tenancy.limits import Allowance, Limits, Need, Owner, Reservation, Taken
from gateway.tenancy.shared import (
    Answer,
    Ask,
    Correction,
    CountersError,
    Found,
    SharedLimits,
    Verdict,
)
from tests.unit.test_budget import NOON

ACME = Owner("tenant", "acme")
TAKEN = Taken(5_000, "2026-11-30", "2026-11")
MUCH = 1_000_000


class FakeCounters:
    """Takes everything until it is told otherwise, and notes what is corrected."""

    def __init__(self) -> None:
        self.is_up = True
        self.is_failing = False
        self.asks: list[Ask] = []
        self.corrections: list[Correction] = []
        self.found: Found | None = None
        """Of a refusal."""

    async def reserve(self, asks: Sequence[Ask]) -> Answer:
        await asyncio.sleep(0)
        if self.is_failing or not self.is_up:
            raise CountersError("lost")
        self.asks += asks
        if self.found is not None:
            return Answer(None, NOON, tuple(self.found for _ in asks))
        return Answer(TAKEN, NOON, tuple(Found(1, 0, 60.5, 10, 0, 60.5, 10) for _ in asks))

    def correct(self, corrections: Sequence[Correction]) -> None:
        self.corrections += corrections


class Desk:
    """One of three gateways."""

    def __init__(self, **limits: int) -> None:
        self.now = 1000.0
        self.counters = FakeCounters()
        self.limits = Limits(lambda: self.now, lambda: NOON)
        self.limits.configure({ACME: Allowance(**limits)})  # type: ignore[arg-type]  # no periods
        self.shared = SharedLimits(
            self.limits,
            self.counters,
            gateways=lambda: 3,
            clock=lambda: self.now,
            wall=lambda: NOON,
        )
        self.shared.found()

    async def tried(self, tokens: int = 10) -> Verdict:
        """One request."""
        holders = self.limits.holders_of("acme", "", "")
        return await self.shared.reserve(holders, Need(tokens, tokens))

    async def taken(self, tokens: int = 10) -> Reservation:
        """One that passes."""
        found = (await self.tried(tokens)).reservation
        assert found is not None
        return found

    def lose(self) -> None:
        """The one place is gone."""
        self.counters.is_up = False
        self.shared.lost()

    def find(self, *, knows_nothing: bool = False, may_lack: bool = False) -> list[Correction]:
        """It is back; what it is told."""
        self.counters.is_up = True
        self.counters.corrections.clear()
        self.shared.found(knows_nothing=knows_nothing, may_lack=may_lack)
        return list(self.counters.corrections)


async def test_what_is_asked_is_what_the_request_needs_of_each_limit() -> None:
    """A limit that is not asked for is no limit."""
    desk = Desk(requests_per_minute=3, tokens_per_minute=500, budget_tokens=900)
    verdict = await desk.tried()
    (ask,) = desk.counters.asks
    assert ask[:7] == ("tenant:acme", 3, 10, 500, 10, 900, "month")
    requests, tokens = verdict.standings
    assert requests is not None
    assert tokens is not None
    assert (requests.most, requests.left) == (3, 2)
    assert (tokens.most, tokens.left, tokens.empty_in_s) == (500, 490, 60.5)


@pytest.mark.parametrize(
    ("found", "error", "retry_after_s"),
    [
        (Found(3, 12.5, 60, 0, 0, 0, 0), RateLimitedError, 12.5),
        (Found(0, 0, 0, 495, 7.0, 60, 0), RateLimitedError, 7.0),
        (Found(3, 12.5, 60, 495, 20.0, 60, 0), RateLimitedError, 20.0),
        (Found(3, 12.5, 60, 0, 0, 0, 899), QuotaSpentError, None),
    ],
)
async def test_a_refusal_is_the_one_that_lasts_longest(
    found: Found, error: type[Exception], retry_after_s: float | None
) -> None:
    """A client that comes back at the earlier hint is refused again."""
    desk = Desk(requests_per_minute=3, tokens_per_minute=500, budget_tokens=900)
    desk.counters.found = found
    verdict = await desk.tried()
    assert isinstance(verdict.refused, error)
    assert retry_after_s in (None, verdict.refused.retry_after_s)
    assert sum(desk.limits.refusals.values()) == 1


async def test_what_never_fits_is_not_asked_for() -> None:
    """It is refused for good, and costs Redis nothing."""
    desk = Desk(tokens_per_minute=500)
    assert isinstance((await desk.tried(501)).refused, BeyondLimitError)
    assert desk.counters.asks == []
    desk = Desk(budget_tokens=500)
    assert isinstance((await desk.tried(501)).refused, BeyondLimitError)


async def test_an_end_is_told_once_and_only_where_it_differs() -> None:
    """Most answers end as predicted: no word more than needed goes to Redis."""
    desk = Desk(requests_per_minute=3, tokens_per_minute=500, budget_tokens=900)
    desk.shared.settle(await desk.taken(), 10, is_counted=True)
    assert desk.counters.corrections == []
    one, two, three = await desk.taken(), await desk.taken(), await desk.taken()
    for _ in range(2):
        desk.shared.settle(one, 4, is_counted=True)
    desk.shared.settle(two, 0, is_counted=False)
    desk.shared.settle(three, 15, is_counted=True)
    assert [each[:8] for each in desk.counters.corrections] == [
        ("tenant:acme", 5_000, 0, 0, -6, -6, TAKEN.day, TAKEN.month),
        ("tenant:acme", 5_000, 0, -1, -10, -10, TAKEN.day, TAKEN.month),
        ("tenant:acme", None, 0, 0, 5, 5, TAKEN.day, TAKEN.month),
    ]


async def test_alone_each_lets_through_its_part() -> None:
    """A third of each limit; and somebody with a limit of one still gets one through."""
    desk = Desk(requests_per_minute=7)
    desk.lose()
    verdicts = [await desk.tried() for _ in range(4)]
    assert [each.refused is None for each in verdicts] == [True, True, False, False]
    requests, _ = verdicts[0].standings
    assert requests is not None
    assert (requests.most, requests.left) == (2, 1)
    desk = Desk(requests_per_minute=1)
    desk.lose()
    assert (await desk.tried()).refused is None


async def test_alone_a_request_beyond_the_part_has_the_part_to_itself() -> None:
    """Long requests must not be an error of the client while Redis is away."""
    desk = Desk(tokens_per_minute=900)
    desk.lose()
    assert (await desk.tried(800)).refused is None
    assert isinstance((await desk.tried(10)).refused, RateLimitedError)
    desk.now += 61
    assert (await desk.tried(10)).refused is None
    assert isinstance((await desk.tried(800)).refused, RateLimitedError)


async def test_alone_each_spends_its_part_of_what_was_left() -> None:
    """A budget of which a tenth is left is no budget of which a third is."""
    desk = Desk(budget_tokens=1000)
    await desk.taken(700)
    desk.lose()
    reservation = await desk.taken(60)
    assert await desk.taken(40)
    refused = (await desk.tried(1)).refused
    assert isinstance(refused, QuotaSpentError)
    assert refused.should_retry
    desk.shared.settle(reservation, 10, is_counted=True)
    assert (await desk.tried(50)).refused is None


async def test_a_place_that_fails_is_a_place_that_is_lost() -> None:
    """The request that finds it out must be answered all the same."""
    desk = Desk(requests_per_minute=3, budget_tokens=900)
    desk.counters.is_failing = True
    assert (await desk.tried()).refused is None
    assert isinstance((await desk.tried()).refused, RateLimitedError)
    desk.counters.is_failing = False
    assert (await desk.tried()).refused is None
    assert [each[:6] for each in desk.counters.corrections] == [
        ("tenant:acme", None, 0, 1, 0, 0),
        ("tenant:acme", None, 0, 0, 0, 10),
    ]


async def test_what_was_let_through_alone_is_told_once_with_its_age() -> None:
    """Otherwise each loss is a minute for free; told twice, a minute too little."""
    desk = Desk(requests_per_minute=30, tokens_per_minute=900)
    await desk.taken()
    desk.lose()
    await desk.taken()
    desk.now += 2
    early = await desk.taken()
    late = await desk.taken()
    desk.shared.settle(early, 4, is_counted=True)
    desk.now += 3
    assert [each[:5] for each in desk.find()] == [
        ("tenant:acme", None, 5, 1, 10),
        ("tenant:acme", None, 3, 2, 14),
    ]
    assert desk.find() == []
    desk.shared.settle(late, 0, is_counted=False)
    assert [each[:5] for each in desk.counters.corrections] == [("tenant:acme", None, 3, -1, -10)]


async def test_longer_answers_are_told_whenever_they_end() -> None:
    """An answer that ended while Redis was away took what it took."""
    desk = Desk(tokens_per_minute=900, budget_tokens=MUCH)
    shared = await desk.taken()
    desk.lose()
    alone = await desk.taken()
    desk.shared.settle(shared, 15, is_counted=True)
    desk.shared.settle(alone, 17, is_counted=True)
    tokens, budget = desk.find()
    assert tokens.tokens == 5 + 10 + 7
    assert budget.budget == 5 + 10 + 7


async def test_one_that_knows_nothing_is_told_of_the_whole_minute() -> None:
    """A Redis that was started anew, without a disk."""
    desk = Desk(requests_per_minute=30, budget_tokens=MUCH)
    await desk.taken()
    desk.now += 10
    await desk.taken()
    desk.lose()
    assert [each[:4] for each in desk.find(knows_nothing=True)] == [
        ("tenant:acme", None, 10, 1),
        ("tenant:acme", None, 0, 1),
    ]


async def test_one_that_may_lack_something_is_told_what_is_known() -> None:
    """Redis failed over to a replica that had not heard the last word."""
    desk = Desk(budget_tokens=MUCH)
    await desk.taken(70)
    desk.lose()
    (told,) = desk.find(may_lack=True)
    assert told.known is not None
    assert (told.known.of_month, told.may_lack, told.budget) == (70, True, 0)
