"""Taking back what waits inside an engine: for a higher tier, or to a replica that is freer."""

from typing import Any

import pytest

from gateway.core.messages import Outcome, RecallDone, RecallTooLate
from gateway.core.policy import Policy, Tier
from tests.support.play import Play
from tests.support.script import one_tier

TIERS = tuple(Tier(name=name, queue_limit=1, patience_s=1e6) for name in "abc")


def policy(**changes: Any) -> Policy:
    """Three tiers that may each leave one request waiting in an engine; no headroom."""
    return one_tier(**{"tiers": TIERS, "headroom_max": 0.0, **changes})


def full(tier: int = 2, **changes: Any) -> Play:
    """One slot; `run` is in it and `queued`, of that tier, waits behind it in the engine."""
    script = Play(policy(**changes)).replica("r", slots=1)
    script.arrive("run", tier=tier).first_token("run").arrive("queued", tier=tier, user="q")
    return script.expect_granted("queued").advance(1.0)


# --- for a higher tier ------------------------------------------------------------------------


def test_what_waits_in_an_engine_makes_way_for_a_higher_tier() -> None:
    """Critical would stand behind background that has not even begun."""
    script = full().arrive("top", tier=0).expect_waiting("top")
    assert script.recalls == [("queued", "r")]
    script.give_back("queued").expect_granted("top").expect_waiting("queued")
    script.finish("run", "top").expect_granted("queued")


@pytest.mark.parametrize(("tier", "newcomer"), [(1, 1), (1, 2), (0, 0)])
def test_nothing_makes_way_for_its_own_tier_or_a_lower_one(tier: int, newcomer: int) -> None:
    """Two equals would take the place from one another for ever."""
    script = full(tier).arrive("new", tier=newcomer).expect_waiting("new")
    assert script.recalls == []


def test_what_has_begun_is_never_taken_back() -> None:
    """Its client has read the first words."""
    script = full().first_token("queued").arrive("top", tier=0)
    assert script.recalls == []


def test_recalls_can_be_switched_off() -> None:
    """Some engines pay dearly for an abort."""
    assert full(recall=False).arrive("top", tier=0).recalls == []


def test_a_request_is_taken_back_once_in_its_life() -> None:
    """Sent to and fro, it would be served never."""
    script = full().arrive("top", tier=0).give_back("queued").advance(1.0)
    script.finish("run", "top").expect_granted("queued").arrive("next", tier=1, user="n")
    script.expect_granted("next").advance(1.0).finish("next")
    script.arrive("again", tier=2, user="x").advance(1.0).arrive("top2", tier=0)
    assert ("queued", "r") not in script.recalls[1:]


def test_a_recall_that_came_too_late_changes_nothing() -> None:
    """The first token won: it stays where it is, and is not asked back a second time."""
    script = full().arrive("top", tier=0).keep("queued").expect_granted("queued")
    script.first_token("queued").advance(1.0).arrive("top1", tier=0)
    assert script.recalls == [("queued", "r")]
    assert not script.scheduler.granted["queued"][0].is_recalled


def test_while_the_answer_is_out_it_is_not_asked_for_again() -> None:
    """Two recalls for one request would have two answers."""
    script = full().arrive("top", tier=0)
    assert script.scheduler.granted["queued"][0].is_recalled
    script.advance(1.0).arrive("top1", tier=0, user="v").advance(1.0)
    assert len(script.recalls) == 1


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.CANCELLED, Outcome.FAILED])
def test_a_recalled_request_may_end_in_any_way_meanwhile(outcome: Outcome) -> None:
    """The answer to the recall then comes too late for anybody."""
    script = full().arrive("top", tier=0).finish("queued", outcome=outcome)
    script.expect_granted("top").tell(RecallDone("queued")).tell(RecallTooLate("queued"))
    script.finish("run", "top").arrive("b").expect_granted("b")
    assert script.known().ledger.sequences == 1


def test_what_a_floor_or_its_age_let_go_is_never_taken_back() -> None:
    """The promise to the lower tier would be kept for a second and then broken."""
    script = full()
    script.scheduler.granted["queued"][0].was_favoured = True
    assert script.arrive("top", tier=0).recalls == []


def test_the_lowest_tier_makes_way_first() -> None:
    """Standard is worth more than background, whichever came later."""
    tiers = tuple(Tier(name=name, queue_limit=2, patience_s=1e6) for name in "abc")
    script = Play(policy(tiers=tiers, allowance="constant")).replica("r", slots=1)
    script.arrive("run", tier=0).first_token("run").arrive("low", tier=2).arrive("mid", tier=1)
    script.advance(1.0).arrive("top", tier=0)
    assert script.recalls == [("low", "r")]


def test_of_one_tier_the_last_in_the_engines_line_is_taken_back() -> None:
    """The first of them may begin at any moment."""
    tiers = tuple(Tier(name=name, queue_limit=2, patience_s=1e6) for name in "abc")
    script = Play(policy(tiers=tiers, allowance="constant")).replica("r", slots=1)
    script.arrive("run", tier=2).first_token("run").arrive_many("low", 2, tier=2)
    script.advance(1.0).arrive("top", tier=0)
    assert script.recalls == [("low1", "r")]


def test_the_first_of_the_unstarted_is_the_engines_next_and_stays() -> None:
    """Only as many as wait beyond the slots are in the engine's queue at all."""
    script = Play(policy()).replica("r", slots=2).arrive_many("low", 3, tier=2)
    assert len(script.known().ledger.unstarted) == 3
    script.advance(1.0).arrive("top", tier=0)
    assert script.recalls == [("low2", "r")]
    script.keep("low2").advance(1.0).arrive("top2", tier=0).advance(1.0)
    assert script.recalls == [("low2", "r")]


def test_nothing_makes_way_where_that_would_not_open_the_gate() -> None:
    """One aborted for nothing: others have filled that engine's line."""
    script = full(limiter="static", warm_up_s=0.0)
    for _ in range(3):
        script.advance(1.0).report("r", running=1, waiting=4)
    assert script.known().foreign == 3
    assert script.arrive("top", tier=0).advance(0.1).recalls == []


def test_the_one_taken_back_leaves_its_place_under_the_limit_too() -> None:
    """Two are allowed and two are there: the higher tier takes the place of one of them."""
    script = full(inflight_limit=2).arrive("top", tier=0)
    assert script.recalls == [("queued", "r")]


def test_the_engine_is_also_asked_for_a_tier_below_the_one_that_it_would_take_anyway() -> None:
    """The first tier waits for another engine; the second could use this one's place."""
    limits = {"a": 2, "b": 1, "c": 1}
    tiers = tuple(Tier(name=name, queue_limit=n, patience_s=1e6) for name, n in limits.items())
    script = Play(policy(tiers=tiers, allowance="constant", warm_up_s=0.0))
    script.replica("s", slots=1, models=("x",)).arrive_many("x", 4, model="x", tier=0)
    script.replica("s", slots=1, models=("m", "x")).replica("r", slots=1).arrive("run", tier=2)
    script.first_token("run").arrive("queued", tier=2, user="q").advance(1.0)
    script.expect_granted("run", "queued", on="r").expect_waiting("x3")
    assert script.arrive("mid", tier=1).advance(0.1).recalls == [("queued", "r")]


def test_a_place_is_looked_for_in_every_engine_that_a_higher_tier_could_use() -> None:
    """That the first of them is of no use to it says nothing about the second."""
    script = Play(policy()).replica("r", slots=1).replica("s", slots=1, models=("m", "x"))
    script.arrive("s-run", model="x", tier=2).arrive("run", tier=2).first_token("s-run", "run")
    script.arrive("s-queued", model="x", tier=2, user="q")
    script.arrive("queued", tier=2, user="v").expect_granted("s-queued", on="s")
    script.expect_granted("queued", on="r").arrive("low", tier=2).advance(1.0)
    script.arrive("top", model="x", tier=0).expect_waiting("low", "top")
    assert script.recalls == [("s-queued", "s")]


def test_nothing_makes_way_where_another_gate_stays_shut() -> None:
    """A place in the line of an engine that takes no more helps nobody."""
    script = full()
    script.known().limit.limit = 1.0
    assert script.arrive("top", tier=0).expect_waiting("top").recalls == []
    script = full()
    script.known().take_tpot(9.0, 10, in_use=1, now=script.now, target_s=99.0)
    assert script.arrive("top", tier=0).expect_waiting("top").recalls == []


def test_nothing_makes_way_for_a_request_that_could_not_run_there() -> None:
    """The place would stay empty for a model that this engine does not have."""
    script = Play(policy()).replica("r", slots=1).replica("s", slots=1, models=("m", "x"))
    script.arrive("s-run", model="x").first_token("s-run").arrive("run", tier=2)
    script.expect_granted("run", on="r").first_token("run").arrive("s-top", model="x", tier=0)
    script.arrive("queued", tier=2).expect_granted("queued", on="r").advance(1.0)
    script.arrive("x", model="x", tier=0).expect_waiting("x").advance(0.06)
    assert script.recalls == []
    script.arrive("m", model="m", tier=0)
    assert script.recalls == [("queued", "r")]


def test_embeddings_are_not_taken_back() -> None:
    """They hold no slot: nobody could have their place."""
    script = Play(policy()).replica("r", slots=1).arrive("run", tier=2).first_token("run")
    script.arrive("queued", tier=2).arrive("e", tier=2, output_tokens_max=0).advance(1.0)
    assert script.arrive("top", tier=0).recalls == [("queued", "r")]


def test_a_recall_is_paid_for_by_nobody() -> None:
    """It was our idea, not the client's: the whole charge comes back, and the place in line."""
    script = full(cost="tokens")
    assert script.start_of("q", tier=2) > 0.0
    script.arrive("top", tier=0).give_back("queued")
    assert script.start_of("q", tier=2) == 0.0
    assert script.scheduler.granted.keys() == {"run", "top"}


def test_the_recalled_goes_back_to_its_place() -> None:
    """It waited longest; those behind it must not gain from the recall."""
    script = full().arrive("behind", tier=2, user="q").arrive("top", tier=0)
    script.give_back("queued").finish("run", "top").expect_granted("queued")
    script.expect_order("run", "queued", "top", "queued", "behind")


# --- how often --------------------------------------------------------------------------------


def deep(slots: int = 4) -> Play:
    """Four of the last tier wait in one engine behind four that run."""
    tiers = tuple(Tier(name=name, queue_limit=4, patience_s=1e6) for name in "abc")
    script = Play(policy(tiers=tiers, allowance="constant")).replica("r", slots=slots)
    script.arrive_many("run", slots, tier=2).first_token(*script.running)
    script.arrive_many("low", 4, tier=2).advance(1.0)
    return script.arrive_many("top", 4, tier=0)


def test_one_replica_is_asked_for_one_request_in_a_tenth_of_a_second() -> None:
    """A storm of aborts stalls the engine for all."""
    script = deep()
    assert script.recalls == [("low3", "r")]
    script.advance(0.09).report("r")
    assert len(script.recalls) == 1
    script.advance(0.06).report("r")
    assert script.recalls == [("low3", "r"), ("low2", "r")]


def test_a_pool_is_looked_at_every_fifty_milliseconds() -> None:
    """Each look costs as much as all that waits in the engines."""
    script = full()
    script.pool().recall_checked_at = script.now
    assert script.advance(0.049).arrive("top", tier=0).recalls == []
    script.advance(0.002).report("r")
    assert script.recalls == [("queued", "r")]


def test_a_look_that_came_too_soon_is_made_up_for() -> None:
    """Nobody waits at the gateway, so that nothing else would happen for seconds."""
    script = uneven(ended=0)
    script.pool().recall_checked_at = script.now
    assert script.finish("s0").recalls == []
    assert script.advance(0.06).recalls == [("q", "r")]


def test_nothing_is_taken_back_once_the_gateway_closes() -> None:
    """What runs is left alone: taken back now, it could only be refused."""
    assert uneven(ended=0).close().finish("s0", "s1", "s2").recalls == []


# --- to a freer replica -----------------------------------------------------------------------


def uneven(*, ended: int = 3, **changes: Any) -> Play:
    """`r` is full and `q` waits in its engine; of the four on `s` so many have ended."""
    script = Play(policy(warm_up_s=0.0, **changes)).replica("s", slots=4).arrive_many("s", 4)
    script.start_all().replica("r", slots=4).arrive_many("r", 4).start_all()
    script.drain("s").arrive("q").expect_granted("q", on="r").drain("s", draining=False)
    script.advance(1.0)
    for number in range(ended):
        script.finish(f"s{number}")
    return script


def test_what_waits_in_a_full_engine_moves_to_one_that_can_begin() -> None:
    """It was bound to the wrong replica a moment too early."""
    script = uneven(ended=1)
    assert script.recalls == [("q", "r")]
    script.give_back("q").expect_granted("q", on="s")
    assert (len(script.on("r")), len(script.on("s"))) == (4, 4)


def test_one_that_can_go_nowhere_does_not_keep_the_next_one_there() -> None:
    """The other one could begin at once."""
    tiers = tuple(Tier(name=name, queue_limit=2, patience_s=1e6) for name in "abc")
    script = Play(policy(tiers=tiers, allowance="constant", warm_up_s=0.0))
    script.replica("s", slots=4).arrive_many("s", 4).start_all().replica("r", slots=4)
    script.arrive_many("r", 4).start_all().drain("s").arrive("q", user="q")
    script.arrive("bound", user="b", excluded=frozenset({"s"})).drain("s", draining=False)
    script.expect_granted("q", "bound", on="r").advance(1.0).finish("s0", "s1", "s2")
    assert script.recalls == [("q", "r")]


def test_a_request_of_two_sequences_moves_once_that_evens_out_the_two() -> None:
    """It needs two places there, and leaves two here."""
    tiers = tuple(Tier(name=name, queue_limit=2, patience_s=1e6) for name in "abc")
    script = Play(policy(tiers=tiers, warm_up_s=0.0)).replica("s", slots=8, weight=2.0)
    script.arrive_many("s", 8).start_all().replica("r", slots=4).arrive_many(
        "r", 3
    ).start_all().drain("s")
    script.arrive("q", sequences=2).expect_granted("q", on="r").drain("s", draining=False)
    script.advance(1.0).finish("s0", "s1", "s2").advance(1.0)
    assert script.recalls == []
    assert script.finish("s3").recalls == [("q", "r")]


def test_a_move_needs_a_gap() -> None:
    """A little difference is not worth the aborted prefill."""
    # One of four slots free beside three that run, against one of four too many.
    before = 1 / 3 + 1 / 4
    assert uneven(ended=1, recall_gap=before - 0.01).recalls == [("q", "r")]
    assert uneven(ended=1, recall_gap=before + 0.01).recalls == []


def test_a_move_must_not_turn_the_gap_round() -> None:
    """It would be moved back at the next look."""
    script = Play(policy(warm_up_s=0.0, recall_gap=0.001))
    for name, tokens in (("s", 100_000), ("r", 10_000)):
        script.replica(name, slots=4)
        script.report(name, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=tokens)
    script.drain("s").arrive_many("r", 4, output_tokens_max=10).start_all()
    script.arrive("q", prompt_tokens=8_000, output_tokens_max=10).expect_granted("q", on="r")
    script.drain("s", draining=False).advance(1.0).report("r", kv_use=0.1)
    assert script.recalls == [("q", "r")]
    script = Play(policy(warm_up_s=0.0, recall_gap=0.001))
    for name, tokens in (("s", 10_000), ("r", 100_000)):
        script.replica(name, slots=4)
        script.report(name, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=tokens)
    script.drain("s").arrive_many("r", 4, output_tokens_max=10).start_all()
    script.arrive("q", prompt_tokens=9_000, output_tokens_max=10).expect_granted("q", on="r")
    script.drain("s", draining=False).advance(1.0).report("r", kv_use=0.1)
    assert script.recalls == []


def test_nothing_moves_to_a_replica_without_room() -> None:
    """It would wait there instead."""
    assert uneven(ended=0).recalls == []
    script = Play(policy(warm_up_s=0.0)).replica("s", slots=4).arrive_many("s", 4).start_all()
    script.replica("r", slots=4).drain("s").arrive_many("r", 4).start_all()
    script.arrive("q", sequences=1).advance(1.0).drain("s", draining=False)
    script.known("s").foreign = 1
    script.finish("s0")
    assert script.recalls == []


def test_nothing_moves_to_where_it_failed_before() -> None:
    """The other replica is free, but not for this one."""
    script = Play(policy(warm_up_s=0.0)).replica("r", slots=1).arrive("run").first_token("run")
    script.replica("s", slots=4).arrive("q", excluded=frozenset({"s"}))
    script.expect_granted("q", on="r").advance(1.0).report("s")
    assert script.recalls == []


def test_what_waits_in_a_draining_replica_moves_to_any_that_can_begin() -> None:
    """The drain ends sooner, and nobody waits for an engine that is about to go."""
    script = uneven(ended=0, recall_gap=9.0).drain("r").advance(1.0).finish("s0")
    assert script.recalls == [("q", "r")]
    script.give_back("q").expect_granted("q", on="s")


def test_a_higher_tier_comes_before_a_better_balance() -> None:
    """One place is free; the one who ranks first shall have it."""
    script = full()
    script.replica("s", slots=1).arrive("s-run", tier=2, excluded=frozenset({"r"}))
    script.first_token("s-run").advance(1.0).arrive("top", tier=0, excluded=frozenset({"s"}))
    assert script.recalls == [("queued", "r")]
