"""The circuit of one replica: what opens it, for how long, and who may try whether it closes."""

import json

import pytest

from gateway.core.breaker import (
    BACKOFF_MAX_S,
    BACKOFF_S,
    DRAIN_REST_S,
    FLAPPING,
    SILENT,
    STALL_BACKOFF_MAX_S,
    STALL_BACKOFF_S,
    STEADY_S,
    STUCK_TO_TRIP,
    STUCK_WITHIN_S,
    TRIP_FAILURES,
    TRIP_SHARE,
    WEIGHTS,
    WINDOW,
    Breaker,
    Circuit,
)
from gateway.core.messages import Fault

START_S = 100.0


def failed(fault: Fault = Fault.SERVER_ERROR, *, times: int = TRIP_FAILURES) -> Circuit:
    """A circuit after so many failures at once."""
    circuit = Circuit()
    for number in range(times):
        circuit.failed(f"f{number}", fault, START_S)
    return circuit


def opened() -> Circuit:
    """A circuit that has just opened."""
    circuit = failed()
    assert circuit.state(START_S) is Breaker.OPEN
    return circuit


def tried(circuit: Circuit, now: float, id: str = "trial") -> Circuit:
    """The same with its trial under way."""
    assert circuit.state(now) is Breaker.HALF_OPEN
    circuit.sent(id, now)
    assert circuit.trial == id
    return circuit


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (Fault.REFUSED, 1),
        (Fault.STALLED, 1),
        (Fault.CONNECT, 3),
        (Fault.SERVER_ERROR, 5),
        (Fault.BROKE_OFF, 5),
    ],
)
def test_it_opens_after_as_many_failures_in_a_row_as_their_cost_allows(
    fault: Fault, times: int
) -> None:
    """Where nobody listens the second request would fail too; one odd answer says little."""
    assert failed(fault, times=times - 1).lets(START_S)
    circuit = failed(fault, times=times)
    assert not circuit.lets(START_S)
    assert (circuit.reason, circuit.state(START_S)) == (fault.value, Breaker.OPEN)
    assert set(WEIGHTS) == set(Fault) - {Fault.DRAINING, Fault.STUCK}


def test_a_success_between_makes_no_row() -> None:
    """One failure in three is bad, and yet the other two are served."""
    circuit = Circuit()
    for turn in range(40):
        for number in range(TRIP_FAILURES - 1):
            circuit.failed(f"{turn}-{number}", Fault.BROKE_OFF, START_S)
            circuit.succeeded("good", START_S)
            circuit.succeeded("better", START_S)
        assert circuit.lets(START_S)


def test_after_a_success_the_row_begins_anew() -> None:
    """It would open sooner on an engine that serves than on one of which nothing is known."""
    circuit = Circuit()
    assert not circuit.succeeded("good", START_S)
    for number in range(TRIP_FAILURES - 1):
        assert not circuit.failed(f"f{number}", Fault.BROKE_OFF, START_S)
    assert circuit.failed("last", Fault.BROKE_OFF, START_S)


def test_half_of_the_last_ends_open_it_though_none_are_in_a_row() -> None:
    """An engine that fails every other request would never be seen to fail five in a row."""
    circuit = Circuit()
    for number in range(int(WINDOW * TRIP_SHARE) - 1):
        circuit.failed(f"f{number}", Fault.BROKE_OFF, START_S)
        circuit.succeeded(f"s{number}", START_S)
    assert circuit.lets(START_S)
    circuit.failed("last", Fault.BROKE_OFF, START_S)
    assert not circuit.lets(START_S)


def test_old_ends_are_forgotten_by_the_share() -> None:
    """Failures of last month must not add up."""
    circuit = Circuit()
    for number in range(100):
        circuit.failed(f"f{number}", Fault.BROKE_OFF, START_S)
        for _ in range(2):
            circuit.succeeded("s", START_S)
    assert circuit.lets(START_S)


def test_it_stays_open_for_its_rest_and_then_lets_one_pass() -> None:
    """Single flight: a crowd on an engine that is still broken would fail as a crowd."""
    circuit = opened()
    assert not circuit.lets(START_S + BACKOFF_S - 0.01)
    now = START_S + BACKOFF_S
    assert (circuit.until, circuit.state(now), circuit.lets(now)) == (now, Breaker.HALF_OPEN, True)
    tried(circuit, now)
    assert not circuit.lets(now + 1e6)
    circuit.sent("another", now)
    assert circuit.trial == "trial"


def test_a_trial_that_begins_closes_it_and_the_next_failure_opens_it_again() -> None:
    """A long answer must not keep a good replica from all others; one token proves little."""
    circuit = tried(opened(), START_S + 10.0)
    assert circuit.began("trial", START_S + 10.0)
    assert (circuit.state(START_S + 10.0), circuit.reason, circuit.trial) == (
        Breaker.CLOSED, None, None,
    )  # fmt: skip
    assert circuit.failed("next", Fault.BROKE_OFF, START_S + 11.0)


def test_a_trial_that_ends_well_closes_it_for_good() -> None:
    """What works again is treated as what always worked."""
    circuit = tried(opened(), START_S + 10.0)
    assert circuit.succeeded("trial", START_S + 12.0)
    for number in range(TRIP_FAILURES - 1):
        assert not circuit.failed(f"f{number}", Fault.BROKE_OFF, START_S + 13.0)


def test_a_success_after_a_trial_that_began_ends_the_probation() -> None:
    """The trial itself may still run when others have been served."""
    circuit = tried(opened(), START_S + 10.0)
    circuit.began("trial", START_S + 10.0)
    circuit.succeeded("other", START_S + 11.0)
    assert not circuit.failed("next", Fault.BROKE_OFF, START_S + 12.0)


def test_a_trial_that_fails_opens_it_for_longer_each_time_up_to_a_bound() -> None:
    """An engine that is down for an hour must not cost a request every two seconds."""
    circuit, rests = opened(), []
    for number in range(8):
        now = circuit.until
        assert tried(circuit, now, f"t{number}").failed(f"t{number}", Fault.BROKE_OFF, now)
        rests.append(circuit.until - now)
    assert rests == [4.0, 8.0, 16.0, *[BACKOFF_MAX_S] * 5]


def test_after_a_steady_while_the_first_rest_is_short_again() -> None:
    """One bad morning must not be held against an engine in the evening."""
    for steady_s, rest_s in ((STEADY_S - 1.0, 2 * BACKOFF_S), (STEADY_S, BACKOFF_S)):
        circuit = tried(opened(), START_S + 10.0)
        circuit.succeeded("trial", START_S + 10.0)
        now = START_S + 10.0 + steady_s
        circuit.failed("f", Fault.REFUSED, now)
        assert circuit.until == now + rest_s


def test_a_trial_that_leaves_without_a_verdict_makes_way_for_another() -> None:
    """Its client left, or it was at fault itself: with its place kept the circuit never closes."""
    circuit = tried(opened(), START_S + 10.0)
    circuit.left("somebody")
    assert not circuit.lets(START_S + 10.0)
    circuit.left("trial")
    assert circuit.lets(START_S + 10.0)


def test_what_was_there_before_it_opened_neither_closes_nor_lengthens_it() -> None:
    """Thirty streams that break at once are one fault, and one that ends well is none of now."""
    circuit = opened()
    until = circuit.until
    assert not circuit.failed("old", Fault.BROKE_OFF, START_S + 1.0)
    assert not circuit.began("old", START_S + 1.0)
    assert not circuit.succeeded("old", START_S + 1.0)
    assert (circuit.until, circuit.state(START_S + 1.0)) == (until, Breaker.OPEN)


def test_an_engine_that_leaves_is_left_alone_at_its_first_word() -> None:
    """vLLM with a shutdown timeout answers 500 to all that is new, and finishes what runs."""
    circuit = failed(Fault.DRAINING, times=1)
    assert (circuit.reason, circuit.until) == ("draining", START_S + DRAIN_REST_S)
    circuit.failed("another", Fault.DRAINING, START_S + 5.0)
    circuit.succeeded("old stream", START_S + 6.0)
    assert circuit.until == START_S + DRAIN_REST_S
    assert circuit.state(START_S + 6.0) is Breaker.OPEN


def test_one_request_finds_out_whether_it_has_left() -> None:
    """Started anew behind a balancer it may never have been seen to be away."""
    now = START_S + DRAIN_REST_S
    circuit = tried(failed(Fault.DRAINING, times=1), now)
    circuit.failed("trial", Fault.DRAINING, now)
    assert circuit.until == now + DRAIN_REST_S
    circuit = tried(failed(Fault.DRAINING, times=1), now)
    circuit.began("trial", now)
    for number in range(TRIP_FAILURES - 1):
        assert not circuit.failed(f"f{number}", Fault.BROKE_OFF, now)


@pytest.mark.parametrize("reason", [SILENT, "stalled"])
def test_the_first_sign_of_life_ends_a_standstill(reason: str) -> None:
    """SIGCONT: an engine that works again must not wait for half a minute to be used."""
    circuit = Circuit()
    if reason == SILENT:
        assert circuit.fell_silent(START_S)
        assert not circuit.fell_silent(START_S)
    else:
        circuit.failed("a", Fault.STALLED, START_S)
    assert (circuit.reason, circuit.until) == (reason, START_S + STALL_BACKOFF_S)
    assert circuit.spoke(START_S + 1.0)
    assert circuit.lets(START_S + 1.0)
    assert not circuit.spoke(START_S + 1.0)


def test_a_first_token_of_anybody_ends_a_standstill() -> None:
    """It is the same sign, and comes before any scrape."""
    circuit = failed(Fault.STALLED, times=1)
    assert circuit.began("old", START_S + 1.0)


def test_output_of_old_streams_does_not_close_what_opened_for_other_reasons() -> None:
    """A vLLM that drains goes on with its streams for half a minute."""
    circuit = opened()
    assert not circuit.spoke(START_S + 1.0)
    assert not circuit.lets(START_S + 1.0)


@pytest.mark.parametrize("end", ["spoke", "started anew", "lost"])
def test_however_it_was_closed_the_next_rest_is_longer_for_a_while(end: str) -> None:
    """An engine that stops every minute is tried more and more seldom."""
    for steady_s, rest_s in ((STEADY_S - 1.0, 2 * STALL_BACKOFF_S), (STEADY_S, STALL_BACKOFF_S)):
        circuit, now = failed(Fault.STALLED, times=1), START_S + 5.0
        if end == "spoke":
            assert circuit.spoke(now)
        elif end == "lost":
            circuit.lost(now)
        else:
            assert circuit.answered(now, is_new=True)
        now += steady_s
        assert circuit.failed("next", Fault.STALLED, now)
        assert circuit.until == now + rest_s


def test_a_trial_on_an_engine_that_stands_still_is_rare() -> None:
    """It costs its request seconds, not milliseconds."""
    circuit, rests = failed(Fault.STALLED, times=1), []
    for number in range(5):
        now = circuit.until
        tried(circuit, now, f"t{number}").failed(f"t{number}", Fault.STALLED, now)
        rests.append(circuit.until - now)
    assert rests == [20.0, 40.0, 80.0, 160.0, STALL_BACKOFF_MAX_S]


@pytest.mark.parametrize("fault", list(Fault))
def test_an_engine_that_was_started_anew_is_a_new_one(fault: Fault) -> None:
    """Its counters began again: what the old one did is not its fault."""
    circuit = failed(fault)
    assert circuit.answered(START_S + 1.0, is_new=True)
    assert circuit.lets(START_S + 1.0)
    assert not circuit.answered(START_S + 1.0, is_new=True)


def test_where_somebody_listens_again_one_request_may_try_at_once() -> None:
    """The probe got through: a rest would be for nothing."""
    circuit = failed(Fault.REFUSED, times=1)
    assert circuit.answered(START_S + 0.5, is_new=False)
    assert circuit.state(START_S + 0.5) is Breaker.HALF_OPEN
    circuit = failed(Fault.BROKE_OFF)
    assert not circuit.answered(START_S + 0.5, is_new=False)
    assert circuit.state(START_S + 0.5) is Breaker.OPEN


def test_one_that_comes_and_goes_rests_longer_each_time() -> None:
    """Each time it comes it gets requests, and each time it goes they break."""
    circuit, rests, now = Circuit(), [], START_S
    for _ in range(7):
        circuit.lost(now)
        assert circuit.found(now + 1.0) is (now > START_S)
        rests.append(circuit.until - now - 1.0 if circuit.reason == FLAPPING else 0.0)
        now += STEADY_S - 1.0
    assert rests == [0.0, 2.0, 4.0, 8.0, 16.0, BACKOFF_MAX_S, BACKOFF_MAX_S]


def test_one_that_goes_seldom_does_not_rest() -> None:
    """A rolling update a day is no flapping."""
    for every_s in (86_400.0, STEADY_S):
        circuit = Circuit()
        for number in range(1, 5):
            circuit.lost(number * every_s)
            assert not circuit.found(number * every_s + 40.0)


def test_one_that_stayed_away_long_does_not_rest() -> None:
    """It was repaired meanwhile."""
    circuit = Circuit()
    for at in (START_S, START_S + 10.0):
        circuit.lost(at)
    assert not circuit.found(START_S + 10.0 + STEADY_S)


def test_a_rest_that_is_short_anyway_is_not_made_longer() -> None:
    """Where nobody could take over all would wait for it anew at each look."""
    circuit = opened()
    for since_s in (0.0, 1.0):
        assert not circuit.rest_briefly(START_S + since_s)
    assert circuit.until == START_S + BACKOFF_S
    assert not Circuit().rest_briefly(START_S)


def test_being_lost_ends_what_it_was_open_for() -> None:
    """The probe decides from then on: what is found again is tried at once."""
    circuit = tried(opened(), START_S + 10.0)
    circuit.lost(START_S + 11.0)
    assert not circuit.found(START_S + 12.0)
    assert (circuit.reason, circuit.trial, circuit.lets(START_S + 12.0)) == (None, None, True)


def test_flapping_is_ended_by_a_trial_alone() -> None:
    """New counters are what one expects of an engine that crashes and starts again."""
    circuit = Circuit()
    for at in (START_S, START_S + 10.0):
        circuit.lost(at)
        circuit.found(at + 1.0)
    assert circuit.reason == FLAPPING
    assert not circuit.answered(START_S + 12.0, is_new=True)
    tried(circuit, circuit.until)
    assert circuit.succeeded("trial", circuit.until)


def test_what_was_counted_travels() -> None:
    """A gateway that was restarted would send a crowd to an engine that is down."""
    circuit = tried(opened(), START_S + 10.0)
    circuit.failed("trial", Fault.CONNECT, START_S + 10.0)
    circuit.lost(START_S + 11.0)
    circuit.lost(START_S + 12.0)
    circuit.found(START_S + 13.0)
    other = Circuit()
    other.restore(circuit.snapshot(START_S + 14.0), 14.0)
    assert other.snapshot(14.0) == circuit.snapshot(START_S + 14.0)
    assert (other.reason, other.until) == (FLAPPING, circuit.until - START_S)
    assert other.lost_at == 12.0
    fresh = Circuit()
    fresh.restore(json.loads(json.dumps(Circuit().snapshot(3.0), allow_nan=False)), 5.0)
    assert fresh.state(5.0) is Breaker.CLOSED


def test_how_long_it_has_been_steady_travels() -> None:
    """After a restart of the gateway an engine that fails all day would be tried as at first."""
    circuit, other = failed(Fault.STALLED, times=1), Circuit()
    circuit.spoke(START_S + 1.0)
    other.restore(circuit.snapshot(START_S + 2.0), 2.0)
    other.failed("next", Fault.STALLED, STEADY_S)
    assert other.until == STEADY_S + 2 * STALL_BACKOFF_S


def stuck_at(*instants: float) -> Circuit:
    """A circuit whose engine forgot a request at each of these, and served others between."""
    circuit = Circuit()
    for number, instant in enumerate(instants):
        circuit.failed(f"s{number}", Fault.STUCK, instant)
        circuit.succeeded(f"w{number}", instant)
    return circuit


def test_an_engine_that_forgets_one_request_after_another_is_left_though_it_serves_others() -> None:
    """Half of a data-parallel engine stands still, and the other half makes it look well."""
    spread_s = STUCK_WITHIN_S / (STUCK_TO_TRIP - 1)
    instants = [START_S + number * spread_s for number in range(STUCK_TO_TRIP)]
    assert stuck_at(*instants[:-1]).reason is None
    assert not Circuit().failed("first", Fault.STUCK, START_S)
    circuit = stuck_at(*instants)
    assert circuit.reason == Fault.STUCK
    assert circuit.until == instants[-1] + STALL_BACKOFF_S
    assert stuck_at(*instants[:-1], instants[-1] + 0.1).reason is None


def test_an_accident_of_long_ago_does_not_hide_what_is_forgotten_now() -> None:
    """Only the last ones count: the first of a month would be too old for ever."""
    now = START_S + 10 * STUCK_WITHIN_S
    assert stuck_at(START_S, *[now] * (STUCK_TO_TRIP - 1)).reason is None
    assert stuck_at(START_S, *[now] * STUCK_TO_TRIP).reason == Fault.STUCK


def test_output_of_others_does_not_excuse_an_engine_that_forgets_requests() -> None:
    """They spoke all the time; only one that is tried shows that new ones are served."""
    circuit = stuck_at(*[START_S] * STUCK_TO_TRIP)
    assert not circuit.spoke(START_S + 1.0)
    assert not circuit.began("old", START_S + 1.0)
    now = START_S + STALL_BACKOFF_S
    assert tried(circuit, now).began("trial", now + 1.0)
    assert circuit.reason is None


def test_one_more_that_it_forgets_after_its_rest_is_enough_and_the_next_rest_is_longer() -> None:
    """Three clients each time would pay for it for ever."""
    circuit = stuck_at(*[START_S] * STUCK_TO_TRIP)
    now = START_S + STALL_BACKOFF_S
    tried(circuit, now).began("trial", now)
    assert circuit.failed("next", Fault.STUCK, now + 20.0)
    assert circuit.until == now + 20.0 + 2 * STALL_BACKOFF_S


def test_a_trial_that_it_forgets_keeps_it_open() -> None:
    """It is as it was."""
    circuit = tried(stuck_at(*[START_S] * STUCK_TO_TRIP), START_S + STALL_BACKOFF_S)
    now = START_S + STALL_BACKOFF_S + 15.0
    assert circuit.failed("trial", Fault.STUCK, now)
    assert circuit.until == now + 2 * STALL_BACKOFF_S
