"""A stay with the scheduler: however it ends, the slot comes back exactly once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from gateway.core.messages import (
    Closed,
    DrainAsked,
    Event,
    Outcome,
    Reason,
    RecallTooLate,
    ReplicaRemoved,
    Usage,
)
from gateway.errors import RefusedError
from gateway.runtime.admission import Admission
from gateway.runtime.gate import RecalledError, Waits
from tests.support.admitting import Gated, steps
from tests.support.jumping import run_jumping

STEPS = range(16)


async def at_once(gated: Gated, body: Callable[[], Awaitable[None]]) -> None:
    """Enters a free slot and stays for some steps."""
    async with gated.admitted():
        await body()


async def after_waiting(gated: Gated, body: Callable[[], Awaitable[None]]) -> None:
    """Waits for somebody else's slot first; that one goes after five steps."""
    other = gated.admitted()
    await other.__aenter__()

    async def leave() -> None:
        await steps(5)
        await other.__aexit__(None, None, None)

    leaving = asyncio.get_running_loop().create_task(leave())
    try:
        async with gated.admitted():
            await body()
    finally:
        await asyncio.shield(leaving)


async def with_comments(gated: Gated, body: Callable[[], Awaitable[None]]) -> None:
    """Waits and comments on it all the time, slowly."""

    async def on_wait(position: int, eta_s: float | None) -> None:
        await steps(2)

    other = gated.admitted()
    await other.__aenter__()
    asyncio.get_running_loop().call_later(0.3, other._end)
    async with gated.admitted(Waits(on_wait, 0.05)):
        await body()


async def bounced(gated: Gated, body: Callable[[], Awaitable[None]]) -> None:
    """The engine is busy twice, then takes it."""
    async with gated.admitted() as grant:
        await steps(2)
        await grant.bounce()
        await steps(1)
        await grant.bounce()
        grant.first_token()
        await body()


async def finished(gated: Gated, body: Callable[[], Awaitable[None]]) -> None:
    """The upstream ends long before the block does."""
    async with gated.admitted() as grant:
        await steps(2)
        grant.first_token()
        grant.finish(Outcome.DONE, Usage(output_tokens=3))
        await body()
        grant.finish(Outcome.FAILED)


async def failing(gated: Gated, body: Callable[[], Awaitable[None]]) -> None:
    """The block fails for its own reasons."""

    async def fail() -> None:
        async with gated.admitted():
            await body()
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await fail()


async def recalled(gated: Gated, body: Callable[[], Awaitable[None]]) -> None:
    """Taken back before the engine begins, granted again at once, and too late the second time."""
    async with gated.admitted() as grant:
        soon(3, lambda: wanted_back(gated, grant))
        with suppress(RecalledError):
            with grant.recallable():
                await steps(6)
            return
        await steps(2)
        await grant.give_back()
        with grant.recallable():
            grant.first_token()
        wanted_back(gated, grant)
        await body()


async def recalled_and_waiting(gated: Gated, body: Callable[[], Awaitable[None]]) -> None:
    """Taken back from a replica that is drained, while the other one is still full."""
    gated.find("s", 1)
    other = gated.admitted()
    await other.__aenter__()
    async with gated.admitted() as grant:
        gated.dispatcher.tell(DrainAsked(grant.replica))
        soon(8, other._end)
        soon(2, lambda: wanted_back(gated, grant))
        with suppress(RecalledError), grant.recallable():
            await steps(6)
        await grant.give_back()
        assert grant.replica == other.replica
        await body()


async def recalled_at_once(gated: Gated, body: Callable[[], Awaitable[None]]) -> None:
    """Wanted back between the decision and its delivery."""
    other = gated.admitted()
    await other.__aenter__()
    stay = gated.admitted()

    def hand_over() -> None:
        other._end()
        if stay._decision is not None:
            wanted_back(gated, stay)

    soon(2, hand_over)
    async with stay as grant:
        with grant.recallable():
            await body()


def soon(count: int, action: Callable[[], None]) -> None:
    """Do it after `count` turns of the loop, whoever is cancelled meanwhile."""
    loop = asyncio.get_running_loop()
    loop.call_soon(soon, count - 1, action) if count else action()


def wanted_back(gated: Gated, stay: Admission) -> None:
    """What the dispatcher does with a recall of a request that it still knows."""
    if not stay._is_finished and not stay.recalled():
        gated.dispatcher.tell(RecallTooLate(stay._request.id))


STORIES = [
    at_once, after_waiting, with_comments, bounced, finished, failing, recalled,
    recalled_and_waiting, recalled_at_once,
]  # fmt: skip


@pytest.mark.parametrize("step", [*STEPS, None])
@pytest.mark.parametrize("story", STORIES)
def test_cancelled_at_any_step_the_slot_comes_back_exactly_once(
    story: Callable[[Gated, Callable[[], Awaitable[None]]], Awaitable[None]], step: int | None
) -> None:
    """A leaked slot is the commonest fault of this kind of product: the fleet runs dry."""

    async def main() -> None:
        gated = Gated()

        async def run() -> None:
            await story(gated, lambda: steps(4))

        task = asyncio.get_running_loop().create_task(run())
        if step is not None:
            await steps(step)
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None
        await asyncio.sleep(1.0)
        await gated.check_all_free()

    run_jumping(main())


@pytest.mark.parametrize("delay_ms", [0, 49, 50, 51, 299, 300, 301, 600, 1000])
@pytest.mark.parametrize("story", [with_comments, bounced])
def test_cancelled_at_any_instant_the_slot_comes_back_exactly_once(
    story: Callable[[Gated, Callable[[], Awaitable[None]]], Awaitable[None]], delay_ms: int
) -> None:
    """Clients leave while a comment is written, or while a busy engine rests, just as well."""

    async def main() -> None:
        gated = Gated()

        async def run() -> None:
            await story(gated, lambda: asyncio.sleep(0.2))

        task = asyncio.get_running_loop().create_task(run())
        await asyncio.sleep(delay_ms / 1000)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(1.0)
        await gated.check_all_free()

    run_jumping(main())


def test_a_grant_knows_where_and_how_long() -> None:
    """The client is told by headers, and the operator by metrics."""

    async def main() -> None:
        gated = Gated()
        async with gated.admitted() as first:
            assert (first.replica, first.waited_s, first.position) == ("r", 0.0, 0)
            second = gated.admitted()
            entering = asyncio.get_running_loop().create_task(second.__aenter__())
            await asyncio.sleep(7.0)
            first.finish(Outcome.DONE)
        await entering
        assert (second.replica, second.waited_s, second.position) == ("r", 7.0, 1)
        await second.__aexit__(None, None, None)

    run_jumping(main())


def test_the_slot_is_free_when_the_upstream_ends_and_not_when_the_client_has_read() -> None:
    """A slow reader must not hold a GPU slot."""

    async def main() -> None:
        gated = Gated()
        async with gated.admitted() as slow:
            slow.finish(Outcome.DONE)
            async with gated.admitted() as next_one:
                assert next_one.replica == "r"

    run_jumping(main())


def test_words_after_the_end_say_nothing() -> None:
    """The end of an upstream and that of a block may come in any order."""

    async def main() -> None:
        gated = Gated()
        told: list[Event] = []
        async with gated.admitted() as grant:
            grant.finish(Outcome.DONE)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(gated.dispatcher, "tell", told.append)
                grant.first_token()
                grant.finish(Outcome.FAILED)
                await grant.__aexit__(None, None, None)
        assert told == []

    run_jumping(main())


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        (Reason.NO_REPLICA, {"model": "unknown"}),
        (Reason.NO_REPLICA, {"excluded": frozenset({"r"})}),
        (Reason.PATIENCE_SPENT, {"patience_s": 3.0}),
        (Reason.SHUTTING_DOWN, {}),
        (Reason.QUEUE_FULL, {}),
    ],
)
def test_a_refusal_is_raised_with_its_reason_and_leaves_nothing(
    reason: Reason, fields: dict[str, object]
) -> None:
    """The client needs the right status, and the next one its place."""

    async def main() -> None:
        gated = Gated(waiting=0 if reason is Reason.QUEUE_FULL else 10)
        async with gated.admitted():
            if reason is Reason.SHUTTING_DOWN:
                asyncio.get_running_loop().call_later(2.0, gated.close)
            with pytest.raises(RefusedError) as refused:
                async with gated.admitted(**fields):
                    pytest.fail("it was admitted")
        assert refused.value.reason is reason
        assert refused.value.retry_after_s is not None
        assert refused.value.retry_after_s >= 1.0
        if reason not in (Reason.SHUTTING_DOWN, Reason.QUEUE_FULL):
            await gated.check_all_free()
        assert gated.held == 0

    run_jumping(main())


@pytest.mark.parametrize("event", [Closed(), ReplicaRemoved("r")])
def test_a_bounce_may_end_in_a_refusal(event: Closed | ReplicaRemoved) -> None:
    """A busy engine that then goes away must not leave its requests hanging."""

    async def main() -> None:
        gated = Gated()

        async def bounce() -> None:
            async with gated.admitted() as grant:
                gated.dispatcher.tell(event)
                await grant.bounce()

        with pytest.raises(RefusedError):
            await bounce()
        assert gated.held == 0

    run_jumping(main())


def test_a_bounced_request_waits_until_the_engine_has_rested() -> None:
    """Sent back at once it would only be refused again, as fast as the loop turns."""

    async def main() -> None:
        gated = Gated()
        loop = asyncio.get_running_loop()
        async with gated.admitted() as grant:
            asked_at = loop.time()
            await grant.bounce()
            assert 0.2 < loop.time() - asked_at < 1.0
            assert grant.waited_s == loop.time() - asked_at
        await gated.check_all_free()

    run_jumping(main())


def test_comments_come_at_their_interval_and_end_with_the_grant() -> None:
    """Silence makes proxies give up; a comment after the first event would corrupt the stream."""

    async def main() -> None:
        gated = Gated()
        loop = asyncio.get_running_loop()
        heard: list[tuple[float, int]] = []

        async def on_wait(position: int, eta_s: float | None) -> None:
            heard.append((loop.time(), position))

        blocker = gated.admitted()
        await blocker.__aenter__()
        loop.call_later(12.0, blocker._end)
        async with gated.admitted(Waits(on_wait, 5.0)):
            granted_at = loop.time()
            await asyncio.sleep(30.0)
        assert granted_at == 12.0
        assert heard == [(5.0, 1), (10.0, 1)]
        await gated.check_all_free()

    run_jumping(main())


def test_nothing_is_commented_on_where_nobody_waits() -> None:
    """A comment makes the answer a 200: a refusal would lose its status for it."""

    async def main() -> None:
        gated = Gated()
        heard: list[int] = []

        async def on_wait(position: int, eta_s: float | None) -> None:
            heard.append(position)

        async with gated.admitted(Waits(on_wait, 0.001)):
            await asyncio.sleep(1.0)
        with pytest.raises(RefusedError):
            async with gated.admitted(Waits(on_wait, 0.001), model="unknown"):
                pytest.fail("it was admitted")
        assert heard == []

    run_jumping(main())


def test_a_grant_that_comes_while_a_comment_is_written_is_not_missed() -> None:
    """A slow client would wait one interval more, on a slot that is already its own."""

    async def main() -> None:
        gated = Gated()
        loop = asyncio.get_running_loop()

        async def on_wait(position: int, eta_s: float | None) -> None:
            await asyncio.sleep(3.0)

        blocker = gated.admitted()
        await blocker.__aenter__()
        loop.call_later(6.0, blocker._end)
        async with gated.admitted(Waits(on_wait, 5.0)):
            assert loop.time() == 8.0

    run_jumping(main())


def test_a_comment_that_fails_ends_the_stay() -> None:
    """The client is gone, and so must be its place."""

    async def main() -> None:
        gated = Gated()

        async def on_wait(position: int, eta_s: float | None) -> None:
            raise ConnectionError

        async with gated.admitted():
            with pytest.raises(ConnectionError):
                async with gated.admitted(Waits(on_wait, 5.0)):
                    pytest.fail("it was admitted")
            assert len(gated.scheduler.waiting) == 0
        await gated.check_all_free()

    run_jumping(main())
