"""The one way in: all events are taken in, each request is answered once, time is asked for."""

from typing import Any

import pytest

from gateway.core.breaker import BACKOFF_S
from gateway.core.messages import (
    Arrived,
    Cancelled,
    Granted,
    Reason,
    Refused,
    WakeWanted,
    Woke,
)
from gateway.core.policy import Bounds, Tier
from gateway.core.scheduler import RECHECK_S, Scheduler
from tests.support.parts import a_request
from tests.support.play import Play
from tests.support.script import four_tiers, one_tier


def wakes(script: Play) -> list[float]:
    """Instants at which it asked to be woken, so far."""
    return [
        decision.at
        for _, _, decisions in script.log
        for decision in decisions
        if isinstance(decision, WakeWanted)
    ]


def test_without_a_replica_a_request_is_refused_at_once() -> None:
    """Nobody should wait half a minute for a service that is down."""
    script = Play().arrive("a").expect_refused("a", reason=Reason.NO_REPLICA)
    script.replica("r", slots=1).lose("r").arrive("b")
    script.expect_refused("b", reason=Reason.NO_REPLICA)
    script.replica("r", slots=1).drain("r").arrive("c")
    script.expect_refused("c", reason=Reason.NO_REPLICA)


def test_a_free_slot_is_given_in_the_same_step() -> None:
    """An idle gateway must add nothing."""
    script = Play().replica("r", slots=1)
    granted = script.scheduler.handle(Arrived(a_request("a", arrived_at=0.0)), 2.0)
    assert granted == [Granted("a", "r", 2.0)]
    late = script.scheduler.handle(Arrived(a_request("b", arrived_at=9.0)), 2.0)
    assert [type(each) for each in late] == [WakeWanted]


def test_nobody_has_waited_for_less_than_no_time() -> None:
    """Clocks of two machines differ: a negative wait would break every histogram."""
    script = Play().replica("r", slots=1)
    (granted,) = script.scheduler.handle(Arrived(a_request("a", arrived_at=9.0)), 2.0)
    assert granted == Granted("a", "r", 0.0)


def test_the_wait_is_counted_from_the_first_arrival() -> None:
    """A retry's client has waited since before it."""
    script = Play().replica("r", slots=1).arrive("held").arrive("a", arrived_at=-5.0).advance(2.0)
    script.finish("held")
    assert script.log[-1][2] == [Granted("a", "r", 7.0)]


def test_an_id_may_come_back_only_after_it_ended() -> None:
    """Two clients with one id would free each other's slots."""
    script = Play().replica("r", slots=1).arrive("a").arrive("b")
    for id in ("a", "b"):
        with pytest.raises(AssertionError):
            script.scheduler.handle(Arrived(script.request(id)), script.now)
    script.finish("a").arrive("a").finish("b").expect_granted("a")


def test_one_who_left_is_told_nothing_more() -> None:
    """Its connection is closed."""
    script = Play().replica("r", slots=1).arrive("a").arrive("b")
    assert script.scheduler.handle(Cancelled("b"), 0.0) == []
    assert script.scheduler.handle(Cancelled("a"), 0.0) == []
    assert not script.scheduler.waiting
    assert not script.scheduler.granted


# --- asking for time --------------------------------------------------------------------------


def test_the_scheduler_asks_to_be_woken_only_while_somebody_waits() -> None:
    """An idle gateway sleeps."""
    script = Play().replica("r", slots=1).arrive("a")
    assert wakes(script) == []
    script.arrive("b").advance(5.0)
    woken = sum(isinstance(event, Woke) for _, event, _ in script.log)
    assert 5 <= woken <= 12
    script.finish("a", "b").advance(60.0)
    assert sum(isinstance(event, Woke) for _, event, _ in script.log) <= woken + 1


def test_it_asks_for_the_first_end_of_a_patience_or_a_look_at_the_gates() -> None:
    """Whatever comes first."""
    script = Play().replica("r", slots=1).arrive("a").arrive("b")
    assert wakes(script) == [RECHECK_S]
    script.arrive("c", patience_s=0.2)
    assert wakes(script) == [RECHECK_S, 0.2]
    script.arrive("d", patience_s=0.3)
    assert wakes(script) == [RECHECK_S, 0.2]
    script.advance(0.2)
    assert wakes(script) == [RECHECK_S, 0.2, 0.3]


def test_one_wish_at_a_time_is_enough() -> None:
    """A timer for each event would be a crowd of timers."""
    script = Play().replica("r", slots=1).arrive_many("a", 9)
    assert len(wakes(script)) == 1
    script.advance(0.1).finish("a0").report("r", running=1, waiting=0)
    assert len(wakes(script)) == 1


def test_a_wish_that_was_not_granted_in_time_is_made_again() -> None:
    """The caller was busy: nobody's patience may end unnoticed."""
    script = Play().replica("r", slots=1).arrive_many("a", 2)
    script.now = 3.0
    script.report("r", running=1, waiting=0)
    assert wakes(script) == [RECHECK_S, 3.0 + RECHECK_S]


def test_who_begins_to_wait_waits_for_no_wish_from_before() -> None:
    """What was asked for while nobody waited, here of a second circuit, may come much later."""
    script = Play().replica("near", slots=1).refuse_connections("near")
    script.replica("far", slots=1).advance(BACKOFF_S - 0.1).refuse_connections("far")
    assert wakes(script)[-1] == BACKOFF_S
    script.advance(0.1).arrive("a").expect_granted("a", on="near")
    script.refuse_connections("near").arrive("b").expect_waiting("b")
    assert wakes(script)[-1] <= script.now + RECHECK_S


# --- where somebody stands --------------------------------------------------------------------


def test_a_waiting_request_knows_its_place_and_what_does_not_wait_has_none() -> None:
    """The client sees that the line moves."""
    script = Play().replica("r", slots=1).arrive("held").arrive_many("a", 3)
    places = [script.scheduler.place_of(f"a{number}", 0.0) for number in range(3)]
    assert [place[0] for place in places if place is not None] == [1, 2, 3]
    assert script.scheduler.place_of("held", 0.0) is None
    assert script.scheduler.place_of("unknown", 0.0) is None


def test_the_expected_wait_is_the_place_at_the_pace_of_the_line() -> None:
    """Before anything moved nobody can tell."""
    script = Play().replica("r", slots=1).arrive_many("a", 4)
    assert script.scheduler.place_of("a3", 0.0) == (3, None)
    script.advance(2.0).serve(1)
    found = script.scheduler.place_of("a3", script.now)
    assert found is not None
    assert found[1] is not None
    assert found[1] == pytest.approx(found[0] / script.pool().drain_rate.per_s(script.now))
    late = script.scheduler.place_of("a3", script.now + 15.0)
    assert late is not None
    assert late[1] is not None
    assert late[1] > 2 * found[1]


def test_the_tiers_above_stand_before_one() -> None:
    """Ten critical ones come first, whenever they came."""
    script = Play(four_tiers(recall=False)).replica("r", slots=1).arrive_many("held", 2)
    script.arrive("low", tier=3).arrive_many("top", 4, tier=0)
    found = script.scheduler.place_of("low", 0.0)
    assert found is not None
    assert found[0] == 5


# --- bounds -----------------------------------------------------------------------------------


def test_a_user_with_too_much_waiting_is_refused_and_nobody_else() -> None:
    """A loop in a script must not fill the memory, nor anybody's queue."""
    script = Play(one_tier(bounds=Bounds(waiting_per_user=3))).replica("r", slots=1)
    script.arrive("held").arrive_many("a", 4, user="a").arrive("b", user="b")
    script.expect_refused("a3", reason=Reason.USER_QUEUE_FULL).expect_waiting("a2", "b")
    script.cancel("a0").arrive("again", user="a").expect_waiting("again")


def test_a_continuation_is_exempt_from_bounds_and_goes_first() -> None:
    """Its client has read half of the answer."""
    script = Play(one_tier(bounds=Bounds(waiting_per_user=2, waiting=2))).replica("r", slots=1)
    script.arrive("held").arrive_many("a", 2, user="a")
    script.arrive("rest", user="a", is_continuation=True).expect_waiting("rest", "a0", "a1")
    script.finish("held").expect_granted("rest")


def test_a_continuation_waits_as_long_as_the_policy_says() -> None:
    """Then the stream ends with an error event; its tier's patience is for whole requests."""
    script = Play(one_tier(continuation_wait_s=4.0)).replica("r", slots=1).arrive("held")
    script.arrive("rest", is_continuation=True).advance(3.9).expect_waiting("rest").advance(0.2)
    script.expect_refused("rest", reason=Reason.PATIENCE_SPENT)


def test_a_plain_client_is_not_served_after_its_own_timeout() -> None:
    """The answer would be computed for a closed connection."""
    policy = one_tier(tiers=(Tier(name="x", queue_limit=0, patience_s=600.0),))
    script = Play(policy).replica("r", slots=1).arrive("held")
    fields: dict[str, Any] = {"read_timeout_s": 10.0, "output_tokens_max": 100}
    script.arrive("plain", streams=False, **fields).arrive("stream", **fields)
    # 100 tokens of 30 ms each, and a moment of prefill.
    script.advance(6.9).expect_waiting("plain").advance(0.2)
    script.expect_refused("plain", reason=Reason.PATIENCE_SPENT).expect_waiting("stream")


def test_every_decision_about_a_request_is_one_of_two() -> None:
    """Granted or refused, and exactly once: the caller holds one future for it."""
    script = Play().replica("r", slots=2).arrive_many("a", 6).cancel("a2").close()
    told = [
        decision.request_id
        for _, _, decisions in script.log
        for decision in decisions
        if isinstance(decision, Granted | Refused)
    ]
    assert sorted(told) == ["a0", "a1", "a3", "a4", "a5"]


def test_the_same_events_give_the_same_decisions() -> None:
    """The live gateway, the simulator and a cluster's leader must agree."""
    script = Play(four_tiers()).replica("r", slots=2).replica("s", slots=2)
    for tier in (2, 0, 3, 1):
        script.arrive_many(f"t{tier}-", 4, tier=tier, user=f"u{tier}")
    script.serve(12, each_s=0.3)
    twin = Scheduler(four_tiers())
    for now, event, decisions in script.log:
        assert twin.handle(event, now) == decisions
