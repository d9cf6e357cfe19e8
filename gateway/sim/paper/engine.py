"""What the two engines of the paper have in common: a batch at a time, blocks, and who is leaving.

Decides nothing about who runs next. `gateway.sim.replica.Engine` is the engine model of everything
else; these two exist because parity needs what it refuses to do: prefills and decodes in separate
steps, padded prefill batches, preemption for want of a block that nobody takes (`paged.py`), and
requests that run on without any blocks (`llumlet.py`).
"""

import math
from dataclasses import dataclass
from typing import Protocol

from gateway.sim.paper.request import Request

HEADROOM_SHARE = 0.20
HEADROOM_DECAY = 2.5
"""The first tier's headroom as a share of all blocks, and how many e-foldings the last one's is
below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The limits of an engine; the defaults are the paper's."""

    blocks: int = 128
    block_tokens: int = 16
    sequences_max: int = 64
    batch_tokens_max: int = 2048
    """Of a prefill batch, each prompt padded to the longest."""
    watermark_blocks: int = 1

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold so many tokens."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that an engine would part with."""

    request: Request
    blocks: int
    """What it holds, or would take with its next step."""
    runs: bool


class Engine(Protocol):
    """One replica, as routers and the event loop see it."""

    index: int
    batch: list[Request]
    """What the step in flight computes; empty: it stands idle."""
    blocks_used: int
    promised: dict[int, int]
    """Blocks kept for requests that are on their way here, by number."""
    leaving: "dict[int, Departure]"

    @property
    def size(self) -> Size:
        """Its limits."""

    @property
    def outstanding(self) -> int:
        """Requests that it has, as INFaaS counts them."""

    def add(self, request: Request) -> None:
        """Put it into the queue."""

    def next_batch(self) -> list[Request]:
        """Choose the next step; empty: nothing can run."""

    def finish(self, request: Request) -> None:
        """A request of the batch has all its tokens."""

    def keep(self, request: Request) -> None:
        """A request of the batch goes on, here or where it is leaving for."""

    def freeness(self) -> float:
        """(Blocks - virtual use) / batch size: larger is freer, negative is possible."""

    def candidate(self, room_blocks: int) -> Candidate | None:
        """Whom it would give up for that much room: the lowest tier's, the least blocks first."""

    def withdraw(self, request: Request) -> None:
        """Take a queued request out, so that another engine can have it."""

    def receive(self, request: Request, blocks: int) -> None:
        """A running request moves in with its blocks, which are free here."""


class Departure:
    """A running request whose blocks are being copied: one with each step it still makes."""

    __slots__ = ("destination", "blocks", "_steps_left")

    def __init__(self, destination: Engine, blocks: int) -> None:
        self.destination = destination
        self.blocks = blocks
        self._steps_left = max(1, blocks)

    def is_over(self) -> bool:
        """Count a step of it: whether that was the last one here."""
        self._steps_left -= 1
        return self._steps_left == 0

    def settled(self, request: Request) -> bool:
        """The last block is across: whether the destination still has the room it promised."""
        there = self.destination
        promise = there.promised.pop(request.number, None)
        return promise == self.blocks and there.size.blocks - there.blocks_used >= self.blocks


def headroom_blocks(blocks: int, tiers: int) -> list[int]:
    """Blocks kept for each tier wherever one of its requests is; a single tier keeps none."""
    if tiers == 1:
        return [0]
    decay = HEADROOM_DECAY / (tiers - 1)
    return [int(blocks * HEADROOM_SHARE * math.exp(-decay * tier)) for tier in range(tiers)]
