"""A request too large for what is free gets a replica drained for it, after a while."""

from dataclasses import replace

import pytest

from gateway.core.flows import Waiting
from gateway.core.messages import DrainAsked
from gateway.core.policy import Affinity, Ageing, Tier
from gateway.core.pool import Pool
from gateway.core.reservation import fulfilled, let_go, passed_over, release
from tests.support.parts import a_replica, a_waiting, put, put_many, report
from tests.support.play import Play
from tests.support.script import one_tier


def busy(replicas: int = 1, **changes: object) -> Play:
    """Replicas of four slots, full of small requests; one of four sequences waits before more."""
    script = Play(one_tier(**changes))
    for number in range(replicas):
        script.replica(f"r{number}", slots=4)
    script.arrive_many("held", 4 * replicas, user="s").arrive("big", sequences=4, user="b")
    return script.arrive_many("small", 200, user="s")


def churn(script: Play, turns: int, *, each_s: float = 1.0) -> Play:
    """Small requests end, one on each replica at a time."""
    for _ in range(turns):
        script.advance(each_s)
        for name in list(script.scheduler.replicas):
            there = [id for id in script.on(name) if id != "big"]
            if there:
                script.finish(there[0])
    return script


def reserved(script: Play) -> list[str]:
    """Replicas that are kept for somebody."""
    return [
        name for name, each in script.scheduler.replicas.items() if each.reserved_for is not None
    ]


def test_one_that_was_passed_over_for_long_enough_gets_a_replica_drained() -> None:
    """On a busy replica a small request always fits sooner: `n: 4` would never run."""
    script = churn(busy(reserve_after_s=5.0), 5)
    assert not reserved(script)
    assert script.count_of("small") == 5
    churn(script, 1)
    assert reserved(script) == ["r0"]
    assert script.count_of("small") == 6
    churn(script, 3).expect_waiting("big")
    assert script.count_of("small") == 6
    churn(script, 1).expect_granted("big", on="r0")
    assert not reserved(script)
    script.finish("big")
    assert script.count_of("small") == 10


def test_whoever_fits_is_passed_by_nobody() -> None:
    """A replica must not be drained for one whose turn it simply is not."""
    script = Play(one_tier(reserve_after_s=1.0)).replica("r", slots=4)
    script.arrive_many("held", 4, user="s").arrive_many("small", 50, user="s")
    script.arrive_many("other", 50, user="o").serve(20)
    assert not reserved(script)


def test_only_one_of_several_replicas_is_kept_for_one_request() -> None:
    """Half a fleet drained for one prompt would be a way to stop a service."""
    script = churn(busy(replicas=4, reserve_after_s=2.0), 4)
    assert len(reserved(script)) == 1
    churn(script, 6).expect_granted("big")


def test_no_more_than_half_of_the_replicas_are_kept_at_once() -> None:
    """Large requests would stop everybody else."""
    script = busy(replicas=4, reserve_after_s=2.0)
    for number in range(6):
        script.arrive(f"huge{number}", sequences=4, user=f"h{number}")
    churn(script, 4)
    assert len(reserved(script)) <= 2


def a_pool(*names: str, models: tuple[str, ...] = ("m",)) -> Pool:
    """Replicas of four slots."""
    replicas = [a_replica(name, slots=4) for name in names]
    for replica in replicas:
        replica.models = frozenset(models)
    return Pool(one_tier(reserve_after_s=5.0), models, replicas)


def big(pool: Pool, id: str = "big", **fields: object) -> Waiting:
    """A request of four sequences that waits."""
    waiting = a_waiting(id, sequences=4, **fields)  # type: ignore[arg-type]  # free keywords
    waiting.kind = pool.kind_of(waiting.request, waiting.kv_tokens)
    waiting.ticket = 1
    return waiting


def passed(pool: Pool, *waiting: Waiting, at: tuple[float, ...]) -> None:
    """They were passed over at these instants."""
    for now in at:
        passed_over(pool, waiting, now)


def kept(pool: Pool) -> dict[str, str]:
    """Replica -> the request it is kept for."""
    return {
        name: each.reserved_for.request.id
        for name, each in pool.replicas.items()
        if each.reserved_for is not None
    }


def test_the_time_is_counted_from_the_first_time_that_it_was_passed_over() -> None:
    """Waiting one's turn is no injustice; only from then on it is."""
    pool = a_pool("r")
    waiting = big(pool)
    passed(pool, waiting, at=(10.0, 14.9))
    assert kept(pool) == {}
    assert waiting.skipped_since == 10.0
    passed(pool, waiting, at=(15.0,))
    assert kept(pool) == {"r": "big"}
    assert pool.replicas["r"].reserved_until == 75.0


def test_the_freest_replica_that_may_serve_it_is_kept() -> None:
    """It is empty soonest."""
    pool = a_pool("r", "s", "t", "u")
    put_many(pool.replicas["r"], 4)
    put_many(pool.replicas["s"], 2)
    put_many(pool.replicas["t"], 3)
    pool.replicas["u"].mark(draining=True)
    pool.touch_all()
    passed(pool, big(pool), at=(0.0, 5.0))
    assert kept(pool) == {"s": "big"}
    pool = a_pool("r", "s")
    put_many(pool.replicas["s"], 2)
    pool.touch_all()
    passed(pool, big(pool, excluded=frozenset({"r"})), at=(0.0, 5.0))
    assert kept(pool) == {"s": "big"}


def test_what_lower_tiers_still_wait_with_makes_a_replica_no_less_free_to_be_kept() -> None:
    """It goes before them: the other replica, with less of its own tier, is fuller for it."""
    tiers = tuple(Tier(name=name, queue_limit=0, patience_s=1e6) for name in "ab")
    policy = one_tier(tiers=tiers, headroom_max=0.0, reserve_after_s=5.0)
    replicas = [a_replica(name, slots=4, tiers=2) for name in "rs"]
    pool = Pool(policy, ["m"], replicas)
    for replica, tier, prompt_tokens in zip(replicas, (1, 0), (5_000, 1_000), strict=True):
        report(replica, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=10_000)
        put(replica, tier=tier, prompt_tokens=prompt_tokens)
    pool.touch_all()
    passed(pool, big(pool, tier=0), at=(0.0, 5.0))
    assert kept(pool) == {"r": "big"}


def test_one_that_can_run_nowhere_keeps_nothing() -> None:
    """Its replicas are gone for now."""
    pool = a_pool("r")
    pool.replicas["r"].mark(lost=True)
    passed(pool, big(pool), at=(0.0, 5.0))
    assert kept(pool) == {}


@pytest.mark.parametrize(("replicas", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (7, 3)])
def test_half_of_a_pool_may_be_kept_and_always_one(replicas: int, most: int) -> None:
    """A single replica must be able to serve a large request too."""
    pool = a_pool(*[f"r{number}" for number in range(replicas)])
    line = [big(pool, f"big{number}") for number in range(9)]
    passed(pool, *line, at=(0.0, 5.0, 6.0))
    assert len(kept(pool)) == most
    assert len(set(kept(pool).values())) == most


def test_whoever_was_served_gives_back_its_own_replica_and_no_other() -> None:
    """The other large request would stand at the end of its wait once more."""
    pool = a_pool("r", "s", "t", "u")
    one, other = big(pool, "one"), big(pool, "other")
    passed(pool, one, other, at=(0.0, 5.0))
    assert sorted(kept(pool).values()) == ["one", "other"]
    assert fulfilled(pool, one)
    assert list(kept(pool).values()) == ["other"]
    assert not fulfilled(pool, one)


def test_a_reservation_shuts_the_gates_that_were_judged_open() -> None:
    """The next event would otherwise still release onto it."""
    pool = a_pool("r")
    replica = pool.replicas["r"]
    pool.open_tiers(replica, 0.0)
    passed(pool, big(pool), at=(0.0, 5.0))
    assert replica.open_tiers is None


def test_a_reservation_is_let_go_when_its_request_went_elsewhere() -> None:
    """Nobody would ever use that replica again."""
    pool = a_pool("r")
    waiting = big(pool)
    passed(pool, waiting, at=(0.0, 5.0))
    release(pool.replicas["r"], 6.0)
    assert kept(pool) == {"r": "big"}
    waiting.ticket = 0
    release(pool.replicas["r"], 6.0)
    assert kept(pool) == {}
    assert waiting.skipped_since == 0.0
    release(pool.replicas["r"], 6.0)


def test_a_reservation_ends_and_its_request_stands_in_line_for_another() -> None:
    """Load that others put there may never leave: the room would be empty for ever."""
    pool = a_pool("r")
    waiting = big(pool)
    passed(pool, waiting, at=(0.0, 5.0))
    release(pool.replicas["r"], 64.9)
    assert kept(pool) == {"r": "big"}
    release(pool.replicas["r"], 65.0)
    assert kept(pool) == {}
    assert waiting.skipped_since == 65.0


def test_one_that_did_not_fit_on_its_empty_replica_stands_in_line_for_another() -> None:
    """Kept for it again at once, the replica would stand empty for half of the time."""
    pool = a_pool("r")
    waiting = big(pool)
    passed(pool, waiting, at=(0.0, 5.0))
    let_go(pool.replicas["r"], 6.0)
    passed(pool, waiting, at=(7.0, 10.9))
    assert kept(pool) == {}
    passed(pool, waiting, at=(11.0,))
    assert kept(pool) == {"r": "big"}


def test_a_reservation_ends_with_its_replica() -> None:
    """Another one must be drained, and soon."""
    pool = a_pool("r", "s")
    waiting = big(pool)
    passed(pool, waiting, at=(0.0, 5.0))
    (name,) = kept(pool)
    pool.replicas[name].mark(lost=True)
    release(pool.replicas[name], 6.0)
    assert kept(pool) == {}
    passed(pool, waiting, at=(6.0, 11.0))
    assert set(kept(pool)) == {"r", "s"} - {name}


def prompts(limit_s: float = 1.0, *, replicas: int = 1, **changes: object) -> Play:
    """Replicas of 64 slots and 8,000 prompt tokens a second, with short prompts enough for each."""
    tier = Tier(name="only", queue_limit=0, patience_s=1e6, prefill_limit_s=limit_s)
    script = Play(one_tier(tiers=(tier,), reserve_after_s=5.0, **changes))
    for number in range(replicas):
        script.replica(f"r{number}", slots=64)
    script.arrive_many("held", int(16 * limit_s) * replicas, prompt_tokens=500, user="s")
    script.arrive("long", prompt_tokens=6_000, user="b")
    return script.arrive_many("short", 300, prompt_tokens=500, user="s")


def compute(script: Play, turns: int, *, each_s: float = 0.25) -> Play:
    """Prompts are computed in the order in which they were sent, 2,000 tokens on each a turn."""
    for _ in range(turns):
        script.advance(each_s)
        for name in list(script.scheduler.replicas):
            for id in list(script.known(name).ledger.unstarted)[:4]:
                script.first_token(id).finish(id)
    return script


@pytest.mark.parametrize("limit_s", [1.0, 2.0])
def test_a_long_prompt_waits_for_shorter_ones_no_longer_than_the_prefill_gate(
    limit_s: float,
) -> None:
    """6,000 tokens of a light user waited for five seconds while a flood of short ones went by."""
    script = compute(prompts(limit_s), int(4 * limit_s)).expect_waiting("long")
    assert not reserved(script)
    compute(script, 1)
    assert reserved(script) == ["r0"]
    short = script.count_of("short")
    compute(script, 2).expect_waiting("long")
    assert script.count_of("short") == short
    compute(script, 1).expect_granted("long")
    assert not reserved(script)


def test_one_of_several_replicas_is_kept_for_a_long_prompt() -> None:
    """The others go on with the short ones."""
    script = compute(prompts(replicas=3), 6)
    assert len(reserved(script)) == 1
    short = script.count_of("short")
    compute(script, 1)
    assert script.count_of("short") >= short + 8
    compute(script, 2)
    assert "long" not in script.waiting


def test_whatever_more_than_time_keeps_out_waits_as_long_as_ever() -> None:
    """Slots would idle for seconds while KV drains, for each prompt that is a little too large."""
    pool = a_pool("r")
    replica = pool.replicas["r"]
    report(replica, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=20_000)
    put(replica, "held", starts=True, prompt_tokens=15_000)
    put(replica, "next", prompt_tokens=2_000)
    pool.touch_all()
    waiting = a_waiting("long", prompt_tokens=6_500)
    waiting.ticket = 1
    passed(pool, waiting, at=(0.0, 4.9))
    assert kept(pool) == {}
    passed(pool, waiting, at=(5.0,))
    assert kept(pool) == {"r": "long"}


def test_the_replica_that_has_only_prompts_before_a_long_one_is_kept_for_it() -> None:
    """The freest by KV may be the one whose gate is shut, or that never fits it."""
    pool = a_pool("r", "s", "t")
    put(pool.replicas["r"], "a", prompt_tokens=3_000)
    for name in "rs":
        report(pool.replicas[name], running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=9_000)
    put(pool.replicas["s"], "b", prompt_tokens=3_000)
    put(pool.replicas["s"], "d", starts=True, prompt_tokens=1_000)
    put_many(pool.replicas["t"], 4, prompt_tokens=3_000)
    pool.touch_all()
    waiting = a_waiting("long", prompt_tokens=5_500)
    waiting.kind = pool.kind_of(waiting.request, waiting.kv_tokens)
    waiting.ticket = 1
    passed(pool, waiting, at=(0.0, 1.0))
    assert kept(pool) == {"r": "long"}


def test_a_replica_whose_headroom_keeps_a_long_prompt_out_is_not_kept_for_it() -> None:
    """The tiers above would find their slots, and nothing in the others for half a second."""
    tiers = tuple(Tier(name=name, queue_limit=0, patience_s=1e6) for name in "ab")
    replica = a_replica("r", slots=4, tiers=2)
    pool = Pool(one_tier(tiers=tiers, headroom_max=0.5, lend=False), ["m"], [replica])
    put_many(replica, 2, prompt_tokens=4_000)
    pool.refresh_if_due(0.0)
    pool.touch_all()
    assert pool.open_tiers(replica, 0.0) == 1
    waiting = a_waiting("long", prompt_tokens=6_000, tier=1)
    waiting.ticket = 1
    passed(pool, waiting, at=(0.0, 1.0))
    assert kept(pool) == {}


def test_a_long_prompt_of_several_sequences_waits_no_longer_either() -> None:
    """How fast the engine releases is asked for them alone, and at an instant."""
    tier = Tier(name="only", queue_limit=4, patience_s=1e6)
    replica = a_replica("r", slots=8)
    pool = Pool(one_tier(tiers=(tier,), reserve_after_s=5.0), ["m"], [replica])
    replica.release_rate.add(0.0, 9.0)
    put(replica, "a", prompt_tokens=5_000)
    pool.touch_all()
    waiting = a_waiting("two", prompt_tokens=6_000, sequences=2)
    waiting.ticket = 1
    passed(pool, waiting, at=(0.0, 1.0))
    assert kept(pool) == {"r": "two"}


def test_when_the_large_request_leaves_the_small_ones_go_on() -> None:
    """Its client hung up; the replica is nobody's."""
    script = churn(busy(reserve_after_s=5.0), 7)
    assert reserved(script) == ["r0"]
    assert len(script.on("r0")) == 3
    script.cancel("big")
    assert len(script.on("r0")) == 4
    assert not reserved(script)


def test_a_replica_that_is_lost_while_kept_does_not_hold_up_the_rest() -> None:
    """The others must go on, and one of them be drained instead."""
    script = churn(busy(replicas=2, reserve_after_s=2.0), 4)
    (name,) = reserved(script)
    script.lose(name)
    churn(script, 6)
    assert name not in reserved(script)
    churn(script, 6).expect_granted("big")


def test_a_drained_replica_is_not_kept_for_anybody() -> None:
    """The operator's wish goes before a request's."""
    script = churn(busy(replicas=2, reserve_after_s=2.0), 4)
    (name,) = reserved(script)
    script.tell(DrainAsked(name))
    churn(script, 8)
    assert name not in reserved(script)
    script.expect_granted("big")


def test_a_new_policy_lets_go_of_all_reservations() -> None:
    """It may have changed what fits, and how long one waits for it."""
    policy = one_tier(reserve_after_s=5.0)
    script = churn(busy(reserve_after_s=5.0), 7)
    script.change(replace(policy, reserve_after_s=1e6))
    assert not reserved(script)
    churn(script, 5).expect_waiting("big")


def two_tiers(**changes: object) -> Play:
    """Two replicas of four slots with two in each, and a large one of the last tier that waits."""
    tiers = tuple(Tier(name=name, queue_limit=0, patience_s=1e6) for name in "ab")
    script = Play(one_tier(tiers=tiers, headroom_max=0.0, **changes)).replica("r", slots=4)
    script.replica("s", slots=4).arrive_many("held", 4, tier=0)
    return script.arrive("big", sequences=4, tier=1).expect_waiting("big")


def reserved_for_big(script: Play) -> Play:
    """`r` is kept for the large request, which fits there once its two are over."""
    replica = script.known("r")
    replica.reserved_for = script.scheduler.waiting["big"]
    replica.reserved_until = script.now + 9.0
    return script


def test_a_kept_replica_is_kept_from_a_newcomer_of_a_higher_tier_while_its_floor_is_owed() -> None:
    """It finds nobody before it, and would go to the freest: the one that was drained."""
    script = reserved_for_big(two_tiers())
    script.pool().floors.deficits[1] = 1e9
    script.arrive("top", tier=0).expect_granted("top", on="s")
    script.advance(9.0).arrive("next", tier=0).expect_granted("next", on="r")


def test_a_kept_replica_is_kept_from_a_newcomer_of_a_higher_tier_once_its_request_is_aged() -> None:
    """Its age lets the large one go before all tiers: the replica drains for it."""
    script = reserved_for_big(two_tiers(ageing=Ageing(after_s=2.0)))
    script.arrive("early", tier=0).expect_granted("early", on="r").advance(3.0)
    script.arrive("late", tier=0).expect_granted("late", on="s")


def test_a_kept_replica_is_kept_from_a_conversation_that_was_there() -> None:
    """Its session would draw it there, past the look at the freest."""
    script = two_tiers(affinity=Affinity(session=9.0))
    script.crowd("on r", 2, tier=0, session="a", excluded=frozenset({"s"})).finish("on r0")
    reserved_for_big(script).pool().floors.deficits[1] = 1e9
    script.arrive("top", tier=0, session="a").expect_granted("top", on="s")


def test_a_better_tier_does_not_wait_for_a_replica_to_be_drained() -> None:
    """The only replica was kept for a long prompt of the last tier, from everybody's chat."""
    script = reserved_for_big(two_tiers())
    script.arrive_many("top", 4, tier=0).expect_granted("top0", "top1", "top2", "top3")


def test_a_replica_is_filled_at_once_when_its_request_went_elsewhere() -> None:
    """Nothing else may happen there for seconds."""
    script = two_tiers()
    waiting = script.scheduler.waiting["big"]
    replica = script.known("r")
    replica.reserved_for, waiting.skipped_since = waiting, 0.0
    replica.reserved_until = script.now + 60.0
    script.arrive_many("bound", 2, tier=1, excluded=frozenset({"s"})).expect_waiting("bound1")
    script.finish(*script.on("s")).expect_granted("big", on="s")
    script.expect_granted("bound0", "bound1", on="r")


def test_what_a_replica_was_drained_for_goes_whoever_ranks_first_by_now() -> None:
    """Its user sent a shorter one, which is first since then, and the replica stood idle."""
    script = two_tiers(within_user="shortest").arrive_many("top", 4, tier=0)
    reserved_for_big(script).arrive("short", sequences=4, output_tokens_max=1, tier=1)
    script.finish(*script.on("r")[:3]).expect_waiting("big", "short")
    script.finish(*script.on("r")).expect_granted("big", on="r").expect_waiting("short")
    assert not reserved(script)


def test_what_a_replica_was_drained_for_waits_for_its_gate() -> None:
    """The slots that are kept from its tier are there for the one above."""
    tiers = tuple(Tier(name=name, queue_limit=0, patience_s=1e6) for name in "ab")
    script = Play(one_tier(tiers=tiers, headroom_max=0.5, recall=False)).replica("r", slots=4)
    script.arrive_many("held", 2, tier=0).arrive("one", tier=1).expect_waiting("one")
    script.known("r").reserved_for = script.scheduler.waiting["one"]
    script.known("r").reserved_until = script.now + 60.0
    script.arrive("top", tier=0, sequences=4).expect_waiting("one", "top")
    script.finish("held0").expect_granted("one").expect_waiting("top")


def test_an_empty_replica_is_kept_for_nobody() -> None:
    """Others use the engine, so that it never fits; whoever does fit need not wait a minute."""
    script = reserved_for_big(two_tiers()).arrive("small", tier=1, excluded=frozenset({"s"}))
    script.expect_waiting("small", "big").report("r", running=4, waiting=0)
    script.finish(*script.on("r")).expect_granted("small", on="r").expect_waiting("big")
    assert not reserved(script)


def test_what_a_cap_holds_back_keeps_no_replica() -> None:
    """It may not run, however empty the replica: others must not wait for that."""
    pool = a_pool("r")
    waiting = big(pool)
    passed(pool, waiting, at=(0.0, 5.0))
    waiting.holder = "tenant/a"
    release(pool.replicas["r"], 6.0)
    assert kept(pool) == {}
