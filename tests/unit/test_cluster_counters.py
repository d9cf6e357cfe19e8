"""What a gateway counts in Redis, and what becomes of an answer that nobody waits for any more."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from gateway.cluster.counters import CORRECT, RESERVE, RedisCounters
from gateway.cluster.keys import Keys
from gateway.cluster.line import LineLostError
from gateway.cluster.link import Link
from gateway.tenancy.shared import NOT_KNOWN, Ask

ASK = Ask(
    holder="tenant:acme", requests_most=None, tokens=0, tokens_most=None,
    budget=30, budget_most=100, per="month", known=NOT_KNOWN,
)  # fmt: skip
TAKEN = [1, 1_000, 0, b"2026-11-30", b"2026-11", [[0, 0, 0, 0, 0, 0, 30]]]
REFUSED = [0, 1_000, 0, b"2026-11-30", b"2026-11", [[0, 0, 0, 0, 0, 0, 90]]]


class FakeLink:
    """Keeps what it is told, with whoever waits for the answer."""

    def __init__(self) -> None:
        self.told: list[tuple[bytes, Callable[[object], None]]] = []

    def tell(self, command: bytes, answered: Callable[[object], None]) -> None:
        """See `Link.tell`."""
        self.told.append((command, answered))

    @property
    def corrections(self) -> int:
        """How many were sent."""
        return sum(CORRECT.sha.encode() in command for command, _ in self.told)


def counters(link: FakeLink) -> RedisCounters:
    """Over that link."""
    return RedisCounters(cast(Link, link), Keys("fairgate"), "a")


@pytest.mark.parametrize(("reply", "corrections"), [(TAKEN, 1), (REFUSED, 0)])
async def test_an_answer_that_comes_with_the_cancellation_is_given_back(
    reply: object, corrections: int
) -> None:
    """What is reserved for nobody would be missing in a budget until its month is over."""
    link = FakeLink()
    task = asyncio.create_task(counters(link).reserve([ASK]))
    await asyncio.sleep(0)
    command, answered = link.told[0]
    assert RESERVE.sha.encode() in command
    answered(reply)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert link.corrections == corrections


async def test_an_answer_that_comes_after_the_cancellation_is_given_back() -> None:
    """The usual order: the client left while Redis was asked."""
    link = FakeLink()
    task = asyncio.create_task(counters(link).reserve([ASK]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert link.corrections == 0
    link.told[0][1](TAKEN)
    assert link.corrections == 1


async def test_a_line_that_is_lost_with_the_cancellation_gives_nothing_back() -> None:
    """Nothing is known to be taken, and what is given back twice would be a gift."""
    link = FakeLink()
    task = asyncio.create_task(counters(link).reserve([ASK]))
    await asyncio.sleep(0)
    link.told[0][1](LineLostError("gone"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert link.corrections == 0
