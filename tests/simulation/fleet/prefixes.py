"""The prefix cache of one engine: which leading blocks of prompts need no computing again.

Simplified: it lies beside the engine's own KV, in tokens set aside for it, and what it holds is
dropped oldest first. A prefix is in it from the first token of the first request that had it. A
sequence is given to the engine model with the rest of its prompt only, so that its attention to the
cached part costs nothing.
"""

from collections import Counter, OrderedDict

from gateway.core.messages import PREFIX_BLOCK_TOKENS


class PrefixCache:
    """Chained block hashes, least recently used first."""

    def __init__(self, capacity_tokens: int) -> None:
        self._blocks_max = capacity_tokens // PREFIX_BLOCK_TOKENS
        self._held: OrderedDict[int, None] = OrderedDict()
        self._used: Counter[int] = Counter()

    @property
    def used_tokens(self) -> int:
        """Tokens that running sequences share, each counted once."""
        return len(self._used) * PREFIX_BLOCK_TOKENS

    def cached_tokens(self, prefix: tuple[int, ...]) -> int:
        """Leading tokens of a prompt that are held."""
        length = 0
        for block in prefix:
            if block not in self._held:
                break
            self._held.move_to_end(block)
            length += 1
        return length * PREFIX_BLOCK_TOKENS

    def hold(self, prefix: tuple[int, ...]) -> None:
        """A prompt was computed: its blocks may be found from now on."""
        for block in prefix[: self._blocks_max]:
            self._held[block] = None
            self._held.move_to_end(block)
        while len(self._held) > self._blocks_max:
            self._held.popitem(last=False)

    def use(self, prefix: tuple[int, ...], tokens: int) -> None:
        """A sequence that shares so many tokens of it came."""
        self._used.update(prefix[: tokens // PREFIX_BLOCK_TOKENS])

    def leave(self, prefix: tuple[int, ...], tokens: int) -> None:
        """It ended."""
        for block in prefix[: tokens // PREFIX_BLOCK_TOKENS]:
            self._used[block] -= 1
            if not self._used[block]:
                del self._used[block]
