"""Which running request is asked to go on elsewhere, and which never is."""

from typing import Any

import pytest

from gateway.core.breaker import DRAIN_REST_S
from gateway.core.messages import Fault, MoveWanted
from gateway.core.moving import BALANCE_EVERY_S, DRAIN_EVERY_S, STAY_S
from gateway.core.policy import Ageing, MigrateRunning
from tests.support.play import Play
from tests.support.script import four_tiers, one_tier

ONLY_R = frozenset({"s"})


def play(mode: MigrateRunning = "drain", **knobs: Any) -> Play:
    """Two replicas of eight slots."""
    given = {"limiter": "static", "recall": False, "warm_up_s": 0.0, "headroom_max": 0.0, **knobs}
    script = Play(four_tiers(migrate_running=mode, **given))
    return script.replica("r", slots=8).replica("s", slots=8)


def put(script: Play, *ids: str, on: str = "r", **fields: Any) -> Play:
    """Continuable streams that have begun there."""
    for id in ids:
        given = {"is_continuable": True, "tier": 0, **fields}
        script.take_over(id, on, running_s=0.0, **given)
    return script


def moved(script: Play) -> list[str]:
    """Ids that were asked away, in order."""
    return [id for _, id, _ in script.move_log]


def leave(script: Play, *ids: str) -> Play:
    """They end where they are, and their rests go on elsewhere."""
    for id in ids:
        script.finish(id)
        script.arrive(f"{id}+", is_continuation=True, is_continuable=True)
    return script


# Emptying a replica.


def test_all_that_can_go_on_elsewhere_leaves_a_drained_replica_one_by_one() -> None:
    """A drain that waits for the longest stream takes hours; all at once is a storm of prefills."""
    script = put(play(), "a", "b", "c").drain("r")
    assert moved(script) == ["a"]
    leave(script, "a").advance(DRAIN_EVERY_S / 2).report("r", running=2, waiting=0)
    assert moved(script) == ["a"]
    script.advance(DRAIN_EVERY_S)
    assert moved(script) == ["a", "b"]
    leave(script, "b").advance(1.0)
    assert moved(script) == ["a", "b", "c"]
    leave(script, "c").advance(60.0)
    assert script.on("r") == []
    assert script.on("s") == ["a+", "b+", "c+"]
    assert moved(script) == ["a", "b", "c"]


def test_an_engine_that_says_that_it_leaves_is_emptied_too() -> None:
    """Its shutdown timeout may be shorter than its streams."""
    script = put(play(), "a").arrive("q", excluded=ONLY_R).fail("q", Fault.DRAINING)
    script.report("r", running=1, waiting=0)
    assert moved(script) == ["a"]


@pytest.mark.parametrize(
    "why", ["off", "it cannot be continued", "it has not begun", "plain", "lost", "closed"]
)
def test_nothing_else_is_ever_moved(why: str) -> None:
    """What cannot be continued exactly would be cut in two."""
    script = play("off" if why == "off" else "drain")
    if why == "it has not begun":
        script.arrive("a", excluded=ONLY_R, is_continuable=True)
    else:
        put(script, "a", is_continuable=why not in ("plain", "it cannot be continued"))
    if why == "lost":
        script.lose("r")
    elif why == "closed":
        script.close()
    script.drain("r").advance(5.0).report("r", running=1, waiting=0)
    assert moved(script) == []


def test_nobody_is_moved_to_where_there_is_no_room() -> None:
    """Its rest would wait in the queue, and give up after `continuation_wait_s`."""
    script = put(play(), "a")
    put(script, *(f"s{number}" for number in range(8)), on="s", is_continuable=False)
    script.drain("r").advance(5.0)
    assert moved(script) == []
    script.finish("s0").report("s", running=7, waiting=0)
    assert moved(script) == ["a"]


def test_nobody_is_moved_to_where_it_is() -> None:
    """The engine that leaves may be tried again, and has room: the pause would be for nothing."""
    script = put(play().lose("s"), "a").arrive("q").fail("q", Fault.DRAINING)
    script.advance(DRAIN_REST_S).report("r", running=1, waiting=0)
    assert script.known().circuit.lets(script.now)
    assert moved(script) == []


def test_nobody_is_moved_where_its_model_is_not_served() -> None:
    """The only other replica is of another model."""
    script = Play(one_tier(migrate_running="drain", recall=False)).replica("r", slots=8)
    script.replica("x", slots=8, models=("other", "m2")).arrive("a", is_continuable=True)
    script.first_token("a").drain("r").advance(5.0)
    assert moved(script) == []


def test_whoever_stays_after_all_is_not_asked_again_at_once() -> None:
    """The answer would be the same, ten times a second."""
    script = put(play(), "a").drain("r").keep("a").advance(STAY_S - 1.0)
    assert moved(script) == ["a"]
    script.advance(2.0).report("r", running=1, waiting=0)
    assert moved(script) == ["a", "a"]


def test_the_lowest_tier_and_the_cheapest_go_first() -> None:
    """Each move costs its reader a pause, and the target a prefill."""
    script = play()
    put(script, "large", tier=3, prompt_tokens=900)
    put(script, "small", tier=3, prompt_tokens=90)
    put(script, "critical", tier=0, prompt_tokens=10)
    script.drain("r")
    for _ in range(3):
        script.finish(moved(script)[-1]).advance(DRAIN_EVERY_S)
    assert moved(script) == ["small", "large", "critical"]


# Balance.


def uneven(mode: MigrateRunning = "balance", **knobs: Any) -> Play:
    """Five streams on one replica, none on the other, for long enough."""
    script = put(play(mode, **knobs), *"abcde", tier=2)
    return script.advance(STAY_S)


def look(script: Play) -> Play:
    """A scrape comes, after which balance is thought about."""
    return script.report("r", running=len(script.on("r")), waiting=0)


def test_a_freer_replica_gets_what_costs_the_least() -> None:
    """One replica crawls with five streams while its neighbour has nothing to do."""
    script = look(uneven())
    assert script.move_log == [(script.now, "a", "r")]
    assert moved(look(script)) == ["a"]
    leave(script, "a").advance(BALANCE_EVERY_S)
    assert moved(look(script)) == ["a", "b"]


def test_memory_is_evened_out_as_slots_are() -> None:
    """Where the engines tell of their KV it is what is full."""
    figures = {"kv_use": 0.0, "kv_capacity_tokens": 4_000}
    script = play("balance").report("r", running=0, waiting=0, **figures)
    put(script.report("s", running=0, waiting=0, **figures), *"abcde", tier=2, prompt_tokens=500)
    assert moved(look(script.advance(STAY_S))) == ["a"]


def test_two_on_one_replica_and_none_on_the_other_become_one_on_each() -> None:
    """Nothing is more even than equal."""
    script = put(play("balance"), "a", "b", tier=2).advance(STAY_S)
    assert moved(look(script)) == ["a"]


def test_one_that_can_go_nowhere_does_not_keep_the_next_one() -> None:
    """Its adapter is on that replica alone; those of the model that all serve can go."""
    script = play("balance").replica("r", slots=8, models=("m", "x"))
    put(script, "stays", tier=2, model="x", prompt_tokens=1)
    assert moved(look(put(script, *"abcd", tier=2).advance(STAY_S))) == ["a"]


def test_where_the_fullest_replica_has_nothing_to_give_the_next_one_gives() -> None:
    """One enormous request would only move the crowd; beside it four others are crowded."""
    script = put(play("balance").replica("t", slots=8), "done", on="s").finish("done")
    put(script, "huge", sequences=5, tier=2)
    put(script, *"abcd", on="t", tier=2).advance(STAY_S)
    assert moved(look(script)) == ["a"]


def test_nobody_is_moved_to_a_replica_that_is_emptied_for_one_that_is_aged() -> None:
    """It would wait for the newcomer as well."""
    script = uneven(ageing=Ageing(after_s=1.0))
    script.arrive("big", tier=3, sequences=8, excluded=frozenset({"s"})).expect_waiting("big")
    script.known("s").reserved_for = script.scheduler.waiting["big"]
    script.known("s").reserved_until = script.now + 60.0
    assert moved(look(script.advance(2.0))) == []


def test_balance_ends_before_it_turns_round() -> None:
    """A move to and fro costs two prefills and gains nothing."""
    script = uneven()
    for _ in range(20):
        look(script)
        here = [id for id in moved(script) if id in script.running]
        leave(script, *here).advance(BALANCE_EVERY_S)
    assert (len(script.on("r")), len(script.on("s"))) == (3, 2)
    assert moved(script) == ["a", "b"]


def test_what_has_just_come_stays_for_a_while() -> None:
    """It has just been placed where it was best, or been moved there."""
    script = put(play("balance"), *"abcde", tier=2).advance(STAY_S - 1.0)
    assert moved(look(script)) == []


@pytest.mark.parametrize("why", ["drain only", "small gap", "no room", "drained target"])
def test_balance_needs_a_reason_and_a_place(why: str) -> None:
    """Each move is a cost without a gain otherwise."""
    script = uneven(
        "drain" if why == "drain only" else "balance",
        recall_gap=99.0 if why == "small gap" else 0.3,
    )
    if why == "no room":
        put(script, *(f"s{number}" for number in range(8)), on="s", is_continuable=False)
    if why == "drained target":
        script.drain("s")
    assert moved(look(script)) == []


def test_a_move_is_told_as_a_decision_of_its_own() -> None:
    """Who carries it out must not take it for a recall."""
    script = put(play(), "a").drain("r")
    decisions = [each for _, _, decided in script.log for each in decided]
    assert MoveWanted("a", "r") in decisions
