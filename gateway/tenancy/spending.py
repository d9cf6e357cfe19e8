"""Carries what was spent to a store and back, behind the requests: none of them waits for it.

Each gateway tells every `EVERY_S` what it spent and reserved, and reads what all have. So a crash
loses at most so long of it, and several gateways on one store let through beyond a budget at most
what the others let through within `EVERY_S` and the store's time to answer: never more than each
of them what was left when it last looked. One gateway alone never goes beyond it.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.tenancy.budget import Account
from gateway.tenancy.limits import Limits
from gateway.tenancy.store.port import StoreError

LOGGER = logging.getLogger("fairgate.limits")
EVERY_S = 1.0


class Sums(Protocol):
    """What is needed of a store."""

    async def spent(self, periods: Sequence[str]) -> Mapping[Account, int]:
        """See `Store.spent`."""
        ...

    async def spend(self, amounts: Mapping[Account, int]) -> None:
        """See `Store.spend`."""
        ...


class Spending:
    """The budgets' way to one store and back."""

    def __init__(self, limits: Limits, store: Sums) -> None:
        self._limits = limits
        self._store = store
        self._is_failing = False
        self._stop = asyncio.Event()

    async def sync(self) -> bool:
        """Tell what was spent, and learn what all gateways spent; False: the store failed.

        Nothing is lost then: it is told with the next ones. Must not run twice at a time.
        """
        books = self._limits.books
        amounts = books.taken()
        try:
            if amounts:
                await self._store.spend(amounts)
        except StoreError as error:
            books.untold()
            return self._failed(error)
        except BaseException:
            books.untold()
            raise
        books.told()
        periods = books.periods
        if self._limits.budgeted:
            try:
                totals = await self._store.spent((periods.day, periods.month))
            except StoreError as error:
                return self._failed(error)
            if periods is books.periods:  # else it is another day, and they say little of it
                books.learnt(totals, self._limits.budgeted)
        if self._is_failing:
            self._is_failing = False
            LOGGER.warning("the store takes again what is spent of budgets")
        return True

    async def run(self) -> None:
        """Do so every `EVERY_S` until `stop`, and once more then."""
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(EVERY_S):
                    await self._stop.wait()
            except TimeoutError:
                pass
            await self.sync()

    def stop(self) -> None:
        """Let `run` tell what is left, and end."""
        self._stop.set()

    def _failed(self, error: StoreError) -> bool:
        if not self._is_failing:
            self._is_failing = True
            LOGGER.warning("the store does not take what is spent of budgets: %s", error)
        return False
