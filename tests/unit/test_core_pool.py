"""Scheduling domains: which models share queues, and what a regrouping keeps."""

import pytest

from gateway.core.messages import Reason
from gateway.core.policy import Policy, Tier
from gateway.core.pool import Pool, components
from tests.support.script import Script, four_tiers, one_tier


def pool_of(script: Script, model: str) -> Pool:
    """The pool of that model, which must exist."""
    pool = script.scheduler.pool_of(model)
    assert pool is not None
    return pool


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
    script = Script().replica("r", slots=1, models=("m", "x")).arrive("held", user="z")
    script.arrive_many("a", 9, user="a", model="m").arrive_many("b", 9, user="b", model="m")
    script.arrive_many("ax", 9, user="a", model="x").serve(12)
    ours = sum(id.startswith("b") for id in script.order)
    assert ours == pytest.approx(6, abs=1)


def test_models_without_a_common_replica_do_not_compete() -> None:
    """A saturated big model must not slow the small one."""
    script = Script().replica("r1", slots=1, models=("m",)).replica("r2", slots=1, models=("x",))
    script.arrive_many("m", 9, model="m").arrive("x", model="x").expect_granted("x", on="r2")
    assert pool_of(script, "m") is not pool_of(script, "x")


def test_a_replica_that_serves_both_joins_two_pools_and_nobody_is_lost() -> None:
    """An adapter loaded at noon must not throw away the morning's line."""
    script = Script().replica("r1", slots=1, models=("m",)).replica("r2", slots=1, models=("x",))
    script.arrive_many("m", 4, model="m", user="a").arrive_many("x", 4, model="x", user="b")
    script.replica("r3", slots=1, models=("m", "x"))
    assert pool_of(script, "m") is pool_of(script, "x")
    assert len(script.running) == 3
    script.serve(8)
    assert len(script.order) == 8


def test_a_pool_falls_apart_and_nobody_is_lost() -> None:
    """The one replica that served both is gone; each line goes on by itself."""
    script = (
        Script().replica("r1", slots=1, models=("m",)).replica("r2", slots=1, models=("m", "x"))
    )
    script.replica("r3", slots=1, models=("x",)).arrive_many("m", 4, model="m")
    script.arrive_many("x", 4, model="x").replica("r2", slots=1, models=("m",))
    assert pool_of(script, "m") is not pool_of(script, "x")
    script.serve(10)
    assert len(script.order) == 8


def test_a_model_that_loses_its_last_replica_keeps_its_line_until_patience_ends() -> None:
    """A restart of the only replica should cost waiting, not answers."""
    policy = one_tier(tiers=(Tier(name="x", queue_limit=0, patience_s=20.0),))
    script = Script(policy).replica("r", slots=1).arrive_many("a", 3).replica("r", models=("x",))
    script.advance(5.0).expect_waiting("a1", "a2").replica("s", slots=1)
    script.expect_granted("a1", on="s").replica("s", slots=1, models=("x",)).advance(20.0)
    script.expect_refused("a2", reason=Reason.NO_REPLICA)


def test_a_removed_replicas_models_are_unknown_again() -> None:
    """A typo in a model's name must get its 404, also after the name once existed."""
    script = Script().replica("r", slots=1).arrive("a").remove("r")
    assert script.scheduler.pool_of("m") is not None
    script.finish("a")
    assert script.scheduler.pool_of("m") is None
    assert not script.scheduler.replicas
    script.arrive("b").expect_refused("b", reason=Reason.NO_REPLICA)


@pytest.mark.parametrize("cost", ["requests", "tokens"])
def test_debts_survive_a_regrouping(cost: str) -> None:
    """Loading an adapter must not forgive the power user what it used."""
    script = Script(one_tier(cost=cost)).replica("r", slots=1).arrive("held", user="z")
    script.arrive_many("a", 9, user="a").arrive_many("w", 1, user="w").serve(4)
    script.arrive_many("b", 3, user="b").replica("r", slots=1, models=("m", "x"))
    before = len(script.order)
    script.serve(3)
    assert set(script.order[before : before + 3]) & {"b0", "b1", "b2"}
    queue = pool_of(script, "m").queues[0]
    assert queue.tenants["t"].users["a"].start > queue.tenants["t"].users["a"].entered


def test_claims_and_rates_survive_a_regrouping() -> None:
    """The floor of the last tier and the hint when to retry are not forgotten."""
    script = Script(four_tiers(cost="requests")).replica("r", slots=1)
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
    script = Script(policy).replica("r", slots=8).arrive("a", tier=0)
    assert pool_of(script, "m").reserved(script.now) == pytest.approx(reserved, abs=1e-4)
    script.advance(30.0).arrive("b", tier=0).advance(59.0)
    assert pool_of(script, "m").reserved(script.now) == pytest.approx(reserved, abs=1e-4)
    script.advance(2.0)
    expected = [0.0] * 4 if lend else reserved
    assert pool_of(script, "m").reserved(script.now) == pytest.approx(expected, abs=1e-4)
