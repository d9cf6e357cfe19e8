"""A new policy, the passing of time, and the end."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.messages import Outcome, Reason, Usage
from gateway.core.policy import DEFAULT_TIERS, Affinity, Ageing, Bounds, Policy, Tenant, Tier
from tests.support.play import Play
from tests.support.script import four_tiers, one_tier


def patient(patience_s: float = 1e6, *, queue_limit: int = 0, **changes: Any) -> Policy:
    """One tier whose requests wait so long."""
    tier = Tier(name="only", queue_limit=queue_limit, patience_s=patience_s)
    return one_tier(**{"tiers": (tier,), **changes})


# --- policy: tiers ----------------------------------------------------------------------------

TWO = (DEFAULT_TIERS[0], replace(DEFAULT_TIERS[2], name="rest"))
MOVED = {"high": "critical", "standard": "rest", "background": "rest"}


def test_a_tier_that_is_removed_hands_its_requests_over() -> None:
    """Nobody's request may vanish with the operator's tier."""
    script = Play(four_tiers(recall=False)).replica("r", slots=1).arrive("held", tier=3)
    for tier in range(4):
        script.arrive_many(f"t{tier}-", 3, tier=tier, user=f"u{tier}")
    script.change(four_tiers(tiers=TWO, recall=False), MOVED)
    assert [queue.count for queue in script.pool().queues] == [5, 6]
    assert [tally.requests for tally in script.scheduler.room.by_tier] == [5, 6]
    script.finish("held").serve(20)
    assert len(script.order) == 13
    assert all(id.startswith(("t0", "t1")) for id in script.order[1:7])


def test_what_runs_is_handed_over_too() -> None:
    """Its memory is counted by tier, and its recall would come from a tier that is gone."""
    script = Play(four_tiers()).replica("r", slots=8).arrive("low", tier=3).arrive("high", tier=1)
    script.change(four_tiers(tiers=TWO), MOVED)
    assert script.known().ledger.by_tier == [1, 1]
    assert script.scheduler.granted["low"][0].tier == 1
    assert script.scheduler.granted["low"][0].waiting.request.tier == 1
    script.finish("low", "high")
    assert script.known().ledger.by_tier == [0, 0]


def test_a_bounced_request_goes_back_into_its_new_tier() -> None:
    """The rank it arrived with may no longer exist."""
    script = Play(four_tiers()).replica("r", slots=1).arrive("low", tier=3)
    script.change(four_tiers(tiers=TWO), MOVED).bounce("low").expect_waiting("low")
    assert [queue.count for queue in script.pool().queues] == [0, 1]
    script.advance(1.0).expect_granted("low")


def test_a_policy_that_forgets_where_a_tiers_requests_go_changes_nothing() -> None:
    """Half a change would be worse than none."""
    script = Play(four_tiers()).replica("r", slots=1).arrive_many("a", 3, tier=1)
    with pytest.raises(KeyError):
        script.change(four_tiers(tiers=DEFAULT_TIERS[:1]), {})
    script.check()
    assert len(script.scheduler.policy.tiers) == 4
    script.serve(3)
    assert len(script.order) == 3


def test_a_tier_more_takes_nothing_from_anybody() -> None:
    """Tiers keep their requests by name, whatever their new rank."""
    script = Play(one_tier(tiers=TWO)).replica("r", slots=1).arrive_many("held", 2, tier=0)
    script.arrive_many("rest", 2, tier=1).arrive("top", tier=0)
    three = (Tier(name="vip"), *TWO)
    script.change(one_tier(tiers=three))
    assert [queue.count for queue in script.pool().queues] == [0, 1, 2]
    script.arrive("vip", tier=0).serve(2)
    assert script.order[2:] == ["vip", "top"]


def test_a_tier_more_at_the_end_takes_nothing_from_anybody() -> None:
    """Every rank is what it was, and yet there is one queue more."""
    script = Play(one_tier(tiers=TWO)).replica("r", slots=1).arrive_many("held", 2, tier=0)
    script.arrive_many("rest", 2, tier=1)
    script.change(one_tier(tiers=(*TWO, Tier(name="bulk"))))
    assert [queue.count for queue in script.pool().queues] == [0, 2, 0]
    script.arrive("bulk", tier=2).serve(4)
    assert script.order[-2:] == ["rest1", "bulk"]


def test_shares_and_ageing_are_switched_on_and_off_under_load() -> None:
    """An operator tries them out on a busy afternoon."""
    plain = four_tiers(recall=False)
    both = four_tiers(recall=False, order="weighted", ageing=Ageing(after_s=5.0))
    script = Play(plain).replica("r", slots=1).arrive_many("a", 8, tier=1)
    script.arrive_many("b", 8, tier=3)
    for policy in (both, plain, both):
        script.change(policy).serve(2)
    script.cancel(*script.waiting).finish(*script.running)
    assert script.pool().count == 0


# --- policy: charges --------------------------------------------------------------------------


def test_a_change_of_the_cost_unit_forgives_debts_rather_than_misread_them() -> None:
    """Ten thousand tokens of debt must not become ten thousand turns."""
    script = Play(one_tier(cost="tokens")).replica("r", slots=1)
    script.arrive_many("a", 20, user="a").arrive_many("b", 20, user="b").serve(7)
    script.change(one_tier(cost="requests")).serve(20)
    assert abs(script.count_of("a") - script.count_of("b")) <= 2


def test_what_runs_is_settled_in_the_new_unit() -> None:
    """A refund of tokens would be a thousand free turns."""
    script = Play(one_tier(cost="tokens")).replica("r", slots=1)
    script.arrive("a", user="a", prompt_tokens=5_000).change(one_tier(cost="requests"))
    assert script.scheduler.granted["a"][0].charged == 1.0
    script.arrive_many("a1", 3, user="a").arrive_many("b", 3, user="b").finish("a").serve(4)
    assert abs(script.count_of("a1") - script.count_of("b")) <= 1


def test_a_change_of_weights_keeps_what_was_used_so_far() -> None:
    """An operator who saves the settings must not reset the day's fairness."""
    script = Play(one_tier(cost="tokens")).replica("r", slots=1).arrive("w", user="w")
    script.arrive("big", user="a", prompt_tokens=5_000).arrive_many("a", 5, user="a")
    script.arrive_many("b", 5, user="b").serve(2).change(one_tier(cost="tokens", hold_s=30.0))
    script.serve(3)
    assert script.count_of("b") >= 4


def test_a_change_of_weights_keeps_what_was_charged_while_it_ran() -> None:
    """A long answer would be refunded what it has used beyond its estimate."""
    script = Play(one_tier(cost="tokens")).replica("r", slots=1).arrive("a", user="a")
    charged = script.progress("r", a=5_000).scheduler.granted["a"][0].charged
    assert charged > 5_000.0
    script.change(one_tier(cost="tokens", tenants={"t": Tenant(users={"a": 3.0})}))
    assert script.scheduler.granted["a"][0].charged == charged


def test_new_weights_count_for_what_waits_already() -> None:
    """The operator changes them because of the line that is there."""
    script = Play(one_tier()).replica("r", slots=1).arrive("held", user="z")
    for user in "ab":
        script.arrive_many(user, 12, user=user)
    tenants = {"t": Tenant(users={"a": 3.0})}
    script.change(one_tier(tenants=tenants)).serve(12)
    assert script.count_of("a") == pytest.approx(9, abs=1)


def test_what_was_predicted_is_priced_anew() -> None:
    """A cheaper output makes the long answers cheaper that wait already."""
    policy = one_tier(cost="tokens")
    script = Play(policy).replica("r", slots=1).arrive("held")
    script.arrive("a", prompt_tokens=100, output_tokens_max=50)
    assert script.scheduler.waiting["a"].cost == 200
    script.change(replace(policy, weights=replace(policy.weights, output=4.0)))
    assert script.scheduler.waiting["a"].cost == 300


# --- policy: everything else ------------------------------------------------------------------


def test_a_wider_gate_lets_go_at_once() -> None:
    """Nobody should wait for an event that may not come."""
    script = Play(one_tier(inflight_limit=1)).replica("r", slots=8).arrive_many("a", 5)
    script.change(one_tier(inflight_limit=4))
    assert len(script.running) == 4


def test_a_promised_patience_is_kept() -> None:
    """The client was told how long it would wait; newcomers get the new one."""
    script = Play(patient(20.0)).replica("r", slots=1).arrive("held").arrive("a")
    script.change(patient(5.0)).arrive("b").advance(6.0).expect_waiting("a")
    script.expect_refused("b", reason=Reason.PATIENCE_SPENT).advance(15.0)
    script.expect_refused("a", reason=Reason.PATIENCE_SPENT)


def test_another_order_inside_a_user_holds_for_what_waits() -> None:
    """The short ones that wait already are the reason for the change."""
    script = Play(one_tier(cost="requests")).replica("r", slots=1).arrive("held")
    script.arrive("long", prompt_tokens=3_000).arrive("short", prompt_tokens=1)
    script.change(one_tier(cost="requests", within_user="shortest")).finish("held")
    script.expect_granted("short")


def test_lower_bounds_are_kept_to_from_the_next_arrival_on() -> None:
    """What was let in stays in; the table of predictions shrinks at once."""
    script = Play(one_tier()).replica("r", slots=1).arrive("held").arrive_many("a", 5)
    script.change(one_tier(bounds=Bounds(waiting_per_user=2, waiting=4, predictions=1)))
    script.expect_waiting("a4").arrive("b").expect_refused("b", reason=Reason.USER_QUEUE_FULL)
    script.arrive("c", user="c")
    assert len(script.waiting) == 4
    assert script.scheduler.predictor._entries_max == 1


def test_replicas_know_the_new_bounds_on_what_they_remember() -> None:
    """Memory is what the operator wanted back."""
    script = Play(one_tier()).replica("r", slots=1)
    script.change(one_tier(bounds=Bounds(prefixes=7, sessions=3), affinity=Affinity(prefix=0.0)))
    assert script.known().cache.limit == 7
    ties = script.pool().ties
    assert (ties.blocks.limit, ties.sessions.limit) == (7, 3)


# --- the contrast -----------------------------------------------------------------------------


def test_fifo_forwards_everything_at_once_to_the_least_outstanding() -> None:
    """The contrast of the demo: no queue, no gate, no fairness."""
    script = Play(one_tier(release_at_once=True)).replica("r", slots=1).replica("s", slots=1)
    script.arrive_many("a", 50)
    assert len(script.running) == 50
    assert len(script.on("r")) == len(script.on("s")) == 25
    script.finish(*script.on("r")).arrive("b").expect_granted("b", on="r")


def test_changing_to_fifo_forwards_what_waits_and_back_again_does_not() -> None:
    """Requests must not be left in a queue that nobody serves any more."""
    script = Play().replica("r", slots=1).arrive_many("a", 5)
    script.change(one_tier(release_at_once=True))
    assert not script.waiting
    script.bounce("a4").advance(1.0).expect_granted("a4")
    script.change(one_tier()).arrive("b").expect_waiting("b").finish(*script.running)
    script.expect_granted("b")


def test_what_ran_free_of_charge_is_charged_when_it_ends_under_the_new_policy() -> None:
    """Switching the contrast off must not give its users a head start."""
    script = Play(one_tier(release_at_once=True, cost="tokens")).replica("r", slots=1)
    script.arrive("a", user="a", prompt_tokens=1_000).change(one_tier(cost="tokens"))
    script.arrive_many("a", 3, user="a").arrive_many("b", 3, user="b").finish("a").serve(4)
    assert script.order[1:5].count("a0") + script.order[1:5].count("a1") <= 1


def test_what_was_forwarded_has_been_charged_nothing_so_far() -> None:
    """Counted in requests, the first one charged would be the second."""
    script = Play(one_tier(release_at_once=True)).replica("r", slots=1).arrive("a")
    assert script.scheduler.granted["a"][0].charged == 0.0


def test_fifo_charges_nobody() -> None:
    """The accounts of the day stand as they were when it is switched off again."""
    script = Play(one_tier(release_at_once=True, cost="tokens")).replica("r", slots=1)
    script.arrive("a", user="a").progress("r", a=9_999).finish(
        "a", usage=Usage(output_tokens=9_999)
    )
    assert "t" not in script.pool().queues[0].tenants


# --- time -------------------------------------------------------------------------------------


def test_patience_that_ends_is_said_with_its_reason() -> None:
    """The client learns whether to come back or to look elsewhere."""
    script = Play(patient(10.0)).replica("r", slots=1).arrive_many("a", 2)
    script.advance(9.9).expect_waiting("a1").advance(0.2)
    script.expect_refused("a1", reason=Reason.PATIENCE_SPENT)
    script.arrive("b").lose("r").advance(10.1).expect_refused("b", reason=Reason.NO_REPLICA)


def test_whoever_asks_again_for_the_replica_that_failed_it_learns_when_to_stop() -> None:
    """Its patience is a promise, also while there is no replica at all."""
    script = Play(patient(20.0)).replica("r", slots=1).lose("r").advance(20.0)
    failed = frozenset({"r"})
    script.arrive("a", arrived_at=0.0, excluded=failed)
    script.expect_refused("a", reason=Reason.NO_REPLICA).advance(0.1)
    script.arrive("b", arrived_at=0.0, excluded=failed)
    script.expect_refused("b", reason=Reason.PATIENCE_SPENT)
    script.arrive("c", arrived_at=0.0).expect_refused("c", reason=Reason.NO_REPLICA)


def test_all_whose_patience_ended_are_told_in_one_step() -> None:
    """The tenth must not wait for ten wake-ups."""
    script = Play(patient(10.0)).replica("r", slots=1).arrive("held").arrive_many("a", 10)
    script.advance(10.0)
    script.expect_refused(*(f"a{number}" for number in range(10)), reason=Reason.PATIENCE_SPENT)


def test_a_request_may_have_less_patience_than_its_tier_but_not_more() -> None:
    """A header must not buy a place for an hour."""
    script = Play(patient(10.0)).replica("r", slots=1).arrive("held")
    script.arrive("less", patience_s=3.0).arrive("more", patience_s=99.0)
    script.advance(3.1).expect_refused("less", reason=Reason.PATIENCE_SPENT).expect_waiting("more")
    script.advance(7.0).expect_refused("more", reason=Reason.PATIENCE_SPENT)


def test_when_a_head_expires_those_behind_it_are_looked_at() -> None:
    """It did not fit; they may."""
    script = Play(patient(10.0, reserve_after_s=1e6)).replica("r", slots=4).arrive_many("a", 3)
    script.arrive("n4", sequences=4, user="v", patience_s=2.0)
    script.arrive("n2", sequences=1, user="v").expect_granted("n2").finish("a0")
    script.arrive("n4b", sequences=4, user="v").advance(2.5)
    script.expect_refused("n4", reason=Reason.PATIENCE_SPENT).expect_waiting("n4b")


def test_time_alone_opens_gates() -> None:
    """Nothing happens any more, and the slow moment is over."""
    script = Play(patient()).replica("r", slots=4).arrive_many("a", 2).finish("a0", tpot_s=0.5)
    script.arrive("b").expect_waiting("b").advance(60.0).expect_granted("b")


def test_plain_requests_go_on_starting_while_the_metrics_are_down() -> None:
    """Without any scrape their predicted prefill decides, or they would trickle."""
    script = Play(patient(queue_limit=1)).replica("r").report("r", running=0, waiting=0)
    script.arrive_many("a", 3, streams=False).expect_waiting("a1", "a2")
    script.advance(2.9).expect_waiting("a1").advance(0.7).expect_granted("a1")
    script.advance(1.0).expect_granted("a2")


def test_plain_requests_start_on_an_engine_that_never_reported() -> None:
    """One without a metrics endpoint would serve a single plain request at a time, for ever."""
    script = Play(patient(queue_limit=1)).replica("r").arrive_many("a", 3, streams=False)
    script.advance(3.0).expect_granted("a0", "a1", "a2")


def test_stale_reports_are_noticed_when_nothing_else_happens() -> None:
    """The foreign load of the last scrape would hold a slot for ever; its usual one does not."""
    script = Play(patient()).replica("r", slots=4)
    for load in (0, 0, 0, 4, 4, 4):
        script.report("r", running=load, waiting=0)
    script.arrive("a").expect_waiting("a").advance(2.0)
    assert not script.known().is_stale
    script.advance(1.5)
    assert script.known().is_stale


# --- the end ----------------------------------------------------------------------------------


def test_shutting_down_refuses_what_waits_and_leaves_what_runs() -> None:
    """A rolling upgrade of the gateway itself."""
    script = Play().replica("r", slots=2).arrive_many("a", 4).close()
    script.expect_refused("a2", "a3", reason=Reason.SHUTTING_DOWN).expect_granted("a0", "a1")
    script.arrive("late").expect_refused("late", reason=Reason.SHUTTING_DOWN)
    script.bounce("a0").expect_refused("a0", reason=Reason.SHUTTING_DOWN).finish("a1")
    assert not script.scheduler.granted


def test_a_closed_gateway_still_settles_what_runs() -> None:
    """A cluster goes on with the accounts."""
    script = Play(one_tier(cost="tokens")).replica("r", slots=1).close()
    script.arrive("late").expect_refused("late", reason=Reason.SHUTTING_DOWN)
    script = Play(one_tier(cost="tokens")).replica("r", slots=1).arrive("a").close()
    script.finish("a", outcome=Outcome.DONE, usage=Usage(prompt_tokens=10, output_tokens=7))
    assert script.start_of("u") == 24


def test_everybody_refused_is_told_when_to_come_back() -> None:
    """Without a hint all of them come back in the same second."""
    script = Play().replica("r", slots=1).arrive_many("a", 4).close()
    hints = [refused.retry_after_s for refused in script.refused.values()]
    assert all(hint is not None and 1.0 <= hint <= 30.0 for hint in hints)
