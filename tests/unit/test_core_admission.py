"""May a request wait at all, and when should a refused one come back?"""

import pytest

from gateway.core.messages import Reason
from gateway.core.policy import Bounds, Policy, Tenant, Tier
from tests.support.script import Script, one_tier


def bounded(tiers: int = 1, **bounds: int) -> Policy:
    """A policy with these bounds and so many tiers."""
    names = [Tier(name=f"t{rank}", queue_limit=0, patience_s=1e6) for rank in range(tiers)]
    return one_tier(tiers=tuple(names), bounds=Bounds(**bounds))


def warm(script: Script) -> Script:
    """A replica of one slot that has served a request a second for a minute."""
    script.replica("r", slots=1)
    for number in range(60):
        script.arrive(f"warm{number}", user="w").serve(1)
    return script


def test_a_user_may_not_leave_more_than_the_bound_waiting() -> None:
    """One script in an endless loop must not fill the memory."""
    script = Script(bounded(waiting_per_user=3)).replica("r", slots=1).arrive_many("a", 5, user="a")
    script.expect_refused("a4", reason=Reason.USER_QUEUE_FULL).expect_waiting("a1", "a2", "a3")
    script.arrive("b", user="b").arrive("c", user="a", tenant="other").expect_waiting("b", "c")
    script.cancel("a1").arrive("a5", user="a").expect_waiting("a5")


def test_a_full_queue_refuses_the_heaviest_user_not_the_one_who_comes() -> None:
    """The power user must not have the others refused."""
    script = Script(bounded(waiting=4)).replica("r", slots=1).arrive_many("a", 5, user="a")
    script.arrive("b", user="b").expect_waiting("b")
    script.expect_refused("a4", reason=Reason.SHED).expect_waiting("a1", "a2", "a3")


def test_the_heaviest_users_own_arrival_is_the_one_refused() -> None:
    """Its older requests have waited longer."""
    script = Script(bounded(waiting=4)).replica("r", slots=1).arrive_many("a", 6, user="a")
    script.expect_refused("a5", reason=Reason.QUEUE_FULL).expect_waiting("a1", "a4")


def test_the_lowest_tier_gives_way_first() -> None:
    """A critical request is not refused while background work waits."""
    script = Script(bounded(tiers=2, waiting=3)).replica("r", slots=1).arrive("held")
    script.arrive_many("low", 3, tier=1, user="l").arrive("top", tier=0).expect_waiting("top")
    script.expect_refused("low2", reason=Reason.SHED)
    script.arrive_many("high", 2, tier=0, user="h").arrive("more", tier=1)
    script.expect_refused("more", reason=Reason.QUEUE_FULL)


def test_weight_counts_when_the_heaviest_is_looked_for() -> None:
    """Who has four shares may have four times as much waiting."""
    policy = one_tier(
        tenants={"t": Tenant(users={"vip": 4.0})},
        bounds=Bounds(waiting=6),
    )
    script = Script(policy).replica("r", slots=1).arrive("held", user="z")
    script.arrive_many("v", 4, user="vip").arrive_many("a", 2, user="a").arrive("b", user="b")
    script.expect_refused("a1", reason=Reason.SHED)


def test_the_heaviest_is_looked_for_in_all_pools() -> None:
    """A light user of the small model must not pay for the power user of the big one."""
    script = Script(bounded(waiting=6)).replica("r1", slots=1, models=("m",))
    script.replica("r2", slots=1, models=("x",)).arrive_many("light", 2, user="l", model="m")
    script.arrive_many("power", 6, user="p", model="x").arrive("new", user="n", model="m")
    script.expect_refused("power5", reason=Reason.SHED).expect_waiting("new", "light1")


def test_bodies_are_bounded_in_bytes_however_many_must_go() -> None:
    """A gigabyte of images must not end the process."""
    script = Script(bounded(waiting_bytes=1_000)).replica("r", slots=1).arrive("held")
    script.arrive_many("a", 9, user="a", body_bytes=100).arrive("b", user="b", body_bytes=350)
    script.expect_waiting("b").expect_refused("a8", "a7", "a6", reason=Reason.SHED)
    assert script.scheduler.room.body_bytes <= 1_000


@pytest.mark.parametrize(("queued", "at_most"), [(4, 6), (200, 30)])
def test_retry_after_follows_the_line_and_the_rate(queued: int, at_most: int) -> None:
    """A client that is told too little comes back in vain; too much, and slots stay empty."""
    script = warm(Script(bounded(waiting_per_user=queued)))
    script.arrive_many("a", queued + 1, user="a").arrive("late", user="a")
    after_s = script.refused["late"].retry_after_s
    assert after_s is not None
    assert min(queued, 25) <= after_s <= at_most


def test_retry_after_falls_as_the_line_drains() -> None:
    """The same user refused later is told to come back sooner."""
    script = warm(Script(bounded())).arrive_many("a", 25, user="a")
    told: list[float] = []
    for number in range(6):
        script.serve(4).arrive(f"hasty{number}", user="a", patience_s=0.0).advance(0.0)
        script.expect_refused(f"hasty{number}", reason=Reason.PATIENCE_SPENT)
        told.append(script.refused[f"hasty{number}"].retry_after_s or 0.0)
    assert told == sorted(told, reverse=True)
    assert 1.0 <= told[-1] < told[0] <= 30.0


def test_retry_after_is_the_maximum_while_nothing_is_known() -> None:
    """Nothing has been served yet: any smaller figure would be invented."""
    script = Script().arrive("a").expect_refused("a", reason=Reason.NO_REPLICA)
    assert script.refused["a"].retry_after_s == 30.0


def test_the_place_in_the_line_counts_the_turns_of_the_others() -> None:
    """What a waiting client reads in its stream."""
    script = Script(bounded(tiers=2)).replica("r", slots=1).arrive("held", user="z")
    script.arrive_many("a", 5, user="a").arrive_many("b", 5, user="b").arrive("low", tier=1)
    found = {id: script.scheduler.place_of(id, script.now) for id in script.waiting}
    places = {id: place[0] for id, place in found.items() if place is not None}
    assert [places[id] for id in ("a0", "a1", "b1", "a4", "low")] == [1, 3, 3, 9, 11]
    waits_s = {id: place[1] or 0.0 for id, place in found.items() if place is not None}
    assert 0.0 < waits_s["a0"] < waits_s["a1"] < waits_s["low"]
    assert script.scheduler.place_of("held", script.now) is None
    assert script.scheduler.place_of("unknown", script.now) is None
