"""How free a replica is for a tier."""

import pytest

from gateway.core.freeness import SLOTS_UNKNOWN, freeness
from gateway.core.replica import Replica
from tests.support.script import Script, four_tiers

HEADROOM = tuple(four_tiers().headroom_fraction(tier) for tier in range(4))
NONE = (0.0, 0.0, 0.0, 0.0)


def loaded(script: Script) -> Replica:
    """The replica of the script."""
    return script.scheduler.replicas["r"]


def replica_of(*, kv_use: float | None = None, kv_capacity_tokens: int | None = None) -> Script:
    """A replica of eight slots which reported these figures."""
    script = Script(four_tiers(lend=False, headroom_max=0.0)).replica("r", slots=8)
    return script.report(
        "r", running=0, waiting=0, kv_use=kv_use, kv_capacity_tokens=kv_capacity_tokens
    )


def test_an_idle_replica_scores_its_own_slots() -> None:
    """One unit for all thresholds, whatever the model and its memory."""
    assert freeness(loaded(replica_of()), NONE, 0) == 8
    kv = replica_of(kv_use=0.0, kv_capacity_tokens=50_000)
    assert freeness(loaded(kv), NONE, 0) == 8
    unknown = Script(four_tiers()).replica("r")
    assert freeness(loaded(unknown), NONE, 0) == SLOTS_UNKNOWN


def test_what_runs_and_what_has_not_started_both_count() -> None:
    """Counting only what runs would pile every burst onto one replica."""
    script = replica_of(kv_use=0.0, kv_capacity_tokens=1_000)
    script.arrive("a", prompt_tokens=100, output_tokens_max=100)
    assert freeness(loaded(script), NONE, 0) == pytest.approx(0.8 * 8)
    script.arrive("b", prompt_tokens=100, output_tokens_max=100)
    assert freeness(loaded(script), NONE, 0) == pytest.approx(0.6 / 2 * 8)
    script.first_token("a")
    assert freeness(loaded(script), NONE, 0) == pytest.approx(0.6 / 2 * 8)


def test_unstarted_work_of_lower_tiers_does_not_count() -> None:
    """Critical work would otherwise flee from a replica where it goes first anyway."""
    script = replica_of(kv_use=0.0, kv_capacity_tokens=1_000)
    script.arrive("a", tier=2, prompt_tokens=100, output_tokens_max=100)
    assert freeness(loaded(script), NONE, 0) == pytest.approx(8)
    assert freeness(loaded(script), NONE, 2) == pytest.approx(0.8 * 8)
    assert freeness(loaded(script), NONE, 3) == pytest.approx(0.8 * 8)
    script.first_token("a")
    assert freeness(loaded(script), NONE, 0) == pytest.approx(0.8 * 8)


def test_the_headroom_of_each_tier_present_is_taken() -> None:
    """A replica with critical work on it should attract less than one without."""
    script = replica_of(kv_use=0.0, kv_capacity_tokens=1_000)
    script.arrive("a", tier=1, prompt_tokens=100, output_tokens_max=100)
    expected = (1 - 0.2 - HEADROOM[1]) * 8
    assert freeness(loaded(script), HEADROOM, 1) == pytest.approx(expected)


def test_an_overfull_replica_is_below_zero_and_a_weight_does_not_change_that() -> None:
    """A big weight must not make the overload of a replica look smaller or larger."""
    script = replica_of()
    for _ in range(3):
        script.advance(1.0).report("r", running=12, waiting=0)
    assert freeness(loaded(script), NONE, 0) == pytest.approx(-0.5)
    loaded(script).weight = 4.0
    assert freeness(loaded(script), NONE, 0) == pytest.approx(-0.5)


def test_a_weight_makes_a_replica_more_attractive() -> None:
    """The operator knows which machine is the better one."""
    script = replica_of().replica("r", slots=8, weight=2.0)
    assert freeness(loaded(script), NONE, 0) == 16


@pytest.mark.parametrize("state", ["is_lost", "is_draining", "is_removed"])
def test_what_takes_nothing_is_infinitely_full(state: str) -> None:
    """Nothing new goes where nothing new may go."""
    replica = loaded(replica_of())
    setattr(replica, state, True)
    assert freeness(replica, NONE, 0) == float("-inf")
