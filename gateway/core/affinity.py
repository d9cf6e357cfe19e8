"""Where a request's prompt, session or adapter may be warm, and how much that is worth.

An engine keeps the KV of prompts it has seen; a replica that holds a request's leading blocks
answers sooner. What is remembered here is what was *sent*, least recently used first to go, so it
may be wrong: it only tips the choice among replicas that are open anyway, and nobody waits for
a warm replica while a cold one is free.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from gateway.core.messages import PREFIX_BLOCK_TOKENS, Request
from gateway.core.policy import Affinity, Bounds

Key = TypeVar("Key", bound=Hashable)

HOLDERS_MAX = 4
"""Replicas remembered for one block, session or adapter: those that had it last."""
ADAPTERS_MAX = 1_024
"""Adapters whose replicas are remembered."""


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

    def use(self, used: Iterable[Key]) -> None:
        """All of these were used now, the last of them last."""
        keys = self._keys
        for key in used:
            if key in keys:
                keys.move_to_end(key)
            else:
                keys[key] = None
        while len(keys) > self.limit:
            keys.popitem(last=False)


class Cache(Recent[int]):
    """The leading blocks of prompts that one replica is taken to hold."""

    __slots__ = ()

    def cached_tokens(self, prefix: tuple[int, ...]) -> int:
        """Tokens of the longest leading run of blocks that was sent here before."""
        keys, count = self._keys, 0
        for block in prefix:
            if block not in keys:
                break
            count += 1
        return count * PREFIX_BLOCK_TOKENS

    def sent(self, prefix: tuple[int, ...]) -> None:
        """A prompt that begins with these blocks went to this replica."""
        # The last block first: what is forgotten first must be the end of a prompt.
        self.use(reversed(prefix))


class Holders(Generic[Key]):
    """Which replicas had a key last, of at most `limit` keys."""

    __slots__ = ("_names", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._names: OrderedDict[Key, tuple[str, ...]] = OrderedDict()

    def of(self, key: Key) -> tuple[str, ...]:
        """Names of replicas, the last one first."""
        return self._names.get(key, ())

    def had(self, keys: Iterable[Key], name: str) -> None:
        """`name` has all of these now."""
        names, alone = self._names, (name,)
        for key in keys:
            known = names.get(key)
            if known is None:
                names[key] = alone
                continue
            if known[0] != name:
                others = tuple(each for each in known if each != name)
                names[key] = (name, *others[: HOLDERS_MAX - 1])
            names.move_to_end(key)
        while len(names) > self.limit:
            names.popitem(last=False)

    def drop(self, name: str) -> None:
        """`name` lost all it had. O(keys)."""
        for key, known in self.items():
            if name in known:
                left = tuple(each for each in known if each != name)
                if left:
                    self._names[key] = left
                else:
                    del self._names[key]

    def items(self) -> list[tuple[Key, tuple[str, ...]]]:
        """All of them, the least recently used first."""
        return list(self._names.items())


class Ties:
    """What draws the requests of one pool to replicas that had something like them."""

    __slots__ = ("adapters", "blocks", "sessions")

    def __init__(self, bounds: Bounds) -> None:
        self.blocks: Holders[int] = Holders(bounds.prefixes)
        self.sessions: Holders[str] = Holders(bounds.sessions)
        self.adapters: Holders[str] = Holders(ADAPTERS_MAX)

    def sent(self, request: Request, name: str, *, has_adapters: bool) -> None:
        """`request` went to replica `name`."""
        if request.prefix:
            self.blocks.had(reversed(request.prefix), name)
        if request.session is not None:
            self.sessions.had((request.session,), name)
        if has_adapters:
            self.adapters.had((request.model,), name)

    def drop(self, name: str) -> None:
        """Replica `name` was lost: it may come back empty."""
        self.blocks.drop(name)
        self.sessions.drop(name)
        self.adapters.drop(name)

    def worths(self, request: Request, prompt_tokens: int, affinity: Affinity) -> dict[str, float]:
        """How much freer another replica must be to be preferred, by name, as a share > 0."""
        worths: dict[str, float] = {}
        depth = len(request.prefix)
        while depth and affinity.prefix:
            names = self.blocks.of(request.prefix[depth - 1])
            if names:
                share = min(1.0, depth * PREFIX_BLOCK_TOKENS / max(1, prompt_tokens))
                worths = dict.fromkeys(names, affinity.prefix * share)
                break
            depth -= 1
        if request.session is not None and affinity.session:
            for name in self.sessions.of(request.session)[:1]:
                worths[name] = max(worths.get(name, 0.0), affinity.session)
        if affinity.adapter:
            for name in self.adapters.of(request.model):
                worths[name] = max(worths.get(name, 0.0), affinity.adapter)
        return worths
