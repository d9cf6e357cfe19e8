"""Which replicas there should be: those with an address, and those that stand behind a DNS name.

It is told the whole list, at the start and whenever the configuration is read again, and has the
fleet follow it. A replica that is no longer wanted is drained, and forgotten once it is empty.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.upstream.discovery import DnsWatch
from gateway.upstream.fleet import Fleet, Made
from gateway.upstream.replicas import ReplicaAddress


class Lookup(Protocol):
    """A name whose addresses are replicas."""

    @property
    def host(self) -> str:
        """The name."""

    @property
    def port(self) -> int:
        """Of all its replicas."""

    @property
    def every_s(self) -> float:
        """How often it is looked up."""

    def found(self, url: str, /) -> ReplicaAddress:
        """The replica at a URL made of one of the addresses."""


Key = tuple[str, int]


@dataclass(slots=True)
class Watched:
    """One name that is looked up now and then, and the replicas found behind it."""

    lookup: Lookup
    task: "asyncio.Task[None] | None" = None
    urls: set[str] = field(default_factory=set)

    def addresses(self) -> list[ReplicaAddress]:
        """Its replicas."""
        return [self.lookup.found(url) for url in sorted(self.urls)]


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be changed; nothing is yet."""

    addresses: Mapping[str, ReplicaAddress]
    lookups: Mapping[Key, Lookup]
    made: tuple[Made, ...]
    """Clients and probes of the replicas that are new or changed."""


class Roster:
    """The replicas that should be there. `run_in` must be entered before `follow`."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        watched: Callable[..., DnsWatch] = DnsWatch,
    ) -> None:
        """`watched` makes what looks a name up."""
        self._fleet = fleet
        self._watched = watched
        self._addresses: Mapping[str, ReplicaAddress] = {}
        self._watches: dict[Key, Watched] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def run_in(self, tasks: asyncio.TaskGroup) -> None:
        """Look-ups run as tasks of this group from now on."""
        self._tasks = tasks

    def plan(self, addresses: Iterable[ReplicaAddress], lookups: Iterable[Lookup]) -> Plan:
        """What it takes to have these and no others.

        Raises OSError where a replica's certificates cannot be read; nothing was changed then.
        """
        wanted = {each.name: each for each in addresses}
        by_key = {(each.host, each.port): each for each in lookups}
        behind = {
            found.name: found
            for key, lookup in by_key.items()
            if key in self._watches
            for found in map(lookup.found, sorted(self._watches[key].urls))
        }
        made = [
            self._fleet.make(address)
            for name, address in {**behind, **wanted}.items()
            if self._fleet.address(name) != address
        ]
        return Plan(wanted, by_key, tuple(made))

    def follow(self, plan: Plan) -> None:
        """Have it so."""
        self._addresses = plan.addresses
        for key in list(self._watches.keys() - plan.lookups.keys()):
            self._cancel(self._watches.pop(key))
        for made in plan.made:
            self._fleet.enter(made)
        for name in plan.addresses:
            self._fleet.keep(name)
        for key, lookup in plan.lookups.items():
            self._watch(key, lookup)
        for name in sorted(self._fleet.names() - self._wanted()):
            self._fleet.retire(name, is_replaced=bool(plan.made))

    def behind(self) -> dict[str, str]:
        """The DNS name, with its port, of each replica that was found behind one."""
        return {
            address.name: f"{host}:{port}"
            for (host, port), watched in self._watches.items()
            for address in watched.addresses()
        }

    def close(self) -> None:
        """Look nothing up any more."""
        for watched in self._watches.values():
            self._cancel(watched)

    def _wanted(self) -> set[str]:
        behind = (each for watched in self._watches.values() for each in watched.addresses())
        return {*self._addresses, *(each.name for each in behind)}

    def _watch(self, key: Key, lookup: Lookup) -> None:
        assert self._tasks is not None, "run_in comes first"
        known = self._watches.get(key)
        if known is None:
            known = self._watches[key] = Watched(lookup)
        elif known.lookup.every_s == lookup.every_s:
            known.lookup = lookup
            return
        self._cancel(known)
        known.lookup = lookup
        watch = self._watched(
            lookup.host,
            lookup.port,
            every_s=lookup.every_s,
            on_change=lambda added, vanished: self._changed(known, added, vanished),
        )
        watch.urls = frozenset(known.urls)
        known.task = self._tasks.create_task(watch.run())

    def _changed(self, watched: Watched, added: set[str], vanished: set[str]) -> None:
        """Replicas behind a DNS name come and go; one that vanishes is drained."""
        watched.urls |= added
        watched.urls -= vanished
        wanted = self._wanted()
        for url in sorted(added):
            address = watched.lookup.found(url)
            if address.name not in self._addresses:
                self._fleet.add(address)
        for url in sorted(vanished):
            name = watched.lookup.found(url).name
            if name not in wanted:
                self._fleet.retire(name)

    def _cancel(self, watched: Watched) -> None:
        if watched.task is not None:
            watched.task.cancel()
            watched.task = None
