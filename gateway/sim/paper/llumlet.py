"""The llumlet as the authors wrote it: tiers in order, and KV accounting that never binds.

Refuses to be an engine that could exist. After every step all requests of the batch give back all
their blocks and queue again behind their tier; a decode then costs no block, and nothing limits the
batch. Only the prefills of one step compete for the 128 blocks. The first request that does not
fit ends the batch, those behind it in decode included.
"""

from collections import deque

from gateway.sim.paper.engine import Candidate, Departure, Size, headroom_blocks
from gateway.sim.paper.request import Request


class Llumlet:
    """One replica of K-tier Llumnix; see the module. Owned by the event loop."""

    def __init__(self, index: int, tiers: int, size: Size) -> None:
        self.index = index
        self.size = size
        self.batch: list[Request] = []
        self.blocks_used = 0
        self.promised: dict[int, int] = {}
        self.leaving: dict[int, Departure] = {}
        self._queues: list[deque[Request]] = [deque() for _ in range(tiers)]
        self._present = [0] * tiers
        """Requests here, queued and running, of each tier."""
        self._allocated: dict[Request, int] = {}
        """Blocks of the batch and of who has just moved in; freeness divides by its length."""
        self._headroom = headroom_blocks(size.blocks, tiers)

    @property
    def outstanding(self) -> int:
        """Requests queued and in the batch."""
        return sum(self._present)

    def add(self, request: Request) -> None:
        """Behind all others of its tier."""
        self._queues[request.tier].append(request)
        self._present[request.tier] += 1

    def next_batch(self) -> list[Request]:
        """From the first tier on, up to the first prefill that does not fit."""
        batch: list[Request] = []
        for queue in self._queues:
            while queue:
                request = queue[0]
                if request.is_decoding:
                    self._allocated.setdefault(request, 0)
                else:
                    blocks = self.size.blocks_for(request.prefill_tokens)
                    if self.blocks_used + blocks > self.size.blocks:
                        return batch
                    self._allocate(request, blocks)
                batch.append(queue.popleft())
        return batch

    def finish(self, request: Request) -> None:
        """Free it; a migration that it was part of is off."""
        self._free(request)
        self._present[request.tier] -= 1
        departure = self.leaving.pop(request.number, None)
        if departure is not None:
            departure.destination.promised.pop(request.number, None)

    def keep(self, request: Request) -> None:
        """Free it all the same, and queue it again."""
        self._free(request)
        if not (self.leaving and self._left(request)):
            self._queues[request.tier].append(request)

    def freeness(self) -> float:
        """Of the queue only the head counts; headroom for each tier that has a request here."""
        used = self.blocks_used
        for queue in self._queues:
            if queue:
                used += self._demand(queue[0])
                break
        for present, headroom in zip(self._present, self._headroom, strict=True):
            if present:
                used += headroom
        return (self.size.blocks - used) / max(1, len(self._allocated))

    def candidate(self, room_blocks: int) -> Candidate | None:
        """Lowest tier, then least blocks, then running before queued: mostly a decode, at 0."""
        for tier in range(len(self._queues) - 1, -1, -1):
            if self._present[tier]:
                best = self._running_candidate(tier, room_blocks)
                if best is None or best.blocks:
                    best = self._queued_candidate(tier, room_blocks, best)
                if best is not None:
                    return best
        return None

    def withdraw(self, request: Request) -> None:
        """Out of its tier's queue; takes time proportional to that."""
        self._queues[request.tier].remove(request)
        self._present[request.tier] -= 1

    def receive(self, request: Request, blocks: int) -> None:
        """Its blocks count until its next step has ended; it waits for that behind its tier."""
        self._allocate(request, blocks)
        self.add(request)

    def _left(self, request: Request) -> bool:
        departure = self.leaving.get(request.number)
        if departure is None or not departure.is_over():
            return False
        del self.leaving[request.number]
        if not departure.settled(request):
            return False
        self._present[request.tier] -= 1
        departure.destination.receive(request, departure.blocks)
        return True

    def _running_candidate(self, tier: int, room_blocks: int) -> Candidate | None:
        best: Candidate | None = None
        for request, blocks in self._allocated.items():
            if request.tier == tier and blocks <= room_blocks:
                if best is None or blocks < best.blocks:
                    best = Candidate(request, blocks, runs=True)
                if not blocks:
                    break
        return best

    def _queued_candidate(
        self, tier: int, room_blocks: int, best: Candidate | None
    ) -> Candidate | None:
        for request in self._queues[tier]:
            blocks = self._demand(request)
            if blocks > room_blocks or request in self._allocated:
                continue
            if best is None or blocks < best.blocks:
                best = Candidate(request, blocks, runs=False)
                if not blocks:
                    break
        return best

    def _demand(self, request: Request) -> int:
        return 0 if request.is_decoding else self.size.blocks_for(request.prefill_tokens)

    def _allocate(self, request: Request, blocks: int) -> None:
        self._allocated[request] = self._allocated.get(request, 0) + blocks
        self.blocks_used += blocks

    def _free(self, request: Request) -> None:
        self.blocks_used -= self._allocated.pop(request)
