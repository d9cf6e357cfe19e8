"""Waits, shares and the pace of the replicas, from what the users of a phase have seen."""

import pytest

from gateway.demo.tally import WAITS_MAX, Account, Tally, waits_of


def answered(tally: Tally, user: str, *, wait_s: float, tokens: int) -> None:
    """One request of `user`, sent at instant 0, answered after `wait_s` and complete."""
    account = tally.accounts[user]
    account.begin(account.send(0.0), wait_s)
    account.tokens += tokens


def test_nothing_sent_has_no_figures() -> None:
    """A mean of nothing would be shown as no wait at all."""
    assert waits_of([], []) is None


def test_mean_and_p95_are_those_of_the_answered() -> None:
    """Everything the demo claims rests on these two."""
    waits = waits_of([0.1 * n for n in range(1, 21)], [])
    assert waits is not None
    assert waits.mean_s == pytest.approx(1.05)
    assert waits.p95_s == pytest.approx(1.9)
    assert (waits.count, waits.is_at_least) == (20, False)


def test_who_still_waits_longer_than_the_answered_counts_so_far() -> None:
    """Through fifo nobody may be answered in time: leaving them out would make fifo look quick."""
    waits = waits_of([1.0, 2.0], [6.0])
    assert waits is not None
    assert (waits.mean_s, waits.count, waits.is_at_least) == (3.0, 3, True)


def test_a_request_sent_a_moment_ago_does_not_shorten_the_mean() -> None:
    """Ten requests just sent would otherwise make every wait look short."""
    waits = waits_of([1.0, 2.0], [0.01] * 10)
    assert waits is not None
    assert (waits.mean_s, waits.is_at_least) == (1.5, False)


def test_a_wait_ends_with_the_first_token_only() -> None:
    """Later events of the same stream are no waits."""
    account = Account()
    number = account.send(10.0)
    account.begin(number, 10.5)
    account.begin(number, 11.0)
    assert list(account.answered_s) == [0.5]
    assert (account.sent, account.waiting) == (1, 0)


def test_a_failed_request_waits_no_longer() -> None:
    """Counted as a wait, a refusal would slander the gateway; as an answer, flatter it."""
    tally = Tally(["alice"])
    tally.fail("alice", tally.accounts["alice"].send(0.0), "503: draining")
    tally.fail("alice", tally.accounts["alice"].send(0.0), "something else")
    assert tally.waits(["alice"], 100.0) is None
    assert (tally.failed, tally.complaint) == (2, "503: draining")


def test_waits_of_several_users_are_taken_together() -> None:
    """The claim is about the light users, not about the luckiest of them."""
    tally = Tally(["alice", "bob", "bot"])
    answered(tally, "alice", wait_s=1.0, tokens=1)
    answered(tally, "bob", wait_s=3.0, tokens=1)
    answered(tally, "bot", wait_s=50.0, tokens=1)
    waits = tally.waits(["alice", "bob"], 60.0)
    assert waits is not None
    assert waits.mean_s == 2.0


def test_shares_are_of_all_tokens() -> None:
    """Who is told 100 % must have got everything."""
    tally = Tally(["alice", "bot"])
    assert tally.token_share("alice") == 0.0
    answered(tally, "alice", wait_s=0.1, tokens=10)
    answered(tally, "bot", wait_s=0.1, tokens=30)
    assert tally.token_share("alice") == 0.25


def test_the_release_interval_is_service_time_over_slots() -> None:
    """Two replicas of four slots with services of 1 s end eight requests a second."""
    tally = Tally([])
    for n in range(80):
        tally.end(0.05 + n / 8)
    assert tally.release_interval_s(2, since=0.0, until=10.0) == pytest.approx(0.25)


def test_ends_outside_the_steady_time_do_not_count() -> None:
    """At the start of a flood all slots end together, which is not the pace of later."""
    tally = Tally([])
    for ended_at in (0.5, 0.5, 0.5, 1.5, 2.5):
        tally.end(ended_at)
    assert tally.release_interval_s(1, since=1.0, until=3.0) == 1.0
    assert tally.release_interval_s(1, since=5.0, until=6.0) is None


def test_an_endless_demo_keeps_a_bounded_number_of_waits() -> None:
    """A demo left running over a weekend must not fill the memory."""
    account = Account()
    for _ in range(WAITS_MAX + 10):
        account.begin(account.send(0.0), 1.0)
    assert len(account.answered_s) == WAITS_MAX
    assert account.sent == WAITS_MAX + 10
