"""From the first token to the last: who pays what, and that each slot comes back once."""

from typing import Any

import pytest

from gateway.core.endings import CHARGE_AHEAD
from gateway.core.messages import (
    Bounced,
    Cancelled,
    Finished,
    FirstToken,
    Outcome,
    Progressed,
    Reason,
    RecallDone,
    RecallTooLate,
    Usage,
)
from gateway.core.policy import Tier
from gateway.core.speed import PREFILL_TOKENS_PER_S
from tests.support.play import Play
from tests.support.script import four_tiers, one_tier

KNOWN: dict[str, Any] = {"prompt_tokens": 1_000, "output_tokens_max": 50}
"""Costs 1,000 + 2 x 50."""


def token_play(slots: int = 4, **changes: Any) -> Play:
    """Tokens are charged; one replica."""
    return Play(one_tier(cost="tokens", **changes)).replica("r", slots=slots)


# --- started ----------------------------------------------------------------------------------


def test_a_first_token_makes_room_for_the_next_prefill() -> None:
    """The prompt is computed: the next one need not wait for the end of the answer."""
    script = token_play().arrive("a", prompt_tokens=9_000).arrive("b", prompt_tokens=9_000)
    script.expect_waiting("b").advance(0.5).first_token("a").expect_granted("b")
    assert script.known().speed.prefill_rate == 18_000


def test_only_the_first_of_first_tokens_counts() -> None:
    """The second would measure a prefill that never was."""
    script = token_play().arrive("a", prompt_tokens=8_000).advance(1.0).first_token("a")
    rate = script.known().speed.prefill_rate
    script.arrive("b", prompt_tokens=8_000).advance(9.0).tell(FirstToken("a"))
    assert script.known().speed.prefill_rate == rate


# --- progressed -------------------------------------------------------------------------------


def test_what_outgrows_its_estimate_is_charged_while_it_runs() -> None:
    """A thousand endless answers would be had for the price of short ones until they end."""
    script = token_play().arrive("a", prompt_tokens=100, output_tokens_max=10).first_token("a")
    assert script.start_of("u") == 120
    script.progress("r", a=10)
    assert script.start_of("u") == 120
    script.progress("r", a=50)
    assert script.start_of("u") == 200 * CHARGE_AHEAD
    script.progress("r", a=60)
    assert script.start_of("u") == 200 * CHARGE_AHEAD
    script.finish("a", usage=Usage(prompt_tokens=100, output_tokens=60))
    assert script.start_of("u") == 220


def test_progress_raises_the_memory_in_use_and_shuts_the_gate() -> None:
    """Long answers fill the engine though nobody new came."""
    script = token_play()
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=1_000)
    script.arrive("a", prompt_tokens=100, output_tokens_max=10).first_token("a").progress(
        "r", a=800
    )
    script.arrive("b", prompt_tokens=100, output_tokens_max=10).expect_waiting("b")


def test_progress_of_what_is_not_there_is_ignored() -> None:
    """It ended while the batch was on its way, or runs elsewhere."""
    script = token_play().replica("s", slots=4).arrive("a", **KNOWN)
    where = script.running["a"]
    other = {"r": "s", "s": "r"}[where]
    script.progress(other, a=9_999).tell(Progressed("unknown", {"a": 9_999}))
    script.progress(where, b=5)
    assert script.known(where).ledger.kv_tokens == 1_050


# --- finished: the slot -----------------------------------------------------------------------


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("is_started", [False, True])
def test_however_a_request_ends_its_slot_comes_back(*, is_started: bool, outcome: Outcome) -> None:
    """A leaked slot shrinks the service until somebody restarts it."""
    script = Play(four_tiers(recall=False)).replica("r", slots=1).arrive("a").arrive_many("b", 2)
    if is_started:
        script.first_token("a")
    script.finish("a", outcome=outcome).expect_granted("b1").finish("b0", "b1")
    assert script.known().ledger.sequences == 0


def test_the_end_of_a_request_may_be_told_twice_and_at_any_time() -> None:
    """The relay's cleanup and the upstream's end may both report it."""
    script = Play().replica("r", slots=1).arrive("a").arrive("b")
    end = Finished("a", Outcome.DONE)
    script.finish("a").tell(end).tell(end).expect_granted("b")
    script.finish("b").tell(Finished("b", Outcome.CANCELLED)).tell(Cancelled("b"))
    for event in (
        end, Cancelled("x"), FirstToken("x"), Bounced("x"), Progressed("r", {"x": 3}),
        RecallDone("x"), RecallTooLate("x"),
    ):  # fmt: skip
        script.tell(event)
    script.tell(Progressed("unknown", {"x": 3})).lose("unknown").remove("unknown")
    script.drain("unknown").report("unknown", running=3, waiting=0)
    script.arrive("c").expect_granted("c")


def test_who_waits_can_end_too() -> None:
    """A client that hangs up in the queue is nobody's work."""
    script = Play().replica("r", slots=1).arrive_many("a", 4).cancel("a1")
    script.finish("a2", outcome=Outcome.CANCELLED).finish("a0").expect_granted("a3")
    script.expect_order("a0", "a3")


def test_when_a_large_head_leaves_those_behind_it_are_looked_at() -> None:
    """Nothing else would happen to let them go."""
    script = Play(one_tier(reserve_after_s=1e6)).replica("r", slots=4).arrive_many("a", 2)
    script.arrive("n4", sequences=4, user="v").arrive("n4b", sequences=4, user="w")
    script.expect_waiting("n4", "n4b").cancel("n4").expect_waiting("n4b").finish("a0", "a1")
    script.expect_granted("n4b")


# --- finished: the charge ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "usage", "expected"),
    [
        (Outcome.DONE, Usage(prompt_tokens=900, output_tokens=20), 940),
        (
            Outcome.DONE,
            Usage(prompt_tokens=900, output_tokens=20, cached_tokens=800),
            100 + 40 + 80,
        ),
        (Outcome.DONE, Usage(output_tokens=20), 1_040),
        (Outcome.FAILED, Usage(prompt_tokens=900, output_tokens=20), 0),
        (Outcome.REJECTED, Usage(), 0),
        (Outcome.CANCELLED, Usage(output_tokens=7), 1_014),
    ],
)
def test_the_estimate_gives_way_to_what_was_really_used(
    outcome: Outcome, usage: Usage, expected: float
) -> None:
    """Charged by estimates alone, whoever sets a huge max_tokens would be served last for ever."""
    script = token_play().arrive("a", **KNOWN).first_token("a")
    assert script.start_of("u") == 1_100
    script.finish("a", outcome=outcome, usage=usage)
    assert script.start_of("u") == pytest.approx(expected)


def test_a_difference_of_one_is_a_difference() -> None:
    """A request more in requests, or a token more in tokens, is owed like any other."""
    script = Play(one_tier(cost="tokens")).replica("r", slots=1).arrive("a")
    grant, _ = script.scheduler.granted["a"]
    before = script.start_of("u")
    script.scheduler.charge(grant, grant.charged + 1.0)
    assert script.start_of("u") == before + 1.0


def test_without_a_report_of_usage_the_estimate_stands() -> None:
    """An engine that reports none must not make its users pay nothing."""
    script = token_play().arrive("a", **KNOWN).first_token("a")
    script.running.pop("a")
    script.tell(Finished("a", Outcome.DONE))
    assert script.start_of("u") == 1_100


def test_what_was_counted_from_the_stream_stands_in_for_missing_usage() -> None:
    """Better than a guess."""
    script = token_play().arrive("a", **KNOWN).first_token("a").progress("r", a=8)
    script.running.pop("a")
    script.tell(Finished("a", Outcome.DONE))
    assert script.start_of("u") == 1_016


# Until a rate is learnt the engine is taken to be twice as fast as usual: nobody gains by leaving.
@pytest.mark.parametrize(("after_s", "share"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (9.0, 1.0)])
def test_who_cancels_pays_for_the_part_of_the_prompt_that_was_computed(
    after_s: float, share: float
) -> None:
    """Free prefill would be had by cancelling just before the first token."""
    tokens = round(PREFILL_TOKENS_PER_S)
    script = token_play().arrive("a", prompt_tokens=tokens, output_tokens_max=50).advance(after_s)
    script.cancel("a")
    assert script.start_of("u") == pytest.approx(share * tokens)


def test_who_cancels_in_the_queue_pays_nothing() -> None:
    """Nobody has done anything for it."""
    script = token_play(slots=1).arrive("held", user="w").arrive("a", **KNOWN).cancel("a")
    assert script.start_of("u") == 0.0


def test_the_charge_of_several_sequences_is_the_sum_of_their_outputs() -> None:
    """`n: 4` costs four answers and one prompt."""
    script = token_play().arrive("a", sequences=4, **KNOWN)
    assert script.start_of("u") == 1_000 + 2 * 4 * 50
    script.running.pop("a")
    script.tell(Finished("a", Outcome.DONE))
    assert script.start_of("u") == 1_000 + 2 * 4 * 50


def test_a_continuation_pays_for_its_output_only() -> None:
    """The prompt was paid for when the stream began; the break was not the client's."""
    script = token_play().arrive("a", is_continuation=True, **KNOWN).first_token("a")
    assert script.start_of("u") == 100
    script.progress("r", a=90).finish("a", usage=Usage(prompt_tokens=1_000, output_tokens=90))
    assert script.start_of("u") == 180


def test_a_tier_that_was_paid_by_its_floor_gets_its_refund_there_too() -> None:
    """Its deficit would shrink by estimates that never came true."""
    script = Play(four_tiers(cost="tokens")).replica("r", slots=4).arrive("a", tier=3, **KNOWN)
    script.scheduler.granted["a"][0].was_favoured = True
    before = script.pool().floors.deficits[3]
    script.finish("a", usage=Usage(prompt_tokens=1_000, output_tokens=10))
    assert script.pool().floors.deficits[3] == before + 80


# --- finished: what is learnt -----------------------------------------------------------------


def test_only_whole_answers_teach_how_long_answers_are() -> None:
    """Cancelled ones would make every prediction too short."""
    script = token_play(slots=40)
    for number in range(9):
        script.arrive(f"c{number}", prompt_tokens=10).finish(
            f"c{number}", outcome=Outcome.CANCELLED, usage=Usage(output_tokens=3)
        )
    assert script.arrive("a").scheduler.granted["a"][0].waiting.output_tokens == 256
    for number in range(9):
        script.arrive(f"d{number}").finish(f"d{number}", usage=Usage(output_tokens=3))
    assert script.arrive("b").scheduler.granted["b"][0].waiting.output_tokens == 3


def test_only_whole_answers_tell_the_speed() -> None:
    """The time per token of a broken stream is that of the break."""
    script = token_play().arrive_many("a", 3)
    script.finish("a0", outcome=Outcome.FAILED, tpot_s=9.0)
    script.finish("a1", outcome=Outcome.CANCELLED, tpot_s=9.0)
    assert script.known().speed.tpot_s is None
    script.finish("a2", tpot_s=0.02)
    assert script.known().speed.tpot_s == 0.02


def test_the_speed_of_a_stream_belongs_to_all_that_ran_beside_it() -> None:
    """Taken for the speed of the few at its end, it would make the limit far too low."""
    script = Play(one_tier(tiers=(Tier(name="x", queue_limit=0, tpot_limit_ms=100.0),)))
    script.replica("r", slots=40).arrive_many("a", 11, output_tokens=100).cancel("a0")
    for number in range(1, 6):
        script.finish(f"a{number}", outcome=Outcome.FAILED)
    script.finish("a10", tpot_s=0.2)
    # Eleven were there at its release and five at its end, itself included: eight on average.
    assert script.known().limit.limit == 4.0


def test_an_embeddings_end_measures_the_prefill() -> None:
    """It never shows a first token."""
    script = token_play().arrive("e", prompt_tokens=4_000, output_tokens_max=0).advance(0.1)
    script.finish("e", usage=Usage(prompt_tokens=4_000))
    assert script.known().speed.prefill_rate == pytest.approx(40_000)


def test_ends_set_the_pace_at_which_more_may_wait_inside() -> None:
    """Whatever their outcome: each of them freed a slot."""
    script = token_play()
    for number, outcome in enumerate(Outcome):
        script.arrive(f"a{number}").finish(f"a{number}", outcome=outcome)
    assert script.known().release_rate.per_s(script.now) == pytest.approx(4 * 0.1386, rel=1e-3)


# --- bounced ----------------------------------------------------------------------------------


def test_a_bounced_request_tries_another_replica_at_once() -> None:
    """The engine is busy; its neighbour is not."""
    script = Play().replica("r", slots=1).arrive("a").replica("s", slots=1).bounce("a")
    script.expect_granted("a", on="s")


def test_a_bounce_costs_the_client_nothing_and_keeps_its_place() -> None:
    """The engine's limits are not its fault."""
    script = token_play(slots=2).arrive("w", user="w").arrive("a", user="a", **KNOWN)
    script.arrive("later", user="a", **KNOWN).bounce("a")
    assert script.start_of("a") == 0.0
    script.finish("w").advance(1.0).expect_granted("a")


def test_what_comes_back_from_a_lost_replica_waits_like_those_that_waited() -> None:
    """It was let in: a restart of the only replica should cost waiting, not answers."""
    for back in ("bounce", "give_back"):
        script = Play().replica("r", slots=1).arrive("a").lose("r")
        getattr(script, back)("a").expect_waiting("a").advance(60.0).replica("r", slots=1)
        script.expect_granted("a", on="r")


def test_a_bounce_without_any_replica_left_is_an_answer() -> None:
    """The request must not wait for nothing."""
    script = Play().replica("r", slots=1).arrive("a").remove("r").bounce("a")
    script.expect_refused("a", reason=Reason.NO_REPLICA)
    assert not script.scheduler.replicas


def test_a_bounce_is_exempt_from_the_bounds_of_the_queue() -> None:
    """It was let in already: a full queue must not throw it out."""
    script = Play().replica("r", slots=1).arrive("a").arrive_many("b", 9).bounce("a")
    script.expect_waiting("a")


def test_a_bounced_request_whose_patience_ended_meanwhile_is_told_so() -> None:
    """Its client gave up long ago."""
    policy = one_tier(tiers=(Tier(name="x", queue_limit=0, patience_s=5.0),))
    script = Play(policy).replica("r", slots=1).arrive("a").advance(9.0).bounce("a").advance(0.1)
    script.expect_refused("a", reason=Reason.PATIENCE_SPENT)


def test_a_bounced_request_goes_by_what_the_pool_is_now() -> None:
    """The classes of before the regrouping know nothing of the new replica."""
    script = Play().replica("r", slots=1).arrive("a", prompt_tokens=9_000)
    script.replica("s", slots=1, models=("m", "x")).bounce("a").expect_granted("a", on="s")


# --- adopted ----------------------------------------------------------------------------------


def test_what_another_scheduler_granted_takes_its_slot_here() -> None:
    """A new leader would fill every engine once more."""
    script = token_play(slots=2).adopt("a", output_tokens=7, **KNOWN)
    grant, replica = script.scheduler.granted["a"]
    assert replica is script.known()
    assert grant.is_started
    assert grant.output_tokens == 7
    assert (replica.ledger.sequences, replica.ledger.unstarted_sequences) == (1, 0)
    script.arrive_many("b", 2).expect_granted("b0").expect_waiting("b1")
    script.finish("a").expect_granted("b1")


def test_what_is_adopted_is_charged_and_settled_like_any_other() -> None:
    """Fairness does not begin anew with every leader."""
    script = token_play().adopt("a", user="a", **KNOWN)
    assert script.start_of("a") == 1_100
    script.finish("a", usage=Usage(prompt_tokens=1_000, output_tokens=10))
    assert script.start_of("a") == 1_020


def test_an_adopted_request_that_has_not_begun_counts_as_unstarted_since_its_grant() -> None:
    """Its prefill is still to come, or nearly done."""
    script = (
        token_play()
        .advance(10.0)
        .adopt("a", is_started=False, running_s=3.0, streams=False, **KNOWN)
    )
    replica = script.known()
    assert replica.ledger.unstarted_prompt_tokens == 1_000
    assert replica.ledger.grants["a"].granted_at == 7.0
    replica.start_plain(7.2, queued=0)
    assert not replica.ledger.unstarted


def test_more_sequences_than_slots_are_adopted_as_all_slots() -> None:
    """The same rule as at a release."""
    script = token_play(slots=4).adopt("a", sequences=100)
    assert script.known().ledger.sequences == 4
    assert Play().replica("r").adopt("a", sequences=5).known().ledger.sequences == 5


def test_what_is_known_or_runs_nowhere_here_is_not_adopted() -> None:
    """Twice adopted, it would leave once."""
    script = token_play().adopt("a", **KNOWN)
    before = script.start_of("u")
    event = script.log[-1][1]
    script.tell(event)
    assert script.start_of("u") == before
    for where, model in (("unknown", "m"), ("r", "unknown")):
        script.take_over("b", where, model=model)
    assert set(script.scheduler.granted) == {"a"}


def test_adopting_while_everything_is_forwarded_charges_nobody() -> None:
    """The contrast keeps no accounts."""
    script = token_play(release_at_once=True).adopt("a", user="a", **KNOWN)
    assert script.scheduler.granted["a"][0].charged == 0.0
    script.finish("a")
    assert script.known().ledger.sequences == 0


def test_an_adopted_tier_is_present() -> None:
    """Its headroom is held from now on."""
    script = Play(four_tiers()).replica("r", slots=10).adopt("a", tier=0)
    assert script.pool().gates.reserved[1] == pytest.approx(0.2)


def test_what_is_taken_over_was_nobodys_favour() -> None:
    """Its tier would pay for it out of the floor that it is owed."""
    script = Play(four_tiers(cost="requests")).replica("r", slots=4).adopt("a", tier=3)
    assert script.pool().floors.deficits == [0.0] * 4


# --- a rest that runs elsewhere ----------------------------------------------------------------


def test_both_parts_of_a_continued_stream_are_charged_and_its_prompt_once() -> None:
    """A user whose replicas fail would read for nothing, or pay its prompt with every failure."""
    script = token_play().arrive("a", **KNOWN).first_token("a")
    part = Usage(prompt_tokens=1_000, output_tokens=20)
    script.finish("a", outcome=Outcome.FAILED, usage=part, goes_on=True)
    assert script.start_of("u") == 1_000 + 2 * 20
    script.arrive("b", prompt_tokens=1_020, output_tokens_max=30, is_continuation=True)
    script.first_token("b")
    script.finish("b", usage=Usage(prompt_tokens=1_020, output_tokens=30))
    assert script.start_of("u") == 1_000 + 2 * 50


def test_the_rest_of_a_stream_teaches_nothing_of_the_length_of_answers() -> None:
    """After a bad day of its replicas a user's answers would be thought to be short."""
    script = token_play().arrive("a", prompt_tokens=100, is_continuation=True).first_token("a")
    before = script.scheduler.predictor.snapshot()
    script.finish("a", usage=Usage(prompt_tokens=100, output_tokens=2))
    assert script.scheduler.predictor.snapshot() == before
