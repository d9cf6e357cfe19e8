"""Limits that hold over all gateways together: what is used is counted in one place, by one clock.

`Limits` counts here all the same, but only what this gateway lets through. So when the one place
cannot be asked, each gateway goes on with its part of every limit, and tells later what it let
through meanwhile. Where and how the counting is done is not known here.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from gateway.errors import LimitError, RateLimitedError
from gateway.tenancy.budget import Per, Periods
from gateway.tenancy.limits import (
    Holder,
    Holders,
    Limits,
    Need,
    Reservation,
    Standing,
    Taken,
    beyond_budget,
    beyond_tokens,
    hint,
    longer,
    spent_budget,
    tighter,
    within,
)
from gateway.tenancy.window import Slot

Standings = tuple[Standing | None, Standing | None]
NOTHING = (None, None)


class CountersError(Exception):
    """What all gateways use cannot be asked for now."""


class Known(NamedTuple):
    """What this gateway knows to be spent, should the one place have forgotten it."""

    day: str
    of_day: int
    month: str
    of_month: int


NOT_KNOWN = Known("", 0, "", 0)


class Ask(NamedTuple):
    """What a request takes of one holder; None: there is no such limit."""

    holder: str
    requests_most: int | None
    tokens: int
    tokens_most: int | None
    budget: int
    budget_most: int | None
    per: Per
    known: Known


class Found(NamedTuple):
    """How one holder stands: after the request, if it was taken."""

    requests_used: int
    requests_wait_s: float
    """Until it fits."""
    requests_empty_s: float
    """Until nothing of it counts any more."""
    tokens_used: int
    tokens_wait_s: float
    tokens_empty_s: float
    spent: int


class Answer(NamedTuple):
    """Of the one place."""

    taken: Taken | None
    """None: something did not fit, and nothing was taken."""
    wall_s: float
    """Since 1970, by its clock."""
    found: tuple[Found, ...]


class Correction(NamedTuple):
    """What is entered of one holder after the fact; negative amounts are given back."""

    holder: str
    second: int | None
    """When it was used, by the shared clock; None: see `ago_s`."""
    ago_s: int
    requests: int
    tokens: int
    budget: int
    day: str
    month: str
    """Of the budget; empty: no budget."""
    known: Known | None = None
    may_lack: bool = False
    """What is known counts where it is more, and not only where nothing is known there."""


class Counters(Protocol):
    """The one place."""

    @property
    def is_up(self) -> bool:
        """Whether it can be asked."""
        ...

    async def reserve(self, asks: Sequence[Ask]) -> Answer:
        """Take all of it, or nothing. Raises CountersError, soon.

        Whoever is cancelled while it waits has taken nothing.
        """
        ...

    def correct(self, corrections: Sequence[Correction]) -> None:
        """Enter them; what cannot be told is dropped."""
        ...


class Verdict(NamedTuple):
    """What became of a request: one of the first two."""

    reservation: Reservation | None
    refused: LimitError | None
    standings: Standings


class SharedLimits:
    """`Limits` of one gateway among several."""

    def __init__(
        self,
        limits: Limits,
        counters: Counters,
        *,
        gateways: Callable[[], int],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """`gateways`: how many there are, as far as is known; the clocks are those of `limits`."""
        self._limits = limits
        self._counters = counters
        self._gateways = gateways
        self._clock = clock
        self._wall = wall
        self._is_behind = True
        """Whether something may have been let through that the counters were not told of."""

    @property
    def is_alone(self) -> bool:
        """Whether this gateway goes on with its part."""
        return not self._counters.is_up

    def lost(self) -> None:
        """The counters cannot be asked from now on."""
        self._is_behind = True

    def found(self, *, knows_nothing: bool = False, may_lack: bool = False) -> None:
        """They can be asked again: tell them what was let through meanwhile.

        `knows_nothing`: of this gateway, so that they are told of the whole last minute;
        `may_lack`: some of what was spent, so that the more of what they and we know counts.
        """
        self._is_behind = False
        corrections = []
        for holder in self._limits.holders:
            corrections += self._missed(holder, is_all=knows_nothing, may_lack=may_lack)
            holder.alone = 0
        if corrections:
            self._counters.correct(corrections)

    async def reserve(self, holders: Holders, need: Need) -> Verdict:
        """Use what a request needs of all of `holders`, or nothing. Raises nothing."""
        hopeless = _hopeless(holders, need)
        if hopeless is not None:
            self._limits.count(hopeless)
            return Verdict(None, hopeless, NOTHING)
        if self._counters.is_up:
            asks = [self._ask(holder, need) for holder in holders]
            try:
                answer = await self._counters.reserve(asks)
            except CountersError:
                self.lost()
            else:
                if self._is_behind:
                    self.found()
                return self._verdict(holders, need, asks, answer)
        return self._reserved_alone(holders, need)

    def settle(self, reservation: Reservation, tokens: int | None, *, is_counted: bool) -> None:
        """As `Limits.settle`, for all gateways."""
        if reservation.is_settled:
            return
        self._limits.settle(reservation, tokens, is_counted=is_counted)
        corrections = []
        for holder in reservation.holders:
            correction = _correction(holder, reservation, tokens, is_counted=is_counted)
            if correction is None:
                continue
            if self._is_behind:
                _note(holder, reservation, correction)
                continue
            slots = _slots(holder, reservation)
            if correction.second is None and correction.tokens <= 0 and slots:
                # It was let through alone, and told since then.
                ago_s = int(self._clock()) - slots[0].second
                correction = correction._replace(ago_s=ago_s)
            corrections.append(correction)
        if corrections:
            self._counters.correct(corrections)

    def _ask(self, holder: Holder, need: Need) -> Ask:
        allowance = holder.allowance
        tokens_most, budget_most = allowance.tokens_per_minute, allowance.budget_tokens
        return Ask(
            holder.id,
            allowance.requests_per_minute,
            0 if tokens_most is None else within(need, tokens_most),
            tokens_most,
            0 if budget_most is None else within(need, budget_most),
            budget_most,
            allowance.budget_per,
            NOT_KNOWN if budget_most is None else self._known(holder),
        )

    def _known(self, holder: Holder) -> Known:
        books = self._limits.books
        periods = books.now(self._wall())
        day, month = periods.day, periods.month
        return Known(day, books.spent((holder.id, day)), month, books.spent((holder.id, month)))

    def _verdict(
        self, holders: Holders, need: Need, asks: Sequence[Ask], answer: Answer
    ) -> Verdict:
        requests: Standing | None = None
        tokens: Standing | None = None
        refused: LimitError | None = None
        for holder, ask, found in zip(holders, asks, answer.found, strict=True):
            if ask.requests_most is not None:
                most = ask.requests_most
                left = max(0, most - found.requests_used)
                requests = tighter(requests, Standing(most, left, found.requests_empty_s))
            if ask.tokens_most is not None:
                most = ask.tokens_most
                left = max(0, most - found.tokens_used)
                tokens = tighter(tokens, Standing(most, left, found.tokens_empty_s))
            if answer.taken is None:
                refused = longer(refused, _objection(holder, ask, found, answer.wall_s))
        if answer.taken is None:
            assert refused is not None, "something did not fit"
            self._limits.count(refused)
            return Verdict(None, refused, (requests, tokens))
        reservation = self._limits.enter(holders, need)
        reservation.taken = answer.taken
        return Verdict(reservation, None, (requests, tokens))

    def _reserved_alone(self, holders: Holders, need: Need) -> Verdict:
        gateways = max(1, self._gateways())
        try:
            reservation = self._limits.reserve(holders, need, gateways)
        except LimitError as error:
            return Verdict(None, error, self._limits.standing(holders, gateways))
        for _, slot in reservation.requests:
            slot.untold += 1
        for _, slot, amount in reservation.tokens:
            slot.untold += amount
        for holder, amount in reservation.budgets:
            holder.alone += amount
        return Verdict(reservation, None, self._limits.standing(holders, gateways))

    def _missed(self, holder: Holder, *, is_all: bool, may_lack: bool) -> list[Correction]:
        """What the counters were not told of one holder, each second apart."""
        now = self._clock()
        amounts: dict[int, tuple[int, int]] = {}
        for ago_s, amount in holder.requests.missed(now, is_all=is_all):
            amounts[ago_s] = (amount, 0)
        for ago_s, amount in holder.tokens.missed(now, is_all=is_all):
            amounts[ago_s] = (amounts.get(ago_s, (0, 0))[0], amount)
        found = [
            Correction(holder.id, None, ago_s, requests, tokens, 0, "", "")
            for ago_s, (requests, tokens) in amounts.items()
        ]
        if holder.allowance.budget_tokens is not None and (holder.alone or may_lack):
            known = self._known(holder)
            day, month = known.day, known.month
            found.append(
                Correction(holder.id, None, 0, 0, 0, holder.alone, day, month, known, may_lack)
            )
        return found


def _hopeless(holders: Holders, need: Need) -> LimitError | None:
    """Why it would never fit, whatever was used."""
    for holder in holders:
        most = holder.allowance.tokens_per_minute
        if most is not None and within(need, most) > most:
            return beyond_tokens(holder, need)
        most = holder.allowance.budget_tokens
        if most is not None and within(need, most) > most:
            return beyond_budget(holder, need)
    return None


def _objection(holder: Holder, ask: Ask, found: Found, wall_s: float) -> LimitError | None:
    """What of one holder stands against it for longest."""
    refused: LimitError | None = None
    for limit, most, wait_s in (
        ("requests", ask.requests_most, found.requests_wait_s),
        ("tokens", ask.tokens_most, found.tokens_wait_s),
    ):
        if most is not None and wait_s > 0:
            error = RateLimitedError(limit, holder.scope, most=most, retry_after_s=hint(wait_s))
            refused = longer(refused, error)
    if ask.budget_most is not None and found.spent + ask.budget > ask.budget_most:
        ends_in_s = Periods(wall_s).ends(ask.per) - wall_s
        refused = longer(refused, spent_budget(holder, ask.budget, found.spent, ends_in_s))
    return refused


def _slots(holder: Holder, reservation: Reservation) -> list[Slot]:
    """When a request was counted here for one holder."""
    slots = [slot for window, slot in reservation.requests if window is holder.requests]
    return slots + [slot for window, slot, _ in reservation.tokens if window is holder.tokens]


def _note(holder: Holder, reservation: Reservation, correction: Correction) -> None:
    """To be told with what was let through alone; what those counted before comes back anyway."""
    holder.alone += correction.budget
    if correction.tokens > 0:
        holder.tokens.newest.untold += correction.tokens
    elif reservation.taken is None:
        for window, slot in reservation.requests:
            if window is holder.requests:
                slot.untold += correction.requests
        for window, slot, _ in reservation.tokens:
            if window is holder.tokens:
                slot.untold += correction.tokens


def _correction(
    holder: Holder, reservation: Reservation, tokens: int | None, *, is_counted: bool
) -> Correction | None:
    """What a request took of one holder more or less than was reserved; None: it is the same."""
    requests = 0
    if not is_counted and any(window is holder.requests for window, _ in reservation.requests):
        requests = -1
    of_minute = of_budget = 0
    has_budget = False
    for window, _, reserved in reservation.tokens:
        if window is holder.tokens and tokens is not None:
            of_minute = tokens - reserved
    for each, reserved in reservation.budgets:
        if each is holder and tokens is not None:
            has_budget, of_budget = True, tokens - reserved
    if not requests and not of_minute and not of_budget:
        return None
    taken, periods = reservation.taken, reservation.periods
    # What was too little counts from now.
    second = taken.second if taken is not None and of_minute <= 0 else None
    day = (taken.day if taken is not None else periods.day) if has_budget else ""
    month = (taken.month if taken is not None else periods.month) if has_budget else ""
    return Correction(holder.id, second, 0, requests, of_minute, of_budget, day, month)
