"""What of an engine's doings speaks against it, and what becomes of those who wait for it."""

from typing import Any

import pytest

from gateway.core.breaker import BACKOFF_S, DRAIN_REST_S, SILENT, STALL_BACKOFF_S, Breaker
from gateway.core.health import PREFILLS, SILENT_S, expected_gap_s
from gateway.core.messages import Fault, Outcome, Reason, WakeWanted
from gateway.core.policy import Tier
from gateway.core.speed import PREFILL_TOKENS_PER_S
from gateway.core.vitality import TAKES_S
from tests.support.play import Play
from tests.support.script import one_tier

PATIENCE_S = 20.0


def play(*names: str, **knobs: Any) -> Play:
    """Replicas of four slots before one patient tier."""
    tiers = (Tier(name="only", queue_limit=4, patience_s=PATIENCE_S),)
    script = Play(one_tier(**{"tiers": tiers, "limiter": "static", "warm_up_s": 0.0, **knobs}))
    for name in names or ("r",):
        script.replica(name, slots=4)
    return script


def running(**request: Any) -> Play:
    """One stream that has begun, on an engine that counts."""
    script = play().arrive("a", **request).first_token("a")
    return counted(script, 10)


def counted(script: Play, tokens: int, **figures: Any) -> Play:
    """A scrape: so many tokens so far, and one sequence that runs."""
    given = {"running": 1, "waiting": 0, "generation_tokens": float(tokens), **figures}
    return script.report("r", **given)


def state(script: Play, name: str = "r") -> Breaker:
    """What the circuit of that replica does now."""
    return script.known(name).circuit.state(script.now)


def broken(script: Play, name: str, times: int = 5) -> Play:
    """Requests fail there until it is taken out."""
    for number in range(times):
        id = f"{name}-{number}"
        others = frozenset(script.scheduler.replicas) - {name}
        script.arrive(id, excluded=others).expect_granted(id, on=name).fail(id, Fault.BROKE_OFF)
    return script


# What is counted.


def test_a_replica_that_fails_again_and_again_gets_nothing_more() -> None:
    """Each further request would cost its client another detour."""
    script = broken(play("r", "s"), "r")
    assert (state(script), state(script, "s")) == (Breaker.OPEN, Breaker.CLOSED)
    script.arrive_many("q", 4)
    assert script.on("s") == ["q0", "q1", "q2", "q3"]
    assert script.on("r") == []


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.CANCELLED, Outcome.FAILED])
def test_an_end_without_a_fault_of_the_engines_is_not_counted(outcome: Outcome) -> None:
    """A client's 400s, departures and timeouts must not take a replica from all others."""
    script = play()
    for number in range(40):
        script.arrive(f"q{number}").finish(f"q{number}", outcome=outcome)
    assert state(script) is Breaker.CLOSED


def test_busy_is_not_counted() -> None:
    """It is backpressure, and has a rest of its own."""
    script = play().arrive("q")
    for _ in range(40):
        script.bounce("q").advance(0.5).expect_granted("q")
    assert state(script) is Breaker.CLOSED


def test_whoever_always_fails_does_not_take_the_engine_from_those_it_serves() -> None:
    """One user's poisonous request, sent a hundred times, would be everybody's outage."""
    script = play()
    for number in range(100):
        script.advance(0.5).arrive(f"good{number}").first_token(f"good{number}")
        for each in range(3):
            script.arrive(f"bad{number}-{each}").fail(f"bad{number}-{each}", Fault.SERVER_ERROR)
        assert state(script) is Breaker.CLOSED
        script.finish(f"good{number}", outcome=Outcome.CANCELLED)


def test_an_engine_that_began_with_nobody_lately_is_at_fault_itself() -> None:
    """vLLM's server goes on answering 500 when the engine behind it is dead."""
    script = play().arrive("good").first_token("good").advance(TAKES_S)
    for number in range(5):
        script.arrive(f"q{number}").fail(f"q{number}", Fault.SERVER_ERROR)
    assert (state(script), script.known().circuit.reason) == (Breaker.OPEN, "server_error")


def test_an_error_after_the_first_token_is_the_engines() -> None:
    """EngineCore dies: each stream gets an error event, and each had begun."""
    script = play()
    for number in range(5):
        id = f"q{number}"
        script.arrive(id).first_token(id).fail(id, Fault.SERVER_ERROR)
    assert state(script) is Breaker.OPEN


def test_plain_answers_show_that_an_engine_takes_requests() -> None:
    """Embeddings and plain completions have no first token."""
    script = play()
    for number in range(20):
        script.arrive(f"g{number}", streams=False).finish(f"g{number}")
        for each in range(4):
            script.arrive(f"b{number}-{each}").fail(f"b{number}-{each}", Fault.SERVER_ERROR)
    assert state(script) is Breaker.CLOSED


# What becomes of those who wait.


def test_what_waits_for_a_replica_that_was_taken_out_goes_when_it_has_rested() -> None:
    """An instant 503 would be wrong: it may be back in two seconds."""
    script = broken(play(), "r").arrive_many("q", 3).expect_waiting("q0", "q1", "q2")
    script.advance(BACKOFF_S - 0.01).expect_waiting("q0")
    script.advance(0.02).expect_granted("q0").expect_waiting("q1", "q2")
    script.advance(5.0).expect_waiting("q1", "q2")
    script.first_token("q0").expect_granted("q1", "q2")


def test_a_trial_that_fails_lets_the_next_try_after_a_longer_rest() -> None:
    """Nobody is refused meanwhile, and nobody else is put there."""
    elsewhere = frozenset({"s"})
    script = broken(play("r", "s"), "r")
    script.arrive("q0", excluded=elsewhere).arrive("q1", excluded=elsewhere).advance(BACKOFF_S)
    script.expect_granted("q0").fail("q0", Fault.BROKE_OFF).expect_waiting("q1")
    script.advance(2 * BACKOFF_S - 0.01).expect_waiting("q1").advance(0.02).expect_granted("q1")


@pytest.mark.parametrize("fault", [Fault.BROKE_OFF, Fault.STALLED, Fault.DRAINING])
def test_where_nobody_could_take_over_no_rest_is_long(fault: Fault) -> None:
    """The only engine came back after three seconds, and was not asked for five minutes."""
    script = broken(play(), "r").arrive("q")
    for _ in range(6):
        script.advance(BACKOFF_S + 0.01).expect_granted("q").fail("q", fault)
        script.arrive("q").expect_waiting("q")


def test_those_that_rest_are_asked_soon_once_the_last_one_rests_too() -> None:
    """And once the last one is drained, or gone."""
    for go in (Play.lose, Play.drain):
        script = play("r", "s").arrive("q", excluded=frozenset({"s"})).fail("q", Fault.DRAINING)
        assert script.known("r").circuit.until == script.now + DRAIN_REST_S
        go(script, "s")
        assert script.known("r").circuit.until == script.now + BACKOFF_S


def test_whose_patience_ends_first_is_told_so() -> None:
    """It waits as for any full fleet, and no longer."""
    elsewhere = frozenset({"s"})
    script = play("r", "s").arrive("a", excluded=elsewhere).fail("a", Fault.STALLED)
    script.arrive("q", excluded=elsewhere, patience_s=STALL_BACKOFF_S / 2)
    script.advance(STALL_BACKOFF_S / 2 + 0.1)
    script.expect_refused("q", reason=Reason.PATIENCE_SPENT)


@pytest.mark.parametrize("end", ["cancelled", "bounced", "recalled", "rejected"])
def test_a_trial_that_shows_nothing_makes_way_for_the_next(end: str) -> None:
    """A client that leaves would take the only chance of the replica with it."""
    script = broken(play(), "r").arrive_many("q", 2).advance(BACKOFF_S).expect_granted("q0")
    if end == "cancelled":
        script.finish("q0", outcome=Outcome.CANCELLED).expect_granted("q1")
    elif end == "rejected":
        script.finish("q0", outcome=Outcome.REJECTED).expect_granted("q1")
    elif end == "bounced":
        script.bounce("q0").advance(1.0).expect_granted("q0").expect_waiting("q1")
    else:
        script.give_back("q0").expect_granted("q0").expect_waiting("q1")


def test_a_trial_that_is_answered_at_once_closes_it_for_a_while() -> None:
    """Plain answers have no first token; the next rest is longer all the same."""
    elsewhere = frozenset({"s"})
    script = broken(play("r", "s"), "r").advance(BACKOFF_S)
    script.arrive("plain", streams=False, excluded=elsewhere).expect_granted("plain", on="r")
    assert state(script.finish("plain")) is Breaker.CLOSED
    script.arrive("q", excluded=elsewhere).fail("q", Fault.REFUSED)
    assert script.known().circuit.until == script.now + 2 * BACKOFF_S


def test_what_needs_no_slot_waits_for_the_trial_too() -> None:
    """Embeddings go round the gates, and would go round the breaker."""
    script = broken(play(), "r")
    for number in range(3):
        script.arrive(f"e{number}", output_tokens_max=0).expect_waiting(f"e{number}")
    script.advance(BACKOFF_S + 0.01).expect_granted("e0").expect_waiting("e1", "e2")
    script.finish("e0").expect_granted("e1", "e2")


def test_the_contrast_knows_no_breaker() -> None:
    """`--policy fifo` forwards everything at once."""
    script = play(release_at_once=True).arrive("a").fail("a", Fault.REFUSED)
    script.arrive("b").expect_granted("b")


def test_one_that_failed_everywhere_is_refused_and_waits_for_nobody() -> None:
    """Its last replica is excluded: it would wait for its patience to end."""
    script = play("r", "s").arrive("q", excluded=frozenset({"r", "s"}))
    script.expect_refused("q", reason=Reason.NO_REPLICA)


# An engine that leaves, or is gone.


def test_an_engine_that_leaves_keeps_what_runs_and_gets_nothing_new() -> None:
    """vLLM with a shutdown timeout finishes its streams: cutting them off would lose them."""
    script = play("r", "s").arrive("old", excluded=frozenset({"s"})).first_token("old")
    script.arrive("q", excluded=frozenset({"s"})).fail("q", Fault.DRAINING)
    script.arrive_many("n", 4).advance(DRAIN_REST_S - 1.0).expect_granted("old", on="r")
    assert script.on("r") == ["old"]
    script.finish("old").arrive("late")
    assert script.on("r") == []


def test_a_restarted_engine_is_used_at_once() -> None:
    """Its counters begin again: a deployment must not cost half a minute of every replica."""
    elsewhere = frozenset({"s"})
    script = counted(play("r", "s"), 100).arrive("q", excluded=elsewhere)
    script.fail("q", Fault.DRAINING).advance(5.0)
    counted(script, 110).arrive("n", excluded=elsewhere).expect_waiting("n")
    counted(script, 3, running=0).expect_granted("n")


def test_where_nobody_listens_nothing_more_is_sent_until_the_probe_gets_through() -> None:
    """Of sixty that wait each would be refused there once."""
    script = play("r", "s").refuse_connections("r").arrive_many("q", 4)
    assert script.on("r") == []
    script.report("r", running=0, waiting=0).arrive("one").arrive("two")
    assert script.on("r") == ["one"]
    script.first_token("one").arrive("three")
    assert script.on("r") == ["one", "three"]


def test_one_that_is_refused_again_and_again_rests_no_longer() -> None:
    """The probe asks every second: an engine that was restarted would be left out for long."""
    script = play("r", "s").refuse_connections("r")
    until = script.known().circuit.until
    assert until == script.now + BACKOFF_S
    script.advance(1.0).refuse_connections("r").advance(BACKOFF_S).refuse_connections("r")
    assert script.known().circuit.until == until


def test_refusals_of_an_unknown_or_lost_replica_are_no_news() -> None:
    """A replica that starts is refused once a second until it is up."""
    script = play("r", "s").refuse_connections("never").lose("r").refuse_connections("r")
    script.advance(1.0).replica("r", slots=4).arrive("q", excluded=frozenset({"s"}))
    script.expect_granted("q", on="r")


def test_what_the_engine_before_owed_is_not_held_against_the_new_one() -> None:
    """Streams of a killed engine are given up seconds later, when another one is up."""
    script = play().arrive_many("old", 3).first_token("old0", "old1", "old2").lose("r")
    script.advance(1.0).fail("old0", Fault.STALLED).replica("r", slots=4)
    script.fail("old1", Fault.STALLED).fail("old2", Fault.BROKE_OFF)
    assert state(script) is Breaker.CLOSED
    script.arrive("n").expect_granted("n").fail("n", Fault.STALLED)
    assert state(script) is Breaker.OPEN


@pytest.mark.parametrize("whose", ["probe", "request"])
def test_what_was_sent_before_a_refusal_is_not_held_against_who_listens_again(whose: str) -> None:
    """The same, where the probe or a request met one refusal and there was no loss."""
    script = play().arrive("old").first_token("old").advance(1.0)
    if whose == "probe":
        script.refuse_connections("r")
    else:
        script.arrive("refused").fail("refused", Fault.REFUSED)
    script.report("r", running=0, waiting=0, generation_tokens=1.0)
    script.arrive("n").first_token("n").fail("old", Fault.STALLED)
    assert state(script) is Breaker.CLOSED


def test_a_replica_that_comes_and_goes_rests_before_it_is_used() -> None:
    """Every time it is found it would be given four requests to lose."""
    script = play("r", "s").lose("r").advance(5.0).replica("r", slots=4)
    assert state(script) is Breaker.CLOSED
    script.lose("r").advance(5.0).replica("r", slots=4)
    assert (state(script), script.known().circuit.reason) == (Breaker.OPEN, "flapping")
    script.arrive_many("q", 4).advance(BACKOFF_S).arrive_many("n", 2)
    assert script.on("r") == ["n0"]


# The silence of a whole engine.


def test_an_engine_that_works_at_something_and_makes_nothing_gets_nothing_more() -> None:
    """SIGSTOP of the engine core: `/health` and `/metrics` answer as if nothing were."""
    script = running().advance(SILENT_S - 0.5)
    counted(script, 10)
    assert state(script) is Breaker.CLOSED
    script.advance(0.5)
    counted(script, 10).arrive("q").expect_waiting("q")
    assert (state(script), script.known().circuit.reason) == (Breaker.OPEN, SILENT)


@pytest.mark.parametrize("sign", ["counters", "first token", "data"])
def test_the_first_sign_of_life_brings_it_back(sign: str) -> None:
    """SIGCONT: what waits should not wait for longer than that."""
    script = running(prompt_tokens=10).arrive("b").advance(SILENT_S)
    counted(script, 10).arrive("q").expect_waiting("q").advance(1.0)
    if sign == "counters":
        counted(script, 11)
    elif sign == "data":
        script.progress("r", script.now - 0.1, a=5)
    else:
        script.first_token("b")
    script.expect_granted("q")


@pytest.mark.parametrize("sign", ["counters", "first token", "data"])
def test_one_that_stops_again_soon_after_is_left_alone_for_longer(sign: str) -> None:
    """Its streams wait for it each time, and those that were put there since."""
    elsewhere = frozenset({"s"})
    script = play("r", "s").arrive("a", excluded=elsewhere).first_token("a")
    counted(script, 10).arrive("b", excluded=elsewhere).advance(SILENT_S)
    assert state(counted(script, 10)) is Breaker.OPEN
    tokens = 11 if sign == "counters" else 10
    if sign == "counters":
        counted(script, tokens)
    elif sign == "data":
        script.progress("r", script.now, a=5)
    else:
        script.first_token("b")
    assert state(script) is Breaker.CLOSED
    script.advance(SILENT_S)
    assert state(counted(script, tokens)) is Breaker.OPEN
    assert script.known().circuit.until == script.now + 2 * STALL_BACKOFF_S


def test_progress_that_is_no_news_is_no_sign_of_life() -> None:
    """The walk tells the same tokens every second, whether there are new ones or not."""
    script = running().progress("r", 0.5, a=5).advance(SILENT_S + 0.5)
    counted(script, 10).progress("r", 0.5, a=5).arrive("q").expect_waiting("q")


def test_output_of_any_stream_is_life_though_no_counter_grows() -> None:
    """Gauges and counters can be stale where an engine's statistics come late."""
    script = running()
    for _ in range(10):
        script.advance(1.0).progress("r", script.now - 0.1, a=5)
        counted(script, 10)
    assert state(script) is Breaker.CLOSED


def test_a_long_prompt_is_computed_in_silence() -> None:
    """80,000 tokens at 8,000 a second: nothing is counted before the end of a step."""
    script = running().arrive("long", prompt_tokens=80_000)
    expected_s = PREFILLS * 80_000 / PREFILL_TOKENS_PER_S
    assert expected_gap_s(script.known()) == pytest.approx(expected_s)
    script.advance(expected_s - 1.0)
    assert state(counted(script, 10)) is Breaker.CLOSED
    script.advance(2.0)
    assert state(counted(script, 10)) is Breaker.OPEN


def test_a_slow_engine_is_given_three_of_its_steps() -> None:
    """One that takes two seconds a token is slow, and not dead."""
    script = running()
    script.known().speed.take_tpot(2.0, 1, script.now)
    assert expected_gap_s(script.known()) == 6.0


def test_an_idle_engine_is_not_silent() -> None:
    """It makes no step, so its counters stand for hours."""
    script = counted(play(), 10, running=0).advance(60.0)
    counted(script, 10, running=0).arrive("q").expect_granted("q").advance(1.0)
    assert state(counted(script, 10, running=0)) is Breaker.CLOSED
    assert state(counted(script, 10)) is Breaker.CLOSED


def test_a_stream_that_its_reader_holds_up_does_not_make_its_engine_silent() -> None:
    """The engine has finished; one slow reader would keep a replica from everybody."""
    script = running().advance(60.0)
    for _ in range(2):
        assert state(counted(script, 10, running=0)) is Breaker.CLOSED
        script.advance(SILENT_S)


def test_an_engine_in_which_all_wait_and_nothing_runs_is_silent() -> None:
    """Its scheduler has stopped: what it had begun with was preempted, and stays so."""
    script = counted(running(), 10, running=0, waiting=1).advance(SILENT_S)
    assert state(counted(script, 10, running=0, waiting=1)) is Breaker.OPEN


def test_an_engine_that_shows_nothing_and_begins_with_nothing_is_silent() -> None:
    """Stopped while it was idle, its gauges read zero for ever."""
    script = counted(play(), 10, running=0).arrive("a").advance(SILENT_S)
    assert state(counted(script, 10, running=0)) is Breaker.OPEN


def test_preempted_streams_do_not_make_an_engine_silent_while_it_counts() -> None:
    """It works for another one meanwhile."""
    script = running()
    for tokens in range(11, 40):
        script.advance(1.0)
        counted(script, tokens)
    assert state(script) is Breaker.CLOSED
    script.advance(1.0)
    assert state(counted(script, tokens)) is Breaker.CLOSED


def test_without_counters_nothing_is_known_of_silence() -> None:
    """llama.cpp reports gauges alone; its streams are given up one by one."""
    script = play().arrive("a").first_token("a")
    for _ in range(30):
        script.advance(1.0).report("r", running=1, waiting=0)
    assert state(script) is Breaker.CLOSED


def test_a_late_scrape_does_not_accuse() -> None:
    """Asked before the request was sent, it cannot testify against the engine."""
    script = counted(play(), 10, running=0).advance(60.0).arrive("a").advance(SILENT_S + 1.0)
    script.report("r", sent_at=script.now - 3.0, running=1, waiting=0, generation_tokens=10.0)
    assert state(script) is Breaker.CLOSED


def test_a_silent_engine_is_tried_now_and_then_all_the_same() -> None:
    """A gate that sticks is worse than a request that is tried twice."""
    script = running(patience_s=1.0).advance(SILENT_S)
    counted(script, 10).advance(STALL_BACKOFF_S)
    assert state(counted(script, 10)) is Breaker.HALF_OPEN
    script.arrive("q").expect_granted("q")


def test_an_open_circuit_asks_to_be_woken() -> None:
    """With nothing else going on nobody would look whether it may try."""
    script = play().arrive("a").fail("a", Fault.REFUSED)
    wakes = [each.at for each in script.log[-1][2] if isinstance(each, WakeWanted)]
    assert wakes == [script.now + BACKOFF_S]
