"""Budgets over restarts and several gateways: what was spent goes to a store and comes back."""

import asyncio
import logging

import pytest

from gateway.tenancy import spending
from gateway.tenancy.limits import Allowance, Need
from gateway.tenancy.spending import Spending
from tests.support.gateway import eventually
from tests.support.sums import FakeSums
from tests.unit.test_limits import ALICE, Desk

BUDGET = {ALICE: Allowance(budget_tokens=100)}
TEN = Need(10, 10)


class Gateway(Desk):
    """Limits that are told to a store."""

    def __init__(self, sums: FakeSums) -> None:
        super().__init__(BUDGET)
        self.spending = Spending(self.limits, sums)


async def test_a_budget_survives_a_restart() -> None:
    """Whoever is refused could otherwise wait for the next deployment."""
    sums = FakeSums()
    one = Gateway(sums)
    one.limits.settle(one.ask(Need(90, 90)), 95, is_counted=True)
    await one.spending.sync()
    other = Gateway(sums)
    await other.spending.sync()
    assert other.spent(ALICE) == 95
    assert other.refused(TEN).should_retry is False


async def test_gateways_on_one_store_see_what_the_others_spent_and_reserved() -> None:
    """Each alone would give away the whole budget."""
    sums = FakeSums()
    one, other = Gateway(sums), Gateway(sums)
    held = one.ask(Need(90, 90))
    await one.spending.sync()
    await other.spending.sync()
    other.ask(TEN)
    other.refused(TEN)
    one.limits.settle(held, 20, is_counted=True)
    for gateway in (one, other, one):
        await gateway.spending.sync()
    assert (one.spent(ALICE), other.spent(ALICE)) == (30, 30)


async def test_between_two_looks_each_gateway_lets_through_at_most_what_was_left() -> None:
    """The bound that the documents name."""
    sums = FakeSums()
    gateways = [Gateway(sums) for _ in range(3)]
    passed = 0
    for gateway in gateways:
        for _ in range(10):
            gateway.ask(TEN)
            passed += 1
        gateway.refused(TEN)
    assert passed == 3 * 10
    for gateway in gateways * 2:
        await gateway.spending.sync()
    assert all(gateway.spent(ALICE) == 300 for gateway in gateways)


async def test_many_requests_are_one_write_and_idleness_is_none() -> None:
    """A store that is written once a request would be the slowest part of each."""
    sums = FakeSums()
    gateway = Gateway(sums)
    for _ in range(5):
        gateway.ask(TEN)
    await gateway.spending.sync()
    await gateway.spending.sync()
    assert sums.told == [
        {("user:acme/alice", "2026-11-30"): 50, ("user:acme/alice", "2026-11"): 50}
    ]
    assert sums.reads == 2
    gateway.limits.configure({})
    await gateway.spending.sync()
    assert sums.reads == 2, "nobody has a budget"


async def test_a_store_that_is_away_loses_nothing_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A minute without the store must neither stop the gateway nor be free of charge."""
    caplog.set_level(logging.WARNING, "fairgate.limits")
    sums = FakeSums()
    gateway = Gateway(sums)
    gateway.ask(TEN)
    sums.is_lost = True
    assert [await gateway.spending.sync() for _ in range(3)] == [False, False, False]
    gateway.ask(TEN)
    assert gateway.spent(ALICE) == 20
    sums.is_lost = False
    assert await gateway.spending.sync()
    assert sums.totals["user:acme/alice", "2026-11"] == 20
    assert [record.message for record in caplog.records] == [
        "the store does not take what is spent of budgets: the disk is gone",
        "the store takes again what is spent of budgets",
    ]


async def test_what_is_left_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planned restart must not lose a second of what was spent."""
    monkeypatch.setattr(spending, "EVERY_S", 0.01)
    sums = FakeSums()
    gateway = Gateway(sums)
    task = asyncio.create_task(gateway.spending.run())
    gateway.ask(TEN)
    await eventually(lambda: sums.told)
    gateway.ask(TEN)
    gateway.spending.stop()
    await task
    assert sums.totals["user:acme/alice", "2026-11"] == 20


async def test_a_budget_that_is_given_again_remembers_what_was_spent() -> None:
    """Taking a limit away and putting it back must not fill the purse."""
    sums = FakeSums()
    gateway = Gateway(sums)
    gateway.ask(Need(90, 90))
    await gateway.spending.sync()
    gateway.limits.configure({})
    await gateway.spending.sync()
    gateway.limits.configure(BUDGET)
    await gateway.spending.sync()
    assert gateway.spent(ALICE) == 90
