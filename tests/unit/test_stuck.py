"""Which requests an engine has forgotten while it goes on with others, and which it has not."""

from typing import Any

import pytest

from gateway.core.absence import SCRAPES
from gateway.core.messages import Progressed
from gateway.runtime.stalls import (
    ABSENT_UNBEGUN_S,
    BESIDE_ANSWERS,
    BESIDE_STALL_S,
    BESIDE_STALL_S_MAX,
    STALL_S,
    Silent,
    stuck,
)
from tests.support.play import Play
from tests.support.script import one_tier

STREAM: dict[str, Any] = {"prompt_tokens": 8, "streams": True}


class Walked(Play):
    """A replica that is scraped, and whose streams are looked at, once a second."""

    steps = 0

    def begin(self, *ids: str, **fields: Any) -> "Walked":
        """These run there."""
        for id in ids:
            self.arrive(id, **{**STREAM, **fields}).first_token(id)
        return self

    def walk(
        self, seconds: float, running: int, *, waiting: int = 0, speaking: str = "b"
    ) -> "Walked":
        """The engine shows this all the time, and makes output for these, by a letter each."""
        for _ in range(int(seconds)):
            self.advance(1.0)
            self.steps += 10
            self.report("r", running=running, waiting=waiting, iterations=float(self.steps))
            if speaking:
                told = dict.fromkeys(speaking, self.steps)
                self.tell(Progressed("r", told, self.now))
        return self

    def found(self, **since: float) -> list[str]:
        """Those that are stuck, of begun ones that are silent since these instants."""
        silent = [Silent(id, instant, has_begun=True) for id, instant in since.items()]
        return stuck(self.scheduler, silent, self.now)


def walked() -> Walked:
    """One replica with eight slots, and nothing there."""
    script = Walked(one_tier())
    script.replica("r", slots=8)
    return script


def test_a_stream_that_the_engine_does_not_count_is_stuck_after_ten_seconds() -> None:
    """One client would wait for ever, beside others who see nothing wrong."""
    script = walked().begin("a", "b").walk(STALL_S - 1.0, 1)
    assert script.found(a=0.0) == []
    assert script.walk(1.0, 1).found(a=0.0) == ["a"]


@pytest.mark.parametrize(("running", "waiting"), [(2, 0), (1, 1)], ids=["runs", "preempted"])
def test_a_silent_stream_that_the_engine_counts_is_not(running: int, waiting: int) -> None:
    """A preempted one has lost nothing, and goes on by itself."""
    script = walked().begin("a", "b").walk(90.0, running, waiting=waiting)
    assert script.found(a=0.0) == []


def test_it_is_not_known_which_of_two_silent_ones_is_missing() -> None:
    """The wrong one would be ended in the middle of its answer."""
    script = walked().begin("a", "b", "p").walk(STALL_S, 2)
    assert script.known().absence.missing == 1
    assert script.found(a=0.0, p=0.0) == []
    assert script.found(a=0.0, p=0.0 + SCRAPES) == ["a"]


def test_one_that_fell_silent_after_something_was_missing_is_not_the_missing_one() -> None:
    """It may just have been preempted."""
    script = walked().begin("a", "b", "p").walk(2 * STALL_S, 2)
    assert script.found(p=STALL_S - 2.0) == []


def test_a_count_that_lacks_even_those_that_speak_is_no_count() -> None:
    """At a cold start gauges read zero for many seconds, while requests wait in the engine."""
    script = walked().begin("a", "b", "c").walk(30.0, 0, speaking="bc")
    assert script.known().absence.missing == 3
    assert script.found(a=0.0) == []


def test_all_that_are_missing_are_found_together() -> None:
    """Half of an engine stood still, with all that ran there."""
    script = walked().begin("a", "b", "c").walk(STALL_S, 1)
    assert sorted(script.found(a=0.0, c=0.0)) == ["a", "c"]


def test_what_has_not_begun_is_given_longer() -> None:
    """The server may still fetch its pictures, of which its engine knows nothing."""
    script = walked().begin("b").arrive("a", **STREAM).walk(ABSENT_UNBEGUN_S, 1)
    early = Silent("a", script.now - ABSENT_UNBEGUN_S + 0.5, has_begun=False)
    assert stuck(script.scheduler, [early], script.now) == []
    late = Silent("a", 0.0, has_begun=False)
    assert stuck(script.scheduler, [late], script.now) == ["a"]


def test_a_long_prompt_is_given_three_times_what_it_should_take() -> None:
    """800,000 tokens at 8,000 a second are 100 s."""
    script = walked().begin("b").arrive("a", prompt_tokens=800_000, streams=True)
    script.walk(320.0, 1)
    assert stuck(script.scheduler, [Silent("a", 21.0, has_begun=False)], script.now) == []
    assert stuck(script.scheduler, [Silent("a", 0.0, has_begun=False)], script.now) == ["a"]


def test_a_plain_request_that_the_engine_does_not_count_is_stuck_too() -> None:
    """It says nothing until its end; that it is not there any more says enough."""
    script = (
        walked().begin("b").arrive("a", prompt_tokens=8, streams=False).walk(ABSENT_UNBEGUN_S, 1)
    )
    assert stuck(script.scheduler, [Silent("a", 0.0, has_begun=False)], script.now) == ["a"]


def test_what_was_told_too_long_ago_is_no_evidence() -> None:
    """Its gauges may have changed a minute ago."""
    script = walked().begin("a", "b").walk(STALL_S, 1).advance(10.0)
    assert script.found(a=0.0) == []


def test_a_lost_replica_is_none_that_goes_on() -> None:
    """What was there is judged by other rules."""
    script = walked().begin("a", "b").walk(STALL_S, 1)
    script.lose("r")
    assert script.found(a=0.0) == []


def test_what_has_ended_or_needs_no_slot_is_not_looked_for() -> None:
    """Its end may have been told a moment ago."""
    script = walked().begin("b").arrive("e", output_tokens_max=0).walk(90.0, 1)
    assert script.found(e=0.0, gone=0.0) == []


# Where the engine counts it: beside others that go on.


def test_a_stream_that_is_silent_for_several_answers_beside_others_is_stuck() -> None:
    """The engine may count for ever what it does nothing for."""
    script = walked().begin("a", "b").walk(BESIDE_STALL_S, 2)
    assert script.found(a=0.5) == []
    assert script.walk(1.0, 2).found(a=0.5) == ["a"]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ({"running": 2, "waiting": 1}, []),
        ({"running": 2, "speaking": ""}, []),
        ({"running": 2}, ["a"]),
    ],
    ids=["somebody waits there", "nobody is heard", "all others go on"],
)
def test_beside_others_it_is_stuck_only_where_nothing_else_explains_it(
    shown: dict[str, Any], expected: list[str]
) -> None:
    """It may wait in the engine behind hour-long answers, and the engine may rest."""
    script = walked().begin("a", "b").walk(BESIDE_STALL_S + 2.0, **shown)
    assert script.found(a=0.0) == expected


def test_a_queue_that_was_there_lately_explains_it() -> None:
    """It had no turn before that."""
    script = walked().begin("a", "b").walk(BESIDE_STALL_S, 2, waiting=1)
    script.walk(BESIDE_STALL_S, 2)
    assert script.found(a=0.0) == []
    assert script.walk(1.0, 2).found(a=0.0) == ["a"]


def test_who_should_take_long_is_given_longer_up_to_a_bound() -> None:
    """A tool's call of ten thousand tokens may come all at once."""
    long = walked().begin("b").begin("a", output_tokens_max=4_000)
    answer_s = BESIDE_ANSWERS * 4_000 * long.known().speed.step_s
    assert BESIDE_STALL_S < answer_s < BESIDE_STALL_S_MAX
    long.walk(answer_s - 1.0, 2)
    assert long.found(a=0.0) == []
    assert long.walk(3.0, 2).found(a=0.0) == ["a"]
    endless = walked().begin("b").begin("a", output_tokens_max=1_000_000)
    assert endless.walk(BESIDE_STALL_S_MAX + 2.0, 2).found(a=0.0) == ["a"]


def test_a_plain_answer_is_never_too_long_beside_others() -> None:
    """It is silent until its end, and nobody knows how long that takes."""
    script = (
        walked()
        .begin("b")
        .arrive("a", prompt_tokens=8, streams=False)
        .walk(BESIDE_STALL_S_MAX + 2.0, 2)
    )
    assert stuck(script.scheduler, [Silent("a", 0.0, has_begun=False)], script.now) == []
