"""A cap on what one holder may have running at once: the excess waits, and keeps nobody else."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.core import explain, snapshot
from gateway.core.messages import Outcome, Reason
from gateway.core.policy import Bounds, Policy, Room, Tenant, Tier
from tests.support.script import Script, four_tiers, one_tier

ALICE = (("user alice", 2),)


def house(policy: Policy | None = None, slots: int = 4) -> Script:
    """One replica with room for everybody."""
    return Script(policy or one_tier()).replica("r", slots=slots)


def test_no_more_than_the_cap_run_and_the_rest_waits() -> None:
    """A team whose agent starts a hundred calls at once must not take every slot."""
    script = house().arrive_many("a", 5, user="alice", caps=ALICE)
    script.expect_granted("a0", "a1").expect_waiting("a2", "a3", "a4")
    script.arrive("b", user="bob").expect_granted("b")
    script.finish("a1").expect_granted("a2").expect_waiting("a3", "a4")


@pytest.mark.parametrize(("most", "part"), [(7, 2), (3, 1), (2, 1), (1, 1)])
def test_each_of_several_schedulers_keeps_to_its_part_of_a_cap(most: int, part: int) -> None:
    """While three gateways cannot hear of one another, a cap must not be three."""
    policy = one_tier(sharers=3)
    caps = (("user alice", most),)
    script = house(policy, slots=60).arrive_many("a", 9, user="alice", caps=caps)
    assert len(script.running) == part
    script.change(replace(policy, sharers=1))
    assert len(script.running) == most
    script.change(replace(policy, sharers=3))
    for _ in range(most - part + 1):
        script.finish(next(iter(script.running)))
    assert len(script.running) == part


def test_whoever_comes_later_has_a_part_of_its_cap_too() -> None:
    """Those of whom nothing ran when the gateways lost each other would have the whole."""
    caps = (("user bob", 4),)
    script = house(slots=60)
    script.change(one_tier(sharers=2)).arrive_many("b", 9, user="bob", caps=caps)
    assert len(script.running) == 2
    script.arrive("c", caps=(("user carol", 0),)).arrive_many("d", 9, caps=(("user carol", 6),))
    assert len(script.running) == 2 + 3


def test_a_restart_keeps_the_part_of_a_cap() -> None:
    """Three standbys would let three times as many run."""
    script = house(one_tier(sharers=3), slots=60)
    script.arrive_many("a", 9, user="alice", caps=(("user alice", 6),))
    data = snapshot.snapshot(script.scheduler, script.now)
    script.scheduler = snapshot.restore(script.scheduler.policy, data, script.now)
    script.finish("a0").arrive_many("b", 3, user="alice", caps=(("user alice", 6),))
    assert len(script.running) == 2


def test_what_comes_back_to_a_full_queue_when_gateways_are_one_again_waits_there() -> None:
    """The pace of the line is measured from that instant on."""
    policy = one_tier(sharers=2)
    script = house(policy, slots=1).arrive_many("a", 2, user="alice", caps=ALICE).advance(1.0)
    script.change(replace(policy, sharers=1)).expect_waiting("a1")
    script.advance(1.0).finish("a0").expect_granted("a1")


def test_what_is_held_goes_in_its_order() -> None:
    """Whoever came first must not be overtaken by the next request of the same user."""
    script = house().arrive_many("a", 5, user="alice", caps=(("user alice", 1),))
    for _ in range(5):
        script.advance(1).finish(next(iter(script.running)))
    script.expect_order("a0", "a1", "a2", "a3", "a4")


def test_a_better_tier_goes_before_what_was_held_first() -> None:
    """The chat of a team must not wait behind its own batch."""
    caps = (("tenant t", 1),)
    script = house(four_tiers()).arrive("batch0", tier=3, caps=caps)
    script.arrive("batch1", tier=3, caps=caps).arrive("chat", tier=0, caps=caps)
    script.finish("batch0").expect_granted("chat").expect_waiting("batch1")


def test_every_holder_of_a_request_must_have_room() -> None:
    """A key's own cap holds within its tenant's."""
    both, tenant = (("key k", 1), ("tenant t", 2)), (("tenant t", 2),)
    script = house().arrive("a", caps=both).arrive("b", caps=both).arrive("c", caps=tenant)
    script.expect_granted("a", "c").expect_waiting("b")
    script.finish("c").expect_waiting("b").finish("a").expect_granted("b")


def test_a_holder_of_whom_nothing_runs_yet_hides_no_full_one() -> None:
    """The first request of each new key would go past the cap of its tenant."""
    script = house().arrive("a", caps=(("tenant t", 1),))
    script.arrive("b", caps=(("key k", 1), ("tenant t", 1))).expect_waiting("b")


def test_whoever_waits_and_leaves_without_having_run_is_forgotten() -> None:
    """A key that is used once would be remembered for ever."""
    script = house(slots=1).arrive("held").arrive("a", caps=(("key k", 1),)).expect_waiting("a")
    script.cancel("a")
    assert not script.scheduler.caps.holders


def test_what_another_holder_keeps_back_does_not_keep_the_next_one_back() -> None:
    """A tenant with room serves its other keys while one key is at its cap."""
    k1, k2 = (("tenant t", 2), ("key 1", 1)), (("tenant t", 2), ("key 2", 1))
    script = house().arrive("a", caps=k1).arrive("b", caps=k2)
    script.arrive("a2", caps=k1).arrive("b2", caps=k2).expect_waiting("a2", "b2")
    script.finish("b").expect_granted("b2").expect_waiting("a2")
    script.finish("a").expect_granted("a2")


def test_the_head_that_fits_nowhere_keeps_nothing_of_its_holder_back() -> None:
    """A user whose one model is down must be served by the other."""
    script = house().replica("x", slots=1, models=("x",)).drain("x")
    script.arrive("m0", user="alice", caps=(("user alice", 1),))
    script.replica("y", slots=1, models=("x",)).arrive("y0", model="x", user="bob")
    script.arrive("x0", model="x", user="alice", caps=(("user alice", 1),))
    script.arrive("m1", user="alice", caps=(("user alice", 1),)).expect_waiting("x0", "m1")
    script.finish("m0").expect_granted("m1").expect_waiting("x0")
    script.finish("m1").expect_waiting("x0").finish("y0").expect_granted("x0")


@pytest.mark.parametrize("end", ["finish", "cancel", "bounce"])
def test_however_a_request_ends_its_place_is_free_again(end: str) -> None:
    """A place that leaks is a user who is locked out for ever."""
    script = house(one_tier(limiter="static")).arrive_many("a", 3, user="alice", caps=ALICE)
    getattr(script, end)("a0")
    script.advance(1.0).expect_granted("a2" if end != "bounce" else "a1")
    assert len(script.running) == 2


def test_a_request_that_ends_twice_frees_one_place() -> None:
    """The set holds ids: no doubled message may let one more in."""
    script = house().arrive_many("a", 4, user="alice", caps=ALICE).finish("a0")
    script.scheduler.handle(script.log[-1][1], script.now)
    script.check()
    script.expect_waiting("a3")


def test_a_held_request_may_leave_and_its_patience_ends() -> None:
    """A client that gave up must not be served later, and nobody waits for ever."""
    tier = Tier(name="only", queue_limit=0, patience_s=5)
    script = house(one_tier(tiers=(tier,))).arrive_many("a", 4, user="alice", caps=ALICE)
    script.cancel("a2").advance(6).expect_refused("a3", reason=Reason.PATIENCE_SPENT)
    script.finish("a0", "a1")
    assert not script.scheduler.caps.holders


def test_a_request_that_leaves_the_queue_lets_the_next_one_into_it() -> None:
    """A holder with room whose one queued request is cancelled must not stand still."""
    cap = (("user alice", 1),)
    script = house(slots=1).arrive("a0", user="alice", caps=cap)
    script.arrive("b0", user="bob").arrive_many("c", 3, user="alice", caps=cap)
    script.finish("a0").expect_granted("b0").cancel("c0").finish("b0").expect_granted("c1")


def test_the_cap_of_the_latest_request_counts() -> None:
    """An operator who raises a cap wants those that wait to go, not only those that come."""
    script = house(slots=8).arrive_many("a", 4, user="alice", caps=(("user alice", 1),))
    script.arrive("a4", user="alice", caps=(("user alice", 3),))
    assert len(script.running) == 3
    script.arrive("a5", user="alice", caps=(("user alice", 1),)).finish("a0", "a1")
    assert len(script.running) == 1


@pytest.mark.parametrize("slots", [8, 2])
def test_a_cap_that_was_raised_is_filled_by_what_was_held(slots: int) -> None:
    """One more with each newcomer: the rest would wait beside free slots for as long as it is."""
    script = house(slots=slots).arrive_many("a", 9, user="alice", caps=(("user alice", 1),))
    script.arrive("b", user="alice", caps=(("user alice", 5),))
    for left in range(9, 0, -1):
        assert len(script.running) == min(slots, 5, left + 1)
        queued = [each for each in script.scheduler.waiting.values() if each.holder is None]
        assert all(0.0 <= each.entered_at <= script.now for each in queued)
        script.serve(1)


def test_a_cap_that_was_raised_is_filled_in_every_pool() -> None:
    """The slots of the second model would stay empty until somebody asks for it again."""
    script = house(slots=8).replica("x", slots=8, models=("x",))
    for model in ("m", "m", "m", "x", "x", "x"):
        id = f"{model}{len(script.log)}"
        script.arrive(id, user="alice", model=model, caps=(("user alice", 1),))
    script.arrive("b", user="alice", caps=(("user alice", 7),))
    assert (len(script.on("r")), len(script.on("x"))) == (4, 3)


def test_two_that_got_room_at_once_may_be_kept_back_by_their_tenant() -> None:
    """A key with a place free stands behind its tenant, and goes on when that has one."""
    key, tenant = (("key k", 1), ("tenant t", 2)), (("tenant t", 2),)
    script = house(slots=16).arrive("k0", caps=key, user="a").arrive("t0", caps=tenant, user="b")
    script.arrive("t1", caps=tenant, user="b").arrive_many("q", 2, caps=key, user="a")
    script.finish("k0").expect_granted("t1").expect_waiting("q0", "q1")
    script.finish("t0").expect_granted("q0").expect_waiting("q1")
    script.finish("t1").expect_waiting("q1").finish("q0").expect_granted("q1")


def test_a_cap_of_nothing_lets_nothing_run() -> None:
    """Zero is how an operator stops a user without revoking the key."""
    script = house().arrive("a", caps=(("key k", 0),)).expect_waiting("a")
    script.arrive("b", caps=(("key k", 1),))
    assert len(script.running) == 1


def test_what_is_held_counts_against_the_bounds_and_gives_way_first() -> None:
    """Requests beyond a cap must not fill the room that others wait in."""
    policy = one_tier(bounds=Bounds(waiting=3, waiting_per_user=10))
    script = house(policy, slots=1).arrive_many("a", 3, user="alice", caps=(("user alice", 1),))
    script.arrive_many("b", 2, user="bob").expect_waiting("a1", "b0", "b1")
    script.expect_refused("a2", reason=Reason.SHED)
    script = house(one_tier(bounds=Bounds(waiting_per_user=2)))
    script.arrive_many("a", 5, user="alice", caps=ALICE)
    script.expect_refused("a4", reason=Reason.USER_QUEUE_FULL)


def test_what_is_held_gives_way_for_its_tier_too() -> None:
    """Somebody who could run would be refused for what its neighbour may not run yet."""
    tier = Tier(name="only", queue_limit=0, patience_s=1e6, room=Room(requests=2))
    script = house(one_tier(tiers=(tier,)), slots=1)
    script.arrive_many("a", 2, user="alice", caps=(("user alice", 1),))
    script.arrive_many("b", 2, user="bob").expect_waiting("b0", "b1")
    script.expect_refused("a1", reason=Reason.SHED)


def test_one_that_would_be_held_is_told_when_to_come_back() -> None:
    """By the pace of the line, which is known by then."""
    policy = one_tier(bounds=Bounds(waiting_per_user=1, waiting=2))
    script = house(policy, slots=1).arrive("b", user="bob").arrive("b1", user="bob").serve(2)
    script.arrive("a0", user="alice", caps=(("user alice", 1),)).arrive("b2", user="bob")
    script.arrive_many("c", 2, user="alice", caps=(("user alice", 1),))
    script.expect_refused("c1", reason=Reason.USER_QUEUE_FULL)
    script.arrive("c", user="carol", caps=(("user carol", 0),))
    script.expect_refused("c", reason=Reason.QUEUE_FULL)
    assert all((each.retry_after_s or 0.0) >= 1.0 for each in script.refused.values())


def test_when_patience_ends_for_one_that_fits_nowhere_what_was_held_behind_it_goes() -> None:
    """The free slot would wait for the next event of that user."""
    tier = Tier(name="only", queue_limit=0, patience_s=1e6)
    script, cap = house(one_tier(tiers=(tier,))), (("user alice", 1),)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=10_000)
    script.arrive("full", user="b", prompt_tokens=4_000, output_tokens_max=1).first_token("full")
    script.arrive("a0", user="alice", caps=cap)
    big: dict[str, Any] = {"prompt_tokens": 8_000, "output_tokens_max": 1, "patience_s": 5.0}
    script.arrive("big", user="alice", caps=cap, **big)
    script.arrive("fits", user="alice", caps=cap, prompt_tokens=4_200, output_tokens_max=1)
    script.finish("a0").expect_waiting("big", "fits").advance(6.0)
    script.expect_refused("big", reason=Reason.PATIENCE_SPENT).expect_granted("fits")


def test_the_tenants_own_bound_takes_what_it_holds() -> None:
    """A tenant that is over its room loses what it could not run anyway."""
    policy = one_tier(tenants={"t": Tenant(room=Room(requests=2))})
    script = house(policy, slots=1).arrive_many("a", 2, user="alice", caps=(("user alice", 1),))
    script.arrive("b", user="bob").arrive("c", user="bob")
    script.expect_refused("a1", reason=Reason.SHED).expect_waiting("b", "c")


def test_of_what_a_tenant_holds_the_newest_of_its_lowest_tier_gives_way() -> None:
    """Its chat must not go for the sake of its batch."""
    policy = four_tiers(tenants={"t": Tenant(room=Room(requests=3))})
    script, caps = house(policy).arrive("a", caps=(("tenant t", 1),)), (("tenant t", 1),)
    for id, tier in (("low0", 3), ("low1", 3), ("chat0", 0), ("chat1", 0)):
        script.arrive(id, tier=tier, caps=caps)
    script.expect_refused("low1", reason=Reason.SHED).expect_waiting("low0", "chat0", "chat1")


def test_what_others_hold_is_not_the_tenants() -> None:
    """Its own newest gives way, as where nobody has a cap."""
    policy = one_tier(tenants={"t": Tenant(room=Room(requests=2))})
    script = house(policy, slots=1)
    script.arrive_many("o", 2, tenant="o", caps=(("tenant o", 1),)).arrive_many("b", 3, user="bob")
    script.expect_refused("b2", reason=Reason.TENANT_QUEUE_FULL).expect_waiting("o1", "b0", "b1")


def test_a_new_policy_keeps_what_is_held() -> None:
    """Tiers are renamed while a user is at its cap: nothing may be lost or let through."""
    script = house(four_tiers()).arrive_many("a", 4, tier=3, user="alice", caps=ALICE)
    fewer = four_tiers(tiers=four_tiers().tiers[:3])
    script.change(fewer, {"background": "standard"}).expect_waiting("a2", "a3")
    script.finish("a0").expect_granted("a2")
    script.change(four_tiers(release_at_once=True)).expect_granted("a3")


def test_a_gateway_that_closes_refuses_what_is_held() -> None:
    """Nobody may be left without an answer."""
    script = house().arrive_many("a", 4, user="alice", caps=ALICE).close()
    script.expect_refused("a2", "a3", reason=Reason.SHUTTING_DOWN).finish("a0", "a1")


def test_the_rest_of_a_broken_stream_is_never_held() -> None:
    """Its client reads already: it was let in once."""
    script = house().arrive_many("a", 3, user="alice", caps=ALICE)
    script.finish("a0", outcome=Outcome.FAILED, goes_on=True).expect_granted("a2")
    script.arrive("rest", user="alice", caps=ALICE, is_continuation=True).expect_granted("rest")


def test_a_request_that_runs_already_counts() -> None:
    """After a failover the caps are those of all gateways together."""
    script = house().take_over("a0", "r", user="alice", caps=(("user alice", 1),))
    script.arrive("a1", user="alice", caps=(("user alice", 1),)).expect_waiting("a1")
    script.finish("a0").expect_granted("a1")


def test_a_held_request_is_explained_by_its_cap() -> None:
    """An operator must see that it is the user's own limit, and no replica."""
    script = house().arrive_many("a", 4, user="alice", caps=ALICE)
    found = explain.explain(script.scheduler, "a3", script.now)
    assert found is not None
    assert (found.state, found.held_by) == ("held", "user alice")
    assert (found.held_by_running, found.held_by_most, found.position) == (2, 2, 2)
    assert script.scheduler.place_of("a3", script.now) == (2, None)


def test_a_snapshot_knows_what_is_held() -> None:
    """A standby that takes over must neither forget a cap nor what waits for it."""
    script = house().arrive_many("a", 4, user="alice", caps=ALICE)
    data = snapshot.snapshot(script.scheduler, script.now)
    script.scheduler = snapshot.restore(script.scheduler.policy, data, script.now)
    script.check()
    script.expect_waiting("a2", "a3").finish("a0").expect_granted("a2").expect_waiting("a3")
