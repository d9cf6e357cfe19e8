"""Limits of tenants, users and keys: all are checked, then all are used, or none."""

import pytest

from gateway.errors import BeyondLimitError, LimitError, QuotaSpentError, RateLimitedError
from gateway.tenancy.limits import (
    HELD_RETRY_S,
    Allowance,
    Limits,
    Need,
    Owner,
    Reservation,
    Standing,
    caps_of,
)
from tests.unit.test_budget import NOON, at

ACME, ALICE, KEY = Owner("tenant", "acme"), Owner("user", "acme", "alice"), Owner("key", "k1")
SMALL = Need(10, 10)


class Desk:
    """Limits under two clocks of the test's own."""

    def __init__(self, allowances: dict[Owner, Allowance]) -> None:
        self.now = 1000.0
        self.wall = NOON
        self.limits = Limits(lambda: self.now, lambda: self.wall)
        self.limits.configure(allowances)

    def ask(
        self, need: Need = SMALL, *, user: str = "alice", tenant: str = "acme", key: str = "k1"
    ) -> Reservation:
        """One request is let in, or refused."""
        return self.limits.reserve(self.limits.holders_of(tenant, user, key), need)

    def refused(self, need: Need = SMALL, **who: str) -> LimitError:
        """Why one is refused."""
        with pytest.raises(LimitError) as caught:
            self.ask(need, **who)
        return caught.value

    def spent(self, owner: Owner) -> int:
        """In this month."""
        return self.limits.books.spent((owner.id, "2026-11"))


def test_who_has_no_limits_has_no_holder_and_leaves_no_trace() -> None:
    """A caller could otherwise fill the memory with names."""
    desk = Desk({ACME: Allowance(requests_per_minute=1), ALICE: Allowance()})
    for number in range(100):
        assert desk.limits.holders_of(f"t{number}", f"u{number}", f"k{number}") == ()
    assert len(desk.limits._by_owner) == 1
    assert [each.id for each in desk.limits.holders_of("acme", "bob", "")] == ["tenant:acme"]


def test_every_holder_is_found_by_its_own_name_and_by_no_other() -> None:
    """A tenant called like a key, or a user of a strange name, must not pay for another."""
    owners = [ACME, ALICE, KEY, Owner("key", "acme"), Owner("user", "acme/x", "y"),
              Owner("user", "acme", "x/y")]  # fmt: skip
    desk = Desk(dict.fromkeys(owners, Allowance(concurrent=1)))
    assert len({owner.id for owner in owners}) == len(owners)
    found = desk.limits.holders_of("acme", "alice", "k1")
    assert [each.id for each in found] == ["key:k1", "user:acme/alice", "tenant:acme"]
    assert caps_of(found) == (("key:k1", 1), ("user:acme/alice", 1), ("tenant:acme", 1))


def test_a_refusal_by_one_holder_uses_nothing_of_the_others() -> None:
    """A user at the limit would otherwise use up the tenant's minute by trying again."""
    desk = Desk(
        {
            KEY: Allowance(requests_per_minute=100),
            ALICE: Allowance(tokens_per_minute=1000, budget_tokens=1000),
            ACME: Allowance(requests_per_minute=1),
        }
    )
    desk.ask()
    before = [(each.requests.used, each.tokens.used, each.held)
              for each in desk.limits.holders_of("acme", "alice", "k1")]  # fmt: skip
    for _ in range(5):
        assert (desk.refused().limit, desk.refused().scope) == ("requests", "tenant")
    assert before == [(each.requests.used, each.tokens.used, each.held)
                      for each in desk.limits.holders_of("acme", "alice", "k1")]  # fmt: skip
    assert desk.spent(ALICE) == 10


@pytest.mark.parametrize(
    ("limit", "allowance"),
    [
        ("requests", Allowance(requests_per_minute=1)),
        ("tokens", Allowance(tokens_per_minute=10)),
    ],
)
def test_a_rate_limit_says_when_the_request_would_pass_and_then_it_does(
    limit: str, allowance: Allowance
) -> None:
    """SDKs come back exactly then; a second refusal would be a lie."""
    desk = Desk({ACME: allowance})
    desk.now = 1000.3
    desk.ask()
    error = desk.refused()
    assert isinstance(error, RateLimitedError)
    assert error.retry_after_s == pytest.approx(60.7, abs=0.0011)
    assert (error.status, error.code, error.should_retry) == (429, "rate_limit_exceeded", True)
    assert (error.type, error.limit, error.scope) == (limit, limit, "tenant")
    assert "your organisation" in error.message
    assert error.retry_after_s is not None
    desk.now += error.retry_after_s
    desk.ask()


def test_of_several_limits_the_one_that_lasts_longest_is_told() -> None:
    """Who waits for the shorter one is refused by the longer one."""
    desk = Desk({KEY: Allowance(requests_per_minute=1), ACME: Allowance(budget_tokens=15)})
    desk.limits.settle(desk.ask(), None, is_counted=True)
    error = desk.refused()
    assert isinstance(error, QuotaSpentError)
    assert error.retry_after_s == at("2026-12-01T00:00:00") - NOON


def test_what_would_never_pass_is_told_so_even_where_other_limits_stand_against_it_too() -> None:
    """A 429 with a hint would send the client into an endless round."""
    desk = Desk({KEY: Allowance(requests_per_minute=1), ACME: Allowance(tokens_per_minute=50)})
    desk.ask()
    error = desk.refused(Need(51, 51))
    assert isinstance(error, BeyondLimitError)
    assert (error.status, error.code, error.retry_after_s) == (400, "request_exceeds_limit", None)
    assert "50 tokens per minute" in error.message
    assert "51 tokens" in error.message
    assert isinstance(Desk({ACME: Allowance(budget_tokens=5)}).refused(), BeyondLimitError)


def test_what_is_only_a_guess_never_makes_a_request_impossible() -> None:
    """A client that sets no maximum is not told to ask for less."""
    desk = Desk({ACME: Allowance(tokens_per_minute=50, budget_tokens=60)})
    reservation = desk.ask(Need(5000, 20))
    assert desk.limits.holders_of("acme", "", "")[0].tokens.used == 50
    assert desk.spent(ACME) == 60
    desk.limits.settle(reservation, 25, is_counted=True)
    assert desk.spent(ACME) == 25


def test_settling_takes_what_was_used_and_only_once() -> None:
    """Both more and less than foreseen; a second settlement would be a present or a theft."""
    desk = Desk({ALICE: Allowance(tokens_per_minute=100, budget_tokens=100)})
    for took, spent in ((4, 4), (30, 34), (None, 44)):
        reservation = desk.ask()
        desk.limits.settle(reservation, took, is_counted=True)
        desk.limits.settle(reservation, 0, is_counted=False)
        (holder,) = desk.limits.holders_of("acme", "alice", "")
        assert (desk.spent(ALICE), holder.tokens.used, holder.held) == (spent, spent, 0)


def test_what_did_not_run_is_given_back_the_request_included() -> None:
    """A full queue must not cost a user the minute."""
    desk = Desk({ALICE: Allowance(requests_per_minute=1, tokens_per_minute=10, budget_tokens=10)})
    for _ in range(3):
        desk.limits.settle(desk.ask(), 0, is_counted=False)
    desk.limits.settle(desk.ask(), 0, is_counted=True)
    assert desk.refused().limit == "requests"


def test_fifty_first_requests_at_once_against_a_budget_of_one() -> None:
    """The oldest hole of budgets: all are checked before the first is entered."""
    desk = Desk({ALICE: Allowance(budget_tokens=15)})
    held = [desk.ask()]
    errors = [desk.refused() for _ in range(49)]
    for error in errors:
        assert isinstance(error, QuotaSpentError)
        assert (error.should_retry, error.retry_after_s) == (True, HELD_RETRY_S)
        assert "held by requests under way" in error.message
    desk.limits.settle(held[0], None, is_counted=True)
    error = desk.refused()
    assert error.should_retry is False, "now it is spent, and trying again is in vain"
    assert (error.status, error.type, error.code) == (
        429, "insufficient_quota", "insufficient_quota",
    )  # fmt: skip


def test_a_budget_begins_anew_with_the_day() -> None:
    """Tomorrow is another day, for whoever was refused today."""
    desk = Desk({ALICE: Allowance(budget_tokens=15, budget_per="day")})
    desk.ask()
    desk.refused()
    desk.wall = at("2026-12-01T00:00:00")
    desk.ask()


def test_other_limits_apply_at_once_and_what_was_used_stays_used() -> None:
    """Whoever raises a limit does not make a present, and whoever lowers one is obeyed."""
    desk = Desk({ALICE: Allowance(requests_per_minute=2, budget_tokens=15, budget_per="day")})
    under_way = desk.ask()
    desk.limits.configure({ALICE: Allowance(requests_per_minute=3, budget_tokens=25)})
    desk.ask()
    assert desk.refused().limit == "budget", "spent in the day, and so in the month"
    desk.limits.configure({ALICE: Allowance(requests_per_minute=2)})
    assert desk.refused().limit == "requests"
    desk.limits.configure({})
    desk.ask()
    desk.limits.settle(under_way, 3, is_counted=True)
    assert desk.limits.holders_of("acme", "alice", "k1") == ()


def test_keys_that_come_and_go_by_themselves_outlive_a_change_of_the_others() -> None:
    """A reload of the file must not lift the limits of keys that were made at run time."""
    desk = Desk({ACME: Allowance(requests_per_minute=100)})
    desk.limits.put("k1", Allowance(requests_per_minute=1))
    desk.ask()
    desk.limits.configure({})
    assert desk.refused().scope == "key"
    desk.limits.put("k1", Allowance(requests_per_minute=2))
    desk.ask()
    desk.refused()
    desk.limits.put("k1", None)
    desk.ask()


def test_how_limits_stand_is_told_of_the_holder_with_the_least_left() -> None:
    """A client that paces itself by the tenant's figures runs into its own."""
    desk = Desk(
        {
            ACME: Allowance(requests_per_minute=100, tokens_per_minute=500),
            ALICE: Allowance(requests_per_minute=3),
        }
    )
    holders = desk.limits.holders_of("acme", "alice", "k1")
    assert desk.limits.standing(holders) == (Standing(3, 3, 0.0), Standing(500, 500, 0.0))
    desk.ask()
    assert desk.limits.standing(holders) == (Standing(3, 2, 61.0), Standing(500, 490, 61.0))
    bobs = desk.limits.holders_of("acme", "bob", "k1")
    assert desk.limits.standing(bobs)[0] == Standing(100, 99, 61.0)
    assert desk.limits.standing(()) == (None, None)


def test_refusals_are_counted_by_limit_and_scope_and_never_by_name() -> None:
    """An operator sees which limit bites; a label for each user would burst the metrics."""
    desk = Desk({ALICE: Allowance(requests_per_minute=1), ACME: Allowance(tokens_per_minute=50)})
    desk.ask()
    for _ in range(3):
        desk.refused()
    desk.refused(Need(51, 51))
    assert desk.limits.refusals == {("requests", "user"): 3, ("tokens", "tenant"): 1}
