"""The gateway's own book of one replica."""

import pytest

from gateway.core.fairqueue import Waiting, class_of
from gateway.core.ledger import HISTORY_MAX, Grant, Ledger
from gateway.core.messages import Request


def grant(id: str, *, tier: int = 0, sequences: int = 1) -> Grant:
    """A grant of 10 prompt and 5 output tokens a sequence."""
    request = Request(
        id=id, model="m", tier=tier, tenant="t", user="u", arrived_at=0.0, sequences=sequences
    )
    waiting = Waiting(
        request,
        kind=class_of(request, 15),
        order=(0.0, 0),
        cost=1.0,
        prompt_tokens=10,
        output_tokens=5,
        deadline=9.0,
    )
    return Grant(waiting, sequences=sequences, granted_at=0.0)


def sums(ledger: Ledger) -> tuple[object, ...]:
    """All sums that the ledger keeps."""
    return (
        ledger.sequences,
        ledger.kv_tokens,
        ledger.unstarted_sequences,
        ledger.unstarted_prompt_tokens,
        ledger.by_tier,
        ledger.unstarted_kv_by_tier,
    )


def test_a_grant_is_in_the_book_from_its_release_to_its_end() -> None:
    """A scrape would notice it seconds later: too late for the next decision."""
    ledger = Ledger(tiers=2)
    ledger.enter(grant("a", tier=1, sequences=3), 1.0)
    assert sums(ledger) == (3, 45, 3, 10, [0, 1], [0, 45])
    ledger.start("a")
    assert sums(ledger) == (3, 45, 0, 0, [0, 1], [0, 0])
    ledger.leave("a", 3.0)
    assert sums(ledger) == (0, 0, 0, 0, [0, 0], [0, 0])


@pytest.mark.parametrize("is_started", [False, True])
def test_a_grant_may_end_at_any_point(*, is_started: bool) -> None:
    """A leaked slot is the commonest fault of gateways like this one."""
    ledger = Ledger(tiers=1)
    ledger.enter(grant("a"), 1.0)
    if is_started:
        ledger.start("a")
    assert ledger.leave("a", 2.0).is_started is is_started
    assert sums(ledger) == (0, 0, 0, 0, [0], [0])
    assert not ledger.unstarted


def test_starting_twice_counts_once() -> None:
    """The first token and a scrape may both testify for the same request."""
    ledger = Ledger(tiers=1)
    ledger.enter(grant("a"), 1.0)
    assert ledger.start("a") is not None
    assert ledger.start("a") is None
    assert ledger.start("unknown") is None
    assert ledger.unstarted_sequences == 0


def test_one_request_cannot_hold_two_slots() -> None:
    """It would leave only once."""
    ledger = Ledger(tiers=1)
    ledger.enter(grant("a"), 1.0)
    with pytest.raises(AssertionError, match="one request holds one slot"):
        ledger.enter(grant("a"), 1.0)


def test_output_beyond_the_prediction_raises_the_kv_in_use() -> None:
    """A long answer would otherwise be invisible to the gate until the engine preempts."""
    ledger = Ledger(tiers=1)
    ledger.enter(grant("a"), 1.0)
    ledger.produced("a", 3)
    assert ledger.kv_tokens == 15
    ledger.produced("a", 40)
    assert (ledger.kv_tokens, ledger.unstarted_kv_by_tier) == (50, [50])
    ledger.start("a")
    ledger.produced("a", 90)
    assert (ledger.kv_tokens, ledger.unstarted_kv_by_tier) == (100, [0])
    assert ledger.produced("unknown", 90) is None
    ledger.leave("a", 3.0)
    assert ledger.kv_tokens == 0


def test_the_past_can_be_asked_for() -> None:
    """A scrape describes the instant at which it was sent, not the one at which it came."""
    ledger = Ledger(tiers=1)
    ledger.enter(grant("a"), 1.0)
    ledger.enter(grant("b"), 2.0)
    ledger.leave("a", 3.0)
    assert [ledger.at(instant) for instant in (0.5, 1.0, 1.9, 2.5, 9.0)] == [
        (0, 0), (1, 15), (1, 15), (2, 30), (1, 15),
    ]  # fmt: skip


def test_a_past_that_was_forgotten_is_unknown_not_empty() -> None:
    """An old scrape would make all that runs look foreign."""
    ledger = Ledger(tiers=1)
    for turn in range(HISTORY_MAX // 2 + 1):
        ledger.enter(grant("a"), float(turn))
        ledger.leave("a", turn + 0.5)
    assert ledger.at(0.0) is None
    assert ledger.at(HISTORY_MAX) == (0, 0)


def test_the_newest_unstarted_has_rank_one() -> None:
    """The engine starts them in the order of their release: the newest is the last to start."""
    ledger = Ledger(tiers=1)
    for id in "abc":
        ledger.enter(grant(id), 1.0)
    ledger.start("b")
    ranked = [(rank, each.waiting.request.id) for rank, each in ledger.rank_of_unstarted()]
    assert ranked == [(1, "c"), (2, "a")]
