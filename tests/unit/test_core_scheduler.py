"""Ends, losses and changes: that nobody is forgotten, and nobody is answered twice."""

from dataclasses import replace

import pytest

from gateway.core.messages import (
    Arrived,
    Bounced,
    Cancelled,
    Finished,
    FirstToken,
    Outcome,
    Progressed,
    Reason,
    ReplicaReport,
    ReplicaReported,
)
from gateway.core.policy import DEFAULT_TIERS, Tier
from tests.support.script import Script, four_tiers, one_tier


def test_patience_that_ends_is_said_with_its_reason() -> None:
    """The client learns whether to come back or to look elsewhere."""
    policy = one_tier(tiers=(Tier(name="x", queue_limit=0, patience_s=10.0),))
    script = Script(policy).replica("r", slots=1).arrive_many("a", 2)
    script.advance(9.9).expect_waiting("a1").advance(0.2)
    script.expect_refused("a1", reason=Reason.PATIENCE_SPENT)
    script.arrive("b").lose("r").advance(10.1).expect_refused("b", reason=Reason.NO_REPLICA)


def test_without_a_replica_a_request_is_refused_at_once() -> None:
    """Nobody should wait half a minute for a service that is down."""
    script = Script().arrive("a").expect_refused("a", reason=Reason.NO_REPLICA)
    script.replica("r", slots=1).lose("r").arrive("b")
    script.expect_refused("b", reason=Reason.NO_REPLICA)
    script.replica("r", slots=1).drain("r").arrive("c")
    script.expect_refused("c", reason=Reason.NO_REPLICA)


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("is_started", [False, True])
def test_however_a_request_ends_its_slot_comes_back(*, is_started: bool, outcome: Outcome) -> None:
    """A leaked slot shrinks the service until somebody restarts it."""
    script = Script(four_tiers()).replica("r", slots=1).arrive("a").arrive_many("b", 2)
    if is_started:
        script.first_token("a")
    script.finish("a", outcome=outcome).expect_granted("b1").finish("b0", "b1")
    assert script.scheduler.replicas["r"].ledger.sequences == 0


def test_the_end_of_a_request_may_be_told_twice_and_at_any_time() -> None:
    """The relay's cleanup and the upstream's end may both report it."""
    script = Script().replica("r", slots=1).arrive("a").arrive("b")
    end = Finished("a", Outcome.DONE)
    script.finish("a").tell(end).tell(end).expect_granted("b")
    script.finish("b").tell(Finished("b", Outcome.CANCELLED)).tell(Cancelled("b"))
    for event in (end, Cancelled("x"), FirstToken("x"), Bounced("x"), Progressed("r", {"x": 3})):
        script.tell(event)
    script.tell(Progressed("unknown", {"x": 3})).lose("unknown").remove("unknown")
    script.drain("unknown").report("unknown", running=3, waiting=0)
    script.arrive("c").expect_granted("c")


def test_who_waits_can_end_too() -> None:
    """A client that hangs up in the queue is nobody's work."""
    script = Script().replica("r", slots=1).arrive_many("a", 4).cancel("a1")
    script.finish("a2", outcome=Outcome.CANCELLED).finish("a0").expect_granted("a3")
    script.expect_order("a0", "a3")


def test_a_lost_replica_gets_nothing_new_until_it_is_found_again() -> None:
    """What runs there ends by itself; what waits goes elsewhere."""
    script = Script().replica("r1", slots=1).replica("r2", slots=1).arrive_many("a", 4)
    script.lose("r1").finish("a0").expect_waiting("a2").finish("a1").expect_granted("a2", on="r2")
    script.replica("r1", slots=1).expect_granted("a3", on="r1")


def test_a_replica_that_flaps_with_work_on_it_keeps_its_book() -> None:
    """Two requests must not be put into one slot because the line was down for a moment."""
    script = Script().replica("r", slots=2).arrive_many("a", 4).lose("r").replica("r", slots=2)
    script.expect_waiting("a2").finish("a0").expect_granted("a2").lose("r")
    script.finish("a1", "a2", outcome=Outcome.FAILED).replica("r", slots=2)
    script.expect_granted("a3")
    assert script.scheduler.replicas["r"].ledger.sequences == 1


def test_a_draining_replica_finishes_its_work_and_may_come_back() -> None:
    """An upgrade without a lost answer."""
    script = Script().replica("r", slots=1).replica("s", slots=1).arrive_many("a", 4).drain("r")
    script.finish("a0").expect_waiting("a2").drain("r", draining=False)
    script.expect_granted("a2", on="r")


def test_a_removed_replica_is_forgotten_when_its_work_has_ended_or_kept_if_found_again() -> None:
    """The ledger of a name must not be carried over to another machine."""
    script = Script().replica("r", slots=1).replica("s", slots=1).arrive_many("a", 4).remove("r")
    assert "r" in script.scheduler.replicas
    script.replica("r", slots=1).expect_waiting("a2").finish("a0").expect_granted("a2", on="r")
    script.remove("r").finish("a2")
    assert "r" not in script.scheduler.replicas
    script.expect_waiting("a3").replica("r", slots=1).expect_granted("a3", on="r")


def test_a_bounced_request_tries_another_replica_at_once() -> None:
    """The engine is busy; its neighbour is not."""
    script = Script().replica("r", slots=1).arrive("a").replica("s", slots=1).bounce("a")
    script.expect_granted("a", on="s")


def test_a_bounce_without_any_replica_left_is_an_answer() -> None:
    """The request must not wait for nothing."""
    script = Script().replica("r", slots=1).arrive("a").lose("r").bounce("a")
    script.expect_refused("a", reason=Reason.NO_REPLICA)


def test_shutting_down_refuses_what_waits_and_leaves_what_runs() -> None:
    """A rolling upgrade of the gateway itself."""
    script = Script().replica("r", slots=2).arrive_many("a", 4).close()
    script.expect_refused("a2", "a3", reason=Reason.SHUTTING_DOWN).expect_granted("a0", "a1")
    script.arrive("late").expect_refused("late", reason=Reason.SHUTTING_DOWN)
    script.bounce("a0").expect_refused("a0", reason=Reason.SHUTTING_DOWN).finish("a1")
    assert not script.scheduler.granted


def test_a_tier_that_is_removed_hands_its_requests_over() -> None:
    """Nobody's request may vanish with the operator's tier."""
    script = Script(four_tiers()).replica("r", slots=1).arrive("held", tier=3)
    for tier in range(4):
        script.arrive_many(f"t{tier}-", 3, tier=tier, user=f"u{tier}")
    two = (DEFAULT_TIERS[0], replace(DEFAULT_TIERS[2], name="rest"))
    moved_to = {"high": "critical", "standard": "rest", "background": "rest"}
    script.change(four_tiers(tiers=two), moved_to)
    pool = script.scheduler.pool_of("m")
    assert pool is not None
    assert pool.backlog == [5, 6]
    script.finish("held").serve(20)
    assert len(script.order) == 13
    assert all(id.startswith(("t0", "t1")) for id in script.order[1:7])


def test_a_policy_that_forgets_where_a_tiers_requests_go_changes_nothing() -> None:
    """Half a change would be worse than none."""
    script = Script(four_tiers()).replica("r", slots=1).arrive_many("a", 3, tier=1)
    with pytest.raises(KeyError):
        script.change(four_tiers(tiers=DEFAULT_TIERS[:1]), {})
    script.check()
    script.serve(3)
    assert len(script.order) == 3


def test_a_change_of_the_cost_unit_forgives_debts_rather_than_misread_them() -> None:
    """Ten thousand tokens of debt must not become ten thousand turns."""
    script = Script(one_tier(cost="tokens")).replica("r", slots=1)
    script.arrive_many("a", 20, user="a").arrive_many("b", 20, user="b").serve(7)
    script.change(one_tier(cost="requests")).serve(20)
    assert abs(script.count_of("a") - script.count_of("b")) <= 2


def test_a_change_of_weights_keeps_what_was_used_so_far() -> None:
    """An operator who saves the settings must not reset the day's fairness."""
    script = Script(one_tier(cost="tokens")).replica("r", slots=1).arrive("w", user="w")
    script.arrive("big", user="a", prompt_tokens=5_000).arrive_many("a", 5, user="a")
    script.arrive_many("b", 5, user="b").serve(2).change(one_tier(cost="tokens", hold_s=30.0))
    script.serve(3)
    assert script.count_of("b") >= 4


def test_fifo_forwards_everything_at_once_to_the_least_outstanding() -> None:
    """The contrast of the demo: no queue, no gate, no fairness."""
    script = Script(one_tier(release_at_once=True)).replica("r", slots=1).replica("s", slots=1)
    script.arrive_many("a", 50)
    assert len(script.running) == 50
    assert len(script.on("r")) == len(script.on("s")) == 25
    script.finish(*script.on("r")).arrive("b").expect_granted("b", on="r")


def test_changing_to_fifo_forwards_what_waits_and_back_again_does_not() -> None:
    """Requests must not be left in a queue that nobody serves any more."""
    script = Script().replica("r", slots=1).arrive_many("a", 5)
    script.change(one_tier(release_at_once=True))
    assert not script.waiting
    script.bounce("a4").advance(1.0).expect_granted("a4")
    script.change(one_tier()).arrive("b").expect_waiting("b").finish(*script.running)
    script.expect_granted("b")


def test_what_ran_free_of_charge_is_charged_when_it_ends_under_the_new_policy() -> None:
    """Switching the contrast off must not give its users a head start."""
    script = Script(one_tier(release_at_once=True, cost="tokens")).replica("r", slots=1)
    script.arrive("a", user="a", prompt_tokens=1_000).change(one_tier(cost="tokens"))
    script.arrive_many("a", 3, user="a").arrive_many("b", 3, user="b").finish("a").serve(4)
    assert script.order[1:5].count("a0") + script.order[1:5].count("a1") <= 1


def test_the_scheduler_asks_to_be_woken_only_while_somebody_waits() -> None:
    """An idle gateway sleeps."""
    script = Script().replica("r", slots=1).arrive("a")
    assert script._wake_at is None
    script.arrive("b").advance(5.0)
    wakes = sum(type(event).__name__ == "Woke" for _, event, _ in script.log)
    assert 5 <= wakes <= 12
    script.finish("a", "b").advance(60.0)
    assert sum(type(event).__name__ == "Woke" for _, event, _ in script.log) <= wakes + 1


def test_an_id_may_come_back_only_after_it_ended() -> None:
    """Two clients with one id would free each other's slots."""
    script = Script().replica("r", slots=1).arrive("a").arrive("b")
    for id in ("a", "b"):
        with pytest.raises(AssertionError):
            script.scheduler.handle(Arrived(script.request(id)), script.now)
    script.finish("a").arrive("a").finish("b").expect_granted("a")


def test_a_report_of_a_lost_replica_is_ignored() -> None:
    """It describes an engine that may no longer exist."""
    script = Script().replica("r", slots=1).lose("r")
    report = ReplicaReport(running=9, waiting=9)
    script.tell(ReplicaReported(replica="r", sent_at=0.0, report=report))
    assert script.scheduler.replicas["r"].report is None
