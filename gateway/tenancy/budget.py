"""Tokens spent per day and month: what this gateway knows of it, and what it has to tell a store.

Periods are UTC, whatever the clocks of clients say. What is spent is entered for the day and for
the month, so that a budget may change from one to the other and nothing is forgotten. How a store
is reached is not known here: `taken` is what goes there, `learnt` what comes back.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

Per = Literal["day", "month"]
Account = tuple[str, str]
"""(holder, period), as a store knows it."""


class Periods:
    """The day and the month of one instant, by their names, and when each ends."""

    __slots__ = ("day", "day_begins", "day_ends", "month", "month_ends")

    def __init__(self, wall_s: float) -> None:
        now = datetime.fromtimestamp(wall_s, UTC)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        first = midnight.replace(day=1)
        self.day = f"{now:%Y-%m-%d}"
        self.month = f"{now:%Y-%m}"
        self.day_begins = midnight.timestamp()
        self.day_ends = (midnight + timedelta(days=1)).timestamp()
        # The 32nd day of any month lies in the next one.
        self.month_ends = (first + timedelta(days=31)).replace(day=1).timestamp()

    def of(self, per: Per) -> str:
        """The name of one of them."""
        return self.day if per == "day" else self.month

    def ends(self, per: Per) -> float:
        """When one of them ends, in seconds since 1970."""
        return self.day_ends if per == "day" else self.month_ends


class Books:
    """What was spent by each holder of a budget, as far as it is known here.

    Its tables hold two periods of each holder that has a budget, and what no store has taken yet
    of these and of the two periods before them.
    """

    def __init__(self, wall_s: float) -> None:
        self.periods = Periods(wall_s)
        self._before = self.periods
        self._shared: dict[Account, int] = {}
        """As the store last said, with what it was told since."""
        self._untold: dict[Account, int] = {}
        """What the store was not told yet."""
        self._telling: dict[Account, int] = {}
        """What it is being told."""

    def now(self, wall_s: float) -> Periods:
        """The periods of this instant; a wall clock may go back, too."""
        periods = self.periods
        if not periods.day_begins <= wall_s < periods.day_ends:
            self._before, self.periods = periods, Periods(wall_s)
            self._drop()
        return self.periods

    def spent(self, account: Account) -> int:
        """Tokens, reserved ones of all gateways included."""
        return (
            self._shared.get(account, 0)
            + self._untold.get(account, 0)
            + self._telling.get(account, 0)
        )

    def enter(self, holder: str, periods: Periods, tokens: int) -> None:
        """`holder` spent so much in `periods`; negative: so much less than was entered."""
        untold = self._untold
        for period in (periods.day, periods.month):
            account = (holder, period)
            untold[account] = untold.get(account, 0) + tokens

    def taken(self) -> Mapping[Account, int]:
        """What a store should be told now: answer with `told` or `untold` before asking again."""
        assert not self._telling, "the last ones were not answered for"
        self._telling, self._untold = self._untold, {}
        return {account: tokens for account, tokens in self._telling.items() if tokens}

    def told(self) -> None:
        """The store has what was taken."""
        self._move(self._telling, self._shared)

    def untold(self) -> None:
        """It has not, as far as is known: to be told again."""
        self._move(self._telling, self._untold)

    def learnt(self, totals: Mapping[Account, int], holders: Collection[str]) -> None:
        """The store's totals, of all gateways; only those of `holders` are kept."""
        self._shared = {account: n for account, n in totals.items() if account[0] in holders}

    def forget(self, holders: Collection[str]) -> None:
        """Keep what was spent by these holders only; what a store was not told it will be."""
        self._shared = {key: n for key, n in self._shared.items() if key[0] in holders}

    def _drop(self) -> None:
        now, before = self.periods, self._before
        current = {now.day, now.month}
        self._shared = {key: n for key, n in self._shared.items() if key[1] in current}
        current |= {before.day, before.month}
        self._untold = {key: n for key, n in self._untold.items() if key[1] in current}

    @staticmethod
    def _move(amounts: dict[Account, int], to: dict[Account, int]) -> None:
        for account, tokens in amounts.items():
            to[account] = to.get(account, 0) + tokens
        amounts.clear()
