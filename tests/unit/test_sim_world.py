"""A simulated world: what dispatchers hear and when, what becomes of requests, and of machines."""

from math import inf, isnan

import pytest

from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Move, Refused, Sent, TakeBack, Wake
from gateway.sim.world.plan import Drain, Failure
from gateway.sim.world.play import World, play
from tests.support.worlds import HOP_S, STEP_MS, Jobs, Scripted, job, plan_of, statuses

STEP_S = STEP_MS / 1000


def test_a_request_takes_its_hops_and_its_steps() -> None:
    """All simulated latencies would be those of another world."""
    dispatch = Scripted()
    outcome = play(plan_of(), Jobs([job(0, at=1.0, output=5)]), dispatch)
    assert dispatch.at("arrived", 0) == 1.0
    assert dispatch.at("first", 0) == pytest.approx(1.0 + 2 * HOP_S + STEP_S)
    assert dispatch.at("ended", 0) == pytest.approx(1.0 + 2 * HOP_S + 5 * STEP_S)
    assert dispatch.told("ended", 0) == 5
    assert outcome.ttft_s(0) == pytest.approx(2 * HOP_S + STEP_S)
    assert outcome.tpot_s(0) == pytest.approx(STEP_S)
    assert (outcome.wait_s(0), outcome.attempts[0], outcome.replica[0]) == (0.0, 1, 0)


def test_one_that_is_refused_ends_at_once_and_never_runs() -> None:
    """A refusal would count as an answer, and goodput rise with every request turned away."""
    dispatch = Scripted({("arrived", 0): (Refused(0, 1.0, "full"),)})
    outcome = play(plan_of(), Jobs([job(0)]), dispatch)
    assert statuses(outcome.status) == ["REFUSED"]
    assert outcome.counters[0]["steps"] == 0
    assert outcome.ttft_s(0) == inf
    assert isnan(outcome.sent[0])


def test_what_no_engine_can_hold_is_counted_and_never_decided() -> None:
    """Long prompts of a trace would vanish, and the others look well served."""
    dispatch = Scripted()
    outcome = play(plan_of(kv_blocks=4), Jobs([job(0, prompt=100), job(1)]), dispatch)
    assert statuses(outcome.status) == ["TOO_LONG", "DONE"]
    assert dispatch.what("arrived") == [("arrived", 1)]


def test_a_client_that_leaves_frees_its_slot_and_keeps_what_it_has() -> None:
    """Cancelled work would go on and be charged to nobody."""
    jobs = [job(0, output=100, leaves_at=0.1), job(1, at=0.05, output=2)]
    dispatch = Scripted()
    outcome = play(plan_of(slots=1), Jobs(jobs), dispatch)
    assert statuses(outcome.status) == ["LEFT", "DONE"]
    assert outcome.output[0] == dispatch.told("left", 0) == 9
    assert 0.1 < outcome.first[1] < 0.1 + 3 * STEP_S


def test_a_client_that_had_all_does_not_leave() -> None:
    """Answers that were complete would be counted as given up."""
    outcome = play(plan_of(), Jobs([job(0, leaves_at=10.0)]), Scripted())
    assert statuses(outcome.status) == ["DONE"]


def test_a_closed_loop_asks_again_when_it_has_its_answer() -> None:
    """Power users in a loop would be open workloads, and never be slowed by their own load."""

    def again(ended: Job, at: float) -> Job | None:
        return job(ended.number + 1, at=at + 1.0) if ended.number < 2 else None

    outcome = play(plan_of(), Jobs([job(0)], then=again), Scripted())
    gaps = [outcome.arrived[row] - outcome.ended[row - 1] for row in (1, 2)]
    assert gaps == [pytest.approx(1.0)] * 2


def test_a_refused_client_in_a_loop_comes_back_when_it_was_told_to() -> None:
    """It would ask again at the same instant, for ever."""

    def again(ended: Job, at: float) -> Job | None:
        return job(ended.number + 1, at=at) if ended.number < 3 else None

    dispatch = Scripted({("arrived", 0): (Refused(0, 4.0),), ("arrived", 1): (Refused(1),)})
    outcome = play(plan_of(), Jobs([job(0)], then=again), dispatch)
    assert list(outcome.arrived)[:3] == [0.0, 4.0, 5.0]
    assert outcome.arrived[3] == outcome.ended[2]


def test_a_cut_run_leaves_open_what_is_open_with_what_it_has() -> None:
    """A run that is cut at its time limit would show only those that were quick."""
    jobs = [job(0, output=100), job(1, at=0.9, output=100)]
    outcome = play(plan_of(until_s=0.5), Jobs(jobs), Scripted())
    assert statuses(outcome.status) == ["OPEN"]
    assert outcome.output[0] == 49
    assert outcome.e2e_s(0) == inf


def test_a_later_wake_replaces_an_earlier_one() -> None:
    """Dispatchers that ask at every turn would be called ever more often."""
    dispatch = Scripted({("arrived", 0): (Wake(0.01), Wake(0.02)), ("tick", 0): (Sent(0, 0),)})
    play(plan_of(), Jobs([job(0)]), dispatch)
    assert [at for at, kind, _, _ in dispatch.heard if kind == "tick"] == [0.02]


def test_what_waits_in_an_engine_can_be_taken_back() -> None:
    """Recall and queued migration would be free, or do nothing."""
    dispatch = Scripted({("arrived", 2): (Sent(2, 0),), ("first", 0): (TakeBack(1),)})
    jobs = [job(0, output=50), job(1, at=0.001), job(2, at=0.002)]
    outcome = play(plan_of(2, slots=1), Jobs(jobs), dispatch)
    assert dispatch.what("taken_back", "too_late") == [("taken_back", 1)]
    assert list(outcome.replica) == [0, 1, 0]
    assert list(outcome.attempts) == [1, 2, 1]
    assert outcome.ended[1] < outcome.ended[0] < outcome.ended[2]


def test_what_has_begun_is_taken_back_only_where_that_is_wanted() -> None:
    """A recall would throw away what a client has already read."""
    dispatch = Scripted({("first", 0): (TakeBack(0),)})
    outcome = play(plan_of(2), Jobs([job(0)]), dispatch)
    assert dispatch.what("taken_back", "too_late") == [("too_late", 0)]
    dispatch = Scripted({("first", 0): (TakeBack(0, even_begun=True),)})
    outcome = play(plan_of(2), Jobs([job(0)]), dispatch)
    assert dispatch.told("taken_back", 0) == 1
    assert (outcome.replica[0], outcome.output[0]) == (1, 5)
    # What it had was computed again there, as part of the prompt.
    assert [each["prompt_tokens"] for each in outcome.counters] == [10, 11]
    assert outcome.counters[1]["generation_tokens"] == 4


def test_a_dead_replica_loses_all_and_answers_go_on_elsewhere() -> None:
    """Failover would cost nothing, and continuation could not be priced."""
    plan = plan_of(2, events=(Failure(replica=0, at=0.055, until=1.0),))
    dispatch = Scripted()
    jobs = [job(0, output=20), job(1, at=0.06, output=2), job(2, at=2.0, output=1)]
    outcome = play(plan, Jobs(jobs), dispatch)
    assert statuses(outcome.status) == ["DONE"] * 3
    assert dispatch.told("broke", 0) == (5, True, True)
    assert dispatch.told("broke", 1) == (0, False, True)
    assert outcome.counters[1]["prompt_tokens"] == 10 + 5 + 10
    assert list(outcome.output) == [20, 2, 1]
    assert list(outcome.replica) == [1, 1, 0]
    assert dispatch.what("lost", "back") == [("lost", 0), ("back", 0)]
    assert dispatch.at("lost", 0) == pytest.approx(0.555)
    assert outcome.first[0] < 0.055


def test_without_continuation_a_begun_answer_fails_and_one_that_waits_does_not() -> None:
    """The price of having no continuation could not be shown."""
    plan = plan_of(2, slots=1, is_continued=False, events=(Failure(replica=0, at=0.05),))
    dispatch = Scripted()
    outcome = play(plan, Jobs([job(0, output=20), job(1)]), dispatch)
    assert statuses(outcome.status) == ["FAILED", "DONE"]
    assert dispatch.told("broke", 0) == (4, True, False)
    assert outcome.output[0] == 4


def test_draining_is_told_at_its_beginning_and_its_end() -> None:
    """Rolling updates could not be simulated."""
    dispatch = Scripted()
    plan = plan_of(events=(Drain(replica=0, at=1.0, until=2.0),))
    play(plan, Jobs([job(0, at=3.0)]), dispatch)
    assert [(at, told) for at, kind, _, told in dispatch.heard if kind == "drained"] == [
        (1.0, True),
        (2.0, False),
    ]


def test_a_running_request_moves_with_its_kv_and_computes_nothing_twice() -> None:
    """Live migration would cost what continuation does, or nothing at all."""
    dispatch = Scripted({("first", 0): (Move(0, 1),)})
    plan = plan_of(2, migration_bytes_per_s=1e6, migration_pause_s=0.03)
    outcome = play(plan, Jobs([job(0, prompt=19, output=10)]), dispatch)
    assert dispatch.told("moved", 0) == (1, True)
    # 20 tokens of 1,000 bytes in 20 ms, while it ran on.
    assert dispatch.at("moved", 0) == pytest.approx(dispatch.at("first", 0) + 0.02 + 0.03)
    assert outcome.counters[1]["prompt_tokens"] == 0
    assert sum(each["generation_tokens"] for each in outcome.counters) == 10
    assert outcome.e2e_s(0) == pytest.approx(2 * HOP_S + 10 * STEP_S + 0.03, abs=STEP_S)
    assert dispatch.what("first") == [("first", 0)]


def test_a_move_to_a_full_replica_comes_to_nothing() -> None:
    """KV would appear where there is no room for it."""
    jobs = [job(0, output=30), job(1, output=30)]
    dispatch = Scripted({("arrived", 1): (Sent(1, 1),), ("first", 0): (Move(0, 1),)})
    outcome = play(plan_of(2, slots=1), Jobs(jobs), dispatch)
    assert dispatch.told("moved", 0) == (1, False)
    assert list(outcome.replica) == [0, 1]
    assert statuses(outcome.status) == ["DONE", "DONE"]


def test_one_that_waits_changes_queues_without_any_kv() -> None:
    """Llumnix would pay for moving what has no KV."""
    dispatch = Scripted({("first", 0): (Move(1, 1),)})
    outcome = play(plan_of(2, slots=1), Jobs([job(0, output=30), job(1)]), dispatch)
    assert dispatch.told("moved", 1) == (1, True)
    assert list(outcome.replica) == [0, 1]
    assert outcome.ended[1] < outcome.ended[0]


def test_a_move_that_overtakes_the_news_of_a_first_token_does_not_lose_it() -> None:
    """An answer that came would count as one that never began."""
    # The engine makes a token at 11 ms, of which the gateway hears at 12.
    dispatch = Scripted({("arrived", 1): (Sent(1, 1), Move(0, 1))})
    outcome = play(plan_of(2), Jobs([job(0, output=30), job(1, at=0.0115)]), dispatch)
    assert dispatch.told("moved", 0) == (1, True)
    assert outcome.ttft_s(0) == pytest.approx(2 * HOP_S + STEP_S)
    assert dispatch.what("first")[0] == ("first", 0)


def test_a_client_may_leave_in_the_middle_of_a_move() -> None:
    """A sequence of nobody would run on the new replica for ever."""
    dispatch = Scripted({("first", 0): (Move(0, 1),)})
    plan = plan_of(2, migration_bytes_per_s=1e9, migration_pause_s=0.5)
    world = World(plan, Jobs([job(0, output=50, leaves_at=0.2)]), dispatch)
    outcome = world.run()
    assert statuses(outcome.status) == ["LEFT"]
    assert [station.engine.running for station in world.stations] == [0, 0]
