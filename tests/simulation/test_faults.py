"""Gateways before fleets that fail, by hundreds of drawn schedules, and the judge that judges them.

`make sim` plays the first few hundred, `pytest -m chaos` ten thousand.
"""

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.policy import DEFAULT_TIERS, Bounds, Policy
from gateway.core.scheduler import Scheduler
from gateway.sim.__main__ import outcomes, replay_command
from gateway.sim.asks import Ask, End
from gateway.sim.draw import schedule_of
from gateway.sim.faults import OURS, Fault, FaultKind
from gateway.sim.life import Life
from gateway.sim.run import Outcome, play, run, shrunk
from gateway.sim.server import ServerSpec
from gateway.sim.site import Schedule
from gateway.sim.tally import Tally
from tests.support.planted import (
    LIVES,
    SCHEDULERS,
    RetriesAfterTheFirstToken,
    TellsTheErrorTwice,
)

FAST_SEEDS = 200
CHAOS_SEEDS = 10_000
EVERYTHING_FROM = 1_000
"""In so many schedules everything has happened that can."""
PLANT_SEEDS = 150
"""So many schedules every planted fault is found in; most in the first ten."""
SMALL = Schedule(
    policy=Policy(tiers=DEFAULT_TIERS[:2]),
    servers=(ServerSpec(name="r0", slots=2), ServerSpec(name="r1", slots=1, tells_slots=False)),
    asks=(
        *(Ask(id=f"s{n}", at=1.0 + 0.2 * n, user="ab"[n % 2], tier=n % 2) for n in range(5)),
        Ask(id="plain", at=1.1, streams=False, output_tokens=8),
        Ask(id="pair", at=1.5, sequences=2, output_tokens=5),
        Ask(id="hasty", at=1.3, leaves_at=1.9),
    ),
    continues=frozenset({"critical"}),
)
"""Two replicas and a few clients, for faults that Hypothesis chooses."""
REPLICA_FAULTS = [kind for kind in FaultKind if kind not in OURS]
FAULTS = st.lists(
    st.builds(
        Fault,
        kind=st.sampled_from(REPLICA_FAULTS),
        at=st.integers(0, 60).map(lambda tenths: tenths / 20),
        duration_s=st.sampled_from([0.0, 0.1, 1.0, 4.0, 15.0]),
        replica=st.sampled_from(["r0", "r1"]),
        factor=st.sampled_from([1.0, 3.0, 30.0]),
    ),
    max_size=6,
)


def seeds_failed(found: list[Outcome]) -> str:
    """What failed, each with the command that shows it."""
    return "\n".join(f"{each.failure}\n    {replay_command(each.seed)}" for each in found)


@pytest.mark.parametrize("first", range(0, FAST_SEEDS, 25))
def test_nothing_is_lost_whatever_fails(first: int) -> None:
    """Everybody: a request without an end, a token twice, a slot that nobody gives back."""
    found = [each for each in map(run, range(first, first + 25)) if each.failure]
    assert not found, seeds_failed(found)


@settings(max_examples=40, deadline=None)
@given(faults=FAULTS)
def test_no_mixture_of_faults_loses_anything_between_two_replicas(faults: list[Fault]) -> None:
    """The same, by faults that shrink to the few that matter."""
    outcome = play(replace(SMALL, faults=tuple(faults)))
    assert not outcome.failure, outcome.failure


@pytest.mark.chaos
@pytest.mark.timeout(7_200)
def test_nothing_is_lost_in_ten_thousand_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    """The same, where it takes minutes to find the one that does."""
    count = int(os.environ.get("CHAOS_SCHEDULES", CHAOS_SEEDS))
    began_at, tally = time.monotonic(), Tally()
    for outcome in outcomes(range(count), processes=2):
        tally.add(outcome)
    with capsys.disabled():
        sys.stdout.write("\n" + tally.text(time.monotonic() - began_at) + "\n")
    assert not tally.failures, seeds_failed(tally.failures)
    if count < EVERYTHING_FROM:
        return
    assert all(tally.faults[kind] for kind in FaultKind), "a kind of fault was never drawn"
    assert all(tally.ends[end] for end in End), "an end never came"
    for what in ("retries", "bounces", "recalls", "continuations", "moves", "stalls"):
        assert tally.sums[what], f"no {what}"


# --- the same seed --------------------------------------------------------------------------------


def test_a_seed_is_one_run_whatever_the_process() -> None:
    """Who replays the schedule that failed in the night must see it fail."""
    code = "from gateway.sim.run import run\nfor s in range(8): print(run(s).trace)"
    traces = []
    for salt in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.append(done.stdout.split())
    here = [run(seed).trace for seed in range(8)]
    assert traces == [here] * 3
    assert len(set(here)) == 8


def test_a_schedule_played_again_ends_the_same() -> None:
    """What is compared between two policies must not differ by itself."""
    assert run(3) == run(3)


# --- the judge ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("life_type", "seed"), LIVES.items())
def test_a_gateway_that_is_wrong_in_one_way_is_found_out(life_type: type[Life], seed: int) -> None:
    """A judge that passes everything would protect nobody."""
    seeds = (seed, *range(PLANT_SEEDS))
    assert any(run(each, life_type=life_type).failure for each in seeds)


@pytest.mark.parametrize(("scheduler_type", "seed"), SCHEDULERS.items())
def test_a_scheduler_that_is_wrong_in_one_way_is_found_out(
    scheduler_type: type[Scheduler], seed: int
) -> None:
    """The same, for what the gateway itself cannot see."""
    seeds = (seed, *range(PLANT_SEEDS))
    assert any(run(each, scheduler_type=scheduler_type).failure for each in seeds)


def test_what_fails_is_cut_down_to_what_it_takes() -> None:
    """Who has to understand it: a client and a fault or two instead of a dozen each."""

    def fails(schedule: Schedule) -> bool:
        return bool(play(schedule, life_type=RetriesAfterTheFirstToken).failure)

    seeds = (LIVES[RetriesAfterTheFirstToken], *range(PLANT_SEEDS))
    whole = next(each for each in map(schedule_of, seeds) if fails(each))
    least = shrunk(whole, fails=fails)
    assert fails(least)
    assert len(least.asks) <= 3 < len(whole.asks)
    assert len(least.faults) <= 2


# --- single stories -------------------------------------------------------------------------------


def story(*faults: Fault, **changes: object) -> Outcome:
    """One stream of 100 tokens on r0, and what befalls it; r1 is free."""
    schedule = Schedule(
        policy=Policy(tiers=DEFAULT_TIERS[:1]),
        servers=(ServerSpec(name="r0"), ServerSpec(name="r1")),
        asks=(Ask(id="q", at=2.0, output_tokens=100),),
        faults=faults,
        continues=frozenset({"critical"}),
    )
    return play(replace(schedule, **changes))  # type: ignore[arg-type]  # fields of a schedule


def both(kind: FaultKind, at: float, duration_s: float = 5.0) -> tuple[Fault, ...]:
    """It happens to both replicas."""
    return tuple(
        Fault(kind=kind, at=at, duration_s=duration_s, replica=name) for name in ("r0", "r1")
    )


def on_first(kind: FaultKind, at: float, duration_s: float = 30.0) -> Fault:
    """It happens to the replica that the stream is on."""
    return Fault(kind=kind, at=at, duration_s=duration_s, replica="r0")


@pytest.mark.parametrize(
    "kind",
    [FaultKind.CRASH, FaultKind.CORE_KILLED, FaultKind.CUT, FaultKind.TERMINATED, FaultKind.FROZEN],
)
def test_a_stream_that_breaks_goes_on_elsewhere_token_for_token(kind: FaultKind) -> None:
    """A client that has read half an answer."""
    outcome = story(on_first(kind, 3.0))
    assert not outcome.failure
    assert outcome.ends == {End.DONE: 1}
    assert (outcome.continuations, outcome.tokens) == (1, 100)


@pytest.mark.parametrize("kind", [FaultKind.CRASH, FaultKind.CORE_KILLED, FaultKind.CUT])
def test_a_stream_of_a_tier_without_continuation_ends_with_one_error_event(
    kind: FaultKind,
) -> None:
    """Its client must not take half an answer for a whole one."""
    outcome = story(on_first(kind, 3.0), continues=frozenset())
    assert not outcome.failure
    assert outcome.ends == {End.ERROR_EVENT: 1}


@pytest.mark.parametrize("kind", [FaultKind.CRASH, FaultKind.REFUSED, FaultKind.BROKEN])
def test_what_fails_before_the_first_token_is_tried_elsewhere(kind: FaultKind) -> None:
    """A client that has read nothing notices nothing."""
    outcome = story(on_first(kind, 1.9))
    assert not outcome.failure
    assert outcome.ends == {End.DONE: 1}
    assert outcome.retries == 1


def test_a_busy_fleet_is_waited_out() -> None:
    """A burst is no failure: the request goes back to its place, and on."""
    outcome = story(*both(FaultKind.BUSY, 1.9))
    assert not outcome.failure
    assert outcome.ends == {End.DONE: 1}
    assert outcome.bounces > 1


def test_a_drained_replica_finishes_what_it_has() -> None:
    """An operator who updates a fleet one by one."""
    outcome = story(on_first(FaultKind.DRAIN, 3.0))
    assert not outcome.failure
    assert outcome.ends == {End.DONE: 1}
    assert (outcome.continuations, outcome.moves) == (0, 0)


def test_what_runs_on_a_drained_replica_goes_on_elsewhere_where_the_policy_moves_it() -> None:
    """The same, in a hurry: its clients read on as if nothing had happened."""
    policy = Policy(tiers=DEFAULT_TIERS[:1], migrate_running="drain")
    outcome = story(on_first(FaultKind.DRAIN, 3.0), policy=policy)
    assert not outcome.failure
    assert outcome.ends == {End.DONE: 1}
    assert (outcome.moves, outcome.tokens) == (1, 100)


def test_what_still_runs_when_the_gateway_can_wait_no_longer_is_told_so() -> None:
    """A client of a gateway that is replaced."""
    outcome = story(Fault(kind=FaultKind.SHUTDOWN, at=2.5, duration_s=0.5))
    assert not outcome.failure
    assert outcome.ends == {End.ERROR_EVENT: 1}


def test_a_client_that_reads_nothing_is_cut_off_and_its_slot_was_free_long_before() -> None:
    """Whoever waits for the slot of a client that went to sleep."""
    bounds = Bounds(client_stall_s=5.0)
    outcome = story(
        policy=Policy(tiers=DEFAULT_TIERS[:1], bounds=bounds),
        servers=(ServerSpec(name="r0", slots=1),),
        asks=(
            Ask(id="sleeper", at=2.0, output_tokens=50, stalls_at=2.3),
            Ask(id="next", at=2.1, output_tokens=10),
        ),
    )
    assert not outcome.failure
    assert outcome.ends == {End.CUT_OFF: 1, End.DONE: 1}


def test_a_fault_that_is_told_twice_is_no_second_end() -> None:
    """A client library that raises on what follows the end."""
    ends = (Fault(kind=FaultKind.SHUTDOWN, at=1.2, duration_s=0.2),)
    outcome = play(replace(SMALL, faults=ends), life_type=TellsTheErrorTwice)
    assert "after" in outcome.failure
