"""The single writer: every decision reaches who waits for it, and time reaches the scheduler."""

import asyncio

import pytest

from gateway.core.messages import (
    Arrived,
    Finished,
    Granted,
    Outcome,
    Recalled,
    Refused,
    ScaleAdvised,
)
from gateway.runtime.dispatcher import Dispatcher
from tests.support.admitting import Gated
from tests.support.jumping import run_jumping
from tests.support.recalling import NOTHING, Prompted, Recalling


class Listener:
    """A waiter that writes down what it is told."""

    def __init__(self, *, has_begun: bool = False, stays: bool = False) -> None:
        self.has_begun = has_begun
        self.heard: list[Granted | Refused] = []
        self.recalls = 0
        self.stays = stays
        self.moves = 0

    def decided(self, decision: Granted | Refused) -> None:
        self.heard.append(decision)

    def recalled(self) -> bool:
        self.recalls += 1
        return not self.has_begun

    def move_wanted(self) -> bool:
        self.moves += 1
        return not self.stays


def arrive(gated: Gated, listener: Listener | None = None, **fields: object) -> str:
    """A request arrives; its id."""
    request = gated.request(**fields)  # type: ignore[arg-type]  # free keywords
    if listener is not None:
        gated.dispatcher.await_decision(request.id, listener)
    gated.dispatcher.tell(Arrived(request))
    return request.id


def test_a_decision_reaches_its_waiter_before_tell_returns() -> None:
    """A free slot costs no turn of the event loop."""

    async def main() -> None:
        gated, first, second = Gated(), Listener(), Listener()
        request_id = arrive(gated, first)
        arrive(gated, second)
        assert first.heard == [Granted(request_id, "r", 0.0)]
        assert second.heard == []
        gated.dispatcher.tell(Finished(request_id, Outcome.DONE))
        assert len(second.heard) == 1

    run_jumping(main())


def test_a_decision_for_nobody_is_dropped() -> None:
    """The request ended in the very step in which it was decided about."""

    async def main() -> None:
        gated, listener = Gated(), Listener()
        arrive(gated)
        request_id = arrive(gated, listener)
        gated.dispatcher.forget(request_id)
        gated.dispatcher.forget(request_id)
        gated.close()
        assert listener.heard == []

    run_jumping(main())


def test_two_waiters_for_one_request_are_a_programmers_error() -> None:
    """One of them would wait for ever."""

    async def main() -> None:
        gated = Gated()
        gated.dispatcher.await_decision("x", Listener())
        with pytest.raises(AssertionError):
            gated.dispatcher.await_decision("x", Listener())

    run_jumping(main())


def test_patience_ends_on_time_without_any_event() -> None:
    """On a gateway where nothing else happens a client would wait for ever."""

    async def main() -> None:
        gated, listener = Gated(patience_s=7.25), Listener()
        arrive(gated)
        arrive(gated, listener)
        await asyncio.sleep(7.2)
        assert listener.heard == []
        await asyncio.sleep(0.1)
        assert [type(decision) for decision in listener.heard] == [Refused]

    run_jumping(main())


def test_the_place_of_what_does_not_wait_is_none() -> None:
    """It was granted or went between two comments."""

    async def main() -> None:
        gated = Gated()
        granted, waiting = arrive(gated), arrive(gated)
        assert gated.dispatcher.place_of(granted) == (0, None)
        assert gated.dispatcher.place_of("unknown") == (0, None)
        assert gated.dispatcher.place_of(waiting)[0] == 1

    run_jumping(main())


def test_only_the_latest_wish_to_be_woken_keeps_a_timer() -> None:
    """A timer for each event would make a crowd of timers."""

    async def main() -> None:
        gated = Gated()
        for count in range(50):
            arrive(gated, patience_s=0.4 - count / 500)
        loop = asyncio.get_running_loop()
        live = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]  # asyncio's own heap
        assert len(live) == 1

    run_jumping(main())


def test_after_close_no_timer_fires() -> None:
    """The loop is about to end, and the last requests still end after the dispatcher was closed."""

    async def main() -> None:
        gated, listener = Gated(patience_s=3.0), Listener()
        gated.dispatcher.close()
        arrive(gated)
        arrive(gated, listener)
        await asyncio.sleep(60.0)
        assert listener.heard == []

    run_jumping(main())


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_recall_that_comes_too_late_is_answered_at_once_and_once(has_begun: bool) -> None:
    """Unanswered, the scheduler would believe for ever that the request is on its way back."""

    async def main() -> None:
        gated, listener = Recalling(), Listener(has_begun=has_begun)
        request_id = arrive(gated, listener)
        gated.recall(request_id)
        assert listener.recalls == 1
        assert gated.told == ["Arrived", *["RecallTooLate"] * has_begun]

    run_jumping(main())


def test_all_decisions_are_carried_out_before_the_scheduler_hears_more() -> None:
    """Told in between, it would decide about requests that do not know of their grants yet."""

    async def main() -> None:
        gated, begun, other = Recalling(), Listener(has_begun=True), Listener()
        request_id = arrive(gated, begun)
        gated.dispatcher.await_decision("x", other)
        told_when_granted: list[list[str]] = []
        other.decided = lambda _: told_when_granted.append(gated.told)  # type: ignore[method-assign,assignment]  # it only listens
        gated.decide(Recalled(request_id, "r"), Granted("x", "r", 0.0))
        assert told_when_granted == [["Arrived"]]
        assert gated.told == ["Arrived", "RecallTooLate"]

    run_jumping(main())


def test_a_recall_of_what_has_ended_is_not_answered_again() -> None:
    """Its end was the answer."""

    async def main() -> None:
        gated, listener = Recalling(), Listener(has_begun=True)
        request_id = arrive(gated, listener)
        gated.dispatcher.forget(request_id)
        gated.recall(request_id)
        gated.recall("unknown")
        assert listener.recalls == 0
        assert gated.told == ["Arrived"]

    run_jumping(main())


def test_advice_on_the_number_of_replicas_reaches_whoever_publishes_it() -> None:
    """An autoscaler follows nothing else."""

    async def main() -> None:
        heard: list[ScaleAdvised] = []
        gated = Gated()
        prompted = Prompted(gated.scheduler)
        dispatcher = Dispatcher(prompted, gated.clock, advised=heard.append)  # type: ignore[arg-type]  # all that is used of it
        advice = ScaleAdvised(frozenset({"m"}), 3)
        prompted.next = [advice]
        dispatcher.tell(NOTHING)
        dispatcher.tell(NOTHING)
        assert heard == [advice]

    run_jumping(main())
