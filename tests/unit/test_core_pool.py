"""Scheduling domains: which models share queues, and what a regrouping keeps."""

from typing import Any

import pytest

from gateway.core import pool as pool_module
from gateway.core.messages import Reason
from gateway.core.policy import Ageing, Policy, Tier
from gateway.core.pool import Pool, components
from gateway.core.replica import Replica
from tests.support.parts import a_replica, a_request, a_waiting, put_many
from tests.support.play import Play
from tests.support.script import four_tiers, one_tier


def pool_of(script: Play, model: str) -> Pool:
    """The pool of that model, which must exist."""
    return script.pool(model)


def test_models_that_share_a_replica_are_one_domain() -> None:
    """Whoever competes for the same slots must stand in the same line."""
    groups = components(
        [frozenset("ab"), frozenset("c"), frozenset(), frozenset("bd"), frozenset("cd")]
    )
    assert groups == [set("abcd")]
    assert components([frozenset("ab"), frozenset("c")]) == [set("ab"), set("c")]
    assert components([]) == []


def test_a_user_who_is_busy_with_one_model_pays_for_another_on_the_same_replica() -> None:
    """The model is a constraint, not a second share."""
    script = Play().replica("r", slots=1, models=("m", "x")).arrive("held", user="z")
    script.arrive_many("a", 9, user="a", model="m").arrive_many("b", 9, user="b", model="m")
    script.arrive_many("ax", 9, user="a", model="x").serve(12)
    ours = sum(id.startswith("b") for id in script.order)
    assert ours == pytest.approx(6, abs=1)


def test_models_without_a_common_replica_do_not_compete() -> None:
    """A saturated big model must not slow the small one."""
    script = Play().replica("r1", slots=1, models=("m",)).replica("r2", slots=1, models=("x",))
    script.arrive_many("m", 9, model="m").arrive("x", model="x").expect_granted("x", on="r2")
    assert pool_of(script, "m") is not pool_of(script, "x")


def test_a_replica_that_serves_both_joins_two_pools_and_nobody_is_lost() -> None:
    """An adapter loaded at noon must not throw away the morning's line."""
    script = Play().replica("r1", slots=1, models=("m",)).replica("r2", slots=1, models=("x",))
    script.arrive_many("m", 4, model="m", user="a").arrive_many("x", 4, model="x", user="b")
    script.replica("r3", slots=1, models=("m", "x"))
    assert pool_of(script, "m") is pool_of(script, "x")
    assert len(script.running) == 3
    script.serve(8)
    assert len(script.order) == 8


def test_a_pool_falls_apart_and_nobody_is_lost() -> None:
    """The one replica that served both is gone; each line goes on by itself."""
    script = Play().replica("r1", slots=1, models=("m",)).replica("r2", slots=1, models=("m", "x"))
    script.replica("r3", slots=1, models=("x",)).arrive_many("m", 4, model="m")
    script.arrive_many("x", 4, model="x").replica("r2", slots=1, models=("m",))
    assert pool_of(script, "m") is not pool_of(script, "x")
    script.serve(10)
    assert len(script.order) == 8


def test_a_model_that_loses_its_last_replica_keeps_its_line_until_patience_ends() -> None:
    """A restart of the only replica should cost waiting, not answers."""
    policy = one_tier(tiers=(Tier(name="x", queue_limit=0, patience_s=20.0),))
    script = Play(policy).replica("r", slots=1).arrive_many("a", 3).replica("r", models=("x",))
    script.advance(5.0).expect_waiting("a1", "a2").replica("s", slots=1)
    script.expect_granted("a1", on="s").replica("s", slots=1, models=("x",)).advance(20.0)
    script.expect_refused("a2", reason=Reason.NO_REPLICA)


def test_a_removed_replicas_models_are_unknown_again() -> None:
    """A typo in a model's name must get its 404, also after the name once existed."""
    script = Play().replica("r", slots=1).arrive("a").remove("r")
    assert script.scheduler.pool_of("m") is not None
    script.finish("a")
    assert script.scheduler.pool_of("m") is None
    assert not script.scheduler.replicas
    script.arrive("b").expect_refused("b", reason=Reason.NO_REPLICA)


@pytest.mark.parametrize("cost", ["requests", "tokens"])
def test_debts_survive_a_regrouping(cost: str) -> None:
    """Loading an adapter must not forgive the power user what it used."""
    script = Play(one_tier(cost=cost)).replica("r", slots=1).arrive("held", user="z")
    script.arrive_many("a", 9, user="a").arrive_many("w", 1, user="w").serve(4)
    script.arrive_many("b", 3, user="b").replica("r", slots=1, models=("m", "x"))
    before = len(script.order)
    script.serve(3)
    assert set(script.order[before : before + 3]) & {"b0", "b1", "b2"}
    queue = pool_of(script, "m").queues[0]
    assert queue.tenants["t"].users["a"].start > queue.tenants["t"].users["a"].entered


def test_a_regrouping_lifts_nobody_to_what_others_have_used() -> None:
    """Whoever is lifted pays for the power user's morning."""
    script = Play(one_tier(cost="tokens")).replica("r", slots=1).arrive("held", user="z")
    known: dict[str, Any] = {"output_tokens_max": 10}
    script.arrive_many("a", 9, user="a", prompt_tokens=500, **known)
    script.arrive_many("b", 9, user="b", **known).finish("held").expect_granted("a0")
    script.replica("r", slots=1, models=("m", "x")).serve(9)
    assert script.order[2:11] == [f"b{number}" for number in range(9)]


def test_claims_and_rates_survive_a_regrouping() -> None:
    """The floor of the last tier and the hint when to retry are not forgotten."""
    script = Play(four_tiers(cost="requests")).replica("r", slots=1)
    script.arrive_many("top", 20, tier=0).arrive("low", tier=3).serve(10)
    pool = pool_of(script, "m")
    deficit, rate = pool.floors.deficits[3], pool.drain_rate.per_s(script.now)
    assert deficit > 0.0
    script.replica("r", slots=1, models=("m", "x"))
    assert pool_of(script, "x").floors.deficits[3] == deficit
    assert pool_of(script, "x").drain_rate.per_s(script.now) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("lend", "reserved"), [(True, [0.0, 0.2, 0.2, 0.2]), (False, [0.0, 0.2, 0.2869, 0.3247])]
)
def test_headroom_is_reserved_for_active_tiers_or_always(
    *, lend: bool, reserved: list[float]
) -> None:
    """The operator decides whether idle headroom may be used."""
    policy: Policy = four_tiers(lend=lend, hold_s=60.0)
    pool = Pool(policy, ["m"], [a_replica(slots=8, tiers=4)])

    def reserved_at(now: float) -> tuple[float, ...]:
        pool.refresh_if_due(now)
        return pool.gates.reserved

    pool.saw(0, 0.0)
    assert reserved_at(0.0) == pytest.approx(reserved, abs=1e-4)
    pool.saw(0, 30.0)
    assert reserved_at(90.0) == pytest.approx(reserved, abs=1e-4)
    expected = [0.0] * 4 if lend else reserved
    assert reserved_at(90.1) == pytest.approx(expected, abs=1e-4)
    pool.saw(0, 95.0)
    assert reserved_at(95.0) == pytest.approx(reserved, abs=1e-4)


def test_each_tiers_hold_ends_for_itself() -> None:
    """One busy tier must not hold the room of another that went home an hour ago."""
    pool = Pool(four_tiers(hold_s=60.0), ["m"], [a_replica(slots=8, tiers=4)])
    pool.saw(0, 0.0)
    pool.saw(1, 30.0)
    pool.refresh_if_due(61.0)
    assert pool.gates.reserved == pytest.approx((0.0, 0.0, 0.0869, 0.0869), abs=1e-4)
    pool.refresh_if_due(91.0)
    assert pool.gates.reserved == (0.0, 0.0, 0.0, 0.0)


def test_room_that_is_kept_anew_is_kept_from_the_very_next_release() -> None:
    """A gate judged a moment ago knows nothing of the tier that just came."""
    replica = a_replica(slots=8, tiers=4)
    pool = Pool(four_tiers(), ["m"], [replica])
    put_many(replica, 7)
    pool.touch(replica)
    assert pool.open_tiers(replica, 1.0) == 4
    pool.saw(0, 1.0)
    assert pool.open_tiers(replica, 1.0) == 1
    pool.refresh_if_due(100.0)
    assert pool.open_tiers(replica, 100.0) == 4


# --- judged gates -----------------------------------------------------------------------------


def one_of(slots: int | None = 2, **changes: object) -> tuple[Pool, Replica]:
    """A pool of one replica."""
    replica = a_replica(slots=slots)
    return Pool(one_tier(**changes), ["m"], [replica]), replica


def test_a_gate_is_judged_again_when_something_changed_and_not_before() -> None:
    """Ten replicas judged at every event would cost the time of a hundred events."""
    pool, replica = one_of()
    assert pool.open_tiers(replica, 0.0) == 1
    replica.busy_until = 9.0
    assert pool.open_tiers(replica, 1.0) == 1
    pool.touch(replica)
    assert pool.open_tiers(replica, 1.0) == 0
    assert not pool.open
    assert pool.open_tiers(replica, 9.0) == 0
    pool.touch_all()
    assert list(pool.open) == ["r"]
    assert pool.open_tiers(replica, 9.0) == 1


def test_time_alone_shuts_the_gate_to_what_would_wait_inside() -> None:
    """The allowance of a fast moment is a queue in the engine a minute later."""
    policy = one_tier(tiers=(Tier(name="x", queue_limit=4),))
    replica = a_replica(slots=1)
    pool = Pool(policy, ["m"], [replica])
    replica.release_rate.add(0.0, 1_000.0)
    put_many(replica, 2)
    pool.touch(replica)
    assert pool.open_tiers(replica, 0.0) == 1
    assert pool.open_tiers(replica, 60.0) == 0
    assert not pool.open


# --- what waits -------------------------------------------------------------------------------


def test_counts_follow_what_waits_in_whatever_way_it_goes() -> None:
    """A count that is off by one lets the scheduler spin, or sleep for ever."""
    pool = Pool(
        four_tiers(cost="requests", ageing=Ageing(after_s=5.0)), ["m"], [a_replica(tiers=4)]
    )
    line = [
        a_waiting("a", tier=0),
        a_waiting("b", tier=2),
        a_waiting("e", tier=2, output_tokens_max=0),
        a_waiting("f", tier=1, output_tokens_max=0),
    ]
    for number, waiting in enumerate(line, start=1):
        waiting.ticket = number
        pool.push(waiting)
    assert (pool.count, pool.slotless) == (4, 2)
    assert [queue.count for queue in pool.queues] == [1, 1, 2, 0]
    pool.take(line[2])
    assert (pool.count, pool.slotless) == (3, 1)
    pool.remove(line[3])
    assert (pool.count, pool.slotless) == (2, 0)
    assert pool.elders is not None
    assert [each.request.id for each in pool.elders.aged(99.0)] == ["b"]
    pool.take(line[1])
    assert pool.elders.aged(99.0) == []
    pool.remove(line[0])
    assert (pool.count, [queue.count for queue in pool.queues]) == (0, [0] * 4)


def test_a_release_is_charged_to_the_flow_the_tier_and_the_shares() -> None:
    """Whichever order is in force, what was used must be in it."""
    pool = Pool(four_tiers(cost="requests", order="weighted"), ["m"], [a_replica(tiers=4)])
    low, high = a_waiting("low", tier=3), a_waiting("high", tier=0)
    low.ticket = 1
    pool.push(low)
    pool.pass_by(high)
    assert pool.shares is not None
    assert pool.shares.starts[0] == 1.0
    assert pool.queues[0].tenants["t"].start == 1.0
    assert pool.floors.deficits[3] == pytest.approx(0.02)
    pool.take(low)
    assert pool.shares.starts[3] == 1.0
    pool.settle(high.request, 2.0, tier=0, was_favoured=False)
    assert pool.shares.starts[0] == 3.0
    assert pool.queues[0].tenants["t"].users["u"].start == 3.0


def test_a_tier_that_was_idle_brings_no_credit_into_the_shares() -> None:
    """A week of silence would buy a day of nothing but background."""
    pool = Pool(four_tiers(cost="requests", order="weighted"), ["m"], [a_replica(tiers=4)])
    for _ in range(10):
        pool.pass_by(a_waiting("high", tier=0))
    late = a_waiting("late", tier=3)
    late.ticket = 1
    pool.push(late)
    assert pool.shares is not None
    assert pool.shares.starts[3] == pool.shares.virtual == 9.0


# --- classes ----------------------------------------------------------------------------------


def test_requests_that_fit_the_same_replicas_are_one_class() -> None:
    """Each class costs a look at every release: ten thousand users must not make ten thousand."""
    pool = Pool(one_tier(), ["m"], [a_replica("r"), a_replica("s")])
    plain = pool.kind_of(a_request("a", user="a"), 100)
    assert pool.kind_of(a_request("b", user="b"), 4_095) is plain
    assert plain.replicas == {"r", "s"}
    assert (plain.size, plain.sequences, plain.decodes) == (0, 1, True)
    others = [
        pool.kind_of(a_request(), 4_096),
        pool.kind_of(a_request(), 16_384),
        pool.kind_of(a_request(sequences=2), 100),
        pool.kind_of(a_request(output_tokens_max=0), 100),
        pool.kind_of(a_request(excluded=frozenset({"r"})), 100),
    ]
    assert [each.size for each in others] == [6, 7, 0, 0, 0]
    assert others[2].sequences == 2
    assert not others[3].decodes
    assert others[4].replicas == {"s"}
    assert len({id(each) for each in (plain, *others)}) == 6
    assert pool.kind_of(a_request(), 16_383) is others[0]
    assert pool.kind_of(a_request(excluded=frozenset({"r"})), 7) is others[4]


def test_the_classes_remembered_are_bounded_and_forgetting_loses_nobody() -> None:
    """Exclusions are as many as there are failures: a bad night must not fill the memory."""
    pool, _ = one_of()
    first = pool.kind_of(a_request(sequences=2), 1)
    for number in range(pool_module.KINDS_MAX):
        pool.kind_of(a_request(sequences=3 + number), 1)
    assert len(pool._kinds) <= pool_module.KINDS_MAX
    again = pool.kind_of(a_request(sequences=2), 1)
    assert again is not first
    assert again.replicas == first.replicas


def test_a_class_can_be_served_while_one_of_its_replicas_is_usable() -> None:
    """Who can run nowhere must be told at once."""
    replicas = [a_replica("r"), a_replica("s")]
    pool = Pool(one_tier(), ["m", "x"], replicas)
    kind = pool.kind_of(a_request(), 1)
    assert pool.can_serve(kind)
    replicas[0].mark(draining=True)
    assert pool.can_serve(kind)
    replicas[1].mark(lost=True)
    assert not pool.can_serve(kind)
    assert not pool.can_serve(pool.kind_of(a_request(model="x"), 1))


def test_the_longest_context_counts_and_one_replica_that_does_not_say_leaves_it_open() -> None:
    """A prompt must not be refused that some replica might take."""
    replicas = [a_replica("r"), a_replica("s")]
    pool = Pool(one_tier(), ["m", "x"], replicas)
    assert pool.context_tokens("m") is None
    replicas[0].context_tokens = 4_096
    assert pool.context_tokens("m") is None
    replicas[1].context_tokens = 8_192
    assert pool.context_tokens("m") == 8_192
    assert pool.context_tokens("x") is None


def test_a_service_takes_as_long_as_on_the_fastest_replica_that_may_do_it() -> None:
    """A plain client's patience is what its read timeout leaves of that."""
    slow, quick = a_replica("r"), a_replica("s")
    slow.speed.tpot_s, quick.speed.tpot_s = 0.1, 0.05
    pool = Pool(one_tier(), ["m"], [slow, quick])
    waiting = a_waiting(prompt_tokens=8_000, output_tokens=20)
    waiting.kind = pool.kind_of(waiting.request, 1)
    assert pool.service_s(waiting) == pytest.approx(1.0 + 20 * 0.05)
    waiting.kind = pool.kind_of(a_request(excluded=frozenset({"s"})), 1)
    assert pool.service_s(waiting) == pytest.approx(1.0 + 20 * 0.1)


# --- what a regrouping keeps ------------------------------------------------------------------


def test_pools_that_fell_apart_are_advised_apart() -> None:
    """The size of the small model's fleet would be held against the big one's."""
    script = Play().replica("r1", slots=1, models=("m",)).replica("r2", slots=1, models=("m", "x"))
    script.replica("r3", slots=1, models=("x",)).replica("r2", slots=1, models=("m",))
    one, other = pool_of(script, "m"), pool_of(script, "x")
    assert one.advisor is not other.advisor
    assert one.forecasts is not other.forecasts


def test_the_advice_and_the_forecasts_survive_a_regrouping() -> None:
    """Loading an adapter must not begin the cool-down anew."""
    script = Play().replica("r", slots=1)
    before = pool_of(script, "m")
    before.advisor.restore({"advised": 3, "advised_for_s": 5.0, "below_for_s": 2.0}, 7.0)
    before.looked_at = 7.0
    before.forecasts[0].add(1.0, 2.0)
    script.replica("r", slots=1, models=("m", "x"))
    after = pool_of(script, "x")
    assert after is not before
    assert (after.advisor.advised, after.looked_at) == (3, 7.0)
    assert after.advisor.snapshot(9.0) == before.advisor.snapshot(9.0)
    assert after.forecasts[0].snapshot() == before.forecasts[0].snapshot()


def test_who_was_here_and_how_many_were_promoted_survives_too() -> None:
    """Headroom would open, and ageing would promote twice, at every adapter that is loaded."""
    policy = four_tiers(ageing=Ageing(after_s=1.0, per_s=0.01), order="weighted")
    replica = a_replica(slots=8, tiers=4)
    old = Pool(policy, ["m"], [replica])
    old.saw(0, 5.0)
    assert old.elders is not None
    old.elders.promoted(5.0)
    old.pass_by(a_waiting(tier=1))
    new = Pool(policy, ["m", "x"], [replica])
    new.adopt(old)
    new.refresh(6.0)
    assert new.gates.reserved == pytest.approx((0.0, 0.2, 0.2, 0.2), abs=1e-4)
    waiting = a_waiting("a", tier=3)
    waiting.ticket = 1
    new.push(waiting)
    assert new.elders is not None
    assert new.elders.aged(50.0) == []
    assert new.elders.aged(110.0) == [waiting]
    assert old.shares is not None
    assert new.shares is not None
    assert new.shares.starts[1] == old.shares.starts[1] > 0.0


def test_the_later_of_two_sightings_counts_when_pools_join() -> None:
    """The tier is here, whichever of the two pools saw it."""
    replica = a_replica(tiers=4)
    olds = [Pool(four_tiers(hold_s=60.0), [model], [replica]) for model in ("m", "x")]
    olds[0].saw(0, 50.0)
    olds[1].saw(0, 5.0)
    new = Pool(four_tiers(hold_s=60.0), ["m", "x"], [replica])
    for old in olds:
        new.adopt(old)
    new.refresh(100.0)
    assert new.gates.reserved[1] > 0.0


def test_claims_of_pools_that_join_add_up() -> None:
    """Each of the two lines has been passed over for what it is owed."""
    replica = a_replica(tiers=4)
    new = Pool(four_tiers(), ["m", "x"], [replica])
    for model, claim in (("m", 1.0), ("x", 2.0)):
        old = Pool(four_tiers(), [model], [replica])
        old.floors.deficits[3] = claim
        new.adopt(old)
    assert new.floors.deficits[3] == 3.0


def test_what_was_used_of_one_model_is_no_debt_in_the_pool_of_another() -> None:
    """They share no replica: whoever was busy on one may be the first on the other."""
    script = Play(one_tier(cost="tokens")).replica("r", slots=1).replica("s", models=("x",))
    script.arrive("x", model="x", prompt_tokens=5_000).replica("t", slots=1)
    assert pool_of(script, "m").queues[0].tenants == {}
    assert script.start_of("u", model="x") > 5_000.0


def test_a_line_keeps_its_order_through_a_regrouping() -> None:
    """Who came first is still first when an adapter was loaded meanwhile."""
    script = Play().replica("r", slots=1).arrive("held").advance(1.0)
    script.arrive("late", arrived_at=1.0).arrive("early", arrived_at=0.5)
    script.replica("r", slots=1, models=("m", "x")).finish("held").expect_granted("early")


def test_grown_kv_of_what_waits_is_known_by_tier() -> None:
    """Scaling advice looks at it every second: it must not walk the line."""
    script = Play(four_tiers()).replica("r", slots=1).arrive("held").arrive("beyond")
    script.arrive("a", tier=2, prompt_tokens=100, output_tokens_max=50)
    script.arrive("b", tier=2, prompt_tokens=10, output_tokens_max=5, sequences=2)
    assert [queue.kv_tokens for queue in pool_of(script, "m").queues] == [0, 0, 180, 0]
    script.replica("r", slots=1, models=("m", "x"))
    assert [queue.kv_tokens for queue in pool_of(script, "m").queues] == [0, 0, 180, 0]
