"""A recall and everything that can happen in the same turn of the loop: one answer, always."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.core.messages import (
    Arrived,
    Closed,
    DrainAsked,
    Event,
    Outcome,
    Reason,
    Recalled,
    ReplicaRemoved,
)
from gateway.errors import RefusedError
from gateway.runtime.admission import Admission
from gateway.runtime.gate import RecalledError, Waits
from tests.support.admitting import steps
from tests.support.jumping import run_jumping
from tests.support.recalling import Recalling

RECALLED = Recalled("q1", "r")


async def wait_recalled(grant: Admission, *actions: Callable[[], object]) -> None:
    """Wait for an engine while `actions` happen in one turn of the loop; it must be recalled."""
    loop = asyncio.get_running_loop()

    def act() -> None:
        for action in actions:
            action()

    loop.call_later(1.0, act)
    with pytest.raises(RecalledError), grant.recallable():
        await asyncio.sleep(60.0)


def leave_no_slot(gated: Recalling) -> None:
    """The one replica is drained and another one is full: what comes back has to wait."""
    gated.find("s", 1)
    gated.dispatcher.tell(Arrived(gated.request(user="v")))
    gated.dispatcher.tell(DrainAsked("r"))


def test_what_is_recalled_waits_again_and_keeps_its_arrival() -> None:
    """Its place is that of its arrival: being moved must not cost a client its turn."""

    async def main() -> None:
        gated = Recalling()
        async with gated.admitted() as grant:
            await wait_recalled(grant, gated.recall)
            assert gated.told == ["Arrived"]
            await asyncio.sleep(2.0)
            await grant.give_back()
            assert (grant.replica, grant.waited_s) == ("r", 3.0)
            with grant.recallable():
                grant.first_token()
            grant.finish(Outcome.DONE)
        assert gated.told == ["Arrived", "RecallDone", "FirstToken", "Finished"]
        assert gated.taken_back == 1
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await gated.check_all_free()

    run_jumping(main())


@pytest.mark.parametrize("waits_first", [True, False])
def test_what_is_recalled_before_it_was_handed_over_is_never_sent(waits_first: bool) -> None:
    """Granted and wanted back in one breath: an engine would begin it only to drop it."""

    async def main() -> None:
        gated = Recalling()
        blocker = gated.admitted()
        if waits_first:
            await blocker.__aenter__()
        stay = gated.admitted()
        entering = asyncio.get_running_loop().create_task(stay.__aenter__())
        gated.prompted.next = [] if waits_first else [Recalled("q2", "r")]
        await steps(2)
        if waits_first:
            gated.prompted.next = [Recalled("q2", "r")]
            blocker._end()
        await entering
        assert gated.told.count("RecallDone") == 1
        with stay.recallable():
            await asyncio.sleep(1.0)
        await stay.__aexit__(None, None, None)
        assert "RecallTooLate" not in gated.told
        await gated.check_all_free()

    run_jumping(main())


def test_what_is_recalled_when_it_was_just_granted_again_is_not_sent_either() -> None:
    """The second engine is no different from the first."""

    async def main() -> None:
        gated = Recalling()
        async with gated.admitted() as grant:
            asyncio.get_running_loop().call_later(0.1, gated.prompted.next.append, RECALLED)
            await grant.bounce()
            assert gated.told.count("RecallDone") == 1
            assert "RecallTooLate" not in gated.told
        await gated.check_all_free()

    run_jumping(main())


def test_a_recall_after_the_first_token_comes_too_late() -> None:
    """The client has seen it already."""

    async def main() -> None:
        gated = Recalling()
        loop = asyncio.get_running_loop()
        async with gated.admitted() as grant:
            loop.call_later(1.0, grant.first_token)
            loop.call_later(1.0, gated.recall)
            with grant.recallable():
                await asyncio.sleep(3.0)
            assert loop.time() == 3.0
            grant.finish(Outcome.DONE)
        assert gated.told == ["Arrived", "FirstToken", "RecallTooLate", "Finished"]
        assert gated.taken_back == 0
        await gated.check_all_free()

    run_jumping(main())


def test_a_recall_after_the_wait_for_the_engine_comes_too_late() -> None:
    """A plain answer has begun with its headers, of which the scheduler does not hear."""

    async def main() -> None:
        gated = Recalling()
        async with gated.admitted() as grant:
            with grant.recallable():
                await asyncio.sleep(1.0)
            asyncio.get_running_loop().call_later(1.0, gated.recall)
            await asyncio.sleep(2.0)
        assert gated.told == ["Arrived", "RecallTooLate", "Finished"]
        await gated.check_all_free()

    run_jumping(main())


def test_a_token_that_comes_after_the_recall_does_not_count() -> None:
    """Both crossed: the scheduler was promised the slot, and one story must hold."""

    async def main() -> None:
        gated = Recalling()
        async with gated.admitted() as grant:
            await wait_recalled(grant, gated.recall, grant.first_token)
            await grant.give_back()
        assert gated.told == ["Arrived", "RecallDone", "Finished"]
        await gated.check_all_free()

    run_jumping(main())


def test_a_second_recall_of_what_is_on_its_way_back_changes_nothing() -> None:
    """Two answers to one question would put it into the queue twice."""

    async def main() -> None:
        gated = Recalling()
        async with gated.admitted() as grant:
            await wait_recalled(grant, gated.recall, gated.recall)
            gated.recall()
            await grant.give_back()
        assert gated.told == ["Arrived", "RecallDone", "Finished"]
        await gated.check_all_free()

    run_jumping(main())


@pytest.mark.parametrize("is_recalled_first", [True, False])
def test_a_client_that_leaves_in_the_turn_of_the_recall_is_gone(is_recalled_first: bool) -> None:
    """Taken for the recall alone, a request of nobody would run on another replica."""

    async def main() -> None:
        gated = Recalling()
        loop = asyncio.get_running_loop()

        async def run() -> None:
            async with gated.admitted() as grant:
                with grant.recallable():
                    await asyncio.sleep(60.0)

        task = loop.create_task(run())
        await asyncio.sleep(1.0)
        actions: list[Callable[[], object]] = [gated.recall, task.cancel]
        for action in actions if is_recalled_first else reversed(actions):
            action()
        await asyncio.wait([task])
        assert task.cancelled()
        assert gated.told == ["Arrived", "Finished"]
        assert gated.taken_back == 0
        await gated.check_all_free()

    run_jumping(main())


@pytest.mark.parametrize("is_recalled_first", [True, False])
def test_a_timeout_in_the_turn_of_the_recall_is_the_recall(is_recalled_first: bool) -> None:
    """Connecting takes its time; told as the engine's failure it would count against it."""

    async def main() -> None:
        gated = Recalling()
        loop = asyncio.get_running_loop()

        async def connect() -> None:
            async with asyncio.timeout_at(2.0):
                if not is_recalled_first:
                    loop.call_at(2.0, gated.recall)
                await asyncio.sleep(60.0)

        async with gated.admitted() as grant:
            if is_recalled_first:
                loop.call_at(2.0, gated.recall)
            with pytest.raises(RecalledError), grant.recallable():
                await connect()
            await grant.give_back()
        await gated.check_all_free()

    run_jumping(main())


def test_what_arrived_in_the_turn_of_the_recall_is_dropped_with_it() -> None:
    """The task was about to read it; to go on with half an answer would be worse."""

    async def main() -> None:
        gated = Recalling()
        loop = asyncio.get_running_loop()
        async with gated.admitted() as grant:
            arrived = loop.create_future()
            loop.call_later(1.0, arrived.set_result, None)
            loop.call_later(1.0, gated.recall)
            with pytest.raises(RecalledError), grant.recallable():
                await arrived
            assert arrived.done()
            await grant.give_back()
        await gated.check_all_free()

    run_jumping(main())


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([Closed()], Reason.SHUTTING_DOWN),
        ([ReplicaRemoved("r"), ReplicaRemoved("s")], Reason.NO_REPLICA),
    ],
)
def test_what_cannot_wait_again_is_refused(events: list[Event], reason: Reason) -> None:
    """It must not hang where nothing will ever come."""

    async def main() -> None:
        gated = Recalling()

        async def run() -> None:
            async with gated.admitted() as grant:
                await wait_recalled(grant, gated.recall)
                leave_no_slot(gated)
                for event in events:
                    gated.dispatcher.tell(event)
                await grant.give_back()

        with pytest.raises(RefusedError) as refused:
            await run()
        assert refused.value.reason is reason
        assert not gated.scheduler.waiting

    run_jumping(main())


def test_patience_goes_on_while_it_waits_again() -> None:
    """Counted anew from the recall, a client would wait longer than it said."""

    async def main() -> None:
        gated = Recalling(patience_s=10.0)
        loop = asyncio.get_running_loop()

        async def run() -> None:
            async with gated.admitted() as grant:
                await wait_recalled(grant, gated.recall)
                leave_no_slot(gated)
                await grant.give_back()

        with pytest.raises(RefusedError) as refused:
            await run()
        assert refused.value.reason is Reason.PATIENCE_SPENT
        assert loop.time() == 10.0

    run_jumping(main())


def test_comments_go_on_while_it_waits_again() -> None:
    """Silence makes proxies give up."""

    async def main() -> None:
        gated = Recalling()
        loop = asyncio.get_running_loop()
        heard: list[float] = []

        async def on_wait(position: int, eta_s: float | None) -> None:
            heard.append(loop.time())

        async with gated.admitted(Waits(on_wait, 5.0)) as grant:
            await wait_recalled(grant, gated.recall)
            leave_no_slot(gated)
            assert heard == []
            loop.call_later(12.0, gated.find, "t", 1)
            await grant.give_back()
            assert grant.replica == "t"
        assert heard == [6.0, 11.0]

    run_jumping(main())


def test_a_block_that_fails_by_itself_is_no_recall() -> None:
    """What broke must be told as broken."""

    async def main() -> None:
        gated = Recalling()
        failing = asyncio.get_running_loop().create_future()
        failing.set_exception(ConnectionError())
        async with gated.admitted() as grant:
            with pytest.raises(ConnectionError), grant.recallable():
                await failing
            gated.recall()
            grant.finish(Outcome.FAILED)
        assert gated.told == ["Arrived", "RecallTooLate", "Finished"]
        await gated.check_all_free()

    run_jumping(main())


def test_a_grant_that_comes_with_the_answer_to_a_recall_costs_no_turn() -> None:
    """A slot that is free elsewhere must not wait for the loop."""

    async def main() -> None:
        gated = Recalling()
        async with gated.admitted() as grant:
            await wait_recalled(grant, gated.recall)
            at_once = grant.give_back()
            with pytest.raises(StopIteration):
                at_once.send(None)
        await gated.check_all_free()

    run_jumping(main())
