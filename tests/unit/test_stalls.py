"""Which silence is a stall: no output for a request, and nothing that its engine does."""

from typing import Any

import pytest

from gateway.core.breaker import STALL_BACKOFF_S
from gateway.core.health import SILENT_S
from gateway.core.messages import Fault
from gateway.core.report import ReplicaReport
from gateway.runtime.stalls import (
    BLIND_STALL_S,
    REFUSED_STALL_S,
    STALL_S,
    TRIAL_STALL_S,
    is_stalled,
)
from tests.support.play import Play
from tests.support.script import one_tier

PROMPT: dict[str, Any] = {"prompt_tokens": 800, "streams": True}


def running(**request: Any) -> Play:
    """One request on a replica, begun."""
    fields = {**PROMPT, **request}
    return Play(one_tier()).replica("r", slots=8).arrive("a", **fields).first_token("a")


def stalled(script: Play, silent_s: float, *, has_begun: bool = True) -> bool:
    """Whether `a` has stalled now, with its last output so long ago."""
    return is_stalled(
        script.scheduler, "a", silent_since=script.now - silent_s, has_begun=has_begun,
        now=script.now,
    )  # fmt: skip


def counted(script: Play, tokens: int) -> Play:
    """The engine reports that it has made so many tokens."""
    return script.report("r", running=1, waiting=0, generation_tokens=float(tokens))


def test_an_engine_that_counts_no_more_has_stalled() -> None:
    """vLLM's `/health` says 200 while its core is frozen: the client would wait for ever."""
    script = counted(running(), 10).advance(STALL_S)
    assert stalled(counted(script, 10), STALL_S)
    assert not stalled(script, STALL_S - 0.1)


def test_a_preempted_stream_has_not_stalled_while_its_engine_works() -> None:
    """It goes on by itself; cutting it off would throw away what it has."""
    script = counted(running(), 10).advance(60.0)
    counted(script, 11)
    assert not stalled(script, 60.0)
    script.advance(STALL_S - 0.1)
    assert not stalled(counted(script, 11), 70.0)
    script.advance(0.2)
    assert stalled(script, 70.0)


def test_an_engine_that_answers_no_scrape_has_stalled_too() -> None:
    """A stopped process answers nothing at all."""
    script = counted(running(), 10).advance(STALL_S)
    assert stalled(script, STALL_S)


@pytest.mark.parametrize(("silent_s", "expected"), [(299.9, False), (300.0, True)])
def test_a_very_long_prompt_is_given_three_times_what_it_should_take(
    silent_s: float, expected: bool
) -> None:
    """800,000 tokens at 8,000 a second are 100 s in which an engine may report nothing."""
    script = Play(one_tier()).replica("r", slots=8).arrive("a", prompt_tokens=800_000)
    counted(script, 0).advance(silent_s)
    assert stalled(script, silent_s, has_begun=False) is expected


@pytest.mark.parametrize("has_begun", [True, False])
def test_without_any_counters_only_a_stream_that_fell_silent_is_given_up(has_begun: bool) -> None:
    """A plain answer of an engine without metrics says nothing until it is complete."""
    script = running().advance(BLIND_STALL_S)
    assert not stalled(script, BLIND_STALL_S - 0.1, has_begun=has_begun)
    assert stalled(script, BLIND_STALL_S, has_begun=has_begun) is has_begun


def test_what_waits_or_ended_has_not_stalled() -> None:
    """A request back in the queue is nobody's fault."""
    script = counted(running(), 10).advance(60.0)
    assert not is_stalled(script.scheduler, "b", silent_since=0.0, has_begun=True, now=script.now)


def test_reports_without_counters_are_life_as_long_as_they_come() -> None:
    """llama.cpp reports gauges alone."""
    report = ReplicaReport(running=1, waiting=0)
    assert report.iterations is None
    script = running().report("r", running=1, waiting=0).advance(60.0)
    assert stalled(script, 60.0)
    script.report("r", running=1, waiting=0)
    assert not stalled(script, 60.0)


@pytest.mark.parametrize(("silent_s", "expected"), [(2.9, False), (3.1, True)])
def test_where_nobody_listens_a_silent_stream_is_waited_for_no_longer(
    silent_s: float, expected: bool
) -> None:
    """A vLLM that got SIGTERM leaves its streams open and silent, and sends keep-alives."""
    script = counted(running(), 10).advance(1.0).refuse_connections("r").advance(5.0)
    assert stalled(script, silent_s) is expected


def test_a_stream_that_goes_on_where_nobody_listens_is_left_alone() -> None:
    """Told to stop with a timeout, an engine may close its door and finish what it has."""
    script = counted(running(), 10).advance(1.0).refuse_connections("r").advance(60.0)
    assert not stalled(script, 1.0)


def test_the_refusal_counts_from_its_own_instant() -> None:
    """A stream that was silent before, while its engine worked on, was preempted."""
    script = counted(running(), 10).advance(8.0)
    counted(script, 11).advance(1.0).refuse_connections("r").advance(REFUSED_STALL_S - 0.1)
    assert not stalled(script, 9.0)
    assert stalled(script.advance(0.2), 9.0)


def test_it_counts_though_the_replica_is_lost_meanwhile() -> None:
    """Two refusals, and the probe gives it up: the streams are still there."""
    script = counted(running(), 10).refuse_connections("r").lose("r").advance(4.0)
    assert stalled(script, 4.0)


def test_what_was_sent_to_who_listens_again_is_not_left_behind() -> None:
    """The new engine has its time like any other."""
    script = running().advance(1.0).refuse_connections("r").lose("r").advance(1.0)
    script.replica("r", slots=8).finish("a").arrive("a", **PROMPT).first_token("a").advance(9.0)
    assert not stalled(script, 9.0)


def test_a_prompt_that_may_still_be_computed_is_waited_for_there_too() -> None:
    """80,000 tokens are ten seconds without a word."""
    script = Play(one_tier()).replica("r", slots=8).arrive("a", prompt_tokens=80_000).advance(0.1)
    script.refuse_connections("r").advance(29.0)
    assert not stalled(script, 29.0, has_begun=False)
    assert stalled(script.advance(1.1), 30.1, has_begun=False)


def test_a_lost_replica_shows_no_life() -> None:
    """All that it counted is forgotten: its streams must not be waited for as if blind."""
    script = counted(running(), 10).lose("r").advance(STALL_S)
    assert stalled(script, STALL_S)
    assert not stalled(script, STALL_S - 0.1)


def test_output_of_others_is_life_where_no_scrape_comes_back() -> None:
    """A server too busy for its metrics is not frozen: this stream was preempted."""
    script = counted(running(), 10).arrive("b").first_token("b").advance(60.0)
    script.progress("r", script.now - 1.0, b=50)
    assert not stalled(script, 60.0)


def test_a_trial_of_an_engine_that_stood_still_is_soon_over() -> None:
    """Ten seconds for each try would cost somebody a minute in an hour of outage."""
    script = counted(running(), 10).advance(SILENT_S)
    counted(script, 10).fail("a", Fault.STALLED).advance(STALL_BACKOFF_S).arrive(
        "t"
    ).expect_granted("t")
    script.arrive("u").expect_waiting("u").advance(TRIAL_STALL_S)
    given = {"silent_since": script.now - TRIAL_STALL_S, "has_begun": False, "now": script.now}
    assert is_stalled(script.scheduler, "t", **given)  # type: ignore[arg-type]  # free keywords
    script.fail("t", Fault.STALLED).expect_waiting("u")
