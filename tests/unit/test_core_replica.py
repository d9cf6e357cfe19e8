"""What is believed of a replica whose gauges are late, partial, or wrong."""

from typing import Any

import pytest

from gateway.core.kinds import Kind
from gateway.core.messages import Outcome
from gateway.core.policy import Policy, Tier
from gateway.core.replica import Replica
from gateway.core.sightings import FOREIGN_MEMORY
from tests.support.parts import a_replica, put, put_many, report
from tests.support.play import Play
from tests.support.script import one_tier


def allowing(queue_limit: int) -> Policy:
    """One patient tier that may leave so many waiting in the engine."""
    return one_tier(tiers=(Tier(name="x", queue_limit=queue_limit, patience_s=1e6),))


def known(script: Play, name: str = "r") -> Replica:
    """What the scheduler believes of that replica."""
    return script.scheduler.replicas[name]


def test_slots_are_learnt_from_two_sightings_of_a_full_engine() -> None:
    """vLLM does not say how many sequences it runs; headroom needs to know."""
    script = Play(allowing(4)).replica("r").report("r", running=4, waiting=2)
    assert known(script).slots is None
    script.report("r", running=4, waiting=1)
    assert known(script).slots == 4


def test_an_engine_of_one_slot_shows_it_too() -> None:
    """Without it, two would be thought to run where one waits."""
    replica = a_replica()
    for now in (1.0, 2.0):
        report(replica, now=now, running=1, waiting=2)
    assert replica.slots == 1


def test_a_larger_running_raises_the_learnt_slots_at_once() -> None:
    """An underestimate would waste the difference for ever."""
    script = Play(allowing(4)).replica("r")
    script.report("r", running=4, waiting=1).report("r", running=4, waiting=1)
    script.report("r", running=6, waiting=0)
    assert known(script).slots == 6


def test_configured_slots_win_over_those_that_the_engine_tells_and_those_over_learnt() -> None:
    """The operator knows best."""
    script = Play(allowing(4)).replica("r")
    script.report("r", running=4, waiting=1).report("r", running=4, waiting=1, slots=7)
    assert known(script).slots == 7
    script.replica("r", slots=9)
    assert known(script).slots == 9


def test_a_queue_behind_a_long_prefill_says_nothing_of_the_slots() -> None:
    """Two slots learnt of 256 would never be corrected while headroom holds the lower tiers."""
    script = Play(allowing(4)).replica("r").arrive("a", sequences=3)
    for _ in range(3):
        script.advance(1.0).report("r", running=1, waiting=2)
    assert known(script).slots is None
    script.first_token("a")
    for _ in range(2):
        script.advance(1.0).report("r", running=2, waiting=1)
    assert known(script).slots == 2


def test_a_queue_for_want_of_kv_says_nothing_of_the_slots() -> None:
    """Long prompts in the morning must not halve the batch for the day."""
    script = Play(allowing(4)).replica("r")
    for _ in range(3):
        script.report("r", running=20, waiting=3, kv_use=0.97, kv_capacity_tokens=100_000)
    assert known(script).slots is None


def test_foreign_load_is_what_our_own_book_does_not_explain() -> None:
    """Others may use the engine directly: their requests hold slots too."""
    script = Play(allowing(0)).replica("r", slots=4).arrive("a").advance(1.0)
    script.report("r", running=3, waiting=0).report("r", running=3, waiting=0)
    assert known(script).foreign == 2
    script.arrive_many("b", 3).expect_granted("b0").expect_waiting("b1", "b2")
    for _ in range(3):
        script.advance(1.0).report("r", running=2, waiting=0)
    assert known(script).foreign == 0
    script.expect_granted("b1", "b2")


def test_a_gauge_that_still_counts_what_just_ended_is_not_foreign_load() -> None:
    """After every burst the gateway would see ghosts and stop serving."""
    script = Play(allowing(0)).replica("r", slots=4).arrive_many("a", 4).advance(1.0)
    script.report("r", running=4, waiting=0).finish("a0", "a1", "a2", "a3")
    script.report("r", running=4, waiting=0)
    assert known(script).foreign == 0
    script.arrive_many("b", 4).expect_granted("b0", "b1", "b2", "b3")


def test_a_report_is_compared_with_the_book_of_the_instant_it_was_asked_for() -> None:
    """A scrape that took two seconds does not know what was released meanwhile."""
    script = Play(allowing(0)).replica("r", slots=8).arrive_many("a", 2).advance(1.0)
    asked_at = script.now
    script.advance(1.0).finish("a0", "a1").arrive_many("b", 1).advance(1.0)
    for _ in range(3):
        script.report("r", sent_at=asked_at, running=2, waiting=0)
    assert known(script).foreign == 0


def test_zero_gauges_do_not_open_the_gates() -> None:
    """At a cold start vLLM says 0 for seconds: 200 requests would pile up inside."""
    script = Play(allowing(4)).replica("r", slots=8).arrive_many("a", 200)
    for _ in range(18):
        script.advance(1.0).report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=9_999)
        assert len(script.running) == 8 + 1


def test_an_idle_engines_frozen_gauges_do_not_shut_it_out_for_ever() -> None:
    """It corrects its gauges at the next step, and makes none until somebody sends something."""
    script = Play(allowing(0)).replica("r", slots=4).arrive_many("a", 4).advance(1.0)
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
    script = Play(allowing(0)).replica("r", slots=4)
    for steps in range(30):
        script.advance(1.0).report("r", running=4, waiting=0, iterations=float(steps))
    script.arrive("b").expect_waiting("b")


def test_stale_reports_leave_the_book_alone_and_serving_goes_on() -> None:
    """A metrics endpoint that dies must not take the service with it."""
    script = Play(allowing(1)).replica("r", slots=2).report("r", running=0, waiting=0)
    script.arrive_many("a", 30, streams=False).serve(20)
    assert len(script.order) == 23


def test_a_replica_that_comes_back_is_believed_to_be_another_one() -> None:
    """It may have been restarted with other settings."""
    script = Play(allowing(0)).replica("r").arrive("a")
    script.report("r", running=4, waiting=1, kv_use=0.5, kv_capacity_tokens=1_000)
    script.report("r", running=4, waiting=1, kv_use=0.5, kv_capacity_tokens=1_000)
    script.lose("r").finish("a", outcome=Outcome.FAILED).replica("r")
    replica = known(script)
    assert replica.slots is None
    assert replica.kv_capacity_tokens is None
    assert replica.foreign == replica.sightings.proven_sequences == 0


def test_missing_names_are_unknown_not_zero() -> None:
    """An engine without these gauges is not an idle engine."""
    replica = a_replica(slots=4)
    replica.foreign = 3
    report(replica, running=5)
    report(replica, waiting=0)
    assert replica.foreign == 3
    assert replica.kv_tokens == 0.0
    assert replica.kv_capacity_tokens is None


# --- slots ------------------------------------------------------------------------------------


def test_slots_told_for_several_engines_together_are_taken_as_told() -> None:
    """With data parallelism the figures are sums already: twice doubled would flood the engine."""
    replica = a_replica()
    report(replica, running=0, waiting=0, slots=16, engines=2)
    assert replica.slots == 16


def test_the_larger_of_two_full_sightings_is_learnt_and_the_next_may_raise_it() -> None:
    """One engine may be seen between the end of one request and the start of the next."""
    replica = a_replica()
    for running, slots in ((3, None), (4, 4), (2, 4), (6, 6)):
        report(replica, running=running, waiting=1)
        assert replica.slots == slots


def test_a_queue_beside_nothing_that_runs_teaches_nothing() -> None:
    """A starting engine has a queue and no batch: slots of zero would shut it for ever."""
    replica = a_replica()
    for _ in range(3):
        report(replica, running=0, waiting=5)
    assert replica.slots is None


def test_a_full_engine_without_a_queue_teaches_nothing() -> None:
    """What runs may be all that was asked for."""
    replica = a_replica()
    for _ in range(3):
        report(replica, running=4, waiting=0)
    assert replica.slots is None
    assert replica.sightings.proven_sequences == 4


def test_slots_that_are_no_longer_told_are_what_was_learnt() -> None:
    """A report without the name must not leave a figure from another engine standing."""
    replica = a_replica()
    report(replica, running=1, waiting=0, slots=9)
    report(replica, running=1, waiting=0)
    assert replica.slots is None


# --- what waits inside ------------------------------------------------------------------------


def test_what_is_beyond_the_slots_waits() -> None:
    """The gate counts these, whatever the gauge says."""
    replica = a_replica(slots=4)
    put_many(replica, 3, starts=True)
    assert (replica.waiting, replica.occupied) == (0, 3)
    replica.foreign = 2
    assert (replica.waiting, replica.occupied) == (1, 5)


def test_without_slots_what_has_not_begun_waits_unless_the_engine_ran_as_many_before() -> None:
    """Unstarted is all that is known of a vLLM that was just found."""
    replica = a_replica()
    put_many(replica, 3, starts=True)
    put_many(replica, 4, prefix="q")
    assert replica.waiting == 4
    replica.sightings.proven_sequences = 5
    assert replica.waiting == 2
    replica.sightings.proven_sequences = 9
    assert replica.waiting == 0


def test_an_engine_that_is_full_of_kv_begins_with_nothing_new() -> None:
    """Its slots are free and of no use: sent there, requests wait in its queue."""
    replica = a_replica(slots=8)
    report(replica, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=1_000)
    put(replica, "a", starts=True, prompt_tokens=900, output_tokens=100)
    put_many(replica, 2, prompt_tokens=0, output_tokens=0)
    assert replica.waiting == 0
    put(replica, "b", prompt_tokens=1, output_tokens=0)
    assert replica.waiting == 3
    replica.foreign = 20
    assert replica.waiting == 16


@pytest.mark.parametrize(
    ("slots", "there", "asked", "fits"),
    [(4, 3, 1, True), (4, 3, 2, False), (4, 4, 1, False), (None, 0, 9, True), (None, 1, 1, False)],
)
def test_there_is_room_where_the_engine_can_begin_at_once(
    *, slots: int | None, there: int, asked: int, fits: bool
) -> None:
    """A prefill rate measured behind a queue would be the rate of the queue."""
    replica = a_replica(slots=slots)
    put_many(replica, there)
    assert replica.has_room_for(asked) is fits


# --- foreign load -----------------------------------------------------------------------------


def test_embeddings_of_ours_are_not_foreign_load() -> None:
    """The engine's gauges count them, the slots do not."""
    replica = a_replica(slots=4)
    put(replica, "e", sequences=3, output_tokens_max=0)
    for _ in range(3):
        report(replica, now=1.0, running=3, waiting=0)
    assert replica.foreign == 0
    assert replica.occupied == 0


def test_queued_foreign_requests_count_like_running_ones() -> None:
    """They stand before ours in the engine's queue."""
    replica = a_replica(slots=4)
    report(replica, running=4, waiting=3)
    assert replica.foreign == 7


def test_a_scrape_whose_instant_is_forgotten_says_nothing_of_foreign_load() -> None:
    """It would take all that ran then for somebody else's."""
    replica = a_replica(slots=4)
    for turn in range(2_100):
        put(replica, "a", at=10.0 + turn)
        replica.ledger.leave("a", 10.0 + turn)
    report(replica, now=3_000.0, sent_at=1.0, running=4, waiting=0)
    assert replica.foreign == 0
    report(replica, now=3_000.0, running=4, waiting=0)
    assert replica.foreign == 4


def stale(*foreign: int) -> Replica:
    """Scrapes saw these foreign loads one after the other, then came no more."""
    replica = a_replica(slots=100)
    for load in foreign:
        report(replica, running=load, waiting=0)
    replica.go_stale()
    return replica


def test_without_fresh_reports_the_usual_foreign_load_is_left_room_for() -> None:
    """Others go on using the engine while its metrics are down."""
    assert stale(0, 0, 0).foreign == 0
    assert stale(5).foreign == 5
    assert stale(*range(21)).foreign == 19
    assert stale(*([9] * 5), *([1] * FOREIGN_MEMORY)).foreign == 1
    assert a_replica().foreign == 0


def test_a_replica_that_never_reported_goes_stale_with_nothing_foreign() -> None:
    """Nothing was ever seen there."""
    replica = a_replica(slots=4)
    replica.go_stale()
    assert replica.foreign == 0
    assert replica.is_stale


def test_a_report_ends_the_staleness() -> None:
    """Metrics that come back are believed again."""
    replica = stale(9, 9, 9)
    report(replica, now=50.0, running=2, waiting=0)
    assert not replica.is_stale
    assert replica.foreign == 2
    assert (replica.reported_at, replica.fresh_until) == (50.0, 53.0)


def test_a_report_is_fresh_for_three_intervals() -> None:
    """A slow scraper must not be taken for a broken one."""
    replica = a_replica(slots=4)
    report(replica, now=5.0, interval_s=4.0, running=0, waiting=0)
    assert replica.fresh_until == 17.0
    assert a_replica().fresh_until == float("inf")


def test_an_engine_that_makes_steps_again_is_not_frozen() -> None:
    """Ten quiet seconds last week say nothing of now."""
    replica = a_replica(slots=4)
    for now, steps in ((0.0, 1.0), (9.0, 1.0), (9.5, 2.0), (19.0, 2.0)):
        report(replica, now=now, running=4, waiting=0, iterations=steps)
        assert replica.foreign == 4, now
    report(replica, now=19.5, running=4, waiting=0, iterations=2.0)
    assert replica.foreign == 0


@pytest.mark.parametrize("name", ["iterations", "prompt_tokens", "generation_tokens"])
def test_any_counter_that_moves_is_a_sign_of_life(name: str) -> None:
    """Not every engine counts its steps."""
    replica = a_replica(slots=4)
    for now in range(30):
        figures: dict[str, Any] = {name: float(now)}
        report(replica, now=float(now), running=4, waiting=0, **figures)
    assert replica.foreign == 4


def test_without_any_counter_gauges_are_believed() -> None:
    """An engine that counts nothing cannot be told from a frozen one, and others may use it."""
    replica = a_replica(slots=4)
    for now in range(30):
        report(replica, now=float(now), running=4, waiting=0)
    assert replica.foreign == 4


# --- whether it may be used, and what is forgotten --------------------------------------------


def test_each_state_that_keeps_a_replica_from_use_has_its_own_end() -> None:
    """A drained replica that comes back from an outage is still being drained."""
    replica = a_replica()
    replica.mark(lost=True, draining=True)
    replica.mark(lost=False)
    assert not replica.is_usable
    replica.mark(draining=False)
    assert replica.is_usable
    replica.mark(removed=True)
    replica.mark(lost=False, draining=False)
    assert not replica.is_usable


def test_a_class_is_served_by_its_own_replicas_while_they_are_usable() -> None:
    """Elsewhere the model is unknown, or the request has failed."""
    replica = a_replica("r")
    kinds = [
        Kind(frozenset(names), size=0, sequences=1, decodes=True) for names in (("r", "s"), ("s",))
    ]
    assert [replica.may_serve(kind) for kind in kinds] == [True, False]
    replica.mark(draining=True)
    assert not replica.may_serve(kinds[0])


def test_all_that_was_learnt_of_an_engine_is_forgotten_with_it() -> None:
    """The one that comes back may be another model on another card."""
    replica = a_replica()
    put(replica, "a", prompt_tokens=9_000)
    for now in (1.0, 2.0, 3.0):
        report(replica, now=now, round_trip_s=0.5, running=4, waiting=2, kv_use=0.5, slots=4,
               kv_capacity_tokens=9_000, itl_sum_s=now, itl_count=100 * now)  # fmt: skip
    replica.speed.take_first_token(replica.ledger.grants["a"], 9.0)
    replica.limit.busy(3)
    replica.go_stale()
    replica.forget()
    fresh = a_replica()
    for name in (
        "report reported_at fresh_until is_stale slots foreign "
        "kv_capacity_tokens kv_use_tokens_scraped ledger_kv_at_scrape "
        "round_trip_s warm_from warm_until"
    ).split():
        assert getattr(replica, name) == getattr(fresh, name), name
    assert replica.sightings.snapshot() == fresh.sightings.snapshot()
    assert replica.speed.snapshot(9.0) == fresh.speed.snapshot(9.0)
    assert replica.limit.limit == float("inf")
    assert list(replica.ledger.grants) == ["a"]
    replica.go_stale()
    assert replica.foreign == 0
    report(replica, now=10.0, itl_sum_s=9.0, itl_count=900.0)
    assert replica.speed.tpot_s is None
    assert replica.kv_tokens == replica.ledger.kv_tokens


def test_the_cache_of_an_engine_is_forgotten_with_it() -> None:
    """Its restart emptied it: prompts taken for cached would pass the prefill gate by the dozen."""
    replica = a_replica()
    replica.cache.sent((1, 2))
    replica.forget()
    assert replica.cache.cached_tokens((1, 2)) == 0
    assert replica.cache.limit == 100
