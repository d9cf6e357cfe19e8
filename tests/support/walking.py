"""Two schedulers compared slot by slot: whatever a snapshot forgets shows as a difference."""

import math
from array import array
from collections import defaultdict, deque
from dataclasses import is_dataclass
from typing import Any

from gateway.core.flows import Flow
from gateway.core.kinds import Kind
from gateway.core.ledger import HISTORY_KEPT_S
from gateway.core.scheduler import Scheduler

DERIVED = {
    "FairQueue._head_costs": "worked out from what waits, whenever that changes",
    "Replica.away": "worked out from the slots and the pool's shares, whenever these change",
    "Replica.away_of": "the shares that `away` was worked out from",
    "Scheduler.wake_at": "due at once: whoever restores has asked for nothing yet",
    "Scheduler.due_at": "the same, with what was asked for last",
    "KeyedHeap._entries": "compared as the order in which its items come out",
    "KeyedHeap._sequence": "numbers only break ties, and the order of those is compared",
    "Pool._ranking": "listed anew from the verdicts and the freeness, which are compared",
    "Replica.ranked": "which of these lists know it",
    "Replica.place": "its present place in them",
    "Replica.places": "its entries there",
    "Pool._serving": "made from the models of the replicas, as every regrouping does",
}
"""Slots that no snapshot needs to hold, each with the reason. What is in neither is compared."""

UNORDERED = frozenset(
    """WaitingRoom.by_tenant WaitingRoom.by_user Flow.lanes Lane.lanes FairQueue.front
    Caps.newest Holder.groups Elders._by_kind Pool.bridging Replica.scores
    Scheduler.pool_by_model""".split()
)
"""Mappings that are only looked up, so that the order of their keys decides nothing."""

OF_POLICY = frozenset(
    """Elders._after_s Elders._per_s Quantiles._growth Lane.kind Floors.may_owe
    Cache.limit Holders.limit Histories.entries_max Predictor._entries_max Gates.is_bridging
    Gates.static_limit Gates.displaced_by FairQueue._by_prefix Pool.has_adapters Scheduler.is_closed
    DrainRate.half_life_s Rate.half_life_s Caps.sharers Holder.sharers""".split()
)
"""Leaves that one policy, or the code, makes the same everywhere: nothing there to be forgotten."""


def slots_of(thing: object) -> list[str]:
    """Names of all attributes of an object of the core."""
    cls = type(thing)
    if hasattr(thing, "__dict__") and vars(thing):
        return sorted(vars(thing))
    names: set[str] = set()
    for each in cls.__mro__:
        names.update(getattr(each, "__mypyc_attrs__", ()), getattr(each, "__slots__", ()))
    return sorted(names - {"__dict__", "__weakref__", "__orig_class__"})


def is_ours(thing: object) -> bool:
    """Whether it is an object of the core that changes with time."""
    return type(thing).__module__.startswith("gateway.core.") and not is_dataclass(thing)


def sort_key(key: Any) -> Any:
    """Orders keys of mappings in which no other order counts."""
    if isinstance(key, Flow):
        return key.name
    if isinstance(key, Kind):
        return (sorted(key.replicas), key.size, key.sequences, key.decodes)
    if isinstance(key, tuple):
        return tuple(map(sort_key, key))
    return key


class Walk:
    """Two schedulers side by side, every slot of theirs; `seen` gathers what values there were."""

    def __init__(self, now: float, *sides: Scheduler) -> None:
        self.now = now
        waiting = {id(each) for side in sides for each in side.waiting.values()}
        granted = {id(each.waiting) for side in sides for each, _ in side.granted.values()}
        self.live = waiting | granted
        """Requests that are here; of others that somebody remembers only the order counts."""
        self.twin: dict[int, int] = {}
        self.seen: defaultdict[str, set[str]] = defaultdict(set)
        self.kept: list[object] = []
        """So that no address is given to another object meanwhile."""

    def both(self, one: Any, other: Any, where: str) -> None:
        if is_ours(one):
            self.objects(one, other, where)
        elif isinstance(one, float) and isinstance(other, float):
            assert close(one, other), f"{where}: {one} became {other}"
        elif isinstance(one, array):
            assert one == other, where
        elif isinstance(one, dict):
            self.mappings(one, other, where)
        elif isinstance(one, list | tuple | deque) and not is_dataclass(one):
            assert len(one) == len(other), f"{where}: {one} became {other}"
            for here, there in zip(one, other, strict=True):
                self.both(here, there, where)
        else:
            assert one == other, f"{where}: {one} became {other}"

    def objects(self, one: Any, other: Any, where: str) -> None:
        assert type(one) is type(other), f"{where}: {one} became {other}"
        if id(one) in self.twin:
            assert self.twin[id(one)] == id(other), f"{where}: one object became two"
            return
        self.twin[id(one)] = id(other)
        self.kept += [one, other]
        for slot in slots_of(one):
            name = f"{type(one).__name__}.{slot}"
            if name in DERIVED:
                continue
            here, there = self.plain(one, slot), self.plain(other, slot)
            self.note(name, here)
            self.both(here, there, name)

    def mappings(self, one: Any, other: Any, where: str) -> None:
        here, there = list(one.items()), list(other.items())
        if where in UNORDERED:
            here.sort(key=lambda each: sort_key(each[0]))
            there.sort(key=lambda each: sort_key(each[0]))
        self.both(here, there, where)

    def plain(self, thing: Any, slot: str) -> Any:
        """The value, without what lazy heaps have not dropped yet and with their order shown."""
        value = getattr(thing, slot)
        name = f"{type(thing).__name__}.{slot}"
        if name == "WaitHeap.entries":
            return sorted(entry for entry in value if entry[3].ticket == entry[2])
        if name == "Lane.heap":
            return sorted(
                entry for entry in value if entry[2].number == entry[1] and entry[2].count
            )
        if name == "KeyedHeap._live":
            return [(each, thing.key_of(each)) for each in thing.in_order()]
        if name == "FairQueue._heavy" and value is not None:
            return [(sort_key(user), value.key_of((tenant, user))) for tenant, user in
                    value.in_order() if thing.tenants.get(tenant.name) is tenant
                    and tenant.users.get(user.name) is user]  # fmt: skip
        if name in {"Lane.last", "Replica.reserved_for"} and value is not None:
            return value if id(value) in self.live else value.order
        if name == "Ledger._history":
            return [entry for entry in value if self.now - entry[0] <= HISTORY_KEPT_S]
        return value

    def note(self, name: str, value: Any) -> None:
        """Whether a slot ever held anything but the one value that a new object has as well."""
        if is_ours(value) or is_dataclass(value):
            self.seen[name] |= {"an object", "with slots of its own"}
        elif isinstance(value, dict | list | tuple | deque | array | frozenset):
            self.seen[name].add("something" if len(value) else "nothing")
            if len(value) and (any(value) or isinstance(value, dict)):
                self.seen[name].add("more than nothing")
        else:
            self.seen[name].add(repr(value))


def close(one: Any, other: Any) -> bool:
    """Equal, floats but for the rounding of ages that lie off the grid."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
    return bool(one == other)
