"""Ending what yields, so that a request above it gets its slot."""

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
    grant = script.scheduler.granted["young"][0]
    grant.was_favoured = True
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
