"""What is believed of a replica's memory and speed, its prefill, and starts that nobody sees."""

import json
from typing import Any

import pytest

from gateway.core.policy import Policy, Tier
from gateway.core.replica import Replica
from gateway.core.speed import (
    LEARNING_SHARE,
    LONG_PREFILL_TOKENS,
    PREFILL_TOKENS_PER_S,
    STEP_S,
    Speed,
)
from tests.support.parts import a_grant, a_replica, put, put_many, report
from tests.support.play import Play
from tests.support.script import one_tier


def allowing(queue_limit: int) -> Policy:
    """One patient tier that may leave so many waiting in the engine."""
    return one_tier(tiers=(Tier(name="x", queue_limit=queue_limit, patience_s=1e6),))


def known(script: Play, name: str = "r") -> Replica:
    """What the scheduler believes of that replica."""
    return script.known(name)


def test_a_scrape_that_sees_nothing_of_what_runs_says_nothing_of_the_kv() -> None:
    """The KV would be taken for empty while our own requests fill it."""
    script = Play(allowing(0)).replica("r", slots=64)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=1_000)
    script.arrive_many("a", 2, prompt_tokens=200, output_tokens_max=200).advance(1.0)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=1_000)
    assert known(script).kv_tokens == 800
    script.arrive("b", prompt_tokens=200, output_tokens_max=200).expect_waiting("b")


def test_the_scraped_kv_corrects_the_books_overestimate() -> None:
    """A hundred requests with one shared system prompt hold it once."""
    script = Play(allowing(0)).replica("r", slots=64)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=1_000)
    script.arrive_many("a", 2, prompt_tokens=200, output_tokens_max=200).advance(1.0)
    script.report("r", running=2, waiting=0, kv_use=0.3, kv_capacity_tokens=1_000)
    assert known(script).kv_tokens == pytest.approx(300)
    script.arrive("b", prompt_tokens=200, output_tokens_max=200).expect_granted("b")
    assert known(script).kv_tokens == pytest.approx(700)


def test_a_plain_request_counts_as_started_when_the_engines_queue_is_shorter_than_its_rank() -> (
    None
):
    """Without a first token in sight, its prompt would count as unstarted to its end."""
    script = Play(allowing(4)).replica("r", slots=8)
    script.arrive_many("a", 4, streams=False, prompt_tokens=800).advance(1.0)
    ledger = known(script).ledger
    assert len(ledger.unstarted) == 4
    script.report("r", running=2, waiting=2)
    assert list(ledger.unstarted) == ["a2", "a3"]
    script.report("r", running=4, waiting=0)
    assert not ledger.unstarted


def test_a_plain_request_is_not_started_before_its_prefill_can_have_passed() -> None:
    """A scrape that left before the request did cannot testify for it."""
    script = Play(allowing(4)).replica("r", slots=8).advance(1.0)
    script.arrive("a", streams=False, prompt_tokens=8_000)
    script.report("r", sent_at=1.0, running=0, waiting=0).advance(0.5)
    script.report("r", running=1, waiting=0)
    assert "a" in known(script).ledger.unstarted
    script.advance(0.6).report("r", running=1, waiting=0)
    assert not known(script).ledger.unstarted


def test_what_an_engine_ran_before_it_may_run_again_without_a_sign() -> None:
    """Plain requests on an engine of unknown slots would trickle in at one a scrape for ever."""
    script = Play(allowing(1)).replica("r")
    script.arrive_many("a", 400, streams=False, prompt_tokens=1)
    for _ in range(20):
        script.advance(1.0).report("r", running=len(script.running), waiting=0)
    most = len(script.running)
    assert 20 < most < 30
    script.finish(*script.on("r")[:10])
    assert len(script.running) == most


def test_the_prefill_rate_is_learnt_from_first_tokens() -> None:
    """A fast GPU would otherwise be held to the start value."""
    script = Play(allowing(0)).replica("r", slots=8)
    for number in range(20):
        script.arrive(f"a{number}", prompt_tokens=4_000).advance(0.1)
        script.first_token(f"a{number}").finish(f"a{number}")
    assert known(script).speed.prefill_rate == pytest.approx(40_000, rel=0.01)


def test_waiting_for_a_slot_is_not_taken_for_slow_prefill() -> None:
    """A busy engine would look slow, get less and less, and stay that way."""
    script = Play(allowing(1)).replica("r", slots=1)
    script.arrive_many("a", 5, prompt_tokens=4_000)
    for number in range(4):
        script.advance(0.1).first_token(f"a{number}").advance(20.0).finish(f"a{number}")
    assert known(script).speed.prefill_rate >= PREFILL_TOKENS_PER_S


def test_the_speed_comes_from_the_engines_histogram_where_it_has_one() -> None:
    """Streams see chunks, not tokens: their figure is the weaker one."""
    script = Play(allowing(0)).replica("r", slots=8)
    script.report("r", itl_sum_s=1.0, itl_count=100.0)
    script.report("r", itl_sum_s=1.6, itl_count=130.0)
    assert known(script).speed.tpot_s is None
    script.report("r", itl_sum_s=3.0, itl_count=200.0)
    assert known(script).speed.tpot_s == pytest.approx(0.02)
    script.arrive("a").finish("a", tpot_s=9.0)
    assert known(script).speed.tpot_s == pytest.approx(0.02)
    script.report("r", itl_sum_s=0.1, itl_count=5.0).report("r", itl_sum_s=1.1, itl_count=105.0)
    assert known(script).speed.tpot_s == pytest.approx(0.01)


# --- KV ---------------------------------------------------------------------------------------


def test_kv_is_the_scraped_figure_and_what_the_book_gained_since() -> None:
    """Between two scrapes the engine goes on filling."""
    replica = a_replica(slots=64)
    put(replica, "a", at=1.0, prompt_tokens=400, output_tokens=0)
    put(replica, "b", at=3.0, prompt_tokens=50, output_tokens=0)
    report(replica, now=4.0, sent_at=2.0, running=1, waiting=0, kv_use=0.3,
           kv_capacity_tokens=1_000)  # fmt: skip
    assert replica.kv_tokens == 350
    replica.ledger.leave("a", 5.0)
    assert replica.kv_tokens == 0.0
    put(replica, "c", at=6.0, prompt_tokens=500, output_tokens=0)
    assert replica.kv_tokens == 450


def test_an_answer_that_outgrew_its_prediction_before_the_scrape_is_counted_once() -> None:
    """The scraped figure holds it already: long answers would fill the replica twice."""
    script = Play(allowing(0)).replica("r", slots=8).advance(1.0)
    script.arrive("a", prompt_tokens=100, output_tokens_max=900).first_token("a").advance(1.0)
    script.progress("r", a=900).advance(1.0)
    script.report("r", running=1, waiting=0, kv_use=0.1, kv_capacity_tokens=10_000)
    assert known(script).ledger.kv_tokens == 1_000
    assert known(script).kv_tokens == 1_000


def learnt_share(*, kv_use: float, tokens: int = 1_000, foreign: int = 0) -> Replica:
    """A scrape compared with a book of so many tokens; reports end after it."""
    replica = a_replica(slots=64)
    put(replica, "a", prompt_tokens=tokens, output_tokens=0)
    report(replica, now=1.0, running=1 + foreign, waiting=0, kv_use=kv_use,
           kv_capacity_tokens=10_000)  # fmt: skip
    replica.go_stale()
    return replica


def test_without_fresh_reports_the_book_counts_as_much_as_it_did_before() -> None:
    """Shared prompts make it an over-estimate: a hundred streams would seem to fill the engine."""
    replica = learnt_share(kv_use=0.025)
    assert replica.kv_tokens == 250
    put(replica, "b", prompt_tokens=1_000, output_tokens=0)
    assert replica.kv_tokens == 500


def test_a_book_is_never_taken_for_less_than_what_it_shows_to_hold() -> None:
    """More in the engine than in the book is somebody else's, or a leak; not a share above one."""
    assert learnt_share(kv_use=0.9).kv_tokens == 1_000


def test_a_small_book_or_one_beside_foreign_load_teaches_no_share() -> None:
    """Rounding, or somebody else's tokens, would be learnt for ever."""
    assert learnt_share(kv_use=0.025, tokens=999).kv_tokens == 999
    assert learnt_share(kv_use=0.025, foreign=1).kv_tokens == 1_000


def test_a_kv_figure_without_a_capacity_is_no_figure() -> None:
    """A share of an unknown size is nothing."""
    for capacity in (None, 0):
        replica = a_replica(slots=4)
        report(replica, running=0, waiting=0, kv_use=0.5, kv_capacity_tokens=capacity)
        assert replica.kv_capacity_tokens is None
        assert replica.kv_tokens == 0.0


def test_a_blind_scrape_is_one_that_sees_nothing_though_something_was_there() -> None:
    """An engine that really is idle must be believed, or it would seem full for ever."""
    replica = a_replica(slots=4)
    report(replica, running=0, waiting=0, kv_use=0.4, kv_capacity_tokens=1_000)
    assert replica.kv_tokens == 400
    put(replica, "a", at=1.0, prompt_tokens=100, output_tokens=0)
    report(replica, now=2.0, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=1_000)
    assert replica.kv_tokens == 500
    report(replica, now=2.0, running=0, waiting=1, kv_use=0.0, kv_capacity_tokens=1_000)
    assert replica.kv_tokens == 0


# --- speed ------------------------------------------------------------------------------------


def slow(tpot_s: float, *, in_use: int = 1, now: float = 0.0) -> Replica:
    """One stream measured that speed while so many sequences ran."""
    replica = a_replica()
    replica.take_tpot(tpot_s, 10, in_use=in_use, now=now, target_s=1.0)
    return replica


def test_a_speed_within_the_limit_is_never_over_it() -> None:
    """The gate may not shut a replica that keeps its promise."""
    assert not a_replica().speed.tpot_over(0.1, 9, 0.0)
    assert not slow(0.1).speed.tpot_over(0.1, 9, 0.0)
    assert not slow(0.1019).speed.tpot_over(0.1, 9, 0.0)
    assert slow(0.1021).speed.tpot_over(0.1, 9, 0.0)


def test_the_excess_halves_every_five_silent_seconds() -> None:
    """A gate that was shut by one slow moment would never see another sample."""
    replica = slow(0.164, now=10.0)
    over = [replica.speed.tpot_over(0.1, 9, 10.0 + s) for s in (0.0, 24.9, 25.1)]
    assert over == [True, True, False]
    assert replica.speed.tpot_over(0.1, 9, 0.0)


def test_one_that_is_slow_for_its_batch_is_fast_enough_for_a_smaller_one() -> None:
    """The sample is of a moment ago; half of the batch has ended since."""
    replica = slow(0.2, in_use=10)
    assert [replica.speed.tpot_over(0.1, there, 0.0) for there in (3, 4, 5, 9)] == [
        False, False, True, True,
    ]  # fmt: skip


def test_a_step_is_the_time_per_token_or_a_guess() -> None:
    """The allowance and every prediction of a prefill need one before the first token."""
    replica = a_replica()
    assert replica.speed.step_s == STEP_S
    replica.take_tpot(0.08, 10, in_use=1, now=0.0, target_s=1.0)
    assert replica.speed.step_s == 0.08
    replica.take_tpot(-0.5, 10, in_use=1, now=0.0, target_s=1.0)
    assert replica.speed.step_s == 0.0


def test_streams_speak_again_when_the_engines_histogram_is_stale() -> None:
    """The last figure of a dead metrics endpoint is not the speed of now."""
    replica = a_replica(slots=8)
    report(replica, itl_sum_s=1.0, itl_count=100.0)
    replica.take_tpot(0.5, 10, in_use=1, now=1.0, target_s=1.0)
    assert replica.speed.tpot_s is None
    replica.go_stale()
    replica.take_tpot(0.5, 10, in_use=1, now=1.0, target_s=1.0)
    assert replica.speed.tpot_s == 0.5


def test_fifty_tokens_are_enough_to_judge_the_speed_and_teach_the_limit() -> None:
    """A single long prefill beside two tokens would look like a slow engine."""
    replica = a_replica(slots=8)
    put_many(replica, 8, starts=True)
    report(replica, itl_sum_s=0.0, itl_count=0.0)
    report(replica, itl_sum_s=30.0, itl_count=49.0)
    assert replica.speed.step_s == STEP_S
    report(replica, now=7.0, itl_sum_s=30.0, itl_count=50.0)
    assert (replica.speed.tpot_s, replica.speed.tpot_at) == (0.6, 7.0)
    assert replica.limit.limit == 4.0


@pytest.mark.parametrize("missing", ["itl_sum_s", "itl_count"])
def test_half_a_histogram_says_nothing(missing: str) -> None:
    """A scrape may break off in the middle."""
    replica = a_replica()
    full = {"itl_sum_s": 1.0, "itl_count": 100.0}
    half = {name: figure for name, figure in full.items() if name != missing}
    for figures in (full, half, full):
        report(replica, **figures)
    assert replica.speed.tpot_s is None


@pytest.mark.parametrize("missing", ["itl_sum_s", "itl_count"])
def test_a_histogram_that_comes_late_and_breaks_off_is_used_while_it_is_there(missing: str) -> None:
    """An engine tells nothing of its speed until its first answer."""
    replica = a_replica()
    for tokens in (None, 0.0, 100.0):
        told = {} if tokens is None else {"itl_sum_s": tokens / 50, "itl_count": tokens}
        report(replica, **told)
    assert replica.speed.tpot_s == 0.02
    broken: dict[str, Any] = {"itl_sum_s": 9.0, "itl_count": 300.0, missing: None}
    report(replica, **broken)
    assert replica.speed.tpot_s == 0.02


def test_beside_a_long_prompt_no_speed_is_learnt() -> None:
    """Those that decode meanwhile are slow, however few they are: fewer would be no faster."""
    replica = a_replica(slots=8)

    def scrape(now: float) -> float | None:
        report(replica, now=now, itl_sum_s=50.0 * now, itl_count=100.0 * now)
        return replica.speed.tpot_s

    grant = put(replica, "long", prompt_tokens=LONG_PREFILL_TOKENS)
    assert (scrape(0.0), scrape(1.0)) == (None, None)
    replica.ledger.start("long")
    replica.speed.take_first_token(grant, 1.5)
    # The scrape before was asked for while it ran, and the gauges lag.
    assert (scrape(2.0), scrape(2.4), scrape(3.0)) == (None, None, None)
    assert scrape(4.0) == 0.5


# --- prefill ----------------------------------------------------------------------------------


def test_the_prefill_is_measured_from_the_end_of_the_one_before() -> None:
    """Prompts are computed one after the other: the second did not take twice as long."""
    replica = a_replica(slots=8)
    first = put(replica, "a", prompt_tokens=1_000)
    second = put(replica, "b", prompt_tokens=1_000)
    for grant, now in ((first, 0.1), (second, 0.2)):
        replica.ledger.start(grant.waiting.request.id)
        replica.speed.take_first_token(grant, now)
    assert replica.speed.prefill_rate == pytest.approx(10_000)


def test_short_prompts_do_not_teach_the_prefill_rate() -> None:
    """They measure the round trip, and a fast engine would look slow."""
    replica = a_replica(slots=8)
    replica.speed.take_first_token(put(replica, "a", prompt_tokens=511), 1.0)
    assert replica.speed.prefill_rate == PREFILL_TOKENS_PER_S
    replica.speed.take_first_token(put(replica, "b", prompt_tokens=512), 2.0)
    assert replica.speed.prefill_rate == 512.0


def test_what_was_cached_is_no_prefill_and_teaches_none() -> None:
    """Rates of a million tokens a second would be learnt from the cache."""
    replica = a_replica(slots=8)
    replica.speed.take_first_token(
        put(replica, "a", prompt_tokens=9_000, cached_tokens=8_600), 0.01
    )
    assert replica.speed.prefill_rate == PREFILL_TOKENS_PER_S


def test_the_share_of_a_prompt_that_was_computed_grows_with_time() -> None:
    """Who cancels early pays little; who cancels late pays the prefill."""
    replica = a_replica(slots=8)
    grant = put(replica, "a", at=2.0, prompt_tokens=8_000)
    # Until a rate is learnt the engine is taken to be twice as fast as usual.
    assert [replica.speed.prefilled_share(grant, now) for now in (2.0, 2.25, 2.5, 9.0)] == [
        0.0, 0.5, 1.0, 1.0,
    ]  # fmt: skip
    replica.speed.take_first_token(put(replica, "known", at=2.0, prompt_tokens=1_000), 3.0)
    assert replica.speed.prefilled_share(grant, 4.0) == 0.25
    replica.ledger.start("a")
    assert replica.speed.prefilled_share(grant, 2.0) == 1.0
    assert replica.speed.prefilled_share(put(replica, "b", prompt_tokens=0), 0.0) == 1.0


def test_what_was_learnt_of_the_speed_is_as_old_after_a_restart_as_it_was() -> None:
    """Under another clock a slow moment of before would be one of now, or of tomorrow."""
    before, after = Speed(), Speed()
    before.take_tpot(0.2, 10.0, 90.0)
    grant = a_grant("long", prompt_tokens=LONG_PREFILL_TOKENS, at=80.0)
    grant.found_room = True
    before.take_first_token(grant, 90.0)
    after.restore(json.loads(json.dumps(before.snapshot(100.0))), 7.0)
    assert (after.tpot_s, after.tpot_at, after.tpot_in_use) == (0.2, -3.0, 10.0)
    assert after.prefill_rate == before.prefill_rate == LONG_PREFILL_TOKENS / 10.0
    assert [after.had_long_prefill(since) for since in (-2.1, -1.9)] == [True, False]
    # The next one is measured from the end of the last one, two seconds before.
    grant = a_grant("next", prompt_tokens=1_000, at=-9.0)
    grant.found_room = True
    after.take_first_token(grant, -1.0)
    learnt = LONG_PREFILL_TOKENS / 10.0
    assert after.prefill_rate == pytest.approx(learnt + LEARNING_SHARE * (500.0 - learnt))


def test_of_an_engine_that_was_never_heard_a_restart_knows_as_little() -> None:
    """A guess that was written down would be taken for a measurement."""
    after = Speed()
    after.restore(json.loads(json.dumps(Speed().snapshot(100.0))), 7.0)
    assert after.tpot_s is None
    assert after.prefill_rate == PREFILL_TOKENS_PER_S
    assert not after.had_long_prefill(-1e9)


# --- starts that nobody sees ------------------------------------------------------------------


def plain(count: int, **fields: Any) -> Replica:
    """So many plain requests, unstarted, on a replica of 8 slots."""
    replica = a_replica(slots=8)
    put_many(replica, count, streams=False, **fields)
    return replica


def test_without_a_scrape_a_plain_request_starts_when_its_prefill_must_be_over() -> None:
    """8,000 tokens take a second and then one step."""
    replica = plain(1, prompt_tokens=8_000)
    replica.start_plain(1.0 + STEP_S - 0.001, queued=0)
    assert replica.ledger.unstarted
    replica.start_plain(1.0 + STEP_S, queued=0)
    assert not replica.ledger.unstarted


def test_the_newest_are_those_that_the_engine_still_has_in_its_queue() -> None:
    """It starts them in the order in which they came."""
    replica = plain(3)
    replica.start_plain(99.0, queued=2)
    assert list(replica.ledger.unstarted) == ["p1", "p2"]
    replica.start_plain(99.0, queued=3)
    replica.start_plain(99.0, queued=1)
    assert list(replica.ledger.unstarted) == ["p2"]


def test_streams_and_embeddings_start_only_when_they_show_it() -> None:
    """A stream has a first token; an embedding has its end."""
    replica = a_replica(slots=8)
    put(replica, "stream")
    put(replica, "embedding", streams=False, output_tokens_max=0)
    put(replica, "plain", streams=False)
    replica.start_plain(99.0, queued=0)
    assert list(replica.ledger.unstarted) == ["stream", "embedding"]
