"""Does this very request fit, and how many fit beside one another?"""

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.gate import Closed, Gates
from gateway.core.limiter import ConcurrencyLimit
from gateway.core.policy import Policy, Tier
from gateway.core.replica import Replica
from tests.support.parts import a_replica, a_waiting, put, put_many, report
from tests.support.play import Play
from tests.support.script import four_tiers, one_tier


def tier_policy(**fields: Any) -> Policy:
    """One tier with these fields."""
    return one_tier(tiers=(replace(Tier(name="only", patience_s=1e6), **fields),))


def closed(gates: Gates, replica: Replica, tier: int = 0, *, now: float = 0.0) -> Closed | None:
    """What shuts the gate, asked as the scheduler asks."""
    return gates.closed_by(replica, tier, replica.waiting, now)


# --- limits on what is in flight --------------------------------------------------------------


def test_a_static_limit_holds_whatever_the_slots() -> None:
    """An operator who knows that 6 of 16 are fast enough says so."""
    script = Play(one_tier(inflight_limit=6)).replica("r", slots=16).arrive_many("a", 9)
    assert len(script.running) == 6
    script.finish("a0").expect_granted("a6").expect_waiting("a7")


def test_a_static_limit_holds_for_several_sequences_too() -> None:
    """`n: 8` beside three running ones would be eleven where six were allowed."""
    script = Play(one_tier(inflight_limit=6)).replica("r", slots=16).arrive_many("a", 3)
    script.arrive("n4", sequences=4).expect_waiting("n4")
    script.finish("a0").expect_granted("n4")


def test_a_static_limiter_learns_nothing() -> None:
    """Whoever switched the learning off wants the figure of the settings and no other."""
    script = Play(one_tier(limiter="static", inflight_limit=6)).replica("r", slots=16)
    script.arrive_many("a", 6, output_tokens=200)
    for number in range(4):
        script.finish(f"a{number}", tpot_s=5.0)
    script.advance(60.0).arrive_many("b", 9)
    assert len(script.running) == 6


def limited(to: float) -> Replica:
    """A replica of which the adaptive limit is known."""
    replica = a_replica(slots=16)
    replica.limit = ConcurrencyLimit()
    replica.limit.limit = to
    return replica


def test_the_learnt_limit_is_filled_to_its_whole_part() -> None:
    """The fraction is progress towards the next sequence, not room for one."""
    gates = Gates(tier_policy())
    for limit, fits in ((1.0, 1), (3.0, 3), (3.9, 3), (4.0, 4)):
        replica = limited(limit)
        for number in range(fits):
            assert closed(gates, replica) is None, f"{number} of {limit}"
            put(replica, f"a{number}")
        assert closed(gates, replica) is Closed.LIMIT, limit


def test_one_request_always_runs_whatever_was_learnt() -> None:
    """A limit below one would never learn anything again."""
    gates = Gates(tier_policy())
    assert closed(gates, limited(1.0)) is None


def test_a_slow_stream_teaches_the_limit_and_its_targets_keep_it() -> None:
    """Sixteen at once would be as slow as they were the last time."""
    script = Play(tier_policy(tpot_limit_ms=100.0)).replica("r", slots=16).arrive_many("a", 16)
    for number in range(16):
        script.finish(f"a{number}", tpot_s=0.2, usage=None)
    script.arrive_many("tokens", 1, output_tokens=200).finish("tokens0", tpot_s=0.2)
    limit = script.known().limit.limit
    assert limit < 16
    script.advance(60.0).arrive_many("b", 16).advance(60.0)
    assert len(script.running) <= limit


# --- warm-up ----------------------------------------------------------------------------------


def test_a_fresh_replica_is_filled_evenly_over_its_warm_up() -> None:
    """Its kernels are cold and its caches empty: a full batch at once would be slow for all."""
    gates = Gates(tier_policy())
    replica = a_replica(slots=8)
    replica.warm_from, replica.warm_until = 10.0, 20.0
    assert [gates.warm_slots(replica, now) for now in (10.0, 11.0, 15.0, 20.0)] == [1, 1, 4, 8]
    put_many(replica, 4)
    assert closed(gates, replica, now=14.9) is Closed.WARM_UP
    assert closed(gates, replica, now=15.1) is None
    put(replica, "fifth")
    assert closed(gates, replica, now=15.1) is Closed.WARM_UP
    assert closed(gates, replica, now=20.0) is None


def test_a_warm_up_of_less_than_a_second_is_a_warm_up() -> None:
    """Whoever set half a second would get a full batch into a cold engine."""
    replica = a_replica(slots=8)
    replica.warm_from, replica.warm_until = 10.0, 10.5
    assert Gates(tier_policy()).warm_slots(replica, 10.25) == 4.0


def test_without_known_slots_a_fresh_replica_is_filled_to_what_it_ran_before() -> None:
    """Nothing else is known of it."""
    gates = Gates(tier_policy())
    replica = a_replica()
    replica.warm_from, replica.warm_until = 0.0, 10.0
    assert gates.warm_slots(replica, 9.0) == 1.0
    replica.sightings.proven_sequences = 20
    assert gates.warm_slots(replica, 5.0) == 10.0
    replica.warm_from = replica.warm_until
    assert gates.warm_slots(replica, 10.0) == 20.0


# --- what one request needs -------------------------------------------------------------------


def test_unstarted_prefill_is_limited_in_seconds() -> None:
    """Three prompts of 100k tokens would otherwise hold everybody for half a minute."""
    script = Play(tier_policy(prefill_limit_s=1.0)).replica("r", slots=8)
    script.arrive("big", prompt_tokens=100_000).expect_granted("big")
    script.arrive("big2", prompt_tokens=100_000).arrive("small", prompt_tokens=10, user="v")
    script.expect_waiting("big2", "small").first_token("big").expect_granted("small")
    script.expect_waiting("big2").first_token("small").expect_granted("big2")


def test_small_prompts_pass_together() -> None:
    """The limit is about seconds, not about requests."""
    script = Play(tier_policy(prefill_limit_s=1.0)).replica("r", slots=8)
    script.arrive_many("a", 8, prompt_tokens=900).expect_granted("a7")


def unfit(policy: Policy, replica: Replica, *, tier: int = 0, **fields: Any) -> Closed | None:
    """What keeps a request off a replica whose gate is open."""
    return Gates(policy).unfit_by(a_waiting("new", **fields), replica, tier, 0.0)


def test_the_prefill_limit_is_reached_exactly_and_not_passed() -> None:
    """8,000 tokens a second until one knows better, one second allowed."""
    replica = a_replica(slots=8)
    put(replica, "a", prompt_tokens=5_000)
    assert unfit(tier_policy(), replica, prompt_tokens=3_000) is None
    assert unfit(tier_policy(), replica, prompt_tokens=3_001) is Closed.PREFILL
    half = tier_policy(prefill_limit_s=0.5)
    assert unfit(half, replica, prompt_tokens=1) is Closed.PREFILL


def test_what_is_cached_is_no_prefill() -> None:
    """A chat's tenth turn brings one new question, not the whole history."""
    replica = a_replica(slots=8)
    put(replica, "a", prompt_tokens=5_000)
    long: dict[str, Any] = {"prompt_tokens": 6_400, "prefix": tuple(range(100))}
    assert unfit(tier_policy(), replica, **long) is Closed.PREFILL
    replica.cache.sent(tuple(range(60)))
    assert unfit(tier_policy(), replica, **long) is None


def test_a_prefix_longer_than_the_estimated_prompt_pays_for_nobody_else() -> None:
    """An estimate that is too low must not make room that is not there."""
    replica = a_replica(slots=8)
    put(replica, "a", prompt_tokens=8_001)
    replica.cache.sent(tuple(range(100)))
    wrong: dict[str, Any] = {"prompt_tokens": 100, "prefix": tuple(range(100))}
    assert unfit(tier_policy(), replica, **wrong) is Closed.PREFILL


def test_a_request_that_does_not_fit_the_kv_waits_and_an_oversize_one_passes_when_empty() -> None:
    """Preemption inside the engine throws away work that everybody paid for."""
    script = Play(tier_policy()).replica("r", slots=8)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=1_000)
    known = {"prompt_tokens": 300, "output_tokens_max": 300}
    script.arrive("a", **known).arrive("b", **known).expect_granted("a").expect_waiting("b")
    script.finish("a").expect_granted("b")
    script.arrive("huge", prompt_tokens=4_000, output_tokens_max=1).expect_waiting("huge")
    script.finish("b").expect_granted("huge")


def kv_full_to(tokens: int) -> Replica:
    """10,000 KV tokens, of which so many are used by one that runs."""
    replica = a_replica(slots=8, tiers=2)
    report(replica, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=10_000)
    put(replica, "held", starts=True, prompt_tokens=tokens - 1, output_tokens=1)
    return replica


def test_the_kv_may_be_filled_to_the_last_token_but_for_the_headroom() -> None:
    """Tier 0 is promised its part of the memory, not only of the slots."""
    policy = one_tier(tiers=(Tier(name="a"), Tier(name="b")))
    replica = kv_full_to(4_000)
    exact = {"prompt_tokens": 5_000, "output_tokens": 1_000}
    assert unfit(policy, replica, **exact) is None
    assert unfit(policy, replica, prompt_tokens=5_001, output_tokens=1_000) is Closed.KV
    gates = Gates(policy)
    gates.reserved = (0.0, 0.25)
    fits = a_waiting("x", prompt_tokens=3_499, output_tokens=1)
    over = a_waiting("y", prompt_tokens=3_500, output_tokens=1)
    assert gates.unfit_by(fits, replica, 1, 0.0) is None
    assert gates.unfit_by(over, replica, 1, 0.0) is Closed.KV
    assert gates.unfit_by(over, replica, 0, 0.0) is None


def test_a_cached_prompt_needs_no_new_kv() -> None:
    """With one long system prompt in memory, hundreds of short questions fit beside it."""
    replica = kv_full_to(8_000)
    replica.cache.sent(tuple(range(100)))
    turn = {"prompt_tokens": 6_500, "output_tokens": 100}
    assert unfit(tier_policy(), replica, **turn) is Closed.KV
    assert unfit(tier_policy(), replica, prefix=tuple(range(100)), **turn) is None


def test_foreign_load_alone_keeps_the_oversize_out() -> None:
    """It passes only when nobody is there to be preempted for it."""
    replica = a_replica(slots=8)
    report(replica, running=0, waiting=0, kv_use=0.5, kv_capacity_tokens=10_000)
    huge = {"prompt_tokens": 20_000, "output_tokens": 1}
    assert unfit(tier_policy(), replica, **huge) is None
    replica.foreign = 1
    assert unfit(tier_policy(), replica, **huge) is Closed.KV


def test_many_sequences_wait_until_they_fit_and_pass_when_empty() -> None:
    """n = 16 on eight slots can only run alone; n = 4 needs four."""
    script = Play(tier_policy(queue_limit=0)).replica("r", slots=8).arrive_many("a", 5)
    script.arrive("n4", sequences=4, user="v").expect_waiting("n4")
    script.finish("a0").expect_granted("n4").finish("a1", "a2", "a3", "a4", "n4")
    script.arrive("n16", sequences=16).expect_granted("n16")
    script.arrive("b").expect_waiting("b").finish("n16").expect_granted("b")


def test_several_sequences_keep_the_headroom_and_use_the_allowance() -> None:
    """The room kept for the tiers above is theirs also against `n: 4`."""
    gates = Gates(tier_policy(queue_limit=4))
    replica = a_replica(slots=8)
    put_many(replica, 4, starts=True)
    four, five, six = (a_waiting(f"n{n}", sequences=n) for n in (4, 5, 6))
    assert gates.unfit_by(four, replica, 0, 0.0) is None
    assert gates.unfit_by(five, replica, 0, 0.0) is None
    assert gates.unfit_by(six, replica, 0, 0.0) is Closed.HEADROOM
    gates.reserved, replica.away = (0.25,), None
    assert gates.unfit_by(a_waiting("n2", sequences=2), replica, 0, 0.0) is None
    assert gates.unfit_by(a_waiting("n3", sequences=3), replica, 0, 0.0) is Closed.HEADROOM
    unknown = a_replica()
    put(unknown, "a", starts=True)
    assert gates.unfit_by(six, unknown, 0, 0.0) is None


def test_two_sequences_are_several_already() -> None:
    """`n: 2` is the commonest of them: one place is not enough, whichever limit there is."""
    for policy, slots in ((one_tier(inflight_limit=4), 16), (tier_policy(queue_limit=0), 4)):
        script = Play(policy).replica("r", slots=slots).arrive_many("a", 3)
        script.arrive("n2", sequences=2).expect_waiting("n2")
        script.finish("a0").expect_granted("n2")


def test_several_sequences_may_wait_in_the_engine_as_one_may() -> None:
    """What bridges the round trip is decided by the rate of this instant, at once and later."""
    script = Play(tier_policy(queue_limit=2)).replica("r", slots=4).arrive_many("a", 3)
    script.arrive("n2", sequences=2).expect_granted("n2").arrive("m2", sequences=2)
    script.expect_waiting("m2").finish("a0", "a1").expect_granted("m2")


def test_what_others_run_takes_room_from_several_sequences() -> None:
    """Another gateway's request is one sequence less that fits, not one more."""
    replica = a_replica(slots=4)
    replica.foreign = 1
    policy = tier_policy(queue_limit=0)
    assert unfit(policy, replica, sequences=3) is None
    assert unfit(policy, replica, sequences=4) is Closed.HEADROOM


def test_more_sequences_than_slots_are_charged_as_all_slots() -> None:
    """A request of 100 sequences would otherwise count as a queue that never drains."""
    script = Play(tier_policy(queue_limit=2)).replica("r", slots=4)
    script.arrive("n", sequences=100, user="n").arrive("b").expect_granted("n", "b")
    assert script.known().ledger.sequences == 5


def test_what_decodes_nothing_is_kept_out_by_prefill_alone() -> None:
    """An embedding takes no slot and no lasting KV: a full batch is no reason to wait."""
    replica = kv_full_to(9_999)
    put_many(replica, 7, starts=True)
    embedding = {"output_tokens_max": 0, "prompt_tokens": 5_000, "sequences": 40}
    assert unfit(tier_policy(), replica, **embedding) is None
    put(replica, "e", output_tokens_max=0, prompt_tokens=5_000)
    assert unfit(tier_policy(), replica, **embedding) is Closed.PREFILL


def behind(policy: Policy, replica: Replica, **fields: Any) -> bool:
    """Whether all that a request lacks there is that prompts were computed."""
    return Gates(policy).is_only_behind_prefill(a_waiting("new", **fields), replica, 0, 0.0)


def test_what_lacks_memory_too_is_not_only_behind_prompts() -> None:
    """A replica would be kept for it that has no room for it when all are computed."""
    replica = a_replica(slots=8)
    report(replica, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=10_000)
    put(replica, "a", prompt_tokens=5_000, output_tokens=1)
    replica.cache.sent(tuple(range(10)))
    prompt: dict[str, Any] = {"prompt_tokens": 4_000, "prefix": tuple(range(10))}
    assert behind(tier_policy(), replica, output_tokens=999, **prompt)
    assert not behind(tier_policy(), replica, output_tokens=1_000, **prompt)
    assert not behind(tier_policy(), replica, prompt_tokens=3_000)


def test_what_decodes_nothing_is_only_behind_prompts_however_full_it_is() -> None:
    """A long document to embed would be passed by short ones for as long as those come."""
    replica = kv_full_to(9_999)
    put(replica, "a", prompt_tokens=5_000)
    embedding = {"output_tokens_max": 0, "prompt_tokens": 4_000}
    assert behind(tier_policy(), replica, **embedding)
    assert not behind(tier_policy(), replica, output_tokens_max=0, prompt_tokens=3_000)


def test_several_sequences_may_be_behind_prompts_on_an_engine_that_has_served() -> None:
    """How fast it releases is asked for `n: 2` alone, and at an instant."""
    policy, replica = tier_policy(queue_limit=4), a_replica(slots=4)
    replica.release_rate.add(0.0, 9.0)
    put(replica, "a", prompt_tokens=5_000)
    assert behind(policy, replica, sequences=2, prompt_tokens=4_000)
    assert not behind(policy, replica, sequences=2, prompt_tokens=3_000)


def test_embeddings_pass_a_gate_that_is_shut_for_want_of_slots() -> None:
    """Search must not wait for the end of somebody's essay."""
    script = Play(one_tier()).replica("r", slots=1).arrive_many("chat", 2)
    script.arrive("e", output_tokens_max=0, user="e").expect_granted("e")
    script.expect_waiting("chat1").finish("e").expect_waiting("chat1").finish("chat0")
    script.expect_granted("chat1")


@pytest.mark.parametrize("policy", [one_tier(), four_tiers()])
def test_without_known_slots_unstarted_work_alone_decides(policy: Policy) -> None:
    """vLLM does not tell its slots: it must neither be flooded nor left idle."""
    script = Play(policy).replica("r").arrive_many("a", 50, prompt_tokens=1)
    assert len(script.running) == 1
    for served in range(1, 20):
        script.first_token(*script.running)
        assert len(script.running) == served + 1


# --- busy answers -----------------------------------------------------------------------------


def test_nothing_goes_to_a_replica_that_said_it_is_busy_until_something_ends_there() -> None:
    """Asking again at once makes the engine refuse at once, for ever."""
    script = Play(tier_policy()).replica("r", slots=8).arrive_many("a", 4).bounce("a3")
    script.expect_waiting("a3").finish("a0").expect_granted("a3")


def test_a_busy_replica_is_asked_again_after_a_short_rest() -> None:
    """Others may have kept it busy: nothing of ours would ever end there."""
    script = Play(tier_policy()).replica("r", slots=8).arrive("a").bounce("a")
    script.advance(0.2).expect_waiting("a").advance(0.5).expect_granted("a")


def test_after_a_busy_answer_fewer_are_put_there_than_were_refused() -> None:
    """Every probe of a wall costs somebody a trip to the engine and back."""
    script = Play(tier_policy()).replica("r", slots=8).arrive_many("a", 6).bounce("a5")
    script.advance(0.6).expect_waiting("a5")
    script.finish("a0").expect_waiting("a5").finish("a1").expect_granted("a5")


def test_a_busy_answer_is_forgotten_with_time_though_nothing_ends() -> None:
    """Beside one answer of ten minutes the other slots would stay empty for ten minutes."""
    script = Play(tier_policy()).replica("r", slots=2).arrive_many("a", 2).bounce("a1")
    script.advance(2.0).expect_waiting("a1").advance(3.0).expect_granted("a1")


def test_a_gate_shut_by_time_alone_opens_for_whoever_ranks_first() -> None:
    """A newcomer of another class must not find the free slot before the one who waited."""
    script = Play(four_tiers()).replica("r", slots=1).arrive("w", tier=0)
    script.bounce("w").advance(0.26)
    script.arrive("low", tier=3, prompt_tokens=5_000)
    script.expect_waiting("low").advance(0.5).expect_granted("w")


def test_several_sequences_go_at_once_beside_others_on_an_engine_that_has_served() -> None:
    """How fast it releases counts for them alone: `n: 2` must not fail where all else runs."""
    tiers = (Tier(name="x", queue_limit=4, patience_s=1e6),)
    script = Play(one_tier(tiers=tiers)).replica("r", slots=4).arrive("done").start_all()
    script.finish("done").arrive("beside").start_all()
    script.arrive("two", sequences=2).expect_granted("two")
