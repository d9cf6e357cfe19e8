"""May a request of this tier be put on this replica now?"""

from dataclasses import replace
from math import log
from typing import Any

import pytest

from gateway.core.gate import Closed, Gates, ceilings, reserved_shares
from gateway.core.limiter import ConcurrencyLimit
from gateway.core.policy import DEFAULT_TIERS, Policy, Tier
from gateway.core.replica import RELEASE_HALF_LIFE_S, Replica
from tests.support.parts import a_replica, a_waiting, put, put_many, report
from tests.support.play import Play
from tests.support.script import four_tiers, one_tier


def tier_policy(**fields: Any) -> Policy:
    """One tier with these fields."""
    return one_tier(tiers=(replace(Tier(name="only", patience_s=1e6), **fields),))


def closed(gates: Gates, replica: Replica, tier: int = 0, *, now: float = 0.0) -> Closed | None:
    """What shuts the gate, asked as the scheduler asks."""
    return gates.closed_by(replica, tier, replica.waiting, now)


def releasing(replica: Replica, per_s: float, *, now: float = 0.0) -> Replica:
    """The replica ends so many requests a second, 170 ms away with steps of 30 ms."""
    replica.release_rate.add(now, per_s * RELEASE_HALF_LIFE_S / log(2))
    replica.round_trip_s = 0.17
    return replica


# --- queue ------------------------------------------------------------------------------------


def test_queue_limit_zero_releases_into_free_slots_only() -> None:
    """Critical requests must never stand behind background work inside the engine."""
    script = Play(tier_policy(queue_limit=0)).replica("r", slots=2).arrive_many("a", 3)
    script.expect_granted("a0", "a1").expect_waiting("a2").finish("a0").expect_granted("a2")


def test_the_queue_gate_counts_what_waits_not_what_runs() -> None:
    """A full engine without a queue takes one; one with a queue takes no more than is allowed."""
    gates = Gates(tier_policy(queue_limit=3))
    replica = a_replica(slots=2)
    put_many(replica, 2)
    assert closed(gates, replica) is None
    put(replica, "one")
    assert closed(gates, replica) is Closed.QUEUE
    releasing(replica, 10.0)
    assert closed(gates, replica) is None
    put(replica, "two")
    assert closed(gates, replica) is Closed.QUEUE


def test_a_limit_of_zero_shuts_at_the_last_slot_and_behind_any_queue() -> None:
    """0 means: into a free slot, with nothing waiting."""
    gates = Gates(tier_policy(queue_limit=0))
    replica = a_replica(slots=2)
    assert closed(gates, replica) is None
    put(replica, "a")
    assert closed(gates, replica) is None
    put(replica, "b")
    assert closed(gates, replica) is Closed.QUEUE
    unknown = a_replica()
    put(unknown, "a", starts=True)
    assert closed(gates, unknown) is None
    put(unknown, "b")
    assert closed(gates, unknown) is Closed.QUEUE


def test_foreign_load_takes_the_slots_that_it_takes() -> None:
    """An engine that others use too has fewer slots for us."""
    gates = Gates(tier_policy(queue_limit=0))
    replica = a_replica(slots=4)
    replica.foreign = 3
    assert closed(gates, replica) is None
    put(replica, "a")
    assert closed(gates, replica) is Closed.QUEUE


def test_a_slow_replica_gets_one_request_beyond_its_slots() -> None:
    """A light arrival must not find several service turns already queued in the engine."""
    script = Play(tier_policy(queue_limit=4)).replica("r", slots=2).arrive_many("a", 9)
    assert len(script.running) == 3
    script.serve(5, each_s=1.0)
    assert len(script.running) == 3


def fast(script: Play, tier: int = 0) -> Play:
    """Two slots that end 20 requests a second between them, 100 ms away; more than enough wait."""
    script.replica("r", slots=2).scrape("r", running=0, waiting=0, round_trip_s=0.1)
    script.arrive_many("a", 320, tier=tier, prompt_tokens=1)
    script.serve(300, each_s=0.05)
    return script


def test_a_fast_replica_gets_as_many_as_end_in_one_round_trip() -> None:
    """Released too late, the GPU idles for a round trip after every answer."""
    script = fast(Play(tier_policy(queue_limit=4)))
    assert len(script.running) == 2 + 3


def test_a_constant_allowance_is_the_limit_itself() -> None:
    """The rule of the paper, for those who measured that it suits them."""
    policy = replace(tier_policy(queue_limit=4), allowance="constant")
    script = Play(policy).replica("r", slots=2).arrive_many("a", 9)
    assert len(script.running) == 2 + 4


def test_the_allowance_shrinks_again_when_the_replica_slows_down() -> None:
    """What was right at full speed is a queue inside the engine afterwards."""
    script = fast(Play(tier_policy(queue_limit=4)))
    script.cancel(*script.waiting).finish(next(iter(script.running)))
    assert len(script.running) == 2 + 2
    script.advance(60.0).arrive("late").expect_waiting("late")


@pytest.mark.parametrize(
    ("per_s", "limits", "expected"),
    [
        (0.0, (0, 1, 2, 4), (0, 1, 1, 1)),
        (4.9, (0, 1, 2, 4), (0, 1, 1, 1)),
        (10.0, (0, 1, 2, 4), (0, 1, 2, 2)),
        (10.1, (0, 1, 2, 4), (0, 1, 2, 3)),
        (90.0, (0, 1, 2, 4), (0, 1, 2, 4)),
    ],
)
def test_the_allowance_bridges_one_round_trip_and_one_step(
    per_s: float, limits: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """The paper's threshold is the upper bound; releasing nothing ahead starves the engine."""
    replica = releasing(a_replica(slots=2), per_s)
    found = [Gates(tier_policy(queue_limit=each)).allowance(replica, 0, 0.0) for each in limits]
    assert found == list(expected)


def test_the_engines_own_step_counts_in_what_must_be_bridged() -> None:
    """A slow model admits once a step: more must lie ready."""
    gates = Gates(tier_policy(queue_limit=9))
    replica = releasing(a_replica(slots=2), 10.0)
    replica.tpot_s = 0.33
    assert gates.allowance(replica, 0, 0.0) == 5


def test_lower_tiers_queue_less_in_the_engine() -> None:
    """Critical must not wait behind what standard was allowed to queue."""
    depth = {}
    for rank in range(4):
        tiers = tuple(replace(tier, patience_s=1e6) for tier in DEFAULT_TIERS)
        script = fast(Play(four_tiers(tiers=tiers)), tier=rank)
        depth[rank] = len(script.running) - 2
    assert depth == {0: 3, 1: 3, 2: 2, 3: 0}


# --- ceilings, and how many tiers are open ----------------------------------------------------


def test_no_tier_has_a_higher_ceiling_than_the_one_above() -> None:
    """A typo in the settings would let background in where critical is kept out."""
    tiers = (
        Tier(name="a", queue_limit=2, tpot_limit_ms=100.0, prefill_limit_s=1.0),
        Tier(name="b", queue_limit=9, tpot_limit_ms=500.0, prefill_limit_s=5.0),
        Tier(name="c", queue_limit=1, tpot_limit_ms=50.0, prefill_limit_s=0.5),
    )
    found = ceilings(one_tier(tiers=tiers))
    assert [(each.queue_limit, each.tpot_s, each.prefill_s) for each in found] == [
        (2, 0.1, 1.0), (2, 0.1, 1.0), (1, 0.05, 0.5),
    ]  # fmt: skip


def four_open(replica: Replica, *, now: float = 0.0, **changes: Any) -> int:
    """How many of the product's tiers may release there."""
    return Gates(four_tiers(**changes)).open_tiers(replica, now)


def test_tiers_are_shut_from_the_last_up() -> None:
    """A count is all that the scheduler keeps of a replica's gates."""
    replica = a_replica(slots=4, tiers=4)
    assert four_open(replica) == 4
    put_many(replica, 4)
    assert four_open(replica) == 3
    put(replica, "beyond")
    assert four_open(replica) == 0
    releasing(replica, 10.0)
    assert four_open(replica) == 3


def test_each_tiers_own_headroom_line_decides() -> None:
    """The tiers are shut one after the other while a replica fills, not all at once."""
    gates = Gates(four_tiers())
    gates.reserved = (0.0, 0.25, 0.5, 0.75)
    found = []
    for count in range(4):
        replica = a_replica(slots=4, tiers=4)
        put_many(replica, count)
        found.append(gates.open_tiers(replica, 0.0))
    assert found == [4, 3, 2, 1]


def test_a_replica_that_is_unusable_or_busy_is_shut_to_all() -> None:
    """Nothing else is asked of it."""
    replica = a_replica(slots=4, tiers=4)
    replica.busy_until = 2.0
    assert four_open(replica, now=1.9) == 0
    assert four_open(replica, now=2.0) == 4
    replica.mark(draining=True)
    assert four_open(replica, now=3.0) == 0
    replica.mark(draining=False)
    assert four_open(replica, now=3.0) == 4


def test_the_contrast_knows_no_gate_but_a_dead_replica() -> None:
    """`--policy fifo` forwards everything; to nowhere it cannot."""
    replica = a_replica(slots=1, tiers=4)
    put_many(replica, 50)
    assert four_open(replica, release_at_once=True) == 4
    replica.mark(lost=True)
    assert four_open(replica, release_at_once=True) == 0


def test_a_gate_notices_that_the_last_report_is_stale() -> None:
    """Otherwise a figure of yesterday would keep the replica shut."""
    gates = Gates(tier_policy(queue_limit=0))
    replica = a_replica(slots=4)
    for second in range(3):
        report(replica, now=float(second), running=4, waiting=0)
    replica.foreign = 0
    assert gates.open_tiers(replica, 4.9) == 1
    assert not replica.is_stale
    assert gates.open_tiers(replica, 5.0) == 0
    assert replica.is_stale
    assert replica.foreign == 4


# --- speed ------------------------------------------------------------------------------------


def test_a_replica_slower_than_the_limit_takes_no_more() -> None:
    """Everybody on it would fall below a readable speed."""
    script = Play(tier_policy(tpot_limit_ms=150.0)).replica("r", slots=8)
    script.arrive_many("a", 3).finish("a0", tpot_s=0.2)
    script.arrive("b").expect_waiting("b").finish("a1", tpot_s=0.1).expect_granted("b")


def test_a_slow_moment_does_not_keep_the_gate_shut() -> None:
    """Nothing runs, nothing is measured, nothing ever opens the gate again: 40 times the wait."""
    script = Play(tier_policy(tpot_limit_ms=150.0)).replica("r", slots=8)
    script.arrive_many("a", 2).finish("a0", tpot_s=0.6).arrive("b").expect_waiting("b")
    script.advance(10.0).expect_waiting("b").advance(30.0).expect_granted("b")


def test_the_speed_gate_never_closes_an_empty_replica() -> None:
    """One request at a time is the best that a slow replica can do."""
    script = Play(tier_policy(tpot_limit_ms=150.0)).replica("r", slots=8)
    script.arrive("a").finish("a", tpot_s=9.0).arrive("b").expect_granted("b")


def test_min_inflight_keeps_that_many_running_on_a_slow_replica() -> None:
    """An operator who knows the hardware to be slow says so."""
    policy = one_tier(tiers=(Tier(name="x", patience_s=1e6),), min_inflight=3, limiter="static")
    script = Play(policy).replica("r", slots=8)
    script.arrive("a").finish("a", tpot_s=9.0).arrive_many("b", 5)
    assert len(script.running) == 3


def test_background_gives_way_before_critical_on_a_slowing_replica() -> None:
    """The stricter limit of the last tier keeps the speed of the first."""
    script = Play(four_tiers(lend=True)).replica("r", slots=32)
    script.arrive_many("w", 2, tier=2).finish("w0", tpot_s=0.1)
    script.arrive("low", tier=3).arrive("std", tier=2)
    script.expect_granted("std").expect_waiting("low")


# --- headroom ---------------------------------------------------------------------------------


def test_headroom_is_kept_for_every_tier_above() -> None:
    """A critical request must find a free slot under any load of the lower tiers."""
    for rank, free in enumerate((0, 7, 10, 11)):
        script = Play(four_tiers(lend=False)).replica("r", slots=32)
        script.arrive_many("a", 50, tier=rank, prompt_tokens=1).start_all()
        beyond = 1 if rank == 0 else 0
        assert len(script.running) == 32 - free + beyond


def test_headroom_is_lent_while_nobody_above_is_there() -> None:
    """A cluster that only runs background work must run it on all of its slots."""
    script = Play(four_tiers(lend=True, hold_s=60.0)).replica("r", slots=32)
    script.arrive_many("low", 60, tier=3, prompt_tokens=1).start_all()
    assert len(script.running) == 32


def test_lent_headroom_comes_back_when_the_tier_above_does() -> None:
    """Reclaimed by not releasing: nobody is killed."""
    script = Play(four_tiers(hold_s=60.0)).replica("r", slots=32)
    script.arrive_many("low", 70, tier=3, prompt_tokens=1).start_all()
    script.arrive("top", tier=0, prompt_tokens=1)
    script.serve(12, each_s=0.1)
    assert len(script.running) == 32 - 7
    script.advance(61.0).start_all()
    assert len(script.running) == 32


def test_slot_headroom_rounds_up_but_leaves_one_slot() -> None:
    """Every tier can use at least one slot, however small the replica."""
    for slots, share, kept in ((32, 0.2, 7), (5, 0.2, 1), (1, 0.9, 0), (2, 0.9, 1), (8, 0.0, 0)):
        gates = Gates(tier_policy())
        gates.reserved = (share,)
        replica = a_replica(slots=slots)
        assert gates.away(replica, slots) == (kept,)


def test_slots_kept_away_are_counted_anew_when_the_slots_change() -> None:
    """Slots are learnt late: a share of the first guess would waste the rest for ever."""
    gates = Gates(tier_policy())
    gates.reserved = (0.25,)
    replica = a_replica(slots=4)
    assert gates.away(replica, 4) == (1,)
    replica.configured_slots = 40
    replica.count_slots()
    assert gates.away(replica, 40) == (10,)


def test_only_the_tiers_above_and_only_active_ones_are_kept_room_for() -> None:
    """A tier must not be kept out by its own reservation, nor by one that is not there."""
    headroom = (0.2, 0.1, 0.05)
    assert reserved_shares(headroom, [True, True, True]) == pytest.approx((0.0, 0.2, 0.3))
    assert reserved_shares(headroom, [False, True, True]) == pytest.approx((0.0, 0.0, 0.1))
    assert reserved_shares(headroom, [True, False, True]) == pytest.approx((0.0, 0.2, 0.2))
    assert reserved_shares(headroom, [False] * 3) == (0.0, 0.0, 0.0)


def test_without_known_slots_there_is_no_slot_headroom() -> None:
    """A share of an unknown number is no number."""
    gates = Gates(tier_policy())
    gates.reserved = (0.9,)
    replica = a_replica()
    put_many(replica, 50, starts=True)
    assert closed(gates, replica) is None


@pytest.mark.parametrize("rank", range(4))
def test_default_ceilings_shrink_from_tier_to_tier(rank: int) -> None:
    """The shares of the K-tier formula for four tiers, in percent."""
    share = four_tiers().headroom_fraction(rank)
    assert share == pytest.approx((0.20, 0.0869, 0.0378, 0.0164)[rank], abs=5e-5)
    assert len(DEFAULT_TIERS) == 4


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


def test_without_known_slots_a_fresh_replica_is_filled_to_what_it_ran_before() -> None:
    """Nothing else is known of it."""
    gates = Gates(tier_policy())
    replica = a_replica()
    replica.warm_from, replica.warm_until = 0.0, 10.0
    assert gates.warm_slots(replica, 9.0) == 1.0
    replica.proven_sequences = 20
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
    long = {"prompt_tokens": 6_400, "prefix": tuple(range(100))}
    assert unfit(tier_policy(), replica, **long) is Closed.PREFILL
    replica.warmth.sent(a_waiting("b", prefix=tuple(range(60))).request)
    assert unfit(tier_policy(), replica, **long) is None


def test_a_prefix_longer_than_the_estimated_prompt_pays_for_nobody_else() -> None:
    """An estimate that is too low must not make room that is not there."""
    replica = a_replica(slots=8)
    put(replica, "a", prompt_tokens=8_001)
    replica.warmth.sent(a_waiting("b", prefix=tuple(range(100))).request)
    wrong = {"prompt_tokens": 100, "prefix": tuple(range(100))}
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
    replica.warmth.sent(a_waiting("b", prefix=tuple(range(100))).request)
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
    script.advance(30.0).expect_waiting("a5")
    script.finish("a0").expect_waiting("a5").finish("a1").expect_granted("a5")


def test_a_gate_shut_by_time_alone_opens_for_whoever_ranks_first() -> None:
    """A newcomer of another class must not find the free slot before the one who waited."""
    script = Play(four_tiers()).replica("r", slots=1).arrive("w", tier=0)
    script.bounce("w").advance(0.26)
    script.arrive("low", tier=3, prompt_tokens=5_000)
    script.expect_waiting("low").advance(0.5).expect_granted("w")
