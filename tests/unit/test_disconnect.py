"""A client that leaves: its work stops at that very step, and nothing else is taken for it."""

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from gateway.api.disconnect import ClientLeftError, Departure, cancelled_when_client_leaves
from tests.support.admitting import Gated, steps
from tests.support.jumping import run_jumping

STEPS = range(16)


class Client:
    """The other end of the connection."""

    def __init__(self, *, is_told: bool) -> None:
        """`is_told`: the server tells of its departure, so that nobody need watch."""
        self._messages: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.departure = Departure() if is_told else None
        self.is_watched = False

    @property
    def stays(self) -> cancelled_when_client_leaves:
        """The block under test."""
        return cancelled_when_client_leaves(self.receive, self.departure)

    def leave(self) -> None:
        """It closes the connection."""
        if self.departure is not None:
            self.departure.happened()
        self._messages.put_nowait({"type": "http.disconnect"})

    def say(self) -> None:
        """More of a body that was complete already."""
        self._messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def receive(self) -> MutableMapping[str, Any]:
        """ASGI's receive."""
        self.is_watched = True
        try:
            return await self._messages.get()
        finally:
            self.is_watched = False


def run(main: Callable[[Client, "asyncio.Task[Any]"], Any]) -> None:
    """Run `main` with a client and its own task; nothing of the watch may be left after it."""

    async def whole(*, is_told: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        client = Client(is_told=is_told)
        await main(client, task)
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # a stray cancellation would strike here
        assert not client.is_watched
        assert asyncio.all_tasks() == {task}

    for is_told in (False, True):
        run_jumping(whole(is_told=is_told))


def test_a_client_that_leaves_ends_the_block() -> None:
    """An engine would generate for nobody."""

    async def main(client: Client, task: "asyncio.Task[Any]") -> None:
        asyncio.get_running_loop().call_later(5.0, client.leave)
        with pytest.raises(ClientLeftError):
            async with client.stays:
                await asyncio.sleep(3600.0)
        assert asyncio.get_running_loop().time() == 5.0

    run(main)


def test_a_client_that_stays_changes_nothing() -> None:
    """The usual case: the watch ends with the block."""

    async def main(client: Client, task: "asyncio.Task[Any]") -> None:
        client.say()
        async with client.stays:
            client.say()
            await asyncio.sleep(1.0)
            assert client.is_watched is (client.departure is None)
        client.leave()

    run(main)


def test_a_client_that_had_left_before_ends_the_block_at_its_first_wait() -> None:
    """It left while its body was parsed."""

    async def main(client: Client, task: "asyncio.Task[Any]") -> None:
        client.leave()
        with pytest.raises(ClientLeftError):
            async with client.stays:
                await asyncio.sleep(3600.0)

    run(main)


def test_a_block_that_never_waits_is_not_ended() -> None:
    """What is done is done."""

    async def main(client: Client, task: "asyncio.Task[Any]") -> None:
        client.leave()
        async with client.stays:
            pass

    run(main)


@pytest.mark.parametrize("leaves_first", [True, False])
def test_a_client_that_leaves_in_the_last_step_leaves_no_cancellation_behind(
    leaves_first: bool,
) -> None:
    """It would strike whatever the task does next: the log line, or the next request."""

    async def main(client: Client, task: "asyncio.Task[Any]") -> None:
        done = asyncio.get_running_loop().create_future()

        async def both() -> None:
            if leaves_first:
                client.leave()
            if not done.done():
                done.set_result(None)
            client.leave()

        other = asyncio.get_running_loop().create_task(both())
        try:
            async with client.stays:
                await done
        except ClientLeftError:
            pass
        await other

    run(main)


def test_a_block_that_swallows_the_cancellation_leaves_none_behind() -> None:
    """A later timeout in the same task would take itself for cancelled."""

    async def main(client: Client, task: "asyncio.Task[Any]") -> None:
        client.leave()
        async with client.stays:
            try:
                await asyncio.sleep(3600.0)
            except asyncio.CancelledError:
                await asyncio.sleep(1.0)

    run(main)


def test_an_error_of_the_block_passes() -> None:
    """A refusal is what the client must hear."""

    async def main(client: Client, task: "asyncio.Task[Any]") -> None:
        async def refuse() -> None:
            async with client.stays:
                await asyncio.sleep(0)
                raise ValueError("refused")

        with pytest.raises(ValueError, match="refused"):
            await refuse()

    run(main)


@pytest.mark.parametrize("also_leaves", [False, True])
def test_a_cancellation_from_elsewhere_is_never_taken_for_a_client_that_left(
    also_leaves: bool,
) -> None:
    """A server that shuts down could not end its tasks."""

    async def main(client: Client, task: "asyncio.Task[Any]") -> None:
        async def serve() -> None:
            async with client.stays:
                await asyncio.sleep(3600.0)

        serving = asyncio.get_running_loop().create_task(serve())
        await steps(3)
        if also_leaves:
            client.leave()
            await steps(1 if client.departure is None else 0)
        serving.cancel()
        await asyncio.wait([serving])
        assert serving.cancelled()

    run(main)


def test_a_timeout_around_it_works() -> None:
    """Cancellations nest: each is answered by who made it."""

    async def main(client: Client, task: "asyncio.Task[Any]") -> None:
        async def serve() -> None:
            async with asyncio.timeout(2.0), client.stays:
                await asyncio.sleep(3600.0)

        with pytest.raises(TimeoutError):
            await serve()

    run(main)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_leaving_at_any_step_frees_the_slot(step: int, waits: bool) -> None:
    """The two guards work together as they do in the relay."""

    async def main(client: Client, task: "asyncio.Task[Any]") -> None:
        gated = Gated()
        blocker = gated.admitted()
        if waits:
            await blocker.__aenter__()

        async def serve() -> str:
            try:
                async with client.stays, gated.admitted():
                    await steps(4)
            except ClientLeftError:
                return "left"
            return "served"

        serving = asyncio.get_running_loop().create_task(serve())
        await steps(step)
        client.leave()
        if waits:
            await steps(5)
            await blocker.__aexit__(None, None, None)
        assert await serving in ("left", "served")
        await gated.check_all_free()

    run(main)
