"""Ending what yields, so that a request above it gets its slot."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.policy import Policy, Tier
from tests.support.play import Play
from tests.support.script import one_tier

TOP = Tier(name="top", queue_limit=2, patience_s=1e6)
MIDDLE = Tier(name="middle", queue_limit=1, patience_s=1e6)
YIELDING = Tier(name="yielding", queue_limit=0, patience_s=1e6, preemptible=True)


def policy(*tiers: Tier, **changes: Any) -> Policy:
    """Three tiers, of which the last yields; no headroom."""
    return one_tier(
        **{
            "tiers": tiers or (TOP, MIDDLE, YIELDING),
            "headroom_max": 0.0,
            "recall": False,
            "allowance": "constant",
            **changes,
        }
    )


def full(*tiers: Tier, streams: bool = False, **changes: Any) -> Play:
    """Two slots, in which `old` and `young` of the last tier run, and `next` waits for one."""
    script = Play(policy(*tiers, **changes)).replica("r", slots=2)
    for id in ("old", "young", "next"):
        script.arrive(id, tier=2, streams=streams).advance(0.5)
    return script.expect_granted("old", "young").expect_waiting("next")


def test_the_youngest_makes_way_and_begins_anew_later() -> None:
    """It has lost the least, and its client has seen nothing."""
    script = full().arrive("top", tier=0).expect_granted("top")
    assert script.recalls == [("young", "r")]
    script.give_back("young").expect_waiting("young", "next")
    script.finish("top").expect_granted("young").finish("old").expect_granted("next")


def test_for_each_that_is_missing_a_slot_one_makes_way() -> None:
    """Two people come, and both get an answer."""
    script = full().arrive("a", tier=0).arrive("b", tier=0).expect_granted("a", "b")
    assert script.recalls == [("young", "r"), ("old", "r")]


def test_as_many_make_way_as_slots_are_wanted() -> None:
    """Three answers to one question take three slots."""
    script = full().arrive("pair", tier=0, sequences=2).expect_granted("pair")
    assert script.recalls == [("young", "r"), ("old", "r")]


def test_who_finds_a_slot_takes_nobody_elses() -> None:
    """Work would be thrown away for nothing."""
    script = Play(policy()).replica("r", slots=2).arrive("old", tier=2, streams=False)
    assert script.arrive("top", tier=0).expect_granted("top").recalls == []


def test_what_streams_is_never_ended() -> None:
    """Its reader has the first words."""
    script = full(streams=True).arrive("top", tier=0).expect_granted("top")
    assert script.recalls == []


@pytest.mark.parametrize("tier", [1, 2])
def test_nobody_makes_way_for_a_tier_that_is_not_above(tier: int) -> None:
    """Two equals would take the slot from one another for ever."""
    yielding = Tier(name="yielding", queue_limit=1, patience_s=1e6, preemptible=True)
    script = Play(policy(TOP, yielding, YIELDING)).replica("r", slots=1)
    script.arrive("run", tier=1, streams=False).arrive("new", tier=tier, streams=False)
    assert script.recalls == []


def test_tiers_keep_their_slots_unless_told_otherwise() -> None:
    """What an operator has not said is not done to anybody's work."""
    kept = Tier(name="kept", queue_limit=0, patience_s=1e6)
    script = full(TOP, MIDDLE, kept).arrive("top", tier=0).expect_granted("top")
    assert script.recalls == []


def test_what_a_floor_let_go_stays() -> None:
    """The floor would be a promise that the next request breaks."""
    script = full()
    ledger = script.scheduler.replicas["r"].ledger
    grant = ledger.leave("young", script.now)
    grant.was_favoured, grant.is_started = True, False
    ledger.enter(grant, script.now)
    script.arrive("top", tier=0)
    assert script.recalls == [("old", "r")]


def test_what_waits_inside_the_engine_is_not_ended_for_nothing() -> None:
    """Its end frees no slot; what runs frees one."""
    queueing = Tier(name="yielding", queue_limit=1, patience_s=1e6, preemptible=True)
    script = Play(policy(TOP, TOP, queueing)).replica("r", slots=1)
    script.arrive("run", tier=2, streams=False).advance(0.5).arrive("queued", tier=2, streams=False)
    script.expect_granted("run", "queued").arrive("top", tier=0)
    assert script.recalls == [("run", "r")]


def test_what_is_on_its_way_out_is_not_asked_again() -> None:
    """Its slot is promised to somebody already."""
    script = full().arrive("a", tier=0).arrive("b", tier=0).keep("old").keep("young")
    assert script.recalls == [("young", "r"), ("old", "r")]
    script.expect_granted("a", "b")


# --- where the engine itself lets the higher tier go first ---------------------------------------

ROOMY = Tier(name="yielding", queue_limit=2, patience_s=1e6, preemptible=True)


def crowded(*, orders_by_tier: bool, top: Tier = TOP) -> Play:
    """One slot: a line of the last tier runs, two more wait inside the engine."""
    script = Play(policy(top, replace(MIDDLE, queue_limit=2), ROOMY))
    script.find("r", slots=1, orders_by_tier=orders_by_tier)
    for id in ("run", "second", "third"):
        script.arrive(id, tier=2, streams=False).advance(0.5)
    return script.expect_granted("run", "second", "third")


def test_what_waits_behind_them_keeps_nobody_out() -> None:
    """Lines that fill each slot at once would be in the way of people who need none of theirs."""
    script = crowded(orders_by_tier=True).arrive("top", tier=0).expect_granted("top")
    assert script.recalls[0] == ("run", "r")


def test_where_people_have_all_slots_no_line_stays() -> None:
    """In a step in which many people end some lines begin, and those after them wait for those."""
    script = crowded(orders_by_tier=True).arrive("top", tier=0)
    assert script.recalls == [("run", "r"), ("second", "r"), ("third", "r")]


def test_an_engine_that_serves_as_they_come_is_full_for_everybody() -> None:
    """Who comes there waits behind the lines, whoever is ended."""
    script = crowded(orders_by_tier=False).arrive("top", tier=0).expect_waiting("top")
    assert script.recalls == []


def test_the_engine_goes_by_tier_and_lines_wait_behind_all_people() -> None:
    """A line that waits there would be ended, and who came for its slot would wait for another."""
    script = Play(policy(replace(TOP, queue_limit=9), replace(MIDDLE, queue_limit=2), ROOMY))
    script.find("r", slots=4, orders_by_tier=True)
    for id in ("old", "young", "youngest"):
        script.arrive(id, tier=2, streams=False).advance(0.5)
    script.arrive("a", tier=0)  # runs from now on, in the last slot, and has said nothing yet
    script.arrive_many("queued", 2, tier=2, streams=False).expect_granted("queued0", "queued1")
    script.arrive("b", tier=0).arrive("c", tier=0).expect_granted("b", "c")
    assert script.recalls == [("youngest", "r"), ("young", "r")]


def test_who_has_just_begun_runs_all_the_same() -> None:
    """Nothing shows yet that the last line runs: it would be thought to wait, and stay."""
    script = Play(policy(replace(TOP, queue_limit=9), replace(MIDDLE, queue_limit=2), ROOMY))
    script.find("r", slots=3, orders_by_tier=True)
    for id in ("old", "middle", "young"):
        script.arrive(id, tier=2, streams=False)
    script.arrive("a", tier=0).arrive("b", tier=0).expect_granted("a", "b")
    assert script.recalls == [("young", "r"), ("middle", "r")]
    script.give_back("young").give_back("middle").expect_granted("young", "middle")  # they wait
    script.finish("a").arrive("c", tier=0)
    assert script.recalls[2:] == [("young", "r")]  # which has got the slot of `a` meanwhile


def test_what_others_put_there_takes_slots_of_lines_too() -> None:
    """More lines would run than there are slots for, and people wait until they end."""
    script = Play(policy(replace(TOP, queue_limit=9), replace(MIDDLE, queue_limit=2), ROOMY))
    script.find("r", slots=4, orders_by_tier=True)
    for id in ("old", "young", "youngest"):
        script.arrive(id, tier=2, streams=False).advance(0.5)
    for _ in range(3):
        script.advance(1.0).report("r", running=4, waiting=1)
    script.arrive("a", tier=0).expect_granted("a")
    assert {id for id, _ in script.recalls} == {"youngest", "young"}


def test_people_wait_for_people_all_the_same() -> None:
    """The engine's own queue would be theirs without a bound."""
    script = crowded(orders_by_tier=True)
    script.arrive_many("top", 4, tier=0).expect_granted("top0", "top1", "top2")
    script.expect_waiting("top3")


def test_a_floor_does_not_open_slots_that_make_way_for_others() -> None:
    """Lines that are owed would pile up behind one another inside the engine."""
    owed = replace(ROOMY, min_share=0.5)
    script = Play(policy(replace(TOP, queue_limit=3), replace(MIDDLE, queue_limit=2), owed))
    script.find("r", slots=1, orders_by_tier=True).arrive("top", tier=0)
    script.arrive_many("line", 6, tier=2, streams=False)
    script.arrive_many("more", 2, tier=0).first_token("top").expect_granted("more0", "more1")
    assert script.count_of("line") == 2


def test_headroom_is_not_kept_by_who_would_make_way() -> None:
    """A middle tier would be shut out of slots that a batch fills."""
    middle = replace(MIDDLE, queue_limit=2)
    script = Play(policy(TOP, middle, ROOMY, headroom_max=0.5, headroom_decay=10.0))
    script.find("r", slots=4, orders_by_tier=True)
    for id in ("a", "b", "c"):
        script.arrive(id, tier=2, streams=False).advance(0.5)
    script.arrive("top", tier=0).arrive("m", tier=1).expect_granted("top", "m")
    assert script.recalls == [("c", "r")]


def short_of_kv(**found: Any) -> Play:
    """Ten slots, and KV for two lines: both run."""
    script = Play(policy(TOP, MIDDLE, ROOMY)).find("r", slots=10, **found)
    script.scrape("r", round_trip_s=0.0, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=220)
    for id in ("old", "young", "next"):
        script.arrive(id, tier=2, streams=False, prompt_tokens=90, output_tokens_max=10)
        script.advance(0.1)
    return script.expect_granted("old", "young").expect_waiting("next")


def test_kv_makes_way_as_slots_do() -> None:
    """Engines with long answers run out of KV long before they run out of slots."""
    script = short_of_kv(orders_by_tier=True)
    script.arrive("top", tier=0, prompt_tokens=90, output_tokens_max=10).expect_granted("top")
    assert script.recalls == [("young", "r")]
    script.arrive("more", tier=0, prompt_tokens=90, output_tokens_max=10).expect_granted("more")
    assert script.recalls == [("young", "r"), ("old", "r")]
    script.arrive("last", tier=0, prompt_tokens=90, output_tokens_max=10).expect_waiting("last")


def test_who_finds_kv_takes_nobody_elses() -> None:
    """Work would be thrown away for nothing."""
    script = short_of_kv(orders_by_tier=True)
    script.arrive("top", tier=0, prompt_tokens=5, output_tokens_max=5).expect_granted("top")
    assert script.recalls == []
