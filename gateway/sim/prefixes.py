"""Which leading blocks of prompts an engine still holds, and which it lets go first.

As in vLLM: a block outlives the request that computed it, counts as free while nobody uses it, and
the one that was left longest ago goes first. Knows nothing of time and of tokens.
"""

from collections.abc import Sequence


class PrefixCache:
    """Blocks by id: how many sequences hold each, and those that nobody holds, the oldest first."""

    __slots__ = ("_holders", "_idle")

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._idle: dict[int, None] = {}

    @property
    def idle(self) -> int:
        """Blocks that are kept for nobody in particular."""
        return len(self._idle)

    @property
    def held(self) -> int:
        """Blocks that sequences hold; each counts once."""
        return len(self._holders)

    def hits(self, prefix: Sequence[int]) -> int:
        """How many of the leading blocks are here."""
        for index, block in enumerate(prefix):
            if block not in self._holders and block not in self._idle:
                return index
        return len(prefix)

    def idle_among(self, blocks: Sequence[int]) -> int:
        """How many of these are held by nobody."""
        return sum(block in self._idle for block in blocks)

    def hold(self, blocks: Sequence[int]) -> None:
        """One more sequence uses these, which are here."""
        for block in blocks:
            self._idle.pop(block, None)
            self._holders[block] = self._holders.get(block, 0) + 1

    def adopt(self, prefix: Sequence[int], since: int) -> int:
        """A sequence that holds the first `since` of these has computed the rest.

        Returns how many of them it holds now: up to the first that another one computed meanwhile.
        """
        for index in range(since, len(prefix)):
            block = prefix[index]
            if block in self._holders or block in self._idle:
                return index
            self._holders[block] = 1
        return len(prefix)

    def leave(self, blocks: Sequence[int]) -> int:
        """A sequence uses these no more; how many of them nobody holds now."""
        before = len(self._idle)
        # The end of a prompt goes before its beginning, without which it is of no use.
        for block in reversed(blocks):
            holders = self._holders[block] - 1
            if holders:
                self._holders[block] = holders
            else:
                del self._holders[block]
                self._idle[block] = None
        return len(self._idle) - before

    def shrink(self, most: int) -> None:
        """Keep at most so many of those that nobody holds."""
        while len(self._idle) > most:
            del self._idle[next(iter(self._idle))]
