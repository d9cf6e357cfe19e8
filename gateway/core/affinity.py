"""Where a request's prompt, session or adapter may be warm, and how much that is worth.

An engine keeps the KV of prompts it has seen; a replica that holds a request's leading blocks
answers sooner. What is remembered here is what was *sent*, as far as it was used lately, so it
may be wrong: it only tips the choice among replicas that are open anyway, and nobody waits for
a warm replica while a cold one is free.

The hashes of a prompt are chained, so a block is never remembered without all those before it:
how much of a prompt is known is found by halving, and a known block ends the work of noting it.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from gateway.core.messages import PREFIX_BLOCK_TOKENS, Request
from gateway.core.policy import Affinity, Bounds

Key = TypeVar("Key", bound=Hashable)
Names = tuple[str, ...]

HOLDERS_MAX: Final = 4
"""Replicas remembered for one block, session or adapter: those that had it last."""
ADAPTERS_MAX: Final = 1_024
"""Adapters whose replicas are remembered."""


class Recent(Generic[Key]):
    """Names by key for the keys used last: at least half of `limit`, never more than all of it.

    Two generations stand for the order of use, which would have to be written at every look: when
    the young one holds half of the limit it becomes the old one, and the old one is forgotten.
    """

    __slots__ = ("limit", "old", "young")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """At least 2."""
        self.old: dict[Key, Names] = {}
        """May repeat what the young one holds, which then counts."""
        self.young: dict[Key, Names] = {}

    def of(self, key: Key) -> Names | None:
        """What was last put there; None for a key that is not known."""
        names = self.young.get(key)
        return self.old.get(key) if names is None else names

    def put(self, key: Key, names: Names) -> None:
        """`key` was used now, and has these from now on."""
        young = self.young
        if key not in young and len(young) >= self.limit // 2:
            self.old, self.young = young, {}
            young = self.young
        young[key] = names

    def resize(self, limit: int) -> None:
        """Hold at most `limit` keys from now on."""
        self.limit = limit
        for generation in (self.old, self.young):
            for key in list(generation)[: max(0, len(generation) - limit // 2)]:
                del generation[key]

    def items(self) -> dict[Key, Names]:
        """All that is known."""
        return {**self.old, **self.young}


KNOWN: Names = ()
"""What a cache notes of a block: that it is there."""


class Cache(Recent[int]):
    """The leading blocks of prompts that one replica is taken to hold."""

    __slots__ = ()

    def cached_tokens(self, prefix: tuple[int, ...]) -> int:
        """Tokens of the longest leading run of blocks that was sent here before."""
        return _depth(self, prefix) * PREFIX_BLOCK_TOKENS

    def sent(self, prefix: tuple[int, ...]) -> None:
        """A prompt that begins with these blocks went to this replica."""
        # The last block first: what is forgotten first must be the end of a prompt.
        at = len(prefix) - 1
        while at >= 0 and prefix[at] not in self.young:
            self.put(prefix[at], KNOWN)
            at -= 1


class Holders(Recent[Key]):
    """Which replicas had a key last."""

    __slots__ = ()

    def had(self, key: Key, name: str) -> bool:
        """`name` has it now; False: it was the last before, and that is not old."""
        known = self.young.get(key)
        if known is not None and known[0] == name:
            return False
        if known is None:
            known = self.old.get(key)
        if known is None:
            known = (name,)
        elif known[0] != name:
            others = tuple([each for each in known if each != name])
            known = (name, *others[: HOLDERS_MAX - 1])
        self.put(key, known)
        return True

    def drop(self, name: str) -> None:
        """`name` lost all it had. O(keys)."""
        for generation in (self.old, self.young):
            for key, known in list(generation.items()):
                if name in known:
                    left = tuple([each for each in known if each != name])
                    if left:
                        generation[key] = left
                    else:
                        del generation[key]


def _depth(recent: Recent[int], prefix: tuple[int, ...]) -> int:
    """How many leading blocks are known."""
    known, unknown = 0, len(prefix) + 1
    while unknown - known > 1:
        middle = (known + unknown) // 2
        if recent.of(prefix[middle - 1]) is None:
            unknown = middle
        else:
            known = middle
    return known


class Ties:
    """What draws the requests of one pool to replicas that had something like them."""

    __slots__ = ("adapters", "blocks", "sessions")

    def __init__(self, bounds: Bounds) -> None:
        self.blocks: Holders[int] = Holders(bounds.prefixes)
        self.sessions: Holders[str] = Holders(bounds.sessions)
        self.adapters: Holders[str] = Holders(ADAPTERS_MAX)

    def sent(self, request: Request, name: str, *, has_adapters: bool) -> None:
        """`request` went to replica `name`."""
        # As in `Cache.sent`: where a block had this name last, those before it have it too.
        prefix, blocks = request.prefix, self.blocks
        at = len(prefix) - 1
        while at >= 0 and blocks.had(prefix[at], name):
            at -= 1
        if request.session is not None:
            self.sessions.had(request.session, name)
        if has_adapters:
            self.adapters.had(request.model, name)

    def resize(self, bounds: Bounds) -> None:
        """Remember no more than these bounds say."""
        self.blocks.resize(bounds.prefixes)
        self.sessions.resize(bounds.sessions)

    def drop(self, name: str) -> None:
        """Replica `name` was lost: it may come back empty."""
        self.blocks.drop(name)
        self.sessions.drop(name)
        self.adapters.drop(name)

    def worths(self, request: Request, prompt_tokens: int, affinity: Affinity) -> dict[str, float]:
        """How much freer another replica must be to be preferred, by name, as a share > 0."""
        worths: dict[str, float] = {}
        depth = _depth(self.blocks, request.prefix) if affinity.prefix else 0
        if depth:
            names = self.blocks.of(request.prefix[depth - 1]) or ()
            share = min(1.0, depth * PREFIX_BLOCK_TOKENS / max(1, prompt_tokens))
            worth = affinity.prefix * share
            for name in names:
                worths[name] = worth
        if request.session is not None and affinity.session:
            for name in (self.sessions.of(request.session) or ())[:1]:
                worths[name] = max(worths.get(name, 0.0), affinity.session)
        if affinity.adapter:
            for name in self.adapters.of(request.model) or ():
                worths[name] = max(worths.get(name, 0.0), affinity.adapter)
        return worths
