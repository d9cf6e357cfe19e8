"""Who may have how many requests running at once; what is beyond that is held back, not refused.

A holder is whoever has such a cap: a user, a tenant, an API key; it counts the *ids* that run, so
that one that ends twice gives nothing away. What a full holder wants more of is taken out of the
queue, and comes back into it when one of its requests has ended: the first of each tier and
class, so that one that fits nowhere keeps none of the others back. It knows nothing of turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gateway.core.flows import WaitHeap, Waiting
from gateway.core.kinds import Kind
from gateway.core.messages import Request

Group = tuple[int, Kind]
"""Tier and class of what is held: each group has a line of its own."""


def _turn(waiting: Waiting) -> tuple[int, float, int]:
    return (waiting.request.tier, waiting.key, waiting.sequence)


class Holder:
    """One cap: who runs under it, and what it holds back."""

    __slots__ = ("groups", "held", "most", "name", "running", "sharers")

    def __init__(self, name: str, most: int, sharers: int = 1) -> None:
        self.name = name
        self.most = most
        self.sharers = sharers
        self.running: set[str] = set()
        self.groups: dict[Group, WaitHeap] = {}
        self.held = 0

    @property
    def room(self) -> int:
        """How many may run here: all, or this one's part, and one at least of any."""
        most = self.most
        return most if self.sharers == 1 or most <= 0 else max(1, most // self.sharers)

    @property
    def is_full(self) -> bool:
        """Whether no more of its requests may run now."""
        return len(self.running) >= self.room

    def push(self, waiting: Waiting) -> None:
        """Hold a request that has its ticket."""
        self.held += 1
        group = (waiting.request.tier, waiting.kind)
        self.groups.setdefault(group, WaitHeap()).push(waiting.key, waiting)

    def left(self, waiting: Waiting) -> None:
        """One that was held is held no longer; its ticket is gone already."""
        self.held -= 1
        group = (waiting.request.tier, waiting.kind)
        heap = self.groups[group]
        heap.left()
        if not heap.live:
            del self.groups[group]

    def __iter__(self) -> Iterator[Waiting]:
        for heap in self.groups.values():
            yield from heap


class Caps:
    """All holders of whom something runs or is held."""

    __slots__ = ("count", "holders", "newest", "sharers")

    def __init__(self, sharers: int = 1) -> None:
        self.sharers = sharers
        """Schedulers under each of which the same holders have requests running."""
        self.holders: dict[str, Holder] = {}
        self.count = 0
        """Requests that are held."""
        self.newest: dict[int, WaitHeap] = {}
        """By tier: the one that came last is the first to give way."""

    def full(self, request: Request) -> Holder | None:
        """The first holder of `request` that can have no more running; None: it may run.

        The rest of a broken stream may: it was let in already.
        """
        if request.is_continuation:
            return None
        for name, most in request.caps:
            holder = self.holders.get(name)
            if holder is None:
                if most > 0:
                    continue
                holder = self.holders[name] = Holder(name, most, self.sharers)
            if holder.is_full:
                return holder
        return None

    def learn(self, request: Request) -> None:
        """`request` has just come: what it says of its caps counts from now on."""
        for name, most in request.caps:
            holder = self.holders.get(name)
            if holder is not None:
                holder.most = most

    def enter(self, request: Request) -> None:
        """`request` runs."""
        for name, most in request.caps:
            holder = self.holders.get(name)
            if holder is None:
                holder = self.holders[name] = Holder(name, most, self.sharers)
            holder.running.add(request.id)

    def leave(self, request: Request) -> None:
        """`request` runs no longer."""
        for name, _ in request.caps:
            holder = self.holders.get(name)
            if holder is not None:
                holder.running.discard(request.id)
                self._forget_if_idle(holder)

    def hold(self, waiting: Waiting, holder: Holder) -> None:
        """Keep a request that has its ticket until `holder` has room."""
        self.count += 1
        waiting.holder = holder.name
        holder.push(waiting)
        tier = waiting.request.tier
        self.newest.setdefault(tier, WaitHeap()).push(-waiting.sequence, waiting)

    def drop(self, waiting: Waiting) -> None:
        """Hold it no longer."""
        assert waiting.holder is not None
        holder = self.holders[waiting.holder]
        self.count -= 1
        waiting.holder = None
        waiting.ticket = 0
        holder.left(waiting)
        tier = waiting.request.tier
        self.newest[tier].left()
        if not self.newest[tier].live:
            del self.newest[tier]
        self._forget_if_idle(holder)

    def firsts(self, request: Request) -> list[Waiting]:
        """What may go back to the queue, now that something of the holders of `request` left it."""
        found: list[Waiting] = []
        for name, _ in request.caps:
            holder = self.holders.get(name)
            if holder is not None and holder.held and not holder.is_full:
                for heap in holder.groups.values():
                    first = heap.first()
                    assert first is not None, "a group is kept only while it holds something"
                    found.append(first)
        found.sort(key=_turn)
        return found

    def ahead_of(self, waiting: Waiting) -> int:
        """How many others its holder holds, as if this one had come last."""
        assert waiting.holder is not None
        return self.holders[waiting.holder].held - 1

    def newest_of_tenant(self, tenant: str) -> Waiting | None:
        """What came last of that tenant, in its lowest tier. O(all that is held)."""
        own = (
            each
            for holder in self.holders.values()
            for each in holder
            if each.request.tenant == tenant
        )
        return max(own, key=lambda each: (each.request.tier, each.sequence), default=None)

    def share(self, sharers: int) -> None:
        """Each of so many schedulers keeps to its part of every cap from now on."""
        self.sharers = sharers
        for holder in self.holders.values():
            holder.sharers = sharers

    def rebuild(self, held: Iterable[Waiting]) -> None:
        """Tiers, classes or keys of what is held changed."""
        self.count = 0
        self.newest = {}
        for holder in self.holders.values():
            holder.groups, holder.held = {}, 0
        for waiting in held:
            assert waiting.holder is not None
            self.hold(waiting, self.holders[waiting.holder])

    def restore(self, most_by_name: Mapping[str, int]) -> None:
        """Know these holders; who runs under them and what they hold comes after it."""
        self.holders = {
            name: Holder(name, most, self.sharers) for name, most in most_by_name.items()
        }

    def _forget_if_idle(self, holder: Holder) -> None:
        if not holder.running and not holder.held:
            del self.holders[holder.name]
