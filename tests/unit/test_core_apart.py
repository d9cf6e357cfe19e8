"""A scheduler among several: its part of a replica, what it disowns, and what it takes over."""

import json
from math import inf

import pytest

from gateway.core.claims import claims, take_claims
from gateway.core.gate import Closed, Gates
from gateway.core.messages import Disowned
from gateway.core.policy import Tier
from tests.support.parts import a_replica, a_waiting, put_many
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


def test_one_of_two_keeps_to_half_of_a_replica() -> None:
    """Two gateways are the commonest several."""
    script = Play(one_tier(sharers=2)).replica("r", slots=4).arrive_many("a", 4)
    assert len(script.on("r")) == 2


@pytest.mark.parametrize(
    ("slots", "limit", "sharers", "part"),
    [
        (6, None, 3, 2), (7, None, 2, 3), (16, 4, 2, 2), (4, 16, 2, 2), (None, 8, 2, 4),
        (2, None, 9, 1), (None, None, 2, inf),
    ],
)  # fmt: skip
def test_the_part_is_of_the_slots_or_of_a_lower_limit(
    slots: int | None, limit: int | None, sharers: int, part: float
) -> None:
    """Where slots are unknown the operator's limit would be filled once by each gateway."""
    gates = Gates(one_tier(sharers=sharers, inflight_limit=limit))
    assert gates.share(a_replica(slots=slots)) == part


def test_whoever_leaves_by_a_recall_leaves_its_place_in_the_part() -> None:
    """Nothing would ever be taken back for a better tier."""
    gates, replica = Gates(one_tier(sharers=2)), a_replica(slots=4)
    put_many(replica, 2)
    assert gates.closed_by(replica, 0, 0, 0.0) is Closed.SHARE
    assert gates.closed_by(replica, 0, 0, 0.0, without=1) is None
    replica.foreign = 1
    assert gates.closed_by(replica, 0, 0, 0.0, without_foreign=1) is Closed.SHARE


@pytest.mark.parametrize(("slots", "limit"), [(8, None), (None, 8)])
def test_many_sequences_fill_the_part_of_a_replica_to_its_end(
    slots: int | None, limit: int | None
) -> None:
    """A request of n=3 beside one is just the four of two gateways on eight slots."""
    gates = Gates(one_tier(sharers=2, inflight_limit=limit))
    replica = a_replica(slots=slots)
    put_many(replica, 1, starts=True)
    found = [
        gates.unfit_by(a_waiting(f"n{n}", sequences=n), replica, 0, 0.0) for n in (2, 3, 4, 16)
    ]
    assert found == [None, None, Closed.SHARE, Closed.SHARE]
    put_many(replica, 2, prefix="q", starts=True)
    assert gates.unfit_by(a_waiting("n2", sequences=2), replica, 0, 0.0) is Closed.SHARE


def test_many_sequences_go_beside_what_others_run_where_nothing_of_ours_does() -> None:
    """With more sequences than its part a request would find no replica, ever."""
    gates, replica = Gates(one_tier(sharers=2)), a_replica(slots=8)
    replica.foreign = 1
    assert gates.unfit_by(a_waiting("n5", sequences=5), replica, 0, 0.0) is None


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
    script.tell(Disowned("a")).expect_granted("b")
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


def shared(*names: str, order: str = "weighted", **changes: object) -> Play:
    """A pool whose tiers of these names have a floor, and shares by weight."""
    tiers = tuple(
        Tier(name=name, queue_limit=0, patience_s=1e6, min_share=0.1, weight=rank)
        for rank, name in enumerate(names, start=1)
    )
    return Play(one_tier(tiers=tiers, order=order, **changes)).replica("r")


def used(*names: str) -> Play:
    """As `shared`, after each tier has had something."""
    script = shared(*names)
    pool = script.pool()
    for rank in range(len(names)):
        pool.queues[rank].adopt_debt(("t", f"of {names[rank]}", 2.0 + rank, 1.0))
        pool.floors.deficits[rank] = 0.5 + rank
    assert pool.shares is not None
    pool.shares.virtual = 3.0
    pool.shares.starts = [4.0 + rank for rank in range(len(names))]
    pool.shares.wake(0)
    return script


def test_what_one_leader_tells_the_next_one_tells_again() -> None:
    """A second change of leaders on one day would lose what the first one kept."""
    told = json.loads(json.dumps(claims(used("a", "b").pool())))
    new = shared("a", "b")
    take_claims(new.pool(), told)
    assert claims(new.pool()) == told
    assert told["tiers"]["b"] == {
        "rank": 1, "debts": [["t", "of b", 3.0, 1.0]], "deficit": 1.5,
    }  # fmt: skip
    assert told["shares"] == {"starts": [4.0, 5.0], "entered": [3.0, 0.0], "virtual": 3.0}


def test_claims_are_those_of_a_tier_by_its_name_and_not_by_its_rank() -> None:
    """An operator put a tier before all others while leaders changed."""
    told = claims(used("a", "gone", "b").pool())
    new = shared("new", "b", "a")
    take_claims(new.pool(), told)
    found = claims(new.pool())
    assert {name: tier["debts"] for name, tier in found["tiers"].items()} == {
        "new": [], "b": [["t", "of b", 4.0, 1.0]], "a": [["t", "of a", 2.0, 1.0]],
    }  # fmt: skip
    assert new.pool().floors.deficits == [0.0, 2.5, 0.5]
    assert found["shares"] == {
        "starts": [0.0, 6.0, 4.0], "entered": [0.0, 0.0, 3.0], "virtual": 3.0,
    }  # fmt: skip


def test_who_leads_nowhere_is_not_told_of() -> None:
    """Each change of leaders would carry every user that ever came."""
    script = shared("a")
    for user, lead, own in (("both", 2.0, 3.0), ("own", 0.0, 0.5), ("none", 0.0, 0.0)):
        script.pool().queues[0].adopt_debt((f"t {user}", user, lead, own))
    script.pool().queues[0].adopt_debt(("t shared", "its tenant's", 0.5, 0.0))
    assert claims(script.pool())["tiers"]["a"]["debts"] == [
        ["t both", "both", 2.0, 3.0],
        ["t own", "own", 0.0, 0.5],
        ["t shared", "its tenant's", 0.5, 0.0],
    ]


def test_shares_are_taken_over_only_where_both_have_them() -> None:
    """A leader that serves tiers by rank tells no shares, and one that does needs none."""
    for old, new in (("strict", "weighted"), ("weighted", "strict")):
        told = claims(shared("a", order=old).pool())
        script = shared("a", order=new)
        take_claims(script.pool(), told)
        assert (claims(script.pool())["shares"] is None) is (new == "strict")
