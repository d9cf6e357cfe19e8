"""The gateway's own book of one replica."""

import pytest

from gateway.core.ledger import HISTORY_MAX, Ledger
from tests.support.parts import a_grant


def sums(ledger: Ledger) -> tuple[object, ...]:
    """All sums that the ledger keeps."""
    return (
        ledger.sequences,
        ledger.in_flight,
        ledger.kv_tokens,
        ledger.unstarted_sequences,
        ledger.unstarted_prompt_tokens,
        ledger.by_tier,
        ledger.unstarted_kv_by_tier,
    )


EMPTY = (0, 0, 0, 0, 0, [0, 0], [0, 0])


def test_a_grant_is_in_the_book_from_its_release_to_its_end() -> None:
    """A scrape would notice it seconds later: too late for the next decision."""
    ledger = Ledger(tiers=2)
    assert sums(ledger) == EMPTY
    ledger.enter(a_grant("a", tier=1, sequences=3), 1.0)
    assert sums(ledger) == (3, 3, 45, 3, 10, [0, 1], [0, 45])
    ledger.start("a")
    assert sums(ledger) == (3, 3, 45, 0, 0, [0, 1], [0, 0])
    ledger.leave("a", 3.0)
    assert sums(ledger) == EMPTY
    assert not ledger.grants


def test_two_grants_add_up_and_leave_one_by_one() -> None:
    """The one that stays must not pay for the one that went."""
    ledger = Ledger(tiers=2)
    ledger.enter(a_grant("a", tier=0), 1.0)
    ledger.enter(a_grant("b", tier=1, prompt_tokens=100), 1.0)
    assert sums(ledger) == (2, 2, 120, 2, 110, [1, 1], [15, 105])
    ledger.leave("a", 2.0)
    assert sums(ledger) == (1, 1, 105, 1, 100, [0, 1], [0, 105])
    assert list(ledger.unstarted) == list(ledger.grants) == ["b"]


@pytest.mark.parametrize("is_started", [False, True])
def test_a_grant_may_end_at_any_point(*, is_started: bool) -> None:
    """A leaked slot is the commonest fault of gateways like this one."""
    ledger = Ledger(tiers=2)
    ledger.enter(a_grant("a"), 1.0)
    if is_started:
        ledger.start("a")
    assert ledger.leave("a", 2.0).is_started is is_started
    assert sums(ledger) == EMPTY
    assert not ledger.unstarted


def test_starting_twice_counts_once() -> None:
    """The first token and a scrape may both testify for the same request."""
    ledger = Ledger(tiers=1)
    ledger.enter(a_grant("a"), 1.0)
    started = ledger.start("a")
    assert started is ledger.grants["a"]
    assert started.is_started
    assert ledger.start("a") is None
    assert ledger.start("unknown") is None
    assert ledger.unstarted_sequences == ledger.unstarted_prompt_tokens == 0


def test_one_request_cannot_hold_two_slots() -> None:
    """It would leave only once."""
    ledger = Ledger(tiers=1)
    ledger.enter(a_grant("a"), 1.0)
    with pytest.raises(AssertionError, match="one request holds one slot"):
        ledger.enter(a_grant("a"), 1.0)


def test_the_end_of_what_was_never_entered_is_an_error() -> None:
    """A slot that was never taken must not be given back."""
    with pytest.raises(KeyError):
        Ledger(tiers=1).leave("a", 1.0)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("sequences", "underflow: sequences"),
        ("kv_tokens", "underflow: KV tokens"),
        ("unstarted_sequences", "underflow: unstarted"),
    ],
)
def test_a_sum_below_zero_is_reported_and_never_mended(name: str, complaint: str) -> None:
    """A book that is off by one and silent overfills the engine for days."""
    ledger = Ledger(tiers=1)
    ledger.enter(a_grant("a"), 1.0)
    setattr(ledger, name, getattr(ledger, name) - 1)
    with pytest.raises(AssertionError, match=complaint):
        ledger.leave("a", 2.0)


def test_output_beyond_the_prediction_raises_the_kv_in_use() -> None:
    """A long answer would otherwise be invisible to the gate until the engine preempts."""
    ledger = Ledger(tiers=1)
    ledger.enter(a_grant("a"), 1.0)
    ledger.produced({"a": 5})
    assert ledger.kv_tokens == 15
    ledger.produced({"a": 40})
    assert (ledger.kv_tokens, ledger.unstarted_kv_by_tier) == (50, [50])
    ledger.start("a")
    ledger.produced({"a": 90})
    assert (ledger.kv_tokens, ledger.unstarted_kv_by_tier) == (100, [0])
    assert ledger.produced({"unknown": 90}) == []
    ledger.leave("a", 3.0)
    assert ledger.kv_tokens == 0


def test_the_kv_of_several_sequences_grows_by_what_all_of_them_made() -> None:
    """Each of the four holds the prompt, and the output is told as a sum."""
    ledger = Ledger(tiers=1)
    ledger.enter(a_grant("a", sequences=4), 1.0)
    ledger.produced({"a": 20})
    assert ledger.kv_tokens == 60
    ledger.produced({"a": 32})
    assert ledger.kv_tokens == 72


def test_an_older_count_of_the_output_takes_nothing_back() -> None:
    """Batches of progress may overtake one another; what was produced stays produced."""
    ledger = Ledger(tiers=1)
    ledger.enter(a_grant("a"), 1.0)
    ledger.produced({"a": 40})
    assert ledger.produced({"a": 8}) == []
    assert ledger.grants["a"].output_tokens == 40
    assert ledger.kv_tokens == 50


def test_what_needs_no_slot_is_in_flight_all_the_same() -> None:
    """Embeddings would be taken for foreign load, and the slots for chats would seem taken."""
    ledger = Ledger(tiers=1)
    ledger.enter(a_grant("e", sequences=6, output_tokens_max=0), 1.0)
    assert (ledger.sequences, ledger.unstarted_sequences, ledger.in_flight) == (0, 0, 6)
    assert (ledger.unstarted_prompt_tokens, ledger.kv_tokens) == (10, 60)
    assert ledger.at(1.0) == (6, 60)
    ledger.leave("e", 2.0)
    assert ledger.in_flight == ledger.kv_tokens == ledger.unstarted_prompt_tokens == 0


def test_what_the_engine_holds_already_is_neither_prefill_nor_new_kv() -> None:
    """A hundred requests with one system prompt would look like a hundred prompts."""
    ledger = Ledger(tiers=1)
    ledger.enter(a_grant("a", prompt_tokens=1_000, cached_tokens=960), 1.0)
    assert (ledger.unstarted_prompt_tokens, ledger.kv_tokens) == (40, 45)
    ledger.produced({"a": 10})
    assert ledger.kv_tokens == 50
    ledger.leave("a", 2.0)
    assert ledger.unstarted_prompt_tokens == ledger.kv_tokens == 0


def test_more_cached_than_the_request_will_hold_counts_as_nothing() -> None:
    """A sum below zero would hide the KV of somebody else."""
    assert a_grant("a", prompt_tokens=10, output_tokens=1, cached_tokens=64).kv_tokens == 0


def test_the_past_can_be_asked_for() -> None:
    """A scrape describes the instant at which it was sent, not the one at which it came."""
    ledger = Ledger(tiers=1)
    ledger.enter(a_grant("a"), 1.0)
    ledger.enter(a_grant("b"), 2.0)
    ledger.leave("a", 3.0)
    assert [ledger.at(instant) for instant in (0.5, 1.0, 1.9, 2.5, 9.0)] == [
        (0, 0), (1, 15), (1, 15), (2, 30), (1, 15),
    ]  # fmt: skip


def test_a_past_that_was_forgotten_is_unknown_not_empty() -> None:
    """An old scrape would make all that runs look foreign."""
    ledger = Ledger(tiers=1)
    for turn in range(HISTORY_MAX // 2):
        assert ledger.at(-1.0) == (0, 0)
        ledger.enter(a_grant("a"), float(turn))
        ledger.leave("a", turn + 0.5)
    assert ledger.at(-1.0) is None
    assert ledger.at(0.0) == (1, 15)
    assert ledger.at(HISTORY_MAX) == (0, 0)


def test_the_past_is_remembered_within_a_bound() -> None:
    """A busy replica changes a thousand times a second, for months."""
    ledger = Ledger(tiers=1)
    for turn in range(HISTORY_MAX):
        ledger.enter(a_grant("a"), float(turn))
        ledger.leave("a", turn + 0.5)
    assert ledger.at(1.0) is None
    assert ledger.at(HISTORY_MAX - 1.0) == (1, 15)


def test_the_unstarted_stay_in_the_order_of_their_release() -> None:
    """The engine starts them in that order: the newest is the last to start."""
    ledger = Ledger(tiers=1)
    for id in "abcd":
        ledger.enter(a_grant(id), 1.0)
    ledger.start("b")
    ledger.leave("d", 2.0)
    assert list(ledger.unstarted) == ["a", "c"]
    assert list(ledger.grants) == ["a", "b", "c"]


def test_new_tiers_get_the_grants_of_the_old_ones() -> None:
    """A tier that is removed while its requests run must not take their KV out of the books."""
    ledger = Ledger(tiers=3)
    ledger.enter(a_grant("a", tier=0), 1.0)
    ledger.enter(a_grant("b", tier=1), 1.0)
    ledger.enter(a_grant("c", tier=2, prompt_tokens=100), 1.0)
    ledger.start("b")
    ledger.resize({0: 0, 1: 1, 2: 1}, 2)
    assert (ledger.by_tier, ledger.unstarted_kv_by_tier) == ([1, 2], [15, 105])
    for id in "abc":
        ledger.leave(id, 2.0)
    assert sums(ledger) == EMPTY
