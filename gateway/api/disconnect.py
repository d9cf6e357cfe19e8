"""Noticing that a client left, at any moment, and stopping what is done for it.

An endpoint that merely waits is not cancelled when its client leaves. A server that tells of it
puts a `Departure` into the scope; under any other one `receive` must be watched.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Protocol

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]

DEPARTURE = "fairgate.departure"
"""Key of the scope under which the server's `Departure` stands."""


class ClientLeftError(Exception):
    """The client closed its connection before it had its answer."""


class ClientStalledError(Exception):
    """The client keeps its connection and takes nothing of its answer."""


class Cancellable(Protocol):
    """A task, or what stands for one."""

    def cancel(self) -> object:
        """End it."""


class Departure:
    """Whether the client of one request has left, and the task that ends with it."""

    __slots__ = ("_task", "has_left")

    def __init__(self) -> None:
        self.has_left = False
        self._task: Cancellable | None = None

    def happened(self) -> None:
        """The client left. Once is enough."""
        if not self.has_left:
            self.has_left = True
            self._end()

    def ends(self, task: "Cancellable | None") -> None:
        """From now on it ends `task`, which is running; None: nothing."""
        self._task = task
        if task is not None and self.has_left:
            # At its first wait: a task that is cancelled while it runs cannot be freed of it.
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()


class cancelled_when_client_leaves:  # noqa: N801 - reads as what it does to its block
    """Cancel the block when the client leaves; raises ClientLeftError then.

    The request body must have been read. A cancellation from elsewhere passes through.
    """

    __slots__ = ("_receive", "_task", "_watcher", "departure")

    def __init__(
        self,
        receive: Receive,
        departure: Departure | None = None,
        task: "asyncio.Task[Any] | None" = None,
    ) -> None:
        """`departure` is the server's own, if it tells of one: then nothing need be watched.

        `task`: the current one, where the caller has looked already.
        """
        self._receive = receive
        self.departure = Departure() if departure is None else departure
        self._watcher: asyncio.Task[None] | None = None
        task = asyncio.current_task() if task is None else task
        assert task is not None
        self._task: asyncio.Task[Any] = task
        if departure is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def __aenter__(self) -> None:
        self.departure.ends(self._task)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.departure.ends(None)
        if self._watcher is not None:
            self._watcher.cancel()
        if self.departure.has_left:
            # Where the block went on to its end regardless, nothing is left to cancel.
            is_alone = self._task.uncancel() == 0
            if kind is asyncio.CancelledError and is_alone:
                raise ClientLeftError from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self.departure.happened()
