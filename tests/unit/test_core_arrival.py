"""A request arrives: may it run here at all, may it wait, and who gives way if not?"""

import pytest

from gateway.core.messages import (
    Arrived,
    DrainAsked,
    Granted,
    Reason,
    ReplicaFound,
    Request,
    WakeWanted,
)
from gateway.core.policy import Ageing, Bounds, Policy, Room, Tenant, Tier
from gateway.core.scheduler import Scheduler
from tests.support.script import Script, one_tier


def tiers(*rooms: Room, patience_s: float = 1e6) -> tuple[Tier, ...]:
    """A tier for each of these rooms, which releases into free slots only."""
    return tuple(
        Tier(name=f"t{rank}", queue_limit=0, patience_s=patience_s, room=room)
        for rank, room in enumerate(rooms)
    )


def held(policy: Policy | None = None, **fields: object) -> Script:
    """One slot, taken by a request of a user of its own."""
    script = Script(policy).replica("r", slots=1)
    return script.arrive("held", tenant="z", user="z", **fields)  # type: ignore[arg-type]  # free keywords


def learnt(policy: Policy) -> Script:
    """One slot that serves a request a second, and a line of sixteen whose waits are known."""
    script = Script(policy).replica("r", slots=1).arrive_many("warm", 17, user="a")
    for number in range(90):
        script.serve(1).arrive(f"a{number}", user="a")
    return script


def pool_charges(script: Script) -> dict[str, float]:
    """Start tags by user."""
    pool = script.scheduler.pool_of("m")
    assert pool is not None
    return {
        user.name: user.start
        for tenant in pool.queues[0].tenants.values()
        for user in tenant.users.values()
    }


# --- refused whatever else waits --------------------------------------------------------------


def test_a_model_that_nobody_serves_is_refused_and_leaves_no_trace() -> None:
    """A typo in a model's name must not make a queue of its own."""
    script = held().arrive("a", model="unknown").expect_refused("a", reason=Reason.NO_REPLICA)
    assert script.scheduler.pool_of("unknown") is None
    assert len(script.scheduler.pools) == 1


def test_after_the_end_every_arrival_is_told_that_it_is_the_end() -> None:
    """A load balancer that is told `no replica` would look for a fault."""
    script = held().arrive("waits").close().expect_refused("waits", reason=Reason.SHUTTING_DOWN)
    script.arrive("a").expect_refused("a", reason=Reason.SHUTTING_DOWN)
    script.arrive("b", model="unknown").expect_refused("b", reason=Reason.SHUTTING_DOWN)
    script.arrive("c", is_continuation=True).expect_refused("c", reason=Reason.SHUTTING_DOWN)
    script.finish("held")


@pytest.mark.parametrize("is_continuation", [False, True])
def test_a_request_that_no_usable_replica_may_run_is_refused_at_once(
    *, is_continuation: bool
) -> None:
    """A retry that has failed everywhere would wait out its patience for nothing."""
    script = held().replica("s", slots=1)
    failed = frozenset({"r", "s"})
    script.arrive("a", excluded=failed, is_continuation=is_continuation)
    script.expect_refused("a", reason=Reason.NO_REPLICA)
    script.drain("s").arrive("b", excluded=frozenset({"r"}), is_continuation=is_continuation)
    script.expect_refused("b", reason=Reason.NO_REPLICA)
    script.arrive("c", excluded=frozenset({"s"})).expect_waiting("c")


def test_a_prompt_that_no_replica_can_hold_is_refused_on_arrival() -> None:
    """The engine would refuse it too, but only after it waited for its turn."""
    script = Script().tell(
        ReplicaFound(replica="r", models=frozenset({"m"}), slots=1, context_tokens=1_000)
    )
    script.arrive("long", prompt_tokens=1_001).expect_refused("long", reason=Reason.PROMPT_TOO_LONG)
    script.arrive("rest", prompt_tokens=1_001, is_continuation=True)
    script.expect_refused("rest", reason=Reason.PROMPT_TOO_LONG)
    script.arrive("fits", prompt_tokens=1_000).expect_granted("fits")
    script.arrive("guess", prompt_tokens=None, body_bytes=1 << 20).expect_waiting("guess")
    script.tell(
        ReplicaFound(replica="s", models=frozenset({"m"}), slots=1, context_tokens=2_000)
    ).expect_granted("guess")
    script.arrive("longer", prompt_tokens=2_000).expect_waiting("longer")
    script.arrive("longest", prompt_tokens=2_001)
    script.expect_refused("longest", reason=Reason.PROMPT_TOO_LONG)


def test_while_a_replica_does_not_say_how_much_it_holds_no_prompt_is_too_long() -> None:
    """Refused for what one replica cannot hold, though another could."""
    script = Script().tell(
        ReplicaFound(replica="r", models=frozenset({"m"}), slots=1, context_tokens=1_000)
    )
    script.replica("unknown", slots=1).arrive("long", prompt_tokens=100_000)
    script.expect_granted("long")


# --- at once ----------------------------------------------------------------------------------


def test_where_nothing_waits_a_request_that_fits_is_granted_in_the_same_event() -> None:
    """Most requests of a quiet fleet: no queue, no wake-up, no wait."""
    scheduler = Scheduler(one_tier())
    scheduler.handle(ReplicaFound(replica="r", models=frozenset({"m"}), slots=1), 5.0)
    request = Request(id="a", model="m", tier=0, tenant="t", user="u", arrived_at=3.0)
    assert scheduler.handle(Arrived(request), 5.0) == [Granted("a", "r", 2.0)]
    assert scheduler.waiting == {}
    assert not any(queue.count for queue in scheduler.pools[0].queues)


def test_a_request_of_the_future_has_not_waited() -> None:
    """Two clocks that differ by a millisecond must not make a negative wait."""
    scheduler = Scheduler(one_tier())
    scheduler.handle(ReplicaFound(replica="r", models=frozenset({"m"}), slots=1), 0.0)
    request = Request(id="a", model="m", tier=0, tenant="t", user="u", arrived_at=0.1)
    assert scheduler.handle(Arrived(request), 0.0) == [Granted("a", "r", 0.0)]


def test_where_nothing_is_open_it_waits_and_asks_to_be_woken() -> None:
    """A request that nobody looks at again waits for ever."""
    script = held().arrive("a")
    script.expect_waiting("a")
    _, _, decisions = script.log[-1]
    assert [type(each) for each in decisions] == [WakeWanted]


def test_what_is_granted_at_once_is_charged_to_its_user() -> None:
    """Who had all free slots must be behind, once they are no longer free."""
    script = Script(one_tier(cost="tokens")).replica("r", slots=2)
    script.arrive("big", user="a", prompt_tokens=1_000, output_tokens_max=10)
    script.arrive("mid", user="a", prompt_tokens=500, output_tokens_max=10)
    assert pool_charges(script)["a"] == 1_020 + 520
    script.arrive_many("a", 2, user="a", output_tokens_max=10)
    script.arrive("b", user="b", output_tokens_max=10).finish("mid", "big")
    assert script.order[2:] == ["b", "a0"]


def test_nobody_overtakes_one_that_waits_and_fits() -> None:
    """An arrival must not take the slot that opened for the first in line."""
    script = held().arrive("first", user="a").finish("held").expect_granted("first")
    script.arrive("second", user="a").arrive("third", user="a").finish("first")
    script.expect_order("held", "first", "second")


def test_an_arrival_passes_one_that_waits_and_fits_nowhere() -> None:
    """Work conservation: a free slot beside a request that may not use it."""
    script = held().replica("s", slots=1).arrive("taken").arrive("stuck", excluded=frozenset("s"))
    script.finish("taken").expect_waiting("stuck").arrive("free").expect_granted("free", on="s")


def test_a_request_without_a_slot_is_granted_beside_full_ones() -> None:
    """An embedding must not wait for the end of a chat."""
    held().arrive("a", output_tokens_max=0).expect_granted("a")


def test_without_queue_or_gate_everything_is_forwarded_and_nothing_charged() -> None:
    """The contrast that the demo shows: least outstanding first, however much is there."""
    script = Script(one_tier(release_at_once=True)).replica("r", slots=1).replica("s", slots=1)
    script.arrive_many("a", 7, user="a")
    assert [len(script.on(name)) for name in "rs"] == [4, 3]
    script.arrive("b", excluded=frozenset({"s"})).expect_granted("b", on="r")
    assert pool_charges(script) == {}
    script.finish("a0", "a1")
    assert pool_charges(script) == {}


def test_an_id_waits_or_runs_once() -> None:
    """Two requests of one id would share one slot: a fault of the caller, told at once."""
    script = held().arrive("a")
    for id in ("a", "held"):
        with pytest.raises(AssertionError):
            script.scheduler.handle(Arrived(script.request(id)), script.now)


# --- hopeless ---------------------------------------------------------------------------------


def test_who_would_not_be_served_within_its_patience_is_refused_on_arrival() -> None:
    """A client with somewhere else to go: half a minute later it would hear the same."""
    script = learnt(one_tier(tiers=tiers(Room())))
    script.arrive("hasty", user="a", patience_s=2.0)
    script.expect_refused("hasty", reason=Reason.WAIT_TOO_LONG)
    after_s = script.refused["hasty"].retry_after_s
    assert after_s is not None
    assert 10.0 <= after_s <= 30.0
    assert script.scheduler.waiting.keys() == script.waiting
    script.arrive("patient", user="a").expect_waiting("patient")
    script.arrive("light", user="b", patience_s=5.0).expect_waiting("light")


def test_a_free_slot_is_never_refused_for_the_length_of_a_line_elsewhere() -> None:
    """A request that could begin now, told that it would wait too long."""
    script = learnt(one_tier(tiers=tiers(Room())))
    script.arrive("only-r", user="a", excluded=frozenset("s")).cancel(
        *(id for id in script.waiting if id != "only-r")
    )
    script.arrive_many("more", 15, user="a", excluded=frozenset("s")).replica("s", slots=1)
    script.arrive("hasty", user="a", patience_s=1.0).expect_granted("hasty", on="s")


# --- rooms ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "size"),
    [
        (Bounds(waiting_per_user=2), {}),
        (Bounds(waiting_bytes_per_user=250), {"body_bytes": 100}),
        (Bounds(waiting_tokens_per_user=250), {"prompt_tokens": 90, "output_tokens_max": 10}),
    ],
)
def test_a_users_room_is_by_count_bytes_and_tokens_and_only_its_own_arrival_is_refused(
    bounds: Bounds, size: dict[str, object]
) -> None:
    """One user's videos must not be paid for by a neighbour, nor by its own older requests."""
    script = held(one_tier(bounds=bounds))
    for number in range(4):
        script.arrive(f"a{number}", user="a", **size)  # type: ignore[arg-type]  # free keywords
    script.expect_waiting("a0", "a1")
    script.expect_refused("a2", "a3", reason=Reason.USER_QUEUE_FULL)
    script.arrive("b", user="b", **size).arrive("c", user="a", tenant="w", **size)  # type: ignore[arg-type]  # free keywords
    script.expect_waiting("b", "c").finish("held").expect_granted("a0")
    script.arrive("a4", user="a", **size).expect_waiting("a4")  # type: ignore[arg-type]  # free keywords


@pytest.mark.parametrize(
    ("bounds", "size"),
    [
        (Bounds(waiting_bytes_per_user=250), {"body_bytes": 251}),
        (Bounds(waiting_tokens_per_user=250), {"prompt_tokens": 241, "output_tokens_max": 10}),
    ],
)
def test_a_users_first_request_must_fit_into_its_room_too(
    bounds: Bounds, size: dict[str, object]
) -> None:
    """A bound that one large request may pass is none."""
    script = Script(one_tier(bounds=bounds)).replica("r", slots=1)
    script.arrive("runs", **size).expect_granted("runs")  # type: ignore[arg-type]  # free keywords
    script.arrive("waits", **size)  # type: ignore[arg-type]  # free keywords
    script.expect_refused("waits", reason=Reason.USER_QUEUE_FULL)


def test_a_users_room_is_over_all_models_and_tiers() -> None:
    """Spreading a flood over models must not multiply it."""
    policy = one_tier(tiers=tiers(Room(), Room()), bounds=Bounds(waiting_per_user=2))
    script = held(policy).replica("x", slots=1, models=("x",)).arrive("held2", model="x", user="z")
    script.arrive("a0", user="a").arrive("a1", user="a", model="x", tier=1)
    script.arrive("a2", user="a").expect_refused("a2", reason=Reason.USER_QUEUE_FULL)


@pytest.mark.parametrize(
    ("room", "size"),
    [
        (Room(requests=2), {}),
        (Room(body_bytes=250), {"body_bytes": 100}),
        (Room(tokens=250), {"prompt_tokens": 90, "output_tokens_max": 10}),
    ],
)
def test_a_tenants_room_is_by_count_bytes_and_tokens_and_its_own_heaviest_gives_way(
    room: Room, size: dict[str, object]
) -> None:
    """A tenant's power user must neither lock out its colleagues nor another tenant."""
    script = held(one_tier(tenants={"t": Tenant(room=room)}))
    for number in range(3):
        script.arrive(f"a{number}", user="a", **size)  # type: ignore[arg-type]  # free keywords
    script.expect_refused("a2", reason=Reason.TENANT_QUEUE_FULL)
    script.arrive("b", user="b", **size).expect_waiting("b", "a0")  # type: ignore[arg-type]  # free keywords
    script.expect_refused("a1", reason=Reason.SHED)
    for number in range(4):
        script.arrive(f"w{number}", tenant="w", user="a", **size)  # type: ignore[arg-type]  # free keywords
    script.expect_waiting("w0", "w1", "w2", "w3", "a0", "b")


def test_a_tenant_gives_way_in_its_lowest_tier_first() -> None:
    """The interactive work of a tenant whose nightly batch fills its room."""
    policy = one_tier(tiers=tiers(Room(), Room()), tenants={"t": Tenant(room=Room(requests=2))})
    script = held(policy).arrive_many("low", 2, tier=1, user="batch").arrive("top", user="a")
    script.expect_waiting("top", "low0").expect_refused("low1", reason=Reason.SHED)
    script.arrive("low2", tier=1, user="a", sequences=2).expect_waiting("top", "low0")
    script.expect_refused("low2", reason=Reason.TENANT_QUEUE_FULL)


@pytest.mark.parametrize(
    ("room", "size"),
    [
        (Room(requests=2), {}),
        (Room(body_bytes=250), {"body_bytes": 100}),
        (Room(tokens=250), {"prompt_tokens": 90, "output_tokens_max": 10}),
    ],
)
def test_a_tiers_room_is_by_count_bytes_and_tokens_and_no_other_tier_gives_way(
    room: Room, size: dict[str, object]
) -> None:
    """Background work must not be thrown away because the critical tier has a short line."""
    script = held(one_tier(tiers=tiers(room, Room())))
    for number in range(4):
        script.arrive(f"low{number}", tier=1, user="l", **size)  # type: ignore[arg-type]  # free keywords
    for number in range(3):
        script.arrive(f"a{number}", user="a", **size)  # type: ignore[arg-type]  # free keywords
    script.expect_refused("a2", reason=Reason.QUEUE_FULL)
    script.arrive("b", user="b", **size).expect_waiting("b", "a0")  # type: ignore[arg-type]  # free keywords
    script.expect_refused("a1", reason=Reason.SHED)
    script.expect_waiting("low0", "low1", "low2", "low3")


@pytest.mark.parametrize(
    ("bounds", "size"),
    [
        (Bounds(waiting=2), {}),
        (Bounds(waiting_bytes=250), {"body_bytes": 100}),
        (Bounds(waiting_tokens=250), {"prompt_tokens": 90, "output_tokens_max": 10}),
    ],
)
def test_the_room_of_all_is_by_count_bytes_and_tokens_and_the_heaviest_gives_way(
    bounds: Bounds, size: dict[str, object]
) -> None:
    """The power user must not have the others refused, whatever the memory is filled with."""
    script = held(one_tier(bounds=bounds))
    for number in range(3):
        script.arrive(f"a{number}", user="a", **size)  # type: ignore[arg-type]  # free keywords
    script.expect_refused("a2", reason=Reason.QUEUE_FULL)
    script.arrive("b", user="b", **size).expect_waiting("b", "a0")  # type: ignore[arg-type]  # free keywords
    script.expect_refused("a1", reason=Reason.SHED)


def test_a_request_larger_than_any_room_is_refused_itself_in_the_end() -> None:
    """Everybody's requests thrown away for one that can never wait would be the worst of all."""
    script = held(one_tier(bounds=Bounds(waiting_bytes=250), cost="tokens"))
    script.arrive("a", user="a", body_bytes=100, output_tokens_max=5)
    script.arrive("huge", user="b", body_bytes=251, prompt_tokens=1_000)
    script.expect_refused("huge", reason=Reason.QUEUE_FULL).expect_waiting("a")


def test_what_can_begin_now_needs_no_room() -> None:
    """A bound on what waits must not refuse what does not wait."""
    policy = one_tier(
        tiers=tiers(Room(requests=0)),
        tenants={"t": Tenant(room=Room(requests=0))},
        bounds=Bounds(waiting=0),
    )
    script = Script(policy).replica("r", slots=1).arrive("a").expect_granted("a")
    script.arrive("b")
    assert script.refused["b"].reason is Reason.TENANT_QUEUE_FULL
    script.arrive("c", tenant="other").expect_refused("c", reason=Reason.QUEUE_FULL)


def test_several_give_way_for_one_that_is_as_large_as_they() -> None:
    """Bytes are what is short, not requests."""
    script = held(one_tier(bounds=Bounds(waiting_bytes=1_000)))
    script.arrive_many("a", 9, user="a", body_bytes=100)
    script.arrive("b", user="b", body_bytes=400).expect_waiting("b", "a5")
    script.expect_refused("a6", "a7", "a8", reason=Reason.SHED)


def test_the_lowest_tier_of_all_gives_way_before_any_weight_is_asked_for() -> None:
    """One light background request goes before a heavy critical user loses anything."""
    policy = one_tier(tiers=tiers(Room(), Room(), Room()), bounds=Bounds(waiting=5))
    script = held(policy).arrive("low", tier=2, user="l").arrive("mid", tier=1, user="m")
    script.arrive_many("top", 5, user="h")
    script.expect_refused("low", "mid", reason=Reason.SHED)
    script.arrive("more", user="h").expect_refused("more", reason=Reason.QUEUE_FULL)


def test_who_gives_way_makes_room_for_what_waited_behind_it() -> None:
    """A refused request that was too large must not leave its shadow on the line."""
    policy = one_tier(bounds=Bounds(waiting=2), reserve_after_s=0.0)
    script = Script(policy).replica("r", slots=2).arrive("held", user="z")
    script.arrive("large", user="a", sequences=2)
    for id in ("b0", "b1"):
        script.arrive(id, user="b").expect_granted(id).advance(1.0).finish(id)
    script.arrive("c", user="c").expect_waiting("large", "c")
    script.arrive("d", user="d").expect_refused("large", reason=Reason.SHED).expect_granted("c")


# --- continuations ----------------------------------------------------------------------------


def test_the_rest_of_a_broken_stream_is_exempt_from_every_room() -> None:
    """Its client reads half an answer: it must not be told that the queue is full."""
    policy = one_tier(
        tiers=tiers(Room(requests=1)),
        tenants={"t": Tenant(room=Room(requests=1))},
        bounds=Bounds(waiting=1, waiting_per_user=1, waiting_tokens_per_user=1),
    )
    script = held(policy).arrive("rest0", user="a", is_continuation=True)
    script.arrive("rest1", user="a", is_continuation=True)
    script.arrive("rest2", user="b", is_continuation=True).expect_waiting("rest0", "rest1", "rest2")
    script.finish("held").expect_granted("rest0")


def test_the_rest_of_a_background_stream_does_not_open_the_queue_to_all() -> None:
    """The process: a bound that one mended stream lifts protects no memory."""
    policy = one_tier(tiers=tiers(Room(), Room()), bounds=Bounds(waiting=3))
    script = held(policy).arrive("rest", tier=1, user="b", is_continuation=True)
    script.arrive_many("a", 9, user="a").expect_waiting("rest", "a0")
    assert len(script.waiting) == 3


def test_the_rest_of_a_broken_stream_is_first_in_its_tier_and_only_there() -> None:
    """A background stream that broke is background work still."""
    script = held(one_tier(tiers=tiers(Room(), Room())))
    script.arrive("a", user="a").arrive("low", tier=1, user="a").arrive("b", user="b")
    script.arrive("rest-low", tier=1, user="b", is_continuation=True)
    script.arrive("rest", user="z", is_continuation=True).serve(5)
    script.expect_order("held", "rest", "a", "b", "rest-low", "low")


def test_the_rest_of_a_broken_stream_waits_so_long_and_then_is_given_up() -> None:
    """A client that has half an answer must learn within half a minute that this is all."""
    script = held(one_tier(continuation_wait_s=10.0)).advance(5.0)
    script.arrive("rest", is_continuation=True).advance(9.9).expect_waiting("rest")
    script.advance(0.2).expect_refused("rest", reason=Reason.PATIENCE_SPENT)


# --- when to come back ------------------------------------------------------------------------


def test_a_refused_client_is_told_its_weighted_place_over_the_drain_rate() -> None:
    """The tenant of three shares has its turn three times as soon, and is told so."""
    told = {}
    for weight in (1.0, 3.0):
        tenants = {"t": Tenant(weight=weight, room=Room(requests=4))}
        script = Script(one_tier(tenants=tenants)).replica("r", slots=1)
        for number in range(60):
            script.arrive(f"warm{number}", tenant="z").serve(1)
        script.arrive_many("z", 40, tenant="z").arrive_many("a", 4).arrive("late")
        script.expect_refused("late", reason=Reason.TENANT_QUEUE_FULL)
        told[weight] = script.refused["late"].retry_after_s or 0.0
    # The fifth of its own: two turns each with equal weights, four of three with three shares.
    assert told[1.0] == pytest.approx(10.0, abs=2.0)
    assert told[3.0] == pytest.approx(7.0, abs=1.0)


def test_a_refusal_for_want_of_a_replica_says_the_longest_wait() -> None:
    """Nobody knows when it comes back: a smaller figure would be invented."""
    script = Script(one_tier(bounds=Bounds(retry_after_s_max=17.0))).arrive("a")
    assert script.refused["a"].retry_after_s == 17.0


# --- recalls and headroom ---------------------------------------------------------------------


def test_an_arrival_reserves_its_tiers_headroom_even_when_it_is_refused_room() -> None:
    """A tier that asks is a tier that is there: the next of it must find its slot."""
    policy = one_tier(tiers=tiers(Room(requests=0), Room()), headroom_max=0.5)
    script = Script(policy).replica("r", slots=2).arrive_many("low", 2, tier=1)
    script.arrive("top").expect_refused("top", reason=Reason.QUEUE_FULL).finish("low0")
    script.arrive("low2", tier=1).expect_waiting("low2").arrive("top2").expect_granted("top2")


def test_a_request_behind_another_of_its_class_waits_without_a_look_at_the_replicas() -> None:
    """The thousandth in line must cost what the second does, and still go in its turn."""
    script = held().arrive_many("a", 30, user="a").serve(31)
    script.expect_order("held", *(f"a{number}" for number in range(30)))


def test_drained_replicas_take_no_arrival_and_come_back_for_the_next() -> None:
    """The operator's maintenance window."""
    script = Script().replica("r", slots=2).replica("s", slots=2).tell(DrainAsked("r"))
    script.arrive_many("a", 3)
    assert script.on("r") == []
    script.drain("r", draining=False)
    assert script.on("r") == ["a2"]


def test_a_retry_that_is_old_may_be_promoted_as_soon_as_it_arrives() -> None:
    """A request that failed after a long wait has waited already."""
    policy = one_tier(tiers=tiers(Room(), Room()), ageing=Ageing(after_s=20.0))
    script = held(policy).advance(100.0).arrive_many("top", 3).advance(1.0)
    script.arrive("retry", tier=1, arrived_at=60.0).finish("held").expect_granted("retry")


def test_what_goes_on_from_one_replica_waits_for_it_whoever_else_comes() -> None:
    """A response that another engine never made cannot be continued there."""
    script = Script(one_tier()).replica("r", slots=1).arrive("held").arrive("next", only="r")
    script.replica("s", slots=4).arrive("free").expect_granted("free", on="s")
    script.expect_waiting("next").finish("held").expect_granted("next", on="r")
    script.arrive("lost", only="gone").expect_refused("lost", reason=Reason.NO_REPLICA)
    script.check()
