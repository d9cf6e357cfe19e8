"""How free a replica is for a tier."""

from typing import Any

import pytest

from gateway.core.freeness import SLOTS_UNKNOWN, capacity_and_use, freeness, score
from gateway.core.replica import Replica
from tests.support.parts import a_replica, put, put_many, report
from tests.support.script import four_tiers

HEADROOM = tuple(four_tiers().headroom_fraction(tier) for tier in range(4))
NONE = (0.0, 0.0, 0.0, 0.0)
FULL: dict[str, Any] = {"prompt_tokens": 100, "output_tokens": 100}
"""A fifth of 1,000 KV tokens."""


def replica_of(*, slots: int | None = 8, kv_capacity_tokens: int | None = None) -> Replica:
    """A replica of four tiers, idle as its report says."""
    replica = a_replica(slots=slots, tiers=4)
    kv_use = None if kv_capacity_tokens is None else 0.0
    report(replica, running=0, waiting=0, kv_use=kv_use, kv_capacity_tokens=kv_capacity_tokens)
    return replica


def test_an_idle_replica_scores_its_own_slots() -> None:
    """One unit for all thresholds, whatever the model and its memory."""
    assert freeness(replica_of(), NONE, 0) == 8
    assert freeness(replica_of(kv_capacity_tokens=50_000), NONE, 0) == 8
    assert freeness(a_replica(tiers=4), NONE, 0) == SLOTS_UNKNOWN


def test_what_runs_and_what_has_not_started_both_count() -> None:
    """Counting only what runs would pile every burst onto one replica."""
    replica = replica_of(kv_capacity_tokens=1_000)
    put(replica, "a", **FULL)
    assert freeness(replica, NONE, 0) == pytest.approx(0.8 * 8)
    put(replica, "b", **FULL)
    assert freeness(replica, NONE, 0) == pytest.approx(0.6 / 2 * 8)
    replica.ledger.start("a")
    replica.touch()
    assert freeness(replica, NONE, 0) == pytest.approx(0.6 / 2 * 8)


def test_without_kv_figures_slots_are_the_unit() -> None:
    """TGI, llama.cpp and pooling engines tell no memory."""
    replica = replica_of()
    put_many(replica, 2, tier=3)
    assert capacity_and_use(replica, 0) == (8.0, 2.0)
    assert freeness(replica, NONE, 0) == pytest.approx((8 - 2) / 2)
    unknown = a_replica(tiers=4)
    put(unknown, "a")
    assert capacity_and_use(unknown, 0) == (float(SLOTS_UNKNOWN), 1.0)


def test_unstarted_work_of_lower_tiers_does_not_count() -> None:
    """Critical work would otherwise flee from a replica where it goes first anyway."""
    replica = replica_of(kv_capacity_tokens=1_000)
    put(replica, "a", tier=2, **FULL)
    put(replica, "b", tier=3, prompt_tokens=100, output_tokens=200)
    used = [capacity_and_use(replica, tier)[1] for tier in range(4)]
    assert used == [0.0, 0.0, 200.0, 500.0]
    assert freeness(replica, NONE, 1) == pytest.approx(8 / 2)
    replica.ledger.start("a")
    replica.touch()
    assert [capacity_and_use(replica, tier)[1] for tier in range(4)] == [200, 200, 200, 500]
    assert freeness(replica, NONE, 0) == pytest.approx(0.8 / 2 * 8)


def test_kv_that_is_less_than_the_unstarted_work_is_none_not_a_debt() -> None:
    """A scraped figure that is behind the book would make a full replica look freer than empty."""
    replica = replica_of(kv_capacity_tokens=1_000)
    put(replica, "a", tier=3, **FULL)
    report(replica, now=1.0, running=1, waiting=0, kv_use=0.1, kv_capacity_tokens=1_000)
    assert capacity_and_use(replica, 0) == (1_000.0, 0.0)


def test_the_headroom_of_each_tier_present_is_taken() -> None:
    """A replica with critical work on it should attract less than one without."""
    replica = replica_of(kv_capacity_tokens=1_000)
    put(replica, "a", tier=1, **FULL)
    expected = (1 - 0.2 - HEADROOM[1]) * 8
    assert freeness(replica, HEADROOM, 1) == pytest.approx(expected)
    put(replica, "b", tier=0, prompt_tokens=1, output_tokens=0)
    put(replica, "c", tier=0, prompt_tokens=1, output_tokens=0)
    expected = (1 - 0.202 - HEADROOM[1] - HEADROOM[0]) / 3 * 8
    assert freeness(replica, HEADROOM, 1) == pytest.approx(expected)


def test_headroom_is_a_share_of_the_slots_where_there_is_no_kv() -> None:
    """The same formula in the other unit."""
    replica = replica_of()
    put(replica, "a", tier=0)
    assert freeness(replica, HEADROOM, 3) == pytest.approx(8 - 1 - 0.2 * 8)


def test_an_overfull_replica_is_below_zero_and_a_weight_does_not_change_that() -> None:
    """A big weight must not make the overload of a replica look smaller or larger."""
    replica = replica_of()
    replica.foreign = 12
    replica.touch()
    assert freeness(replica, NONE, 0) == pytest.approx(-0.5)
    replica.weight = 4.0
    replica.touch()
    assert freeness(replica, NONE, 0) == pytest.approx(-0.5)


def test_an_overload_of_memory_is_measured_in_slots_worth_too() -> None:
    """Twice the memory in demand is one full replica too much, whatever its size."""
    replica = replica_of(kv_capacity_tokens=1_000)
    assert score(replica, 1_000.0, 2_000.0, 5) == pytest.approx(-8 / 1_000)
    assert score(replica, 1_000.0, 1_000.0, 5) == 0.0
    assert score(replica, 1_000.0, 999.0, 5) > 0.0


def test_a_weight_makes_a_replica_more_attractive() -> None:
    """The operator knows which machine is the better one."""
    replica = replica_of()
    replica.weight = 2.0
    assert freeness(replica, NONE, 0) == 16
    put_many(replica, 4)
    assert freeness(replica, NONE, 0) == 2.0


@pytest.mark.parametrize("state", ["lost", "draining", "removed"])
def test_what_takes_nothing_is_infinitely_full(state: str) -> None:
    """Nothing new goes where nothing new may go."""
    replica = replica_of()
    assert freeness(replica, NONE, 0) == 8
    how: dict[str, Any] = {state: True}
    replica.mark(**how)
    assert freeness(replica, NONE, 0) == float("-inf")
    how[state] = False
    replica.mark(**how)
    assert freeness(replica, NONE, 0) == 8


def test_what_was_worked_out_is_kept_for_each_tier_until_something_changes() -> None:
    """A figure of before the last grant would send two requests into one slot."""
    replica = replica_of()
    assert [freeness(replica, HEADROOM, tier) for tier in (0, 3)] == [8, 8]
    assert set(replica.scores) == {0, 3}
    put(replica, "a", tier=0)
    assert replica.scores == {}
    assert freeness(replica, NONE, 0) == 7
