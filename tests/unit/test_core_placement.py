"""Which waiting request goes where."""

import pytest

from gateway.core.messages import Outcome, Reason
from gateway.core.policy import Tier
from tests.support.script import Script, four_tiers, one_tier


def test_requests_go_where_it_is_freest() -> None:
    """Nobody should stand beside another while a replica is idle."""
    script = Script().replica("r1", slots=4).replica("r2", slots=4).arrive_many("a", 8)
    assert len(script.on("r1")) == len(script.on("r2")) == 4


def test_equally_free_replicas_are_taken_by_name() -> None:
    """The same events must give the same decisions, on every machine."""
    script = Script().replica("b", slots=4).replica("a", slots=4).replica("c", slots=4)
    script.arrive("x").expect_granted("x", on="a").arrive("y").expect_granted("y", on="b")


def test_a_replica_twice_as_fast_gets_twice_the_work() -> None:
    """Choosing at the instant at which a slot is free needs no knowledge of speeds."""
    script = Script().replica("fast", slots=2).replica("slow", slots=2).arrive_many("a", 200)
    done = {"fast": 0, "slow": 0}
    for tick in range(90):
        script.advance(0.5)
        for name in ("fast", "slow") if tick % 2 else ("fast",):
            script.finish(script.on(name)[0])
            done[name] += 1
    assert script.waiting
    assert done["fast"] == 2 * done["slow"]
    assert script.order[:4] == ["a0", "a1", "a2", "a3"]


def test_a_request_runs_only_where_its_model_is() -> None:
    """A free replica of another model helps nobody."""
    script = Script().replica("r1", slots=1, models=("m", "x")).replica("r2", slots=1, models="x")
    script.arrive("m0", model="m").expect_granted("m0", on="r1")
    script.arrive("m1", model="m").arrive("x0", model="x")
    script.expect_waiting("m1").expect_granted("x0", on="r2")


def test_a_request_that_fits_nowhere_blocks_no_other() -> None:
    """One request for a full model would otherwise stop all models."""
    script = Script().replica("r1", slots=1, models=("m", "x")).replica("r2", slots=1, models="x")
    script.arrive("held", model="m").arrive_many("m", 5, model="m", user="a")
    script.arrive_many("x", 2, model="x", user="b").expect_granted("x0", on="r2")
    script.finish("x0").expect_granted("x1", on="r2").expect_waiting("m0")


def test_a_replica_that_failed_a_request_does_not_get_it_again() -> None:
    """The retry would meet the same fault."""
    script = Script().replica("r1", slots=4).replica("r2", slots=1).arrive("a", user="a")
    script.finish("a", outcome=Outcome.FAILED).arrive("held").finish("held")
    script.arrive("a", user="a", arrived_at=0.0, excluded=frozenset({"r1"}))
    script.expect_granted("a", on="r2")
    script.arrive("b", excluded=frozenset({"r1"})).expect_waiting("b").arrive("c")
    script.expect_granted("c", on="r1").finish("a").expect_granted("b", on="r2")


def test_a_request_that_failed_everywhere_is_refused_at_once() -> None:
    """Waiting would not bring another replica."""
    script = Script().replica("r1", slots=4).arrive("a", excluded=frozenset({"r1"}))
    script.expect_refused("a", reason=Reason.NO_REPLICA)


def test_nobody_overtakes_into_a_free_slot() -> None:
    """A small latecomer of another class is behind, even when only it was looked at."""
    script = Script().replica("r", slots=1).arrive("held").arrive("old", user="o")
    script.arrive("small", user="s", prompt_tokens=1, output_tokens_max=1)
    script.finish("held").expect_granted("old").expect_waiting("small")


def test_tiers_are_strict_over_all_classes() -> None:
    """Size and model do not outrank the tier."""
    script = Script(four_tiers()).replica("r", slots=1).arrive("held").arrive("next")
    script.arrive("low", tier=2, prompt_tokens=1).arrive("top", tier=0, prompt_tokens=5_000)
    script.finish("held").expect_granted("top").expect_waiting("low")


def tight() -> Script:
    """A replica on which 4,001 of 10,000 KV tokens are taken, by user b."""
    script = Script(one_tier(tiers=(Tier(name="x", patience_s=1e6),))).replica("r", slots=8)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=10_000)
    script.arrive("held", user="b", prompt_tokens=4_000, output_tokens_max=1)
    return script.first_token("held")


def test_a_newcomer_that_fits_is_not_held_by_one_behind_it_that_does_not() -> None:
    """A free slot and a request that fits it must not wait for the next event."""
    script = tight().arrive("big", user="b", prompt_tokens=8_000, output_tokens_max=1)
    script.expect_waiting("big").arrive("fits", user="z", prompt_tokens=4_200, output_tokens_max=1)
    script.expect_granted("fits")


def test_when_a_head_that_did_not_fit_leaves_the_next_one_is_looked_at() -> None:
    """Same class, same queue: what was hidden behind it may run now."""
    script = tight().arrive("big", user="y", prompt_tokens=8_000, output_tokens_max=1)
    script.arrive("fits", user="z", prompt_tokens=4_200, output_tokens_max=1)
    script.expect_waiting("big", "fits").cancel("big").expect_granted("fits")


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0)])
def test_weights_of_replicas_attract_in_proportion(weights: tuple[float, float]) -> None:
    """A machine twice as good may be told so."""
    script = Script().replica("r1", slots=40, weight=weights[0])
    script.replica("r2", slots=40, weight=weights[1]).arrive_many("a", 20)
    share = len(script.on("r2")) / len(script.on("r1"))
    assert share == pytest.approx(weights[1] / weights[0], rel=0.35)
