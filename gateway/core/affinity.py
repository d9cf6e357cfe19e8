"""Where a request's prompt, session or adapter may be warm, and how much that is worth.

An engine keeps the KV of prompts it has seen; a replica that holds a request's leading blocks
answers sooner. What is remembered here is what was *sent*, least recently used first to go, so it
may be wrong: it only tips the choice among replicas that are open anyway, and nobody waits for
a warm replica while a cold one is free.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from gateway.core.messages import PREFIX_BLOCK_TOKENS, Request
from gateway.core.policy import Affinity

Key = TypeVar("Key", bound=Hashable)


class Recent(Generic[Key]):
    """The keys used last, at most `limit`."""

    __slots__ = ("_keys", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._keys: OrderedDict[Key, None] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> list[Key]:
        """All of them, the least recently used first."""
        return list(self._keys)

    def use(self, key: Key) -> None:
        """`key` was used now."""
        keys = self._keys
        keys[key] = None
        keys.move_to_end(key)
        while len(keys) > self.limit:
            keys.popitem(last=False)


class Warmth:
    """What one replica is likely to hold."""

    __slots__ = ("adapters", "blocks", "sessions")

    ADAPTERS = 8
    """Adapters an engine is taken to keep loaded; vLLM's `max_loras` is not exported."""

    def __init__(self, *, blocks: int, sessions: int) -> None:
        self.blocks: Recent[int] = Recent(blocks)
        self.sessions: Recent[str] = Recent(sessions)
        self.adapters: Recent[str] = Recent(self.ADAPTERS)

    def cached_tokens(self, prefix: tuple[int, ...]) -> int:
        """Tokens of the longest leading run of blocks that was sent here before."""
        blocks, count = self.blocks, 0
        for block in prefix:
            if block not in blocks:
                break
            count += 1
        return count * PREFIX_BLOCK_TOKENS

    def sent(self, request: Request) -> None:
        """`request` went to this replica."""
        # The last block first: what is forgotten first must be the end of a prompt.
        for block in reversed(request.prefix):
            self.blocks.use(block)
        if request.session is not None:
            self.sessions.use(request.session)

    def ran(self, model: str) -> None:
        """One of several models ran here."""
        self.adapters.use(model)

    def worth(self, request: Request, prompt_tokens: int, affinity: Affinity) -> float:
        """How much freer another replica must be to be preferred to this one, as a share >= 0."""
        worth = 0.0
        if affinity.prefix and request.prefix and prompt_tokens > 0:
            cached = self.cached_tokens(request.prefix)
            worth = affinity.prefix * min(1.0, cached / prompt_tokens)
        if request.session is not None and request.session in self.sessions:
            worth = max(worth, affinity.session)
        if affinity.adapter and len(self.adapters) > 1 and request.model in self.adapters:
            worth = max(worth, affinity.adapter)
        return worth
