"""Gateways that meet in a real Redis, without anything else of a gateway."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from gateway.cluster.joining import Joined, joined
from gateway.cluster.messages import Beat, Message

WAIT_S_MAX = 20.0


class Party:
    """One gateway's line, and all that it heard."""

    def __init__(self, own: Joined) -> None:
        self.own = own
        self.heard: list[Message] = []
        self.losses: list[float] = []
        """When its line was lost."""

    def hear(self, messages: Sequence[Message]) -> None:
        """Note them."""
        self.heard += messages

    def lost(self) -> None:
        """Note it."""
        self.losses.append(time.monotonic())

    def say(self, to: "Party", number: int) -> None:
        """Post something that can be told apart."""
        self.own.transport.post(to.own.gateway, beat(self.own.gateway, number))

    @property
    def numbers(self) -> list[int]:
        """Of what was heard."""
        return [each.number for each in self.heard if isinstance(each, Beat)]


def beat(sender: str, number: int) -> Beat:
    """A small message."""
    return Beat(sender, "pool", 1, 1, number)


async def until(holds: Callable[[], object]) -> None:
    """Wait for it, for long on a busy machine."""
    async with asyncio.timeout(WAIT_S_MAX):
        while not holds():  # noqa: ASYNC110 - many things are waited for, and none has an event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def parties(
    url: str, *names: str, prefix: str = "fairgate"
) -> AsyncIterator[tuple[Party, ...]]:
    """So many gateways with open lines."""
    found = tuple(Party(joined(url, prefix=prefix, name=name)) for name in names)
    tasks = [asyncio.create_task(each.own.transport.run(each.hear, each.lost)) for each in found]
    try:
        await until(lambda: all(each.own.transport.is_up for each in found))
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
