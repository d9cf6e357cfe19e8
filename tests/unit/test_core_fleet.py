"""Replicas come, report, are drained, get lost and go; and are there enough of them?"""

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.breaker import BACKOFF_S
from gateway.core.messages import Outcome, Reason, ScaleAdvised
from gateway.core.policy import Policy, Scaling, Tier
from tests.support.play import Play
from tests.support.script import four_tiers, one_tier

# --- found, lost, drained, removed ------------------------------------------------------------


def test_a_found_replica_is_used_at_once() -> None:
    """Somebody waits for it."""
    script = Play().replica("r", slots=1).arrive_many("a", 2).replica("s", slots=1)
    script.expect_granted("a1", on="s")


def test_finding_the_same_replica_again_changes_nothing() -> None:
    """Discovery tells everything it sees at every turn."""
    script = Play().replica("r", slots=2).arrive_many("a", 4)
    pool, replica = script.pool(), script.known()
    script.report("r", running=2, waiting=0).replica("r", slots=2)
    assert script.pool() is pool
    assert script.known() is replica
    assert replica.report is not None
    script.expect_waiting("a2", "a3")


def test_what_is_told_of_a_replica_may_change_while_it_runs() -> None:
    """More slots after a change of the settings, another weight, a longer context."""
    script = Play().replica("r", slots=1).arrive_many("a", 4)
    script.replica("r", slots=3, weight=2.0, context_tokens=4_096).expect_granted("a2")
    replica = script.known()
    assert (replica.slots, replica.weight, replica.context_tokens) == (3, 2.0, 4_096)
    script.replica("r")
    assert (replica.slots, replica.weight, replica.context_tokens) == (None, 1.0, None)


def test_another_model_on_a_replica_lets_go_of_the_old_one() -> None:
    """What waits for it keeps waiting, and what comes for the new one runs."""
    script = Play().replica("r", slots=1).arrive_many("a", 2).replica("r", slots=1, models=("x",))
    script.finish("a0").expect_waiting("a1").arrive("x", model="x").expect_granted("x")


def test_a_prompt_longer_than_any_context_is_refused_on_arrival() -> None:
    """It would wait its turn to be told what was known at once."""
    script = Play().replica("r", slots=1, context_tokens=1_000)
    script.replica("s", slots=1, context_tokens=2_000)
    script.arrive("long", prompt_tokens=2_001)
    script.expect_refused("long", reason=Reason.PROMPT_TOO_LONG)
    script.arrive("fits", prompt_tokens=2_000).arrive(
        "guess", prompt_tokens=None, body_bytes=90_000
    )
    assert "fits" not in script.refused
    assert "guess" not in script.refused


def test_a_lost_replica_gets_nothing_new_until_it_is_found_again() -> None:
    """What runs there ends by itself; what waits goes elsewhere."""
    script = Play().replica("r1", slots=1).replica("r2", slots=1).arrive_many("a", 4)
    script.lose("r1").finish("a0").expect_waiting("a2").finish("a1").expect_granted("a2", on="r2")
    script.replica("r1", slots=1).expect_granted("a3", on="r1")


def test_a_replica_that_flaps_with_work_on_it_keeps_its_book() -> None:
    """Two requests must not be put into one slot because the line was down for a moment."""
    script = Play().replica("r", slots=2).arrive_many("a", 4).lose("r").replica("r", slots=2)
    script.expect_waiting("a2").finish("a0").expect_granted("a2").lose("r")
    script.finish("a1", "a2", outcome=Outcome.FAILED).replica("r", slots=2)
    script.advance(BACKOFF_S).expect_granted("a3")
    assert script.known().ledger.sequences == 1


def test_what_was_learnt_before_it_was_lost_is_forgotten_when_it_comes_back() -> None:
    """It may have been restarted with other settings; a mere report of life is not that."""
    script = Play().replica("r").arrive("a")
    for _ in range(2):
        script.report("r", running=4, waiting=1)
    script.replica("r")
    assert script.known().slots == 4
    script.lose("r")
    assert script.known().slots is None
    script.finish("a", outcome=Outcome.FAILED).replica("r")
    assert script.known().slots is None


def test_a_report_of_a_lost_or_unknown_replica_is_ignored() -> None:
    """It describes an engine that may no longer exist."""
    script = Play().replica("r", slots=1).lose("r").report("r", running=9, waiting=9)
    script.report("unknown", running=9, waiting=9)
    assert script.known().report is None
    assert set(script.scheduler.replicas) == {"r"}


def test_a_report_opens_what_it_shows_to_be_open() -> None:
    """Others left: nobody should wait for an event of ours."""
    script = Play().replica("r", slots=2)
    for _ in range(3):
        script.report("r", running=2, waiting=0)
    script.arrive("a").expect_waiting("a").report("r", running=0, waiting=0).expect_granted("a")


def test_a_reported_speed_beyond_the_first_tiers_target_teaches_the_limit() -> None:
    """The adaptive limit would hold a target of minutes, and never act."""
    script = Play().replica("r", slots=8).arrive_many("a", 8).start_all()
    for tokens in (0.0, 100.0):
        script.advance(1.0)
        script.report("r", running=8, waiting=0, itl_count=tokens, itl_sum_s=0.6 * tokens)
    assert script.known().limit.limit < 8.0


def test_a_draining_replica_finishes_its_work_and_may_come_back() -> None:
    """An upgrade without a lost answer."""
    script = Play().replica("r", slots=1).replica("s", slots=1).arrive_many("a", 4).drain("r")
    script.finish("a0").expect_waiting("a2").drain("r", draining=False)
    script.expect_granted("a2", on="r")


def test_a_drain_outlives_an_outage() -> None:
    """The restart that the operator drains it for must not end the drain."""
    script = Play().replica("r", slots=1).drain("r").lose("r").replica("r", slots=1)
    script.arrive("a").expect_refused("a", reason=Reason.NO_REPLICA)


def test_a_removed_replica_is_forgotten_when_its_work_has_ended_or_kept_if_found_again() -> None:
    """The ledger of a name must not be carried over to another machine."""
    script = Play().replica("r", slots=1).replica("s", slots=1).arrive_many("a", 4).remove("r")
    assert "r" in script.scheduler.replicas
    script.replica("r", slots=1).expect_waiting("a2").finish("a0").expect_granted("a2", on="r")
    script.remove("r").finish("a2")
    assert "r" not in script.scheduler.replicas
    script.expect_waiting("a3").replica("r", slots=1).expect_granted("a3", on="r")


def test_a_removed_replica_without_work_is_forgotten_at_once() -> None:
    """Its models are unknown from then on: a typo must get its 404."""
    script = Play().replica("r", slots=1).remove("r")
    assert not script.scheduler.replicas
    assert script.scheduler.pool_of("m") is None


# --- warm-up ----------------------------------------------------------------------------------


def growing(**changes: Any) -> Play:
    """One replica at work, a long line, and a fresh one of ten slots that joins it."""
    script = Play(one_tier(**changes)).replica("old", slots=1).arrive_many("a", 40)
    return script.advance(1.0).replica("new", slots=10)


def test_a_fresh_replica_beside_others_is_filled_slot_by_slot() -> None:
    """Its first ten requests would all meet cold kernels and an empty cache."""
    script = growing(warm_up_s=10.0)
    assert len(script.on("new")) == 1
    script.advance(5.0)
    assert len(script.on("new")) == 5
    script.advance(5.5)
    assert len(script.on("new")) == 10


def test_warming_up_can_be_switched_off() -> None:
    """An engine that warms itself before it answers needs no second one."""
    assert len(growing(warm_up_s=0.0).on("new")) == 10


def test_a_replica_that_comes_back_is_warmed_up_too() -> None:
    """It was restarted."""
    script = growing(warm_up_s=0.0)
    script.change(one_tier(warm_up_s=10.0)).lose("new")
    for id in script.on("new"):
        script.finish(id, outcome=Outcome.FAILED)
    script.replica("new", slots=10)
    assert len(script.on("new")) == 1


def test_where_nobody_works_yet_all_are_filled_at_once() -> None:
    """At the start of the day there is no warm one to wait for."""
    script = Play(one_tier(warm_up_s=10.0)).replica("r", slots=10).replica("s", slots=10)
    script.arrive_many("a", 20).replica("t", slots=10).arrive_many("b", 20)
    assert [len(script.on(name)) for name in "rs"] == [10, 10]
    assert len(script.on("t")) == 1
    script = Play(one_tier(warm_up_s=10.0)).replica("r", slots=5).arrive_many("a", 9).drain("r")
    script.replica("s", slots=10)
    assert len(script.on("s")) == 4


def test_two_that_join_together_do_not_wait_for_one_another() -> None:
    """One that is warming up itself is no refuge."""
    script = Play(one_tier(warm_up_s=10.0)).replica("old", slots=1).arrive_many("a", 40)
    script.replica("r", slots=10).lose("old").replica("s", slots=10)
    assert len(script.on("r")) == 1
    assert len(script.on("s")) == 10


# --- advice on the number of replicas ---------------------------------------------------------

AT_ONCE = Scaling(min=1, max=8, hold_s=0.0, cooldown_s=0.0)


def scaled(scaling: Scaling = AT_ONCE, **changes: Any) -> Play:
    """One tier of patient people, advised without delay."""
    return Play(one_tier(scaling=scaling, **changes))


def looked(script: Play, *names: str) -> list[ScaleAdvised]:
    """What is advised when a second later these have reported."""
    before = len(script.advice)
    script.advance(1.0)
    for name in names:
        script.report(name)
    return script.advice[before:]


def test_a_line_at_the_gateway_asks_for_more() -> None:
    """Late binding keeps the line here: the replicas alone look merely busy."""
    script = scaled().replica("r", slots=4).arrive_many("a", 10)
    (advice,) = looked(script, "r")
    assert advice == ScaleAdvised(frozenset({"m"}), 2, None)


def test_a_full_replica_without_a_line_asks_for_nothing() -> None:
    """That is what one pays for."""
    assert looked(scaled().replica("r", slots=4).arrive_many("a", 4), "r") == []


def test_an_idle_fleet_may_lose_its_least_busy_replica() -> None:
    """The drain that follows hurts the fewest."""
    script = scaled()
    for name in "abc":
        script.replica(name, slots=10)
    script.arrive_many("q", 2)
    assert looked(script, "a") == [ScaleAdvised(frozenset({"m"}), 2, "c")]
    script.finish("q0")
    script.remove("c")
    assert looked(script, "a") == [ScaleAdvised(frozenset({"m"}), 1, "a")]


def test_the_least_busy_is_the_one_with_the_fewest_requests_whatever_their_size() -> None:
    """Each of them is somebody's answer."""
    script = scaled()
    script.replica("a", slots=40).arrive_many("q", 3).replica("b", slots=40)
    script.arrive("n", sequences=8).expect_granted("n", on="b")
    assert looked(script, "a") == [ScaleAdvised(frozenset({"m"}), 1, "b")]


def test_advice_is_thought_about_once_a_second() -> None:
    """A hundred replicas report a hundred times a second."""
    script = scaled().replica("r", slots=4).report("r").arrive_many("a", 10)
    script.advance(0.4).report("r").advance(0.4).report("r")
    assert script.advice == []
    script.advance(0.3).report("r")
    assert len(script.advice) == 1


def test_draining_and_lost_replicas_count_for_nothing() -> None:
    """What is leaving helps nobody who waits."""
    script = scaled().replica("r", slots=4).replica("s", slots=40).drain("s")
    script.arrive_many("a", 8)
    (advice,) = looked(script, "r")
    assert advice.replicas == 2


@pytest.mark.parametrize("how", ["lose", "drain"])
def test_the_first_arrival_at_an_empty_fleet_asks_for_a_replica(how: str) -> None:
    """Scaled to zero, nothing would ever ask for the first one again."""
    script = scaled(replace(AT_ONCE, min=0)).replica("r", slots=4)
    getattr(script, how)("r")
    script.advance(5.0).arrive("a").expect_refused("a", reason=Reason.NO_REPLICA)
    assert [each.replicas for each in script.advice][-1:] == [1]


def test_a_line_whose_last_replica_is_lost_asks_for_one() -> None:
    """They wait for whatever comes first: its return, or a new one."""
    script = scaled().replica("r", slots=1).arrive_many("a", 3).lose("r").advance(3.0)
    assert script.advice
    assert script.advice[-1].replicas >= 1


def test_headroom_is_not_counted_as_used() -> None:
    """With all tiers present a third of the fleet would always seem to be full."""
    policy = four_tiers(scaling=replace(AT_ONCE, min=2, above=0.5), lend=False)
    script = Play(policy).replica("r", slots=100).replica("s", slots=100).replica("t", slots=100)
    for tier in range(4):
        script.arrive_many(f"t{tier}-", 30, tier=tier, prompt_tokens=1)
    assert [each.replicas for each in looked(script, "r")] == [2]


def test_memory_counts_where_it_is_scarcer_than_slots() -> None:
    """A hundred free slots are worth nothing without room for the prompts."""
    script = scaled().replica("r", slots=100)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=10_000)
    big: dict[str, Any] = {"prompt_tokens": 4_000, "output_tokens_max": 500}
    script.arrive_many("a", 5, **big).first_token("a0").first_token("a1").advance(1.0)
    script.report("r", running=2, waiting=0, kv_use=0.9, kv_capacity_tokens=10_000)
    # 9,000 of 10,000 used, and 13,500 more wait.
    (advice,) = script.advice
    assert advice.replicas == 2


def test_memory_of_what_has_not_begun_is_used_too_whatever_its_tier() -> None:
    """Two prompts that are prefilled now would look like an idle fleet."""
    tiers = tuple(Tier(name=name, patience_s=1e6) for name in "ab")
    script = scaled(tiers=tiers)
    for name in "rs":
        script.replica(name, slots=100)
        script.report(name, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=10_000)
    script.pool().looked_at = script.now
    script.advice.clear()
    script.arrive_many("a", 2, tier=1, prompt_tokens=4_000, output_tokens_max=500)
    assert looked(script, "r") == []


def test_a_learnt_limit_counts_where_it_is_lower_than_the_slots() -> None:
    """Sixty free slots of an engine that is already too slow are no capacity."""
    script = scaled().replica("r", slots=64).arrive_many("a", 4)
    script.known().limit.limit = 4.0
    script.arrive_many("b", 4).expect_waiting("b0")
    (advice,) = looked(script, "r")
    assert advice.replicas == 2


def test_one_replica_without_kv_figures_makes_slots_the_unit_for_all() -> None:
    """Tokens and slots must not be added up."""
    script = scaled(replace(AT_ONCE, min=2)).replica("r", slots=4).replica("s", slots=4)
    script.arrive_many("a", 8).advance(1.0)
    script.report("r", running=4, waiting=0, kv_use=0.01, kv_capacity_tokens=1_000_000)
    assert script.advice == []
    script.arrive_many("b", 4).advance(1.0).report("s", running=4, waiting=0)
    assert [each.replicas for each in script.advice] == [3]


def test_a_large_engine_counts_for_as_much_as_it_holds() -> None:
    """A small one that is full is a tenth of this fleet, not a half."""
    script = scaled().replica("a", slots=8).replica("b", slots=8).advance(1.0)
    for name, tokens, use in (("a", 90_000, 0.0), ("b", 10_000, 1.0)):
        script.report(name, running=0, waiting=0, kv_use=use, kv_capacity_tokens=tokens)
    script.advance(1.0).report("a", running=0, waiting=0, kv_capacity_tokens=90_000)
    assert [each.replicas for each in script.advice] == [1]


def test_one_that_waits_for_one_replica_of_an_idle_fleet_asks_for_nothing() -> None:
    """It is no backlog; and the replica that is taken away could be the one it waits for."""
    script = scaled()
    for name, slots in (("a", 10), ("b", 10), ("c", 1)):
        script.replica(name, slots=slots)
        script.report(name, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=50_000)
    script.pool().looked_at = script.now
    script.advice.clear()
    bound: dict[str, Any] = {"excluded": frozenset({"a", "b"})}
    script.arrive("q0", **bound).expect_granted("q0", on="c")
    script.arrive("q1", **bound).expect_waiting("q1")
    assert looked(script, "a") == []


def test_pools_are_advised_apart() -> None:
    """The line of one model is no reason for more of another."""
    script = scaled()
    script.replica("r", slots=1).replica("x", slots=1, models=("x",)).arrive_many("a", 9)
    script.arrive("b", model="x")
    assert looked(script, "r", "x") == [ScaleAdvised(frozenset({"m"}), 2, None)]


def test_the_operators_bounds_are_told_at_once() -> None:
    """A fleet below its minimum should not need a line to be noticed."""
    policy: Policy = one_tier(tiers=(Tier(name="x"),), scaling=Scaling(min=3))
    script = Play(policy).replica("r", slots=1).report("r")
    assert script.advice == [ScaleAdvised(frozenset({"m"}), 3, None)]
