"""The KV blocks of one engine: how many are free, who has how many, what prefixes are kept.

Decides what a sequence needs at which length; who gets it is decided in `replica.py`.
"""

from gateway.sim.engine_config import EngineConfig
from gateway.sim.prefixes import PrefixCache
from gateway.sim.sequence import Run, Sequence, computed_tokens


class Paging:
    """Blocks are counted, not named, except those of prefixes that several may share."""

    __slots__ = ("_block_tokens", "_reserved_tokens", "free", "prefix_blocks", "prefix_tokens",
                 "prefixes")  # fmt: skip

    def __init__(self, config: EngineConfig) -> None:
        self.free = config.kv_blocks
        """Those that hold a prefix nobody uses included."""
        self.prefixes = PrefixCache()
        self.prefix_tokens = config.prefix_block_tokens
        self.prefix_blocks = config.prefix_block_tokens // config.block_tokens
        """KV blocks of one block of a prefix; 0: nothing is cached."""
        self._block_tokens = config.block_tokens
        self._reserved_tokens = config.reserved_tokens

    def at(self, sequence: Sequence, tokens: int) -> int:
        """Blocks, shared ones included, that a sequence has once `tokens` of it are computed."""
        reserved = self._reserved_tokens
        if reserved:
            tokens = computed_tokens(sequence.prompt_tokens, sequence.output_tokens)
            tokens = max(reserved, tokens)
        return -(-tokens // self._block_tokens)

    def own_at(self, run: Run, tokens: int) -> int:
        """Those of them that it shares with nobody."""
        blocks = self.at(run.sequence, tokens)
        return blocks - self.prefix_blocks * len(run.shared) if run.shared else blocks

    def give(self, run: Run, blocks: int) -> None:
        """They are its own; there must be so many."""
        run.blocks += blocks
        self.free -= blocks

    def release(self, run: Run, held: int) -> None:
        """It has no blocks any more, of `held` that were its own and those that it shared."""
        self.free += held
        run.blocks = 0
        if run.shared:
            self.free += self.prefix_blocks * self.prefixes.leave(run.shared)
            run.shared = ()

    def cached(self, sequence: Sequence) -> tuple[int, ...]:
        """The leading blocks of its prompt that are here."""
        if not self.prefix_blocks or not sequence.prefix:
            return ()
        whole = sequence.prefix[: sequence.prompt_tokens // self.prefix_tokens]
        return whole[: self.prefixes.hits(whole)]

    def needed(self, run: Run, shared: tuple[int, ...]) -> int:
        """Free blocks that all its tokens take beside `shared`, which it finds here."""
        idle = self.prefixes.idle_among(shared) if shared else 0
        return self.at(run.sequence, run.total) - self.prefix_blocks * (len(shared) - idle)

    def hold(self, run: Run, shared: tuple[int, ...]) -> None:
        """It uses what it found here."""
        if shared:
            self.free -= self.prefix_blocks * self.prefixes.idle_among(shared)
            self.prefixes.hold(shared)
            run.shared = shared

    def share(self, run: Run) -> None:
        """Its prompt is computed, and is there for others."""
        if not self.prefix_blocks:
            return
        sequence, had = run.sequence, len(run.shared)
        whole = sequence.prefix[: sequence.prompt_tokens // self.prefix_tokens]
        kept = self.prefixes.adopt(whole, had)
        run.blocks -= self.prefix_blocks * (kept - had)
        run.shared = whole[:kept]

    def trim(self) -> None:
        """Prefixes that nobody uses make room for what was taken."""
        if self.prefix_blocks:
            self.prefixes.shrink(self.free // self.prefix_blocks)
