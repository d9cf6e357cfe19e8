"""The local gate: a request's stay with the scheduler as one `async with` block.

Leaving the block is the only place where a request ends. Cancelled at any step, before, during or
after the grant, the slot comes back exactly once.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from gateway.core.messages import (
    Arrived,
    Bounced,
    Fault,
    Finished,
    FirstToken,
    Granted,
    Outcome,
    RecallDone,
    Refused,
    Request,
    Usage,
)
from gateway.errors import RefusedError
from gateway.runtime.dispatcher import Dispatcher
from gateway.runtime.gate import RecalledError, Waits


class LocalGate:
    """Grants from the scheduler of this process."""

    def __init__(
        self, dispatcher: Dispatcher, *, taken_back: Callable[[], None] = lambda: None
    ) -> None:
        """`taken_back` is called for each request that came back from an engine in time."""
        self._dispatcher = dispatcher
        self._taken_back = taken_back

    def admitted(self, request: Request, waits: Waits | None = None) -> "Admission":
        """See `Gate.admitted`."""
        return Admission(self._dispatcher, request, waits, taken_back=self._taken_back)


class Admission:
    """One request with the scheduler; inside the block it is the grant itself."""

    __slots__ = (
        "_decision", "_dispatcher", "_future", "_is_finished", "_is_held", "_is_recalled", "_move",
        "_request", "_taken_back", "_task", "_waits", "position", "replica", "waited_s",
    )  # fmt: skip

    def __init__(
        self,
        dispatcher: Dispatcher,
        request: Request,
        waits: Waits | None,
        *,
        taken_back: Callable[[], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._request = request
        self._waits = waits
        self._taken_back = taken_back
        self._decision: Granted | Refused | None = None
        self._future: asyncio.Future[None] | None = None
        self._is_finished = False
        self._is_held = False
        """Whether the grant was handed over to whoever asked for it."""
        self._task: asyncio.Task[object] | None = None
        """What waits inside a `recallable` block for the engine to begin."""
        self._is_recalled = False
        """Whether a recall was accepted and its answer is out."""
        self._move: Callable[[], bool] | None = None
        """Ends the upstream, so that the rest goes on elsewhere."""
        self.replica = ""
        self.waited_s = 0.0
        self.position = 0

    async def __aenter__(self) -> "Admission":
        request_id = self._request.id
        self._dispatcher.await_decision(request_id, self)
        try:
            self._dispatcher.tell(Arrived(self._request))
            if self._decision is None:
                self.position = self._dispatcher.place_of(request_id)[0]
            await self._granted()
            if not self.position and self._dispatcher.decider is not None:
                # Where another gateway decides, the place comes a moment after the question.
                self.position = self._dispatcher.place_of(request_id)[0]
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def decided(self, decision: Granted | Refused) -> None:
        """See `Waiter.decided`."""
        self._decision = decision
        self._wake()

    def recalled(self) -> bool:
        """See `Waiter.recalled`."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._is_recalled = True
        elif not self._is_held:
            # Granted a moment ago, and nothing was sent yet.
            self._is_recalled = True
        return self._is_recalled

    def recallable(self, task: "asyncio.Task[Any] | None" = None) -> "Recallable":
        """See `Grant.recallable`."""
        task = asyncio.current_task() if task is None else task
        assert task is not None
        return Recallable(self, task)

    async def give_back(self) -> None:
        """See `Grant.give_back`."""
        assert self._is_recalled, "nobody asked for it"
        self._take_back()
        await self._granted()

    def first_token(self) -> None:
        """See `Grant.first_token`."""
        if not (self._is_finished or self._is_recalled):
            self._task = None
            self._dispatcher.tell(FirstToken(self._request.id))

    def move_wanted(self) -> bool:
        """See `Waiter.move_wanted`."""
        return self._move is not None and not self._is_finished and self._move()

    def movable(self, end: Callable[[], bool] | None) -> None:
        """See `Grant.movable`."""
        self._move = end

    def finish(
        self,
        outcome: Outcome,
        usage: Usage | None = None,
        tpot_s: float | None = None,
        fault: Fault | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        """See `Grant.finish`."""
        if not self._is_finished:
            self._is_finished = True
            ended = Finished(self._request.id, outcome, usage, tpot_s, fault=fault, goes_on=goes_on)
            self._dispatcher.tell(ended)

    async def bounce(self) -> None:
        """See `Grant.bounce`."""
        assert not self._is_finished, "what ended cannot go back"
        self._go_back(Bounced(self._request.id))
        await self._granted()

    async def _granted(self) -> None:
        while self._decision is None or self._is_recalled:
            if self._is_recalled:
                self._take_back()
            else:
                await self._wait()
        if isinstance(self._decision, Refused):
            self._is_finished = True
            raise RefusedError(self._decision.reason, self._decision.retry_after_s)
        self.replica = self._decision.replica
        self.waited_s = self._decision.waited_s
        self._is_held = True

    def _take_back(self) -> None:
        self._taken_back()
        self._go_back(RecallDone(self._request.id))

    def _go_back(self, event: Bounced | RecallDone) -> None:
        # Before the scheduler hears of it: the next grant may come at once.
        self._decision = None
        self._is_held = self._is_recalled = False
        self._dispatcher.tell(event)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        if self._waits is None:
            await self._future
            return
        timer = loop.call_later(self._waits.every_s, self._wake)
        try:
            await self._future
        finally:
            timer.cancel()
        if self._decision is None:
            await self._waits.on_wait(*self._dispatcher.place_of(self._request.id))

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def _end(self) -> None:
        self.finish(Outcome.CANCELLED)
        self._dispatcher.forget(self._request.id)


class Recallable:
    """One wait for an engine to begin: a recall cancels it, and comes out as RecalledError."""

    __slots__ = ("_admission", "_cancelling", "_task")

    def __init__(self, admission: Admission, task: "asyncio.Task[Any]") -> None:
        self._admission = admission
        self._task = task
        self._cancelling = task.cancelling()

    def __enter__(self) -> None:
        assert self._admission._is_held, "only a grant can be recalled"
        self._admission._task = self._task

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._admission._task = None
        if not self._admission._is_recalled:
            return
        # As in asyncio.timeout: where somebody else cancels too, the task ends.
        if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise RecalledError from None
