"""May a request of this tier be put on this replica now?"""

from dataclasses import replace

import pytest

from gateway.core.gate import allowance, kept
from gateway.core.messages import ReplicaReport, ReplicaReported
from gateway.core.policy import DEFAULT_TIERS, Policy, Tier
from tests.support.script import Script, four_tiers, one_tier


def tier_policy(**fields: object) -> Policy:
    """One tier with these fields."""
    tier = replace(Tier(name="only", patience_s=1e6), **fields)  # type: ignore[arg-type]  # free keywords
    return one_tier(tiers=(tier,))


def fast(script: Script, tier: int = 0) -> Script:
    """Two slots that end 20 requests a second between them, 100 ms away; more than enough wait."""
    script.replica("r", slots=2)
    report = ReplicaReport(running=0, waiting=0)
    script.tell(ReplicaReported(replica="r", sent_at=0.0, report=report, round_trip_s=0.1))
    script.arrive_many("a", 320, tier=tier, prompt_tokens=1)
    return script.serve(300, each_s=0.05)


def test_queue_limit_zero_releases_into_free_slots_only() -> None:
    """Critical requests must never stand behind background work inside the engine."""
    script = Script(tier_policy(queue_limit=0)).replica("r", slots=2).arrive_many("a", 3)
    script.expect_granted("a0", "a1").expect_waiting("a2").finish("a0").expect_granted("a2")


def test_a_slow_replica_gets_one_request_beyond_its_slots() -> None:
    """A light arrival must not find several service turns already queued in the engine."""
    script = Script(tier_policy(queue_limit=4)).replica("r", slots=2).arrive_many("a", 9)
    assert len(script.running) == 3
    script.serve(5, each_s=1.0)
    assert len(script.running) == 3


def test_a_fast_replica_gets_as_many_as_end_in_one_round_trip() -> None:
    """Released too late, the GPU idles for a round trip after every answer."""
    script = fast(Script(tier_policy(queue_limit=4)))
    assert len(script.running) == 2 + 3


def test_the_allowance_shrinks_again_when_the_replica_slows_down() -> None:
    """What was right at full speed is a queue inside the engine afterwards."""
    script = fast(Script(tier_policy(queue_limit=4)))
    script.cancel(*script.waiting).finish(next(iter(script.running)))
    assert len(script.running) == 2 + 2
    script.advance(60.0).arrive("late").expect_waiting("late")


def test_the_allowance_is_never_more_than_the_tiers_limit_nor_less_than_one() -> None:
    """The paper's threshold is the upper bound; releasing nothing ahead starves the engine."""
    assert [allowance(Tier(name="x", queue_limit=3), bridged) for bridged in (0, 1, 2, 9)] == [
        1, 1, 2, 3,
    ]  # fmt: skip
    assert allowance(Tier(name="x", queue_limit=0), 9) == 0


def test_lower_tiers_queue_less_in_the_engine() -> None:
    """Critical must not wait behind what standard was allowed to queue."""
    depth = {}
    for rank in range(4):
        tiers = tuple(replace(tier, patience_s=1e6) for tier in DEFAULT_TIERS)
        script = fast(Script(four_tiers(tiers=tiers)), tier=rank)
        depth[rank] = len(script.running) - 2
    assert depth == {0: 3, 1: 3, 2: 2, 3: 0}


def test_a_replica_slower_than_the_limit_takes_no_more() -> None:
    """Everybody on it would fall below a readable speed."""
    script = Script(tier_policy(tpot_limit_ms=150.0)).replica("r", slots=8)
    script.arrive_many("a", 3).finish("a0", tpot_s=0.2)
    script.arrive("b").expect_waiting("b").finish("a1", tpot_s=0.1).expect_granted("b")


def test_a_slow_moment_does_not_keep_the_gate_shut() -> None:
    """Nothing runs, nothing is measured, nothing ever opens the gate again: 40 times the wait."""
    script = Script(tier_policy(tpot_limit_ms=150.0)).replica("r", slots=8)
    script.arrive_many("a", 2).finish("a0", tpot_s=0.6).arrive("b").expect_waiting("b")
    script.advance(10.0).expect_waiting("b").advance(30.0).expect_granted("b")


def test_the_speed_gate_never_closes_an_empty_replica() -> None:
    """One request at a time is the best that a slow replica can do."""
    script = Script(tier_policy(tpot_limit_ms=150.0)).replica("r", slots=8)
    script.arrive("a").finish("a", tpot_s=9.0).arrive("b").expect_granted("b")


def test_min_inflight_keeps_that_many_running_on_a_slow_replica() -> None:
    """An operator who knows the hardware to be slow says so."""
    policy = one_tier(tiers=(Tier(name="x", patience_s=1e6),), min_inflight=3)
    script = Script(policy).replica("r", slots=8)
    script.arrive("a").finish("a", tpot_s=9.0).arrive_many("b", 5)
    assert len(script.running) == 3


def test_background_gives_way_before_critical_on_a_slowing_replica() -> None:
    """The stricter limit of the last tier keeps the speed of the first."""
    script = Script(four_tiers(lend=True)).replica("r", slots=32)
    script.arrive_many("w", 2, tier=2).finish("w0", tpot_s=0.1)
    script.arrive("low", tier=3).arrive("std", tier=2)
    script.expect_granted("std").expect_waiting("low")


def test_headroom_is_kept_for_every_tier_above() -> None:
    """A critical request must find a free slot under any load of the lower tiers."""
    for rank, free in enumerate((0, 7, 10, 11)):
        script = Script(four_tiers(lend=False)).replica("r", slots=32)
        script.arrive_many("a", 50, tier=rank, prompt_tokens=1).start_all()
        beyond = 1 if rank == 0 else 0
        assert len(script.running) == 32 - free + beyond


def test_headroom_is_lent_while_nobody_above_is_there() -> None:
    """A cluster that only runs background work must run it on all of its slots."""
    script = Script(four_tiers(lend=True, hold_s=60.0)).replica("r", slots=32)
    script.arrive_many("low", 60, tier=3, prompt_tokens=1).start_all()
    assert len(script.running) == 32


def test_lent_headroom_comes_back_when_the_tier_above_does() -> None:
    """Reclaimed by not releasing: nobody is killed."""
    script = Script(four_tiers(hold_s=60.0)).replica("r", slots=32)
    script.arrive_many("low", 70, tier=3, prompt_tokens=1).start_all()
    script.arrive("top", tier=0, prompt_tokens=1)
    script.serve(12, each_s=0.1)
    assert len(script.running) == 32 - 7
    script.advance(61.0).start_all()
    assert len(script.running) == 32


def test_slot_headroom_rounds_up_but_leaves_one_slot() -> None:
    """Every tier can use at least one slot, however small the replica."""
    assert kept(32, 0.2) == 7
    assert kept(5, 0.2) == 1
    assert kept(1, 0.9) == 0
    assert kept(2, 0.9) == 1


def test_unstarted_prefill_is_limited_in_seconds() -> None:
    """Three prompts of 100k tokens would otherwise hold everybody for half a minute."""
    script = Script(tier_policy(prefill_limit_s=1.0)).replica("r", slots=8)
    script.arrive("big", prompt_tokens=100_000).expect_granted("big")
    script.arrive("big2", prompt_tokens=100_000).arrive("small", prompt_tokens=10, user="v")
    script.expect_waiting("big2", "small").first_token("big").expect_granted("small")
    script.expect_waiting("big2").first_token("small").expect_granted("big2")


def test_small_prompts_pass_together() -> None:
    """The limit is about seconds, not about requests."""
    script = Script(tier_policy(prefill_limit_s=1.0)).replica("r", slots=8)
    script.arrive_many("a", 8, prompt_tokens=900).expect_granted("a7")


def test_a_request_that_does_not_fit_the_kv_waits_and_an_oversize_one_passes_when_empty() -> None:
    """Preemption inside the engine throws away work that everybody paid for."""
    script = Script(tier_policy()).replica("r", slots=8)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=1_000)
    known = {"prompt_tokens": 300, "output_tokens_max": 300}
    script.arrive("a", **known).arrive("b", **known).expect_granted("a").expect_waiting("b")
    script.finish("a").expect_granted("b")
    script.arrive("huge", prompt_tokens=4_000, output_tokens_max=1).expect_waiting("huge")
    script.finish("b").expect_granted("huge")


def test_many_sequences_wait_until_they_fit_and_pass_when_empty() -> None:
    """n = 16 on eight slots can only run alone; n = 4 needs four."""
    script = Script(tier_policy(queue_limit=0)).replica("r", slots=8).arrive_many("a", 5)
    script.arrive("n4", sequences=4, user="v").expect_waiting("n4")
    script.finish("a0").expect_granted("n4").finish("a1", "a2", "a3", "a4", "n4")
    script.arrive("n16", sequences=16).expect_granted("n16")
    script.arrive("b").expect_waiting("b").finish("n16").expect_granted("b")


def test_more_sequences_than_slots_are_charged_as_all_slots() -> None:
    """A request of 100 sequences would otherwise count as a queue that never drains."""
    script = Script(tier_policy(queue_limit=2)).replica("r", slots=4)
    script.arrive("n", sequences=100, user="n").arrive("b").expect_granted("n", "b")


@pytest.mark.parametrize("policy", [one_tier(), four_tiers()])
def test_without_known_slots_unstarted_work_alone_decides(policy: Policy) -> None:
    """vLLM does not tell its slots: it must neither be flooded nor left idle."""
    script = Script(policy).replica("r").arrive_many("a", 50, prompt_tokens=1)
    assert len(script.running) == 1
    for served in range(1, 20):
        script.first_token(*script.running)
        assert len(script.running) == served + 1


def test_nothing_goes_to_a_replica_that_said_it_is_busy_until_something_ends_there() -> None:
    """Asking again at once makes the engine refuse at once, for ever."""
    script = Script(tier_policy()).replica("r", slots=8).arrive_many("a", 3).bounce("a2")
    script.expect_waiting("a2").finish("a0").expect_granted("a2").bounce("a2")
    script.advance(0.2).expect_waiting("a2").advance(0.5).expect_granted("a2")


def test_a_gate_shut_by_time_alone_opens_for_whoever_ranks_first() -> None:
    """A newcomer of another class must not find the free slot before the one who waited."""
    script = Script(four_tiers()).replica("r", slots=1).arrive("w", tier=0)
    script.bounce("w").advance(0.26)
    script.arrive("low", tier=3, prompt_tokens=5_000)
    script.expect_waiting("low").advance(0.5).expect_granted("w")


@pytest.mark.parametrize("rank", range(4))
def test_default_ceilings_shrink_from_tier_to_tier(rank: int) -> None:
    """The shares of the K-tier formula for four tiers, in percent."""
    share = four_tiers().headroom_fraction(rank)
    assert share == pytest.approx((0.20, 0.0869, 0.0378, 0.0164)[rank], abs=5e-5)
    assert len(DEFAULT_TIERS) == 4
