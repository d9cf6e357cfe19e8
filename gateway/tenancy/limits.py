"""How much tenants, users and keys may use: requests and tokens a minute, tokens a day or month.

All limits that apply to a request are checked before any of them is used, so what is refused has
spent nothing anywhere. Tokens are reserved for a request and settled when it has ended. A holder
exists where it was given a limit, never because somebody came under its name: there are as many
as are configured. How many may run at once is the scheduler's business, and only told here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple
from urllib.parse import quote

from gateway.errors import BeyondLimitError, LimitError, QuotaSpentError, RateLimitedError
from gateway.tenancy.budget import Books, Per, Periods
from gateway.tenancy.window import Slot, Window

Scope = Literal["tenant", "user", "key"]

HELD_RETRY_S = 2.0
"""A budget of which requests under way hold too much is asked for again after so long."""
HINTS_A_S = 1_000
"""A hint is told in milliseconds, and must not be too early by a part of one."""


class Owner(NamedTuple):
    """Who has limits."""

    scope: Scope
    name: str
    """Of the tenant; of a key, its id."""
    user: str = ""

    @property
    def id(self) -> str:
        """Its name in a store, and as a holder of the scheduler's."""
        name = quote(self.name, safe="")
        return f"user:{name}/{quote(self.user, safe='')}" if self.user else f"{self.scope}:{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The limits of one holder; None: none."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    budget_tokens: int | None = None
    budget_per: Per = "month"


NO_ALLOWANCE = Allowance()


class Holder:
    """Whoever has limits, and what it used of them."""

    __slots__ = ("allowance", "alone", "held", "id", "requests", "scope", "tokens")

    def __init__(self, owner: Owner, allowance: Allowance) -> None:
        self.id = owner.id
        self.scope = owner.scope
        self.allowance = allowance
        self.requests = Window()
        self.tokens = Window()
        self.held = 0
        """Tokens of its budget that are reserved here, and not settled."""
        self.alone = 0
        """Tokens of its budget that were entered here since other gateways could be asked last."""


Holders = tuple[Holder, ...]


class Need(NamedTuple):
    """What a request is expected to take."""

    tokens: int
    """Prompt and output."""
    tokens_min: int
    """As many as its client itself asks for; a guess may be cut down to this."""


class Taken(NamedTuple):
    """When, by the clock that all gateways share, a request was counted for all of them."""

    second: int
    day: str
    month: str


class Reservation:
    """What one request holds until it is settled."""

    __slots__ = ("budgets", "holders", "is_settled", "periods", "requests", "taken", "tokens")

    def __init__(self, periods: Periods, holders: Holders) -> None:
        self.periods = periods
        self.holders = holders
        self.requests: list[tuple[Window, Slot]] = []
        self.tokens: list[tuple[Window, Slot, int]] = []
        self.budgets: list[tuple[Holder, int]] = []
        self.taken: Taken | None = None
        """Where and when the same was entered for all gateways; None: it was not."""
        self.is_settled = False


class Standing(NamedTuple):
    """How one kind of limit stands, of the holder that has the least left."""

    most: int
    left: int
    empty_in_s: float
    """Until all of it is there again, if nothing more is used."""


class Limits:
    """All holders, and the one place where what they use is entered."""

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        """`clock` tells seconds and never goes back; `wall` tells seconds since 1970."""
        self._clock = clock
        self._wall = wall
        self._configured: dict[Owner, Allowance] = {}
        self._put: dict[Owner, Allowance] = {}
        """Of keys that come and go by themselves."""
        self._by_owner: dict[tuple[str, str, str], Holder] = {}
        self.books = Books(wall())
        self.budgeted: frozenset[str] = frozenset()
        """Ids of the holders that have a budget."""
        self.has_caps = False
        """Whether anybody may have only so many requests running at once."""
        self.refusals: dict[tuple[str, str], int] = {}
        """How often each kind of limit refused, by (limit, scope)."""

    def configure(self, allowances: Mapping[Owner, Allowance]) -> None:
        """These have limits, beside the keys that were `put`; what was used stays used."""
        self._configured = dict(allowances)
        self._follow()

    def put(self, key_id: str, allowance: Allowance | None) -> None:
        """The limits of one key that is not configured; None: it has none, or is gone."""
        owner = Owner("key", key_id)
        if allowance is None:
            self._put.pop(owner, None)
        else:
            self._put[owner] = allowance
        self._follow()

    def become(self, allowances: Mapping[str, Allowance]) -> None:
        """These keys that are not configured have limits, by id, and no others."""
        self._put = {Owner("key", key_id): each for key_id, each in allowances.items()}
        self._follow()

    @property
    def holders(self) -> Holders:
        """All that have limits."""
        return tuple(self._by_owner.values())

    def holders_of(self, tenant: str, user: str, key_id: str) -> Holders:
        """Whose limits apply; empty, the usual case, where nobody has any."""
        by_owner = self._by_owner
        if not by_owner:
            return ()
        key = by_owner.get(("key", key_id, ""))
        who = by_owner.get(("user", tenant, user))
        organisation = by_owner.get(("tenant", tenant, ""))
        if key is None and who is None:
            return () if organisation is None else (organisation,)
        return tuple([each for each in (key, who, organisation) if each is not None])

    def reserve(self, holders: Holders, need: Need, divisor: int = 1) -> Reservation:
        """Use what a request needs of all of `holders`; or raise, and use nothing.

        `divisor`: of so many gateways each lets through its part, since they cannot ask one
        another: of each limit, and of what is left of each budget.

        Raises BeyondLimitError for a request that would never fit, QuotaSpentError and
        RateLimitedError; of several reasons the one that lasts longest is told.
        """
        now, wall_s = self._clock(), self._wall()
        periods = self.books.now(wall_s)
        refused: LimitError | None = None
        for holder in holders:
            for objection in (
                _requests_objection(holder, now, divisor),
                _tokens_objection(holder, need, now, divisor),
                self._budget_objection(holder, need, wall_s, divisor),
            ):
                refused = longer(refused, objection)
        if refused is not None:
            self.count(refused)
            raise refused
        return self._reserved(holders, need, now, periods)

    def count(self, refused: LimitError) -> None:
        """One more request was refused."""
        counted = (refused.limit, refused.scope)
        self.refusals[counted] = self.refusals.get(counted, 0) + 1

    def enter(self, holders: Holders, need: Need) -> Reservation:
        """Use what a request needs, whether it fits or not."""
        return self._reserved(holders, need, self._clock(), self.books.now(self._wall()))

    def _reserved(self, holders: Holders, need: Need, now: float, periods: Periods) -> Reservation:
        reservation = Reservation(periods, holders)
        for holder in holders:
            allowance = holder.allowance
            if allowance.requests_per_minute is not None:
                reservation.requests.append((holder.requests, holder.requests.add(1, now)))
            if allowance.tokens_per_minute is not None:
                amount = within(need, allowance.tokens_per_minute)
                slot = holder.tokens.add(amount, now)
                reservation.tokens.append((holder.tokens, slot, amount))
            if allowance.budget_tokens is not None:
                amount = within(need, allowance.budget_tokens)
                holder.held += amount
                self.books.enter(holder.id, periods, amount)
                reservation.budgets.append((holder, amount))
        return reservation

    def settle(self, reservation: Reservation, tokens: int | None, *, is_counted: bool) -> None:
        """The request ended: it took so many tokens; None: as many as were reserved.

        `is_counted`: whether it counts as a request. What is said a second time is ignored.
        """
        if reservation.is_settled:
            return
        reservation.is_settled = True
        now = self._clock()
        if not is_counted:
            for window, slot in reservation.requests:
                window.correct(slot, -1, now)
        for window, slot, reserved in reservation.tokens:
            if tokens is not None and tokens != reserved:
                window.correct(slot, tokens - reserved, now)
        for holder, reserved in reservation.budgets:
            holder.held -= reserved
            if tokens is not None and tokens != reserved:
                self.books.enter(holder.id, reservation.periods, tokens - reserved)

    def standing(
        self, holders: Holders, divisor: int = 1
    ) -> tuple[Standing | None, Standing | None]:
        """How requests and tokens a minute stand; None where nobody has such a limit."""
        now = self._clock()
        requests: Standing | None = None
        tokens: Standing | None = None
        for holder in holders:
            allowance = holder.allowance
            most = allowance.requests_per_minute
            if most is not None:
                requests = _tighter(requests, holder.requests, part(most, divisor), now)
            most = allowance.tokens_per_minute
            if most is not None:
                tokens = _tighter(tokens, holder.tokens, part(most, divisor), now)
        return requests, tokens

    def _budget_objection(
        self, holder: Holder, need: Need, wall_s: float, divisor: int
    ) -> LimitError | None:
        allowance = holder.allowance
        most, per = allowance.budget_tokens, allowance.budget_per
        if most is None:
            return None
        amount = within(need, most)
        if amount > most:
            return beyond_budget(holder, need)
        periods = self.books.periods
        spent = self.books.spent((holder.id, periods.of(per)))
        alone = holder.alone
        if spent + amount <= most and (
            divisor == 1 or alone + amount <= part(most - spent + alone, divisor)
        ):
            return None
        return spent_budget(holder, amount, spent, periods.ends(per) - wall_s)

    def _follow(self) -> None:
        """Make, change and drop holders, so that they are those of both tables."""
        known, self._by_owner = self._by_owner, {}
        for owner, allowance in {**self._configured, **self._put}.items():
            if allowance != NO_ALLOWANCE:
                holder = known.get(owner) or Holder(owner, allowance)
                holder.allowance = allowance
                self._by_owner[owner] = holder
        self.budgeted = frozenset(
            holder.id
            for holder in self._by_owner.values()
            if holder.allowance.budget_tokens is not None
        )
        self.has_caps = any(each.allowance.concurrent for each in self._by_owner.values())
        self.books.forget(self.budgeted)


def caps_of(holders: Holders) -> tuple[tuple[str, int], ...]:
    """(holder, most that may run at once), as the scheduler wants it."""
    return tuple(
        [(each.id, most) for each in holders if (most := each.allowance.concurrent) is not None]
    )


def _requests_objection(holder: Holder, now: float, divisor: int) -> LimitError | None:
    most = holder.allowance.requests_per_minute
    if most is None:
        return None
    at = holder.requests.fits_at(1, part(most, divisor), now)
    assert at is not None, "every limit is at least one request"
    if at == now:
        return None
    return RateLimitedError("requests", holder.scope, most=most, retry_after_s=hint(at - now))


def _tokens_objection(holder: Holder, need: Need, now: float, divisor: int) -> LimitError | None:
    most = holder.allowance.tokens_per_minute
    if most is None:
        return None
    amount = within(need, most)
    if amount > most:
        return beyond_tokens(holder, need)
    # What is within the whole, but not within a part, has that part to itself.
    share = part(most, divisor)
    at = holder.tokens.fits_at(min(amount, share), share, now)
    assert at is not None, "it is within the share"
    if at == now:
        return None
    return RateLimitedError("tokens", holder.scope, most=most, retry_after_s=hint(at - now))


def beyond_tokens(holder: Holder, need: Need) -> LimitError:
    """It alone is more than a minute's tokens."""
    most = holder.allowance.tokens_per_minute
    assert most is not None
    return BeyondLimitError(
        "tokens", holder.scope, most=most, per="minute", requested=need.tokens_min
    )


def beyond_budget(holder: Holder, need: Need) -> LimitError:
    """It alone is more than the whole budget."""
    allowance = holder.allowance
    most, per = allowance.budget_tokens, allowance.budget_per
    assert most is not None
    return BeyondLimitError("budget", holder.scope, most=most, per=per, requested=need.tokens_min)


def spent_budget(holder: Holder, amount: int, spent: int, ends_in_s: float) -> LimitError:
    """So much more does not fit into what is left of the budget."""
    allowance = holder.allowance
    most, per = allowance.budget_tokens, allowance.budget_per
    assert most is not None
    is_final = spent - holder.held + amount > most
    return QuotaSpentError(
        holder.scope,
        most=most,
        per=per,
        is_final=is_final,
        retry_after_s=hint(ends_in_s) if is_final else HELD_RETRY_S,
    )


def part(most: int, divisor: int) -> int:
    """What one of so many gateways lets through of a limit."""
    return most if divisor == 1 else max(1, most // divisor)


def within(need: Need, most: int) -> int:
    """What to reserve under a limit: what is only a guess does not make it impossible."""
    return max(need.tokens_min, min(need.tokens, most))


def hint(wait_s: float) -> float:
    """A wait as it is told: never too short."""
    return math.ceil(wait_s * HINTS_A_S) / HINTS_A_S


def longer(known: LimitError | None, other: LimitError | None) -> LimitError | None:
    """The one that stays true for longer; what never passes has no hint."""
    if known is None or other is None:
        return known or other
    if known.retry_after_s is None or other.retry_after_s is None:
        return known if known.retry_after_s is None else other
    return other if other.retry_after_s > known.retry_after_s else known


def _tighter(known: Standing | None, window: Window, most: int, now: float) -> Standing:
    empty_in_s = window.empty_at(now) - now
    return tighter(known, Standing(most, max(0, most - window.used), empty_in_s))


def tighter(known: Standing | None, other: Standing) -> Standing:
    """The one with less left."""
    if known is not None and (known.left, known.most) <= (other.left, other.most):
        return known
    return other
