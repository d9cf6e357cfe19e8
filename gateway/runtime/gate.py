"""The port through which the HTTP edge asks for permission, and what it gets.

`api` cannot tell whether the scheduler behind a gate runs in this process or elsewhere.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.core.messages import Fault, Outcome, Request, Usage

OnWait = Callable[[int, float | None], Awaitable[None]]
"""Called now and then while a request waits, with its position and expected wait in seconds."""


@dataclass(slots=True, init=False)
class Waits:
    """What to do while a request waits: call `on_wait` every `every_s` seconds.

    One is made for each stream, hence by an `__init__` that is compiled.
    """

    on_wait: OnWait
    every_s: float

    def __init__(self, on_wait: OnWait, every_s: float) -> None:
        self.on_wait = on_wait
        self.every_s = every_s


class RecalledError(Exception):
    """The scheduler wants the request back before the engine began with it."""


class Grant(Protocol):
    """Permission to use one replica. Ends once, when the upstream ends or the block is left.

    The scheduler may want it back as long as the engine has not begun. It learns by itself that
    this comes too late once `first_token` was told or a `recallable` block was left.
    """

    replica: str
    waited_s: float
    """From arrival to the (last) release."""
    position: int
    """Place in the line on entry; 0 when it did not wait."""

    def recallable(self, task: "asyncio.Task[Any] | None" = None) -> AbstractContextManager[None]:
        """Wait in this block for the engine to begin; RecalledError comes out of it if it must not.

        A recall cancels what is awaited inside. Then nothing that arrives counts any more: the way
        to the engine must be cut, and `give_back` called. The block is entered at once after each
        grant, and its own task must not wait for the scheduler inside. `task`: the current one,
        where the caller has looked already.
        """

    async def give_back(self) -> None:
        """The engine let go of what was recalled: to one's place, and wait for another grant.

        Raises RefusedError.
        """

    def first_token(self) -> None:
        """The engine began to answer."""

    def movable(self, end: Callable[[], bool] | None) -> None:
        """From now on `end` is called when the running request should go on elsewhere.

        It must not block, and returns whether the upstream will be ended for that; None: it stays
        where it is, whatever the scheduler wants, which is so until this is called.
        """

    def finish(
        self,
        outcome: Outcome,
        usage: Usage | None = None,
        tpot_s: float | None = None,
        fault: Fault | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        """The upstream ended. Idempotent; leaving the block without it means cancelled.

        `fault`: why it failed, where that is the engine's. `goes_on`: the rest is generated
        elsewhere, so what there is is charged.
        """

    async def bounce(self) -> None:
        """The engine is busy: go back to one's place in the queue and wait for another grant.

        Raises RefusedError.
        """


class Gate(Protocol):
    """Where grants come from."""

    def admitted(
        self, request: Request, waits: Waits | None = None
    ) -> AbstractAsyncContextManager[Grant]:
        """Wait for a grant. Entering raises RefusedError when the scheduler refuses."""
