"""vLLM as Vidur has it, first come first served or by tiers; its KV accounting is right.

The baseline's engine, and the llumlet's in the ablation that corrects its accounting. A step is
either prefills, whenever the head of the queue fits, or decodes. Blocks are held until the end and
grow with every token. Decoding needs a free block, whether it takes it or not; where there is none,
the last in rank loses all its blocks, returns to the head of the queue and prefills anew.
"""

from collections import deque

from gateway.sim.paper.engine import Candidate, Departure, Size, headroom_blocks
from gateway.sim.paper.request import Request


def _rank(request: Request) -> tuple[int, int]:
    return (request.tier, request.number)


def _arrival(request: Request) -> int:
    return request.number


class Paged:
    """One replica; with `ranks_tiers` the queue is in order of tiers, else of arrival."""

    def __init__(self, index: int, tiers: int, size: Size, *, ranks_tiers: bool) -> None:
        self.index = index
        self.size = size
        self.batch: list[Request] = []
        self.blocks_used = 0
        self.promised: dict[int, int] = {}
        self.leaving: dict[int, Departure] = {}
        self._ranks_tiers = ranks_tiers
        self._queues: list[deque[Request]] = [deque() for _ in range(tiers if ranks_tiers else 1)]
        self._queued = 0
        self._present = [0] * tiers
        self._decoding: list[Request] = []
        """Between two of their steps, in no order."""
        self._held: dict[int, int] = {}
        """Blocks by request number, of all that have begun."""
        self._headroom = headroom_blocks(size.blocks, tiers)

    @property
    def outstanding(self) -> int:
        """As INFaaS counts here: what stands between two decodes counts twice."""
        return self._queued + len(self._held) + len(self._decoding)

    def add(self, request: Request) -> None:
        """Behind all others of its tier, or behind all others."""
        self._queue_of(request).append(request)
        self._queued += 1
        self._present[request.tier] += 1

    def next_batch(self) -> list[Request]:
        """Prefills if any fit, else decodes."""
        return self._prefills() or self._decodes()

    def finish(self, request: Request) -> None:
        """Free it; a migration that it was part of is off."""
        self._free(request)
        self._present[request.tier] -= 1
        departure = self.leaving.pop(request.number, None)
        if departure is not None:
            departure.destination.promised.pop(request.number, None)

    def keep(self, request: Request) -> None:
        """It waits for its next decode with its blocks, or leaves with them."""
        if not (self.leaving and self._left(request)):
            self._decoding.append(request)

    def freeness(self) -> float:
        """Of the queue only the head counts; headroom for each tier that has a request here."""
        used = self.blocks_used
        head = self._head()
        if head is not None:
            used += self.size.blocks_for(head.prefill_tokens)
        for present, headroom in zip(self._present, self._headroom, strict=True):
            if present:
                used += headroom
        return (self.size.blocks - used) / max(1, len(self._held))

    def candidate(self, room_blocks: int) -> Candidate | None:
        """Of the lowest tier with a queued or running request the one with the least blocks."""
        best: tuple[int, int, Candidate] | None = None
        for request in (*self.batch, *self._decoding):
            best = self._better(best, request, self._held[request.number], room_blocks)
        for queue in self._queues:
            for request in queue:
                blocks = self.size.blocks_for(request.prefill_tokens)
                best = self._better(best, request, blocks, room_blocks)
        return best[2] if best else None

    def withdraw(self, request: Request) -> None:
        """Out of the queue; takes time proportional to that."""
        self._queue_of(request).remove(request)
        self._queued -= 1
        self._present[request.tier] -= 1

    def receive(self, request: Request, blocks: int) -> None:
        """It goes on decoding here."""
        self._held[request.number] = blocks
        self.blocks_used += blocks
        self._present[request.tier] += 1
        self._decoding.append(request)

    def _left(self, request: Request) -> bool:
        departure = self.leaving.get(request.number)
        if departure is None or not departure.is_over():
            return False
        del self.leaving[request.number]
        # It has grown since it was promised room.
        departure.blocks = departure.destination.promised[request.number] = self._held[
            request.number
        ]
        if not departure.settled(request):
            return False
        self._free(request)
        self._present[request.tier] -= 1
        departure.destination.receive(request, departure.blocks)
        return True

    def _better(
        self,
        best: tuple[int, int, Candidate] | None,
        request: Request,
        blocks: int,
        room_blocks: int,
    ) -> tuple[int, int, Candidate] | None:
        if blocks > room_blocks or (best is not None and best[:2] <= (-request.tier, blocks)):
            return best
        runs = request.number in self._held
        return (-request.tier, blocks, Candidate(request, blocks, runs=runs))

    def _prefills(self) -> list[Request]:
        batch: list[Request] = []
        size, longest = self.size, 0
        while (request := self._head()) is not None:
            blocks = size.blocks_for(request.prefill_tokens)
            if size.blocks - self.blocks_used - blocks < size.watermark_blocks:
                break
            longest = max(longest, request.prefill_tokens)
            if (len(batch) + 1) * longest > size.batch_tokens_max:
                break
            if len(self._held) == size.sequences_max:
                break
            self._queue_of(request).popleft()
            self._queued -= 1
            self._held[request.number] = blocks
            self.blocks_used += blocks
            batch.append(request)
        return batch

    def _decodes(self) -> list[Request]:
        batch: list[Request] = []
        self._decoding.sort(key=_rank if self._ranks_tiers else _arrival)
        waiting = deque(self._decoding)
        while waiting and len(batch) < self.size.sequences_max:
            request = waiting.popleft()
            while self.blocks_used == self.size.blocks:
                victim = waiting.pop() if waiting else request
                self._preempt(victim)
                if victim is request:
                    break
            else:
                self._grow(request)
                batch.append(request)
        self._decoding = list(waiting)
        return batch

    def _grow(self, request: Request) -> None:
        held = self._held[request.number]
        if request.computed_tokens > held * self.size.block_tokens:
            self._held[request.number] = held + 1
            self.blocks_used += 1

    def _preempt(self, request: Request) -> None:
        departure = self.leaving.pop(request.number, None)
        if departure is not None:
            departure.destination.promised.pop(request.number, None)
        self._free(request)
        request.restart()
        self._queue_of(request).appendleft(request)
        self._queued += 1

    def _free(self, request: Request) -> None:
        self.blocks_used -= self._held.pop(request.number)

    def _queue_of(self, request: Request) -> deque[Request]:
        return self._queues[request.tier if self._ranks_tiers else 0]

    def _head(self) -> Request | None:
        for queue in self._queues:
            if queue:
                return queue[0]
        return None
