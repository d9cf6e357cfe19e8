"""The sequences that decode, counted and not visited: a round costs what changes in it.

Each of them gets exactly one token in each round, so their lengths, their KV and their ends follow
from the number of the round. Knows nothing of budgets and queues.
"""

from gateway.sim.sequence import Run


class Decoding:
    """All that decode in one engine.

    A sequence that joined with `c` computed tokens at round `r` has `c + (now - r)` at round `now`.
    It needs a KV block whenever that is a multiple of the block size: those of one remainder need
    theirs in the same round.
    """

    __slots__ = ("_block_tokens", "_ends", "_needs", "_tokens_at_0", "count", "rounds")

    def __init__(self, block_tokens: int) -> None:
        self.count = 0
        self.rounds = 0
        """Completed so far."""
        self._block_tokens = block_tokens
        self._needs = [0] * block_tokens
        """By round, modulo the block size: sequences that need a block in it."""
        self._tokens_at_0 = 0
        """Sum of all their tokens, each as if it had decoded since round 0."""
        self._ends: dict[int, dict[str, Run]] = {}
        """By the round that produces their last token."""

    @property
    def kv_tokens(self) -> int:
        """KV tokens that the next round reads."""
        return self._tokens_at_0 + self.count * self.rounds

    @property
    def blocks_needed(self) -> int:
        """KV blocks that the next round takes, where they are taken as tokens come."""
        return self._needs[self.rounds % self._block_tokens]

    def join(self, run: Run) -> None:
        """It decodes from the next round on; at least one token of it is missing."""
        rounds = self.rounds
        run.decodes = True
        run.since = rounds
        self.count += 1
        self._tokens_at_0 += run.total - rounds
        self._needs[(rounds - run.computed) % self._block_tokens] += 1
        ends_at = rounds + run.sequence.output_tokens - run.produced
        ending = self._ends.get(ends_at)
        if ending is None:
            self._ends[ends_at] = {run.sequence.id: run}
        else:
            ending[run.sequence.id] = run

    def leave(self, run: Run) -> None:
        """It decodes no more; its numbers become those of now."""
        ends_at = run.since + run.sequence.output_tokens - run.produced
        ending = self._ends[ends_at]
        del ending[run.sequence.id]
        if not ending:
            del self._ends[ends_at]
        self._forget(run)

    def advance(self) -> list[Run]:
        """One round is over: all have a token more. Those that have all theirs leave."""
        self.rounds += 1
        ending = self._ends.pop(self.rounds, None)
        if ending is None:
            return []
        ended = list(ending.values())
        for run in ended:
            self._forget(run)
        return ended

    def produced(self, run: Run) -> int:
        """Tokens that one of them has produced."""
        return run.produced + self.rounds - run.since

    def computed(self, run: Run) -> int:
        """Tokens of one of them whose KV is held."""
        return run.computed + self.rounds - run.since

    def ends_next(self, run: Run) -> bool:
        """Whether the next round gives it its last token."""
        return self.produced(run) + 1 == run.sequence.output_tokens

    def _forget(self, run: Run) -> None:
        since, passed = run.since, self.rounds - run.since
        self.count -= 1
        self._tokens_at_0 -= run.total - since
        self._needs[(since - run.computed) % self._block_tokens] -= 1
        run.produced += passed
        run.computed += passed
        run.decodes = False
