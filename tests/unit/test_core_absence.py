"""What an engine's own counts lack: only what they lack again and again, while it goes on."""

import json
from typing import Any

import pytest

from gateway.core.absence import GROWTHS, SCRAPES, Absence
from gateway.core.health import SILENT_S, STILL_S
from gateway.core.messages import Fault, Progressed
from gateway.core.report import Rank, ReplicaReport
from tests.support.play import Play
from tests.support.script import one_tier

STREAM: dict[str, Any] = {"prompt_tokens": 8, "streams": True}


class Scraped(Play):
    """A replica that is scraped once a second."""

    steps = 0

    def hold(self, *ids: str, **fields: Any) -> "Scraped":
        """These run there for longer than anything lags."""
        for id in ids:
            self.arrive(id, **{**STREAM, **fields}).first_token(id)
        self.advance(SILENT_S)
        return self

    def scrapes(
        self, times: int, running: int | None, *, waiting: int = 0, steps: int = 10, **more: Any
    ) -> "Scraped":
        """So many scrapes show this, each after `steps` more steps."""
        for _ in range(times):
            self.advance(1.0)
            self.steps += steps
            self.report("r", running=running, waiting=waiting, iterations=float(self.steps), **more)
        return self

    @property
    def missing(self) -> int:
        """What is surely not there."""
        return self.known().absence.missing


def scraped() -> Scraped:
    """One replica with eight slots, and nothing there."""
    script = Scraped(one_tier())
    script.replica("r", slots=8)
    return script


def test_a_request_that_the_engine_counts_nowhere_is_missing_after_some_scrapes() -> None:
    """Its client would wait for ever, and its slot be lost."""
    script = scraped().hold("a", "b", "c").scrapes(SCRAPES - 1, 2)
    assert script.missing == 0
    assert script.scrapes(1, 2).missing == 1
    assert script.known().absence.since == script.now - SCRAPES + 1


@pytest.mark.parametrize(("running", "waiting"), [(3, 0), (1, 2), (0, 3), (5, 0)], ids=str)
def test_what_runs_waits_or_was_preempted_is_not_missing(running: int, waiting: int) -> None:
    """All of that is legal silence, and foreign requests only hide what is missing."""
    script = scraped().hold("a", "b", "c").scrapes(2 * SCRAPES, running, waiting=waiting)
    assert script.missing == 0


def test_one_scrape_that_counts_all_begins_the_row_anew() -> None:
    """Gauges lag: what they lack now and then is there."""
    script = scraped().hold("a", "b").scrapes(SCRAPES - 1, 1).scrapes(1, 2)
    assert script.scrapes(SCRAPES - 1, 1).missing == 0
    assert script.scrapes(1, 1).missing == 1


def test_the_least_that_all_of_them_lack_is_missing() -> None:
    """One scrape in the middle of a burst shows too little."""
    script = scraped().hold("a", "b", "c", "d").scrapes(2, 1).scrapes(1, 3).scrapes(SCRAPES, 1)
    assert script.missing == 1


def test_gauges_of_an_engine_that_makes_no_step_show_what_was() -> None:
    """The step of a long prompt takes seconds, and they are set at its end."""
    script = scraped().hold("a", "b").scrapes(1, 1).scrapes(3 * SCRAPES, 1, steps=0)
    assert script.missing == 0
    assert script.scrapes(GROWTHS, 1).missing == 1


def test_what_may_not_have_got_in_yet_is_not_missed() -> None:
    """Each scrape lacks those of the last moment: under load that is every scrape."""
    script = scraped().hold("a")
    for number in range(2 * SCRAPES):
        script.arrive(f"n{number}", **STREAM).scrapes(1, 1).finish(f"n{number}")
    assert script.missing == 0


def test_what_a_long_prompt_keeps_out_is_not_missed() -> None:
    """80,000 tokens are ten seconds, and whoever comes behind them is counted late."""
    script = scraped().hold("a").arrive("long", prompt_tokens=80_000, streams=True)
    assert script.scrapes(2 * SCRAPES, 1).missing == 0


def test_a_stream_whose_client_is_slow_may_be_done_in_the_engine() -> None:
    """It is made to the end at full speed; what is left lies in buffers."""
    script = scraped().hold("a", "b")
    script.tell(held("a")).scrapes(2 * SCRAPES, 1)
    assert script.missing == 0
    script.tell(held()).scrapes(SCRAPES, 1)
    assert script.missing == 1


def held(*ids: str) -> Progressed:
    """These are held up by their clients."""
    return Progressed("r", {"a": 1, "b": 1}, None, frozenset(ids))


def test_of_several_choices_one_must_be_there() -> None:
    """The others may have ended long ago."""
    script = scraped().hold("a", sequences=4).scrapes(2 * SCRAPES, 1)
    assert script.missing == 0
    assert script.scrapes(SCRAPES, 0).missing == 1


def test_without_gauges_nothing_is_missing() -> None:
    """What is not told is unknown."""
    script = scraped().hold("a").scrapes(SCRAPES - 1, 0).scrapes(2 * SCRAPES, None)
    assert script.missing == 0


def test_embeddings_are_not_looked_for() -> None:
    """They take no slot, and some engines do not count them."""
    script = scraped().hold("a").arrive("e", output_tokens_max=0).advance(SILENT_S)
    assert script.scrapes(2 * SCRAPES, 1).missing == 0


def test_once_one_is_given_up_the_others_are_looked_for_anew() -> None:
    """What its absence proved must not be held against those that are left."""
    script = scraped().hold("a", "b", "c").scrapes(SCRAPES, 1)
    assert script.missing == 2
    script.fail("a", Fault.STUCK)
    assert script.missing == 0
    assert script.scrapes(SCRAPES, 1).missing == 1


def test_another_engine_in_its_place_misses_nothing_of_the_old_one() -> None:
    """All there ends by itself."""
    script = scraped().hold("a", "b").scrapes(SCRAPES, 1).lose("r")
    assert script.missing == 0


def ranked(script: Scraped, times: int, *, second: float, moves: bool = False) -> Scraped:
    """Two ranks with two requests each; the second stands still, or makes steps, too."""
    for number in range(times):
        steps = second + number if moves else second
        ranks = (Rank(2, float(script.steps + 10)), Rank(2, steps))
        script.scrapes(1, 4, ranks=ranks)
    return script


def test_a_rank_that_stands_still_holds_nothing() -> None:
    """Its gauges show for ever what ran there, and the sum of all counters grows."""
    script = scraped().hold("a", "b", "c", "d")
    ranked(script, int(STILL_S) + SCRAPES, second=7.0)
    assert script.missing == 0  # two scrapes show that it stands still, from when on it counts
    ranked(script, 1, second=7.0)
    assert script.missing == 2
    ranked(script, 1, second=8.0)
    assert script.missing == 0


def test_of_several_ranks_that_stand_still_none_holds_anything() -> None:
    """Two of three may hang on the same fault: half of what is lost would be waited for."""
    script = scraped().hold("a", "b", "c", "d")
    for _ in range(int(STILL_S) + SCRAPES + 1):
        ranks = (Rank(2, float(script.steps + 10)), Rank(1, 7.0), Rank(1, 7.0))
        script.scrapes(1, 4, ranks=ranks)
    assert script.missing == 2


def test_ranks_that_all_make_steps_hold_what_they_say() -> None:
    """Nothing is missing where all is well."""
    script = scraped().hold("a", "b", "c", "d")
    assert ranked(script, 30, second=7.0, moves=True).missing == 0


def test_an_idle_rank_stands_still_for_nothing() -> None:
    """It has no work; the other holds everything."""
    script = scraped().hold("a", "b")
    for _ in range(30):
        ranks = (Rank(2, float(script.steps + 10)), Rank(0, 7.0))
        script.scrapes(1, 2, ranks=ranks)
    assert script.missing == 0


def test_ranks_that_come_and_go_are_looked_at_anew() -> None:
    """An engine that was started with more of them is another one."""
    script = ranked(scraped().hold("a", "b", "c", "d"), 30, second=7.0)
    assert script.missing == 2
    script.scrapes(1, 4, ranks=(Rank(1, 7.0), Rank(1, 7.0), Rank(2, 7.0)))
    assert script.missing == 0


@pytest.mark.parametrize("waiting", [1, None])
def test_since_when_nothing_waits_there_is_known(waiting: int | None) -> None:
    """What waits may be silent for as long as what runs before it takes."""
    script = scraped().hold("a").scrapes(1, 1).scrapes(3, 1)
    assert script.known().absence.clear_since == script.now - 3.0
    script.advance(1.0).report("r", running=1, waiting=waiting)
    assert script.known().absence.clear_since is None


def test_what_was_counted_travels() -> None:
    """A restarted gateway would take what is lost for there, for some scrapes more."""
    script = ranked(scraped().hold("a", "b", "c", "d"), int(STILL_S) + SCRAPES, second=7.0)
    absence, other = script.known().absence, Absence()
    other.restore(json.loads(json.dumps(absence.snapshot(script.now))), script.now + 100.0)
    assert other.snapshot(script.now + 100.0) == absence.snapshot(script.now)
    assert other.since == (absence.since or 0.0) + 100.0
    assert other.clear_since == (absence.clear_since or 0.0) + 100.0
    report = ReplicaReport(running=4, waiting=0, ranks=(Rank(2, 1.0), Rank(2, 7.0)))
    assert other.present(report, sent_at=script.now + 101.0, still_s=STILL_S) == 2
    other.take(2, sent_at=script.now + 101.0, has_grown=True)
    assert other.missing == 2
