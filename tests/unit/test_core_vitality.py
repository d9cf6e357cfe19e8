"""The signs of life of one engine, each with its instant."""

from typing import Any

from gateway.core.report import ReplicaReport
from gateway.core.vitality import TAKES_S, Vitality


def scraped(vital: Vitality, now: float, **figures: Any) -> tuple[bool, bool]:
    """A scrape comes that was asked for a tenth of a second ago."""
    return vital.take(ReplicaReport(**figures), sent_at=now - 0.1, now=now)


def test_the_first_scrape_is_neither_growth_nor_a_restart() -> None:
    """An engine that was found a moment ago has shown nothing yet."""
    vital = Vitality()
    assert scraped(vital, 1.0, iterations=9.0) == (False, False)
    assert (vital.progressed_at, vital.still_until) == (1.0, None)


def test_any_counter_that_grows_is_progress() -> None:
    """While a prompt is computed no output is counted, and steps are not told by every engine."""
    vital = Vitality()
    scraped(vital, 1.0, iterations=9.0, prompt_tokens=5.0, generation_tokens=3.0)
    for now, grown in ((2.0, "iterations"), (3.0, "prompt_tokens"), (4.0, "generation_tokens")):
        figures = {"iterations": 9.0, "prompt_tokens": 5.0, "generation_tokens": 3.0}
        assert scraped(vital, now, **{**figures, grown: 100.0}) == (True, False)
        scraped(vital, now, **figures)
        assert vital.progressed_at == now


def test_counters_that_stand_still_are_known_to_since_the_question() -> None:
    """What the engine did after it was asked is not in the answer."""
    vital = Vitality()
    scraped(vital, 1.0, iterations=9.0)
    assert scraped(vital, 5.0, iterations=9.0) == (False, False)
    assert (vital.progressed_at, vital.still_until) == (1.0, 4.9)


def test_counters_that_begin_anew_are_another_engine() -> None:
    """A restart behind a balancer may never be seen as an outage."""
    vital = Vitality()
    scraped(vital, 1.0, iterations=9.0, generation_tokens=5.0)
    assert scraped(vital, 2.0, iterations=20.0, generation_tokens=1.0) == (False, True)


def test_a_counter_that_is_missing_for_once_is_no_restart() -> None:
    """It would close the breaker of an engine that fails."""
    vital = Vitality()
    scraped(vital, 1.0, iterations=9.0, generation_tokens=5.0)
    assert scraped(vital, 2.0, iterations=9.0) == (False, False)
    assert scraped(vital, 3.0, iterations=9.0, generation_tokens=5.0) == (False, False)


def test_an_engine_without_counters_lives_as_long_as_it_reports() -> None:
    """llama.cpp has gauges alone."""
    vital = Vitality()
    for now in (1.0, 2.0, 3.0):
        assert scraped(vital, now) == (False, False)
        assert (vital.progressed_at, vital.still_until) == (now, None)


def test_the_first_refusal_of_a_row_counts() -> None:
    """What was sent before is waited for from then on, however often one asks again."""
    vital = Vitality()
    for now in (1.0, 2.0, 3.0):
        vital.refuse(now)
    vital.forget()
    assert vital.refused_at == 1.0
    scraped(vital, 4.0, iterations=9.0)
    assert vital.refused_at == 1.0
    vital.refuse(5.0)
    assert vital.refused_at == 5.0


def test_an_engine_that_works_on_was_there_all_the_time() -> None:
    """A single refusal in passing must not end its streams at their next pause."""
    vital = Vitality()
    scraped(vital, 1.0, iterations=9.0)
    vital.refuse(2.0)
    scraped(vital, 3.0, iterations=10.0)
    assert vital.refused_at is None


def test_only_what_is_later_is_news() -> None:
    """The walk tells the newest instant again and again."""
    vital = Vitality()
    assert [vital.hear(at) for at in (1.0, 1.0, 0.5, 1.5)] == [True, False, False, True]
    assert vital.heard_at == 1.5


def test_a_beginning_shows_for_a_while_that_requests_are_taken() -> None:
    """And it is output as well."""
    vital = Vitality()
    assert not vital.takes(0.0)
    vital.begin(5.0)
    assert [vital.takes(5.0 + s) for s in (0.0, TAKES_S - 0.1, TAKES_S)] == [True, True, False]
    assert vital.heard_at == 5.0


def test_what_was_seen_travels() -> None:
    """A restarted gateway would take every engine for alive."""
    vital = Vitality()
    for now in (1.0, 2.0):
        vital.take(ReplicaReport(iterations=9.0), sent_at=now, now=now)
    vital.begin(2.5)
    vital.refuse(3.0)
    other = Vitality()
    other.restore(vital.snapshot(4.0), 104.0)
    assert other.snapshot(104.0) == vital.snapshot(4.0)
    assert (other.refused_at, other.heard_at, other.still_until) == (103.0, 102.5, 102.0)


def test_a_gauge_that_moves_is_something_done() -> None:
    """SIGCONT: all that it had was given up meanwhile, and it drops that without a step."""
    vital = Vitality()
    assert scraped(vital, 1.0, iterations=9.0, running=2, waiting=1) == (False, False)
    assert scraped(vital, 2.0, iterations=9.0, running=2, waiting=1) == (False, False)
    assert scraped(vital, 3.0, iterations=9.0, running=2, waiting=0) == (True, False)
    assert vital.progressed_at == 1.0


def test_gauges_that_come_late_have_not_moved() -> None:
    """Their first figures would bring a stopped engine back."""
    vital = Vitality()
    assert scraped(vital, 1.0, iterations=9.0) == (False, False)
    gauges = {"running": 2, "waiting": 1, "kv_use": 0.5}
    assert scraped(vital, 2.0, iterations=9.0, **gauges) == (False, False)
    assert scraped(vital, 3.0, iterations=9.0, **{**gauges, "kv_use": 0.25}) == (True, False)
