"""A scheduler among several: its part of a replica, what it disowns, and what it takes over."""

import pytest

from gateway.core.claims import claims, take_claims
from gateway.core.gate import Closed
from gateway.core.messages import Disowned
from tests.support.play import Play
from tests.support.script import one_tier


def test_one_of_three_keeps_to_a_third_of_a_replica() -> None:
    """Three gateways that do not hear of one another would fill the same slots three times."""
    script = Play(one_tier(sharers=3)).replica("r", slots=6)
    script.arrive_many("a", 4)
    assert len(script.on("r")) == 2
    replica = script.known()
    gates = script.pool().gates
    assert gates.closed_by(replica, 0, replica.waiting, script.now) is Closed.SHARE


def test_a_pool_that_is_not_shared_is_whole() -> None:
    """One model that nobody decides about for all would cost every other model its replicas."""
    policy = one_tier(sharers=3, apart=frozenset({"m", "gone"}))
    script = Play(policy).replica("r", slots=6)
    script.replica("s", slots=6, models=frozenset({"other"}))
    script.arrive_many("a", 6).arrive_many("b", 6, model="other")
    assert (len(script.on("r")), len(script.on("s"))) == (2, 6)
    script.change(one_tier(sharers=3))
    assert script.finish("b0").on("s") == [f"b{number}" for number in range(1, 6)]


def test_a_part_of_a_replica_is_at_least_one_request() -> None:
    """With more gateways than slots nobody would be served at all."""
    script = Play(one_tier(sharers=9)).replica("r", slots=2).arrive_many("a", 3)
    assert len(script.on("r")) == 1


def test_many_sequences_do_not_pass_the_part_of_a_replica() -> None:
    """A request of n=4 would take at once what three gateways share."""
    script = Play(one_tier(sharers=2)).replica("r", slots=8)
    script.arrive("a").arrive("b", sequences=4)
    script.expect_granted("a").expect_waiting("b")


def test_what_is_disowned_leaves_no_room_until_the_engine_tells() -> None:
    """Slots of a gateway that went silent would be given out while its streams still run there."""
    script = Play(one_tier()).replica("r", slots=1)
    script.report("r", running=0, waiting=0)
    script.arrive("a").advance(1.0).report("r", running=1, waiting=0).arrive("b")
    script.expect_granted("a").expect_waiting("b")
    del script.running["a"]
    script.tell(Disowned("a")).expect_waiting("b")
    script.advance(1.0).report("r", running=1, waiting=0).expect_waiting("b")
    script.advance(1.0).report("r", running=0, waiting=0).expect_granted("b")


def test_what_is_disowned_of_an_engine_that_tells_nothing_is_forgotten() -> None:
    """Its slot would be lost for ever: nothing could show that it is free."""
    script = Play(one_tier()).replica("r", slots=1).arrive("a").arrive("b")
    del script.running["a"]
    script.tell(Disowned("a")).advance(1.0)
    assert script.known().foreign == 0


def test_what_runs_elsewhere_for_hours_is_no_debt() -> None:
    """A gateway that has to decide alone would let its own busiest users wait for strangers."""
    script = Play(one_tier()).replica("r", slots=4)
    for turn in range(50):
        script.adopt(f"a{turn}", user="busy").finish(f"a{turn}")
    queue = script.pool().queues[0]
    assert script.start_of("busy") - queue.virtual <= 1.0


def test_a_new_leader_goes_on_with_what_users_had() -> None:
    """Whoever took more than a share would begin anew with each leader that dies."""
    old = Play(one_tier()).replica("r", slots=1)
    for turn in range(5):
        old.arrive(f"x{turn}", user="greedy")
    for turn in range(3):
        old.finish(f"x{turn}")
    told = claims(old.pool())
    new = Play(one_tier()).replica("r", slots=1).arrive("first")
    take_claims(new.pool(), told)
    new.arrive("greedy", user="greedy").advance(0.01).arrive("modest", user="modest")
    new.finish("first").expect_granted("modest").expect_waiting("greedy")


def test_claims_of_another_cost_unit_are_left_out() -> None:
    """Tokens read as requests would shut a user out for days."""
    told = {**claims(Play(one_tier()).replica("r").pool()), "cost": "tokens"}
    script = Play(one_tier()).replica("r")
    take_claims(script.pool(), told)
    with pytest.raises(LookupError):
        take_claims(script.pool(), {})
