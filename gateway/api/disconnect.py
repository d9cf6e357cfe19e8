"""Noticing that a client left, at any moment, and stopping what is done for it.

An endpoint that merely waits is not cancelled when its client leaves; it must watch `receive`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]


class ClientLeftError(Exception):
    """The client closed its connection before it had its answer."""


@asynccontextmanager
async def cancelled_when_client_leaves(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client leaves; raises ClientLeftError then.

    The request body must have been read. A cancellation from elsewhere passes through.
    """
    task = asyncio.current_task()
    assert task is not None
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            continue
        has_left = True
        task.cancel()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if has_left and task.uncancel() == 0:
            raise ClientLeftError from None
        raise
    finally:
        watcher.cancel()
    if has_left:
        # The block went on to its end regardless: nothing is left to cancel.
        task.uncancel()
