"""May a request of this tier be put on this replica now?"""

from dataclasses import replace
from math import log
from typing import Any

import pytest

from gateway.core.gate import Closed, Gates, ceilings, reserved_shares
from gateway.core.policy import DEFAULT_TIERS, Policy, Tier
from gateway.core.replica import RELEASE_HALF_LIFE_S, Replica
from tests.support.parts import a_replica, put, put_many, report
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


def fast(script: Play) -> Play:
    """Two slots that end 20 requests a second between them, 100 ms away; more than enough wait."""
    script.replica("r", slots=2).scrape("r", running=0, waiting=0, round_trip_s=0.1)
    script.arrive_many("a", 320, prompt_tokens=1)
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
    replica.speed.tpot_s = 0.33
    assert gates.allowance(replica, 0, 0.0) == 5


def test_before_the_first_scrape_no_round_trip_is_bridged() -> None:
    """A guess of a second would put a line into every engine that joins."""
    replica = a_replica(slots=2)
    replica.release_rate.add(0.0, 10.0 * RELEASE_HALF_LIFE_S / log(2))
    assert Gates(tier_policy(queue_limit=9)).allowance(replica, 0, 0.0) == 1


def test_lower_tiers_queue_less_in_the_engine() -> None:
    """Critical must not wait behind what standard was allowed to queue."""
    gates, replica = Gates(four_tiers()), releasing(a_replica(slots=2, tiers=4), 12.0)
    assert [gates.allowance(replica, tier, 0.0) for tier in range(4)] == [3, 3, 2, 0]
    busy = releasing(a_replica(slots=2, tiers=4), 90.0)
    assert [gates.allowance(busy, tier, 0.0) for tier in range(4)] == [4, 3, 2, 0]


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
    policy = one_tier(tiers=(Tier(name="x", patience_s=1e6),), min_inflight=3)
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
