"""Which waiting request goes where."""

from dataclasses import replace

import pytest

from gateway.core.flows import Waiting
from gateway.core.messages import Outcome, Reason
from gateway.core.placement import Search, choose
from gateway.core.policy import DEFAULT_TIERS, Ageing, Policy, Tier
from gateway.core.pool import Pool
from tests.support.parts import a_replica, a_waiting, put_many
from tests.support.play import Play
from tests.support.script import four_tiers, one_tier


def test_requests_go_where_it_is_freest() -> None:
    """Nobody should stand beside another while a replica is idle."""
    script = Play().replica("r1", slots=4).replica("r2", slots=4).arrive_many("a", 8)
    assert len(script.on("r1")) == len(script.on("r2")) == 4


def test_equally_free_replicas_are_taken_by_name() -> None:
    """The same events must give the same decisions, on every machine."""
    script = Play().replica("b", slots=4).replica("a", slots=4).replica("c", slots=4)
    script.arrive("x").expect_granted("x", on="a").arrive("y").expect_granted("y", on="b")


def test_a_replica_twice_as_fast_gets_twice_the_work() -> None:
    """Choosing at the instant at which a slot is free needs no knowledge of speeds."""
    script = Play().replica("fast", slots=2).replica("slow", slots=2).arrive_many("a", 200)
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
    script = Play().replica("r1", slots=1, models=("m", "x")).replica("r2", slots=1, models="x")
    script.arrive("m0", model="m").expect_granted("m0", on="r1")
    script.arrive("m1", model="m").arrive("x0", model="x")
    script.expect_waiting("m1").expect_granted("x0", on="r2")


def test_a_request_that_fits_nowhere_blocks_no_other() -> None:
    """One request for a full model would otherwise stop all models."""
    script = Play().replica("r1", slots=1, models=("m", "x")).replica("r2", slots=1, models="x")
    script.arrive("held", model="m").arrive_many("m", 5, model="m", user="a")
    script.arrive_many("x", 2, model="x", user="b").expect_granted("x0", on="r2")
    script.finish("x0").expect_granted("x1", on="r2").expect_waiting("m0")


def test_a_replica_that_failed_a_request_does_not_get_it_again() -> None:
    """The retry would meet the same fault."""
    script = Play().replica("r1", slots=4).replica("r2", slots=1).arrive("a", user="a")
    script.finish("a", outcome=Outcome.FAILED).arrive("held").finish("held")
    script.arrive("a", user="a", arrived_at=0.0, excluded=frozenset({"r1"}))
    script.expect_granted("a", on="r2")
    script.arrive("b", excluded=frozenset({"r1"})).expect_waiting("b").arrive("c")
    script.expect_granted("c", on="r1").finish("a").expect_granted("b", on="r2")


def test_a_request_that_failed_everywhere_is_refused_at_once() -> None:
    """Waiting would not bring another replica."""
    script = Play().replica("r1", slots=4).arrive("a", excluded=frozenset({"r1"}))
    script.expect_refused("a", reason=Reason.NO_REPLICA)


def test_nobody_overtakes_into_a_free_slot() -> None:
    """A small latecomer of another class is behind, even when only it was looked at."""
    script = Play().replica("r", slots=1).arrive("held").arrive("old", user="o")
    script.arrive("small", user="s", prompt_tokens=1, output_tokens_max=1)
    script.finish("held").expect_granted("old").expect_waiting("small")


def test_tiers_are_strict_over_all_classes() -> None:
    """Size and model do not outrank the tier."""
    script = Play(four_tiers()).replica("r", slots=1).arrive("held").arrive("next")
    script.arrive("low", tier=2, prompt_tokens=1).arrive("top", tier=0, prompt_tokens=5_000)
    script.finish("held").expect_granted("top").expect_waiting("low")


def tight() -> Play:
    """A replica on which 4,001 of 10,000 KV tokens are taken, by user b."""
    script = Play(one_tier(tiers=(Tier(name="x", patience_s=1e6),))).replica("r", slots=8)
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
    script = Play().replica("r1", slots=40, weight=weights[0])
    script.replica("r2", slots=40, weight=weights[1]).arrive_many("a", 20)
    share = len(script.on("r2")) / len(script.on("r1"))
    assert share == pytest.approx(weights[1] / weights[0], rel=0.35)


# --- the order of tiers -----------------------------------------------------------------------


def patient(**changes: object) -> Policy:
    """The product's tiers, of people who wait, without headroom."""
    tiers = tuple(replace(tier, patience_s=1e6) for tier in DEFAULT_TIERS)
    return four_tiers(**{"tiers": tiers, "cost": "requests", "headroom_max": 0.0, **changes})


def test_a_tier_that_is_owed_its_floor_goes_before_the_first() -> None:
    """Two percent of nothing would be nothing, under a first tier that never ends."""
    script = Play(patient()).replica("r", slots=1).arrive_many("held", 2, tier=0)
    script.arrive_many("low", 2, tier=3).arrive_many("top", 120, tier=0).serve(110)
    assert [script.order.index(id) for id in ("low0", "low1")] == [52, 103]


def test_what_is_owed_the_floor_is_judged_by_the_first_tiers_gates() -> None:
    """Its own gate is shut for as long as the first tier keeps the replica busy."""
    policy = four_tiers(cost="requests", lend=False)
    script = Play(policy).replica("r", slots=4).arrive_many("top", 5, tier=0).start_all()
    script.arrive("low", tier=3).expect_waiting("low")
    pool = script.pool()
    assert pool.open_tiers(script.known(), script.now) < 4
    pool.floors.deficits[3] = 1.0
    script.finish("top0").expect_granted("low")
    assert script.scheduler.granted["low"][0].was_favoured
    assert not script.scheduler.granted["top1"][0].was_favoured


def test_an_owed_tier_whose_head_is_too_dear_waits_for_more() -> None:
    """A floor paid in advance would be a tier of its own."""
    policy = four_tiers(cost="tokens", headroom_max=0.0)
    script = Play(policy).replica("r", slots=1).arrive_many("held", 2, tier=0)
    script.arrive("low", tier=3, prompt_tokens=1_000).arrive_many("top", 3, tier=0)
    pool = script.pool()
    pool.floors.deficits[3] = script.scheduler.waiting["low"].cost - 1.0
    script.finish("held0").expect_waiting("low")
    pool.floors.deficits[3] = 2 * script.scheduler.waiting["low"].cost
    script.finish("held1").expect_granted("low")


def test_a_floor_saves_up_for_one_request_and_no_more() -> None:
    """A tier that could not be served for an hour must not own the next one."""
    script = Play(four_tiers(cost="requests", headroom_max=0.0)).replica("r", slots=1)
    script.arrive_many("held", 2, tier=0).arrive_many("low", 3, tier=3)
    script.arrive_many("top", 5, tier=0)
    script.pool().floors.deficits[3] = 50.0
    script.serve(3)
    assert script.count_of("low") == 1


def aged_policy(**changes: object) -> Policy:
    """Requests are old after ten seconds; one each second is promoted."""
    return four_tiers(**{"ageing": Ageing(after_s=10.0, per_s=1.0), "headroom_max": 0.0, **changes})


def test_a_request_that_grew_old_goes_before_all_tiers_and_by_the_first_ones_gates() -> None:
    """One that its own tier's order keeps behind would wait for ever, whatever the floor."""
    script = Play(aged_policy(lend=False, headroom_max=0.2)).replica("r", slots=4)
    script.arrive_many("top", 5, tier=0).start_all().arrive("old", tier=3, user="o")
    script.arrive_many("more", 9, tier=0).advance(9.0)
    script.finish("top0").expect_waiting("old").advance(1.0).finish("top1").expect_granted("old")
    assert script.scheduler.granted["old"][0].was_favoured


def test_a_newcomer_does_not_overtake_one_that_has_just_grown_old() -> None:
    """Nobody looked meanwhile: the free slot is the old one's, not of whoever comes by."""
    policy = four_tiers(ageing=Ageing(after_s=1.2, per_s=1.0), headroom_max=0.5, recall=False)
    script = Play(policy).replica("r", slots=2).arrive("held", tier=0)
    script.arrive("old", tier=3).expect_waiting("old").advance(1.3).expect_waiting("old")
    script.arrive("new", tier=0).expect_granted("old")


def test_only_so_many_old_ones_are_promoted() -> None:
    """A flood of old work would be a new first tier."""
    script = Play(aged_policy()).replica("r", slots=1).arrive_many("held", 2, tier=0)
    script.arrive_many("old", 4, tier=3).arrive_many("top", 9, tier=0).advance(12.0)
    script.finish("held0").finish("held1").finish(*script.on("r")[:1])
    assert script.count_of("old") == 1
    script.advance(1.0).finish(*script.on("r")[:1])
    assert script.count_of("old") == 2


def test_the_oldest_of_the_old_goes_first_whatever_its_tier() -> None:
    """Age is what counts once it counts."""
    script = Play(aged_policy()).replica("r", slots=1).arrive_many("held", 2, tier=0)
    script.arrive("older", tier=3, user="o").advance(1.0).arrive("old", tier=2, sequences=1)
    script.advance(11.0).finish("held0").expect_granted("older").expect_waiting("old")


def test_shares_by_weight_take_the_place_of_rank() -> None:
    """Three of four turns for the one, and every fourth for the other."""
    tiers = (Tier(name="gold", weight=3.0), Tier(name="tin", weight=1.0))
    policy = one_tier(tiers=tiers, order="weighted", headroom_max=0.0)
    script = Play(policy).replica("r", slots=1).arrive_many("held", 2)
    script.arrive_many("gold", 20, tier=0).arrive_many("tin", 20, tier=1).serve(16)
    assert script.count_of("gold") == pytest.approx(12, abs=1)
    assert script.count_of("tin") == pytest.approx(4, abs=1)


# --- one choice -------------------------------------------------------------------------------


def a_pool(*waiting: Waiting, slots: int = 4, **changes: object) -> Pool:
    """Two replicas, `r` and `s`, and what waits for them."""
    pool = Pool(
        one_tier(**changes), ["m"], [a_replica("r", slots=slots), a_replica("s", slots=slots)]
    )
    for number, each in enumerate(waiting, start=1):
        each.kind = pool.kind_of(each.request, each.kv_tokens)
        each.ticket = each.sequence = number
        pool.push(each)
    return pool


def test_a_choice_takes_only_replicas_that_were_offered() -> None:
    """An event touches one replica, and only that one is looked at again."""
    pool = a_pool(a_waiting("a"))
    choice = choose(pool, [pool.replicas["s"]], 0.0)
    assert choice is not None
    assert choice.replica.name == "s"
    assert (choice.is_owed, choice.is_aged, choice.passed_over) == (False, False, [])
    assert choose(pool, [], 0.0) is None


def test_a_shut_replica_is_no_choice() -> None:
    """Better nothing than the wrong place."""
    pool = a_pool(a_waiting("a"), slots=1)
    for replica in pool.replicas.values():
        put_many(replica, 1)
        pool.touch(replica)
    assert choose(pool, list(pool.replicas.values()), 0.0) is None


def test_those_that_rank_before_and_fit_nowhere_are_named() -> None:
    """Somebody must count how often they are passed over."""
    big = a_waiting("big", sequences=4, user="b")
    small = a_waiting("small", user="c")
    pool = a_pool(big, small)
    for replica in pool.replicas.values():
        put_many(replica, 2)
        pool.touch(replica)
    choice = choose(pool, list(pool.replicas.values()), 0.0)
    assert choice is not None
    assert choice.waiting is small
    assert choice.passed_over == [big]


def test_one_that_ranks_behind_was_not_passed_over() -> None:
    """It would get a replica drained though it simply was not its turn."""
    small = a_waiting("small", user="b")
    big = a_waiting("big", sequences=4, user="c")
    big.key, small.key = 5.0, 1.0
    pool = a_pool(small, big)
    user = pool.queues[0].tenants["t"].users["c"]
    pool.queues[0].settle("t", "c", 5.0)
    assert user.start == 5.0
    for replica in pool.replicas.values():
        put_many(replica, 2)
        pool.touch(replica)
    choice = choose(pool, list(pool.replicas.values()), 0.0)
    assert choice is not None
    assert choice.waiting is small
    assert choice.passed_over == []


def test_the_best_ranked_of_all_classes_goes_whichever_was_looked_at_first() -> None:
    """A class that ranks worse must not hide one that ranks better."""
    line = [
        a_waiting(f"n{n}", sequences=n, arrived_at=at) for n, at in ((1, 2.0), (2, 3.0), (3, 1.0))
    ]
    for each in line:
        each.key = each.request.arrived_at
    pool = a_pool(*line)
    choice = choose(pool, list(pool.replicas.values()), 3.0)
    assert choice is not None
    assert choice.waiting.request.id == "n3"


def test_one_whose_own_replica_is_shut_was_not_passed_over() -> None:
    """It waits for a slot like everybody: no replica must be drained for it."""
    mine, other = a_waiting("mine", excluded=frozenset({"s"})), a_waiting("other", user="v")
    pool = a_pool(mine, other, slots=1)
    put_many(pool.replicas["r"], 1)
    pool.touch_all()
    choice = choose(pool, list(pool.replicas.values()), 0.0)
    assert choice is not None
    assert (choice.waiting, choice.passed_over) == (other, [])


def beside_full(*, kept: bool = False) -> tuple[Pool, Waiting, Waiting]:
    """Two full replicas, a chat that waits for a slot of them, and what needs none."""
    chat, embedding = a_waiting("chat", user="b"), a_waiting("e", user="c", output_tokens_max=0)
    pool = a_pool(chat, embedding, slots=1)
    for replica in pool.replicas.values():
        put_many(replica, 1)
        if kept:
            replica.reserved_for, replica.reserved_until = chat, 60.0
    pool.touch_all()
    return pool, chat, embedding


def test_a_replica_that_is_shut_hides_no_open_one_behind_it() -> None:
    """While an embedding waits all are looked at, and a chat would miss the free slot."""
    chat, embedding = a_waiting("chat", user="b"), a_waiting("e", user="c", output_tokens_max=0)
    pool = a_pool(chat, embedding, slots=1)
    put_many(pool.replicas["r"], 1)
    pool.touch_all()
    choice = choose(pool, list(pool.replicas.values()), 0.0)
    assert choice is not None
    assert (choice.waiting, choice.replica.name) == (chat, "s")


def test_what_needs_no_slot_passes_nobody_who_waits_for_one() -> None:
    """Each embedding would count against a chat's turn, until a replica is drained for it."""
    pool, chat, embedding = beside_full()
    choice = choose(pool, list(pool.replicas.values()), 0.0)
    assert choice is not None
    assert pool.queues[0].rank(chat) < pool.queues[0].rank(embedding)
    assert (choice.waiting, choice.passed_over) == (embedding, [])


def test_a_replica_that_is_kept_takes_what_it_is_kept_for_only_by_an_open_gate() -> None:
    """Looked at for an embedding, a full one would be given one request more."""
    pool, chat, _ = beside_full(kept=True)
    choice = choose(pool, list(pool.replicas.values()), 0.0)
    assert choice is None or choice.waiting is not chat


def place(pool: Pool, waiting: Waiting, *names: str) -> str | None:
    """Where it goes by the gates of tier 0, of these replicas in this order."""
    replicas = [pool.replicas[name] for name in names]
    for replica in replicas:
        pool.open_tiers(replica, 0.0)
    found = Search(pool, replicas, 0.0).place(waiting, judged_as=0)
    return None if found is None else found.name


def test_the_freest_of_several_is_taken_and_ties_end_at_the_name() -> None:
    """The same events must give the same decisions on every machine."""
    waiting = a_waiting("a")
    pool = a_pool(waiting)
    assert place(pool, waiting, "s", "r") == "r"
    assert place(pool, waiting, "r", "s") == "r"
    put_many(pool.replicas["r"], 1)
    pool.touch_all()
    assert place(pool, waiting, "r", "s") == "s"
    assert place(pool, waiting, "r") == "r"


def test_where_it_does_not_fit_the_next_freest_is_asked() -> None:
    """The freest by memory may be the one without a run of free slots."""
    waiting = a_waiting("n3", sequences=3)
    pool = a_pool(waiting)
    pool.replicas["r"].weight = 100.0
    put_many(pool.replicas["r"], 2)
    put_many(pool.replicas["s"], 1)
    pool.touch_all()
    assert place(pool, waiting, "r", "s") == "s"
    put_many(pool.replicas["s"], 1, prefix="q")
    pool.touch_all()
    assert place(pool, waiting, "r", "s") is None


def test_warmth_counts_for_what_is_free_and_not_for_what_is_overfull() -> None:
    """Twice a negative figure would be worse than one, and the warm one would lose a fair tie."""
    tiers = (Tier(name="x", queue_limit=4),)
    for warm in "rs":
        waiting = a_waiting("a", session="x")
        pool = a_pool(waiting, tiers=tiers, allowance="constant")
        pool.ties.sent(waiting.request, warm, has_adapters=False)
        assert place(pool, waiting, "r", "s") == warm
        for name in "rs":
            put_many(pool.replicas[name], 5)
        pool.touch_all()
        assert place(pool, waiting, "r", "s") == "r"


def test_warmth_counts_on_a_nearly_full_replica_too() -> None:
    """Most of a busy day's releases go into the last free slot."""
    waiting = a_waiting("a", session="x")
    pool = a_pool(waiting)
    pool.ties.sent(waiting.request, "s", has_adapters=False)
    for name in "rs":
        put_many(pool.replicas[name], 3)
    pool.touch_all()
    assert place(pool, waiting, "r", "s") == "s"


def test_the_warm_one_is_taken_unless_another_is_twice_as_free() -> None:
    """The documented meaning of the figure: more would pile up where everybody was before."""
    waiting = a_waiting("a", session="x")
    pool = a_pool(waiting)
    pool.ties.sent(waiting.request, "s", has_adapters=False)
    for weight, name in ((1.9, "s"), (2.1, "r")):
        pool.replicas["r"].weight = weight
        pool.touch_all()
        assert place(pool, waiting, "r", "s") == name


def test_a_place_is_looked_for_only_where_the_class_may_run() -> None:
    """A request that failed there once, or a model that is not there."""
    waiting = a_waiting("a", excluded=frozenset({"r"}))
    pool = a_pool(waiting)
    assert place(pool, waiting, "r", "s") == "s"


def test_a_replica_kept_for_somebody_else_is_no_place() -> None:
    """The one it is drained for would wait for ever behind small ones."""
    waiting, other = a_waiting("a"), a_waiting("b")
    pool = a_pool(waiting, other)
    pool.replicas["r"].reserved_for = other
    assert place(pool, waiting, "r", "s") == "s"
    assert place(pool, other, "r", "s") == "r"


def test_a_request_that_can_run_at_once_is_not_refused_for_the_line_of_others() -> None:
    """Its model's replica is idle; that another model's line is long is not its affair."""
    policy = one_tier(tiers=(Tier(name="x", queue_limit=0, patience_s=1e6),))
    script = (
        Play(policy).replica("r", slots=1, models=("m",)).replica("s", slots=1, models=("m", "x"))
    )
    script.replica("z", slots=1, models=("x",)).drain("z")
    script.arrive_many("m", 60).serve(30, each_s=4.0).drain("z", draining=False)
    script.arrive("quick", model="x", user="v", patience_s=0.5)
    script.expect_granted("quick", on="z")


def test_what_needs_no_slot_is_not_offered_a_replica_that_rests() -> None:
    """It said that it is busy: also with prompts."""
    script = Play(one_tier()).replica("r", slots=4).arrive_many("a", 2).bounce("a1")
    script.arrive("e", output_tokens_max=0).expect_waiting("e").advance(0.6).expect_granted("e")
