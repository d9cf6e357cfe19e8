"""The sliding minute and the limits against models too simple to be wrong."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import LimitError
from gateway.tenancy.limits import Allowance, Limits, Need, Owner, Reservation
from gateway.tenancy.window import MINUTE_S, Window

MOST = 10
STEPS = st.lists(st.tuples(st.floats(0.0, 40.0), st.integers(1, MOST)), max_size=60)


@given(STEPS)
def test_no_sixty_seconds_let_more_through_and_the_hint_is_the_first_second_that_fits(
    steps: list[tuple[float, int]],
) -> None:
    """The naive model keeps every use, each until its second has been gone for a minute."""
    window, now = Window(), 0.0
    uses: list[tuple[float, int]] = []

    def counted(at: float) -> int:
        return sum(amount for used_at, amount in uses if int(used_at) >= int(at) - MINUTE_S)

    for wait_s, amount in steps:
        now += wait_s
        at = window.fits_at(amount, MOST, now)
        assert at is not None
        if at == now:
            assert counted(now) + amount <= MOST
            window.add(amount, now)
            uses.append((now, amount))
            begin = now - MINUTE_S
            assert sum(n for used_at, n in uses if used_at >= begin) <= MOST
        else:
            assert at == int(at) > now
            assert counted(at) + amount <= MOST
            assert counted(at - 0.001) + amount > MOST
        assert window.used == counted(now)


OWNERS = (Owner("tenant", "t"), Owner("user", "t", "u"), Owner("key", "k"))
MAYBE = st.none() | st.integers(1, 40)
ALLOWANCES = st.fixed_dictionaries(
    {
        owner: st.builds(
            Allowance,
            requests_per_minute=MAYBE,
            tokens_per_minute=MAYBE,
            budget_tokens=MAYBE,
            budget_per=st.sampled_from(["day", "month"]),
        )
        for owner in OWNERS
    }
)
ACTS = st.lists(
    st.tuples(
        st.floats(0.0, 30.0), st.integers(1, 30), st.integers(0, 30),
        st.none() | st.integers(0, 60), st.booleans(),
    ),
    max_size=40,
)  # fmt: skip


class Model:
    """Who used what, summed anew each time."""

    def __init__(self) -> None:
        self.requests: list[float] = []
        self.tokens: list[tuple[float, int]] = []
        self.spent = 0

    def used(self, now: float) -> tuple[int, int]:
        """(requests, tokens) that count now."""
        first = int(now) - MINUTE_S
        return (
            sum(int(at) >= first for at in self.requests),
            sum(amount for at, amount in self.tokens if int(at) >= first),
        )


def allows(allowance: Allowance, model: Model, amounts: tuple[int, int], now: float) -> bool:
    """Whether one holder has nothing against it; `amounts` of tokens a minute, and of a budget."""
    requests, tokens = model.used(now)
    return (
        (allowance.requests_per_minute or 99) >= requests + 1
        and (allowance.tokens_per_minute or 9_999) >= tokens + amounts[0]
        and (allowance.budget_tokens or 9_999) >= model.spent + amounts[1]
    )


def within(least: int, wanted: int, most: int | None) -> int:
    """What is reserved."""
    return wanted if most is None else max(least, min(wanted, most))


@settings(max_examples=150)
@given(ALLOWANCES, ACTS)
def test_a_request_passes_where_all_holders_allow_it_and_else_uses_nothing_anywhere(
    allowances: dict[Owner, Allowance],
    acts: list[tuple[float, int, int, int | None, bool]],
) -> None:
    """A refusal by the last of three that spent at the first two would starve a tenant slowly."""
    now = [1000.0]
    limits = Limits(lambda: now[0], lambda: 1_764_500_000.0)
    limits.configure(allowances)
    holders = limits.holders_of("t", "u", "k")
    models = {holder.id: Model() for holder in holders}
    for wait_s, least, more, took, is_counted in acts:
        now[0] += wait_s
        need = Need(least + more, least)
        amounts = {
            holder.id: (
                within(least, least + more, holder.allowance.tokens_per_minute),
                within(least, least + more, holder.allowance.budget_tokens),
            )
            for holder in holders
        }
        is_allowed = all(
            allows(each.allowance, models[each.id], amounts[each.id], now[0]) for each in holders
        )
        reservation: Reservation | None = None
        try:
            reservation = limits.reserve(holders, need)
        except LimitError:
            assert not is_allowed
            continue
        assert is_allowed
        limits.settle(reservation, took, is_counted=is_counted)
        limits.settle(reservation, 0, is_counted=False)
        for holder in holders:
            model, allowance = models[holder.id], holder.allowance
            minute, budget = amounts[holder.id]
            if is_counted:
                model.requests.append(now[0])
            model.tokens.append((now[0], minute if took is None else took))
            model.spent += budget if took is None else took
            requests, tokens = model.used(now[0])
            if allowance.requests_per_minute is not None:
                assert holder.requests.used == requests
            if allowance.tokens_per_minute is not None:
                assert holder.tokens.used == tokens
            if allowance.budget_tokens is not None:
                period = limits.books.periods.of(allowance.budget_per)
                assert limits.books.spent((holder.id, period)) == model.spent
            assert holder.held == 0
