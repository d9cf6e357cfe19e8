"""What one HTTP request waits on: tokens of its sequences, or the news that its client has left.

Tokens that come faster than they are taken are handed over together, as in the real engine, whose
events may carry several; so nothing here grows with a slow reader.
"""

import asyncio

from gateway.emulator.refusals import Refusal


class ClientGone(Exception):
    """The client closed its side; there is nobody to answer."""


class Silence(Exception):
    """Nothing came within the time allowed."""


Share = tuple[int, int, bool]
"""(choice, tokens since the last take, whether the choice has ended)"""


class Mailbox:
    """Filled by the engine loop, emptied by one request."""

    __slots__ = ("_ended", "_ends_awaited", "_failure", "_gone", "_tokens", "_waiter")

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}
        self._ended: set[int] = set()
        self._ends_awaited = 0
        """Nobody is woken by a token before so many choices have ended."""
        self._gone = False
        self._failure: Refusal | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, choice: int, n_tokens: int, *, ended: bool) -> None:
        """A step gave `choice` so many tokens."""
        self._tokens[choice] = self._tokens.get(choice, 0) + n_tokens
        if ended:
            self._ended.add(choice)
        if len(self._ended) >= self._ends_awaited:
            self._wake()

    def fail(self, refusal: Refusal) -> None:
        """The engine lost its sequences."""
        self._failure = refusal
        self._wake()

    def close(self) -> None:
        """The client has left."""
        self._gone = True
        self._wake()

    async def take(self, timeout_s: float | None = None) -> list[Share]:
        """All that has come since the last take, at least one share.

        Raises:
            ClientGone: the client has left.
            Refusal: the engine lost its sequences; all that came before was taken.
            Silence: nothing came for `timeout_s`.
        """
        if not self._tokens and not self._gone and self._failure is None:
            await self._wait(timeout_s)
        if self._gone:
            raise ClientGone
        if self._failure is not None and not self._tokens:
            raise self._failure
        tokens, self._tokens = self._tokens, {}
        return [(choice, n, choice in self._ended) for choice, n in tokens.items()]

    async def take_whole(self, choices: int) -> list[int]:
        """Tokens of each of so many choices, once all have ended; no token before is told of.

        Raises:
            ClientGone: the client has left.
            Refusal: the engine lost its sequences before.
        """
        self._ends_awaited = choices
        while len(self._ended) < choices and not self._gone and self._failure is None:
            await self._wait(None)
        if self._gone:
            raise ClientGone
        if self._failure is not None and len(self._ended) < choices:
            raise self._failure
        return [self._tokens.get(choice, 0) for choice in range(choices)]

    async def wait_gone(self, timeout_s: float | None = None) -> None:
        """Wait for the client to leave, which is told by `ClientGone`, or for `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._gone:
                    await self._wait(None)
        except TimeoutError:
            return
        raise ClientGone

    async def _wait(self, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        try:
            if timeout_s is None:
                await self._waiter
            else:
                async with asyncio.timeout(timeout_s):
                    await self._waiter
        except TimeoutError:
            raise Silence from None
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
