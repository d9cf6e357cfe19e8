"""What is believed of a replica whose gauges are late, partial, or wrong."""

import pytest

from gateway.core.messages import Outcome, ReplicaReport
from gateway.core.policy import Policy, Tier
from gateway.core.replica import PREFILL_TOKENS_PER_S, Replica
from tests.support.script import Script, one_tier


def allowing(queue_limit: int) -> Policy:
    """One patient tier that may leave so many waiting in the engine."""
    return one_tier(tiers=(Tier(name="x", queue_limit=queue_limit, patience_s=1e6),))


def known(script: Script, name: str = "r") -> Replica:
    """What the scheduler believes of that replica."""
    return script.scheduler.replicas[name]


def test_slots_are_learnt_from_two_sightings_of_a_full_engine() -> None:
    """vLLM does not say how many sequences it runs; headroom needs to know."""
    script = Script(allowing(4)).replica("r").report("r", running=4, waiting=2)
    assert known(script).slots is None
    script.report("r", running=4, waiting=1)
    assert known(script).slots == 4


def test_a_larger_running_raises_the_learnt_slots_at_once() -> None:
    """An underestimate would waste the difference for ever."""
    script = Script(allowing(4)).replica("r")
    script.report("r", running=4, waiting=1).report("r", running=4, waiting=1)
    script.report("r", running=6, waiting=0)
    assert known(script).slots == 6


def test_configured_slots_win_over_those_that_the_engine_tells_and_those_over_learnt() -> None:
    """The operator knows best."""
    script = Script(allowing(4)).replica("r")
    script.report("r", running=4, waiting=1).report("r", running=4, waiting=1, slots=7)
    assert known(script).slots == 7
    script.replica("r", slots=9)
    assert known(script).slots == 9


def test_a_queue_behind_a_long_prefill_says_nothing_of_the_slots() -> None:
    """Two slots learnt of 256 would never be corrected while headroom holds the lower tiers."""
    script = Script(allowing(4)).replica("r").arrive("a", sequences=3)
    for _ in range(3):
        script.advance(1.0).report("r", running=1, waiting=2)
    assert known(script).slots is None
    script.first_token("a")
    for _ in range(2):
        script.advance(1.0).report("r", running=2, waiting=1)
    assert known(script).slots == 2


def test_a_queue_for_want_of_kv_says_nothing_of_the_slots() -> None:
    """Long prompts in the morning must not halve the batch for the day."""
    script = Script(allowing(4)).replica("r")
    for _ in range(3):
        script.report("r", running=20, waiting=3, kv_use=0.97, kv_capacity_tokens=100_000)
    assert known(script).slots is None


def test_foreign_load_is_what_our_own_book_does_not_explain() -> None:
    """Others may use the engine directly: their requests hold slots too."""
    script = Script(allowing(0)).replica("r", slots=4).arrive("a").advance(1.0)
    script.report("r", running=3, waiting=0).report("r", running=3, waiting=0)
    assert known(script).foreign == 2
    script.arrive_many("b", 3).expect_granted("b0").expect_waiting("b1", "b2")
    for _ in range(3):
        script.advance(1.0).report("r", running=2, waiting=0)
    assert known(script).foreign == 0
    script.expect_granted("b1", "b2")


def test_a_gauge_that_still_counts_what_just_ended_is_not_foreign_load() -> None:
    """After every burst the gateway would see ghosts and stop serving."""
    script = Script(allowing(0)).replica("r", slots=4).arrive_many("a", 4).advance(1.0)
    script.report("r", running=4, waiting=0).finish("a0", "a1", "a2", "a3")
    script.report("r", running=4, waiting=0)
    assert known(script).foreign == 0
    script.arrive_many("b", 4).expect_granted("b0", "b1", "b2", "b3")


def test_a_report_is_compared_with_the_book_of_the_instant_it_was_asked_for() -> None:
    """A scrape that took two seconds does not know what was released meanwhile."""
    script = Script(allowing(0)).replica("r", slots=8).arrive_many("a", 2).advance(1.0)
    asked_at = script.now
    script.advance(1.0).finish("a0", "a1").arrive_many("b", 1).advance(1.0)
    for _ in range(3):
        script.report("r", sent_at=asked_at, running=2, waiting=0)
    assert known(script).foreign == 0


def test_zero_gauges_do_not_open_the_gates() -> None:
    """At a cold start vLLM says 0 for seconds: 200 requests would pile up inside."""
    script = Script(allowing(4)).replica("r", slots=8).arrive_many("a", 200)
    for _ in range(18):
        script.advance(1.0).report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=9_999)
        assert len(script.running) == 8 + 1


def test_a_scrape_that_sees_nothing_of_what_runs_says_nothing_of_the_kv() -> None:
    """The KV would be taken for empty while our own requests fill it."""
    script = Script(allowing(0)).replica("r", slots=64)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=1_000)
    script.arrive_many("a", 2, prompt_tokens=200, output_tokens_max=200).advance(1.0)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=1_000)
    assert known(script).kv_tokens == 800
    script.arrive("b", prompt_tokens=200, output_tokens_max=200).expect_waiting("b")


def test_the_scraped_kv_corrects_the_books_overestimate() -> None:
    """A hundred requests with one shared system prompt hold it once."""
    script = Script(allowing(0)).replica("r", slots=64)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=1_000)
    script.arrive_many("a", 2, prompt_tokens=200, output_tokens_max=200).advance(1.0)
    script.report("r", running=2, waiting=0, kv_use=0.3, kv_capacity_tokens=1_000)
    assert known(script).kv_tokens == pytest.approx(300)
    script.arrive("b", prompt_tokens=200, output_tokens_max=200).expect_granted("b")
    assert known(script).kv_tokens == pytest.approx(700)


def test_an_idle_engines_frozen_gauges_do_not_shut_it_out_for_ever() -> None:
    """It corrects its gauges at the next step, and makes none until somebody sends something."""
    script = Script(allowing(0)).replica("r", slots=4).arrive_many("a", 4).advance(1.0)
    figures = {"running": 4, "waiting": 0, "iterations": 500.0}
    script.report("r", **figures).cancel("a0", "a1", "a2", "a3")
    for _ in range(4):
        script.advance(1.0).report("r", **figures)
    script.arrive("b").expect_waiting("b")
    for _ in range(9):
        script.advance(1.0).report("r", **figures)
    script.expect_granted("b")


def test_foreign_work_that_goes_on_is_not_taken_for_frozen() -> None:
    """An engine that others keep full really has no slot for us."""
    script = Script(allowing(0)).replica("r", slots=4)
    for steps in range(30):
        script.advance(1.0).report("r", running=4, waiting=0, iterations=float(steps))
    script.arrive("b").expect_waiting("b")


def test_stale_reports_leave_the_book_alone_and_serving_goes_on() -> None:
    """A metrics endpoint that dies must not take the service with it."""
    script = Script(allowing(1)).replica("r", slots=2).report("r", running=0, waiting=0)
    script.arrive_many("a", 30, streams=False).serve(20)
    assert len(script.order) == 23


def test_a_plain_request_counts_as_started_when_the_engines_queue_is_shorter_than_its_rank() -> (
    None
):
    """Without a first token in sight, its prompt would count as unstarted to its end."""
    script = Script(allowing(4)).replica("r", slots=8)
    script.arrive_many("a", 4, streams=False, prompt_tokens=800).advance(1.0)
    ledger = known(script).ledger
    assert len(ledger.unstarted) == 4
    script.report("r", running=2, waiting=2)
    assert list(ledger.unstarted) == ["a2", "a3"]
    script.report("r", running=4, waiting=0)
    assert not ledger.unstarted


def test_a_plain_request_is_not_started_before_its_prefill_can_have_passed() -> None:
    """A scrape that left before the request did cannot testify for it."""
    script = Script(allowing(4)).replica("r", slots=8).advance(1.0)
    script.arrive("a", streams=False, prompt_tokens=8_000)
    script.report("r", sent_at=1.0, running=0, waiting=0).advance(0.5)
    script.report("r", running=1, waiting=0)
    assert "a" in known(script).ledger.unstarted
    script.advance(0.6).report("r", running=1, waiting=0)
    assert not known(script).ledger.unstarted


def test_what_an_engine_ran_before_it_may_run_again_without_a_sign() -> None:
    """Plain requests on an engine of unknown slots would trickle in at one a scrape for ever."""
    script = Script(allowing(1)).replica("r")
    script.arrive_many("a", 400, streams=False, prompt_tokens=1)
    for _ in range(20):
        script.advance(1.0).report("r", running=len(script.running), waiting=0)
    most = len(script.running)
    assert 20 < most < 30
    script.finish(*script.on("r")[:10])
    assert len(script.running) == most


def test_the_prefill_rate_is_learnt_from_first_tokens() -> None:
    """A fast GPU would otherwise be held to the start value."""
    script = Script(allowing(0)).replica("r", slots=8)
    for number in range(20):
        script.arrive(f"a{number}", prompt_tokens=4_000).advance(0.1)
        script.first_token(f"a{number}").finish(f"a{number}")
    assert known(script).prefill_rate == pytest.approx(40_000, rel=0.01)


def test_waiting_for_a_slot_is_not_taken_for_slow_prefill() -> None:
    """A busy engine would look slow, get less and less, and stay that way."""
    script = Script(allowing(1)).replica("r", slots=1)
    script.arrive_many("a", 5, prompt_tokens=4_000)
    for number in range(4):
        script.advance(0.1).first_token(f"a{number}").advance(20.0).finish(f"a{number}")
    assert known(script).prefill_rate >= PREFILL_TOKENS_PER_S


def test_the_speed_comes_from_the_engines_histogram_where_it_has_one() -> None:
    """Streams see chunks, not tokens: their figure is the weaker one."""
    script = Script(allowing(0)).replica("r", slots=8)
    script.report("r", itl_sum_s=1.0, itl_count=100.0)
    script.report("r", itl_sum_s=1.6, itl_count=130.0)
    assert known(script).tpot_s is None
    script.report("r", itl_sum_s=3.0, itl_count=200.0)
    assert known(script).tpot_s == pytest.approx(0.02)
    script.arrive("a").finish("a", tpot_s=9.0)
    assert known(script).tpot_s == pytest.approx(0.02)
    script.report("r", itl_sum_s=0.1, itl_count=5.0).report("r", itl_sum_s=1.1, itl_count=105.0)
    assert known(script).tpot_s == pytest.approx(0.01)


def test_a_replica_that_comes_back_is_believed_to_be_another_one() -> None:
    """It may have been restarted with other settings."""
    script = Script(allowing(0)).replica("r").arrive("a")
    script.report("r", running=4, waiting=1, kv_use=0.5, kv_capacity_tokens=1_000)
    script.report("r", running=4, waiting=1, kv_use=0.5, kv_capacity_tokens=1_000)
    script.lose("r").finish("a", outcome=Outcome.FAILED).replica("r")
    replica = known(script)
    assert replica.slots is None
    assert replica.kv_capacity_tokens is None
    assert replica.foreign == replica.proven_sequences == 0


def test_missing_names_are_unknown_not_zero() -> None:
    """An engine without these gauges is not an idle engine."""
    replica = Replica("r", tiers=1)
    replica.foreign = 3
    replica.take_report(ReplicaReport(running=5), sent_at=0.0, now=0.0, round_trip_s=0.0)
    assert replica.foreign == 3
    assert replica.kv_tokens == 0.0
