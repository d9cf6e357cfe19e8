"""The replicas that there should be: configured ones, and those behind DNS names."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.core.messages import DrainAsked, Event, ReplicaRemoved
from gateway.upstream.fleet import HANDOVER_S, Fleet
from gateway.upstream.replicas import ReplicaAddress, ReplicaStatus, replica_name
from gateway.upstream.roster import Roster


@dataclass(frozen=True)
class Name:
    """A DNS name with options of its replicas."""

    host: str = "vllm"
    port: int = 8000
    every_s: float = 5.0
    weight: float = 1.0

    def found(self, url: str, /) -> ReplicaAddress:
        """One of them."""
        return ReplicaAddress(replica_name(url), url, weight=self.weight)


@dataclass
class Watch:
    """Looks nothing up: the test says what there is."""

    on_change: Any
    urls: frozenset[str] = frozenset()
    is_running: bool = False

    async def run(self) -> None:
        """For ever."""
        self.is_running = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_running = False

    def find(self, *hosts: str) -> None:
        """The name stands for these now."""
        urls = frozenset(f"http://{host}:8000" for host in hosts)
        added, vanished = urls - self.urls, self.urls - urls
        self.urls = urls
        self.on_change(set(added), set(vanished))


@dataclass
class Site:
    """A roster, its fleet, what was told and the watches that were made."""

    roster: Roster
    fleet: Fleet
    told: list[Event] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    now: float = 0.0

    async def want(self, addresses: Iterable[ReplicaAddress] = (), *names: Name) -> None:
        """These and no others."""
        self.roster.follow(self.roster.plan(addresses, names))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def running(self) -> list[Watch]:
        """Watches that look."""
        return [watch for watch in self.watches if watch.is_running]


def at(host: str, **options: Any) -> ReplicaAddress:
    """A replica with a URL of its own."""
    return ReplicaAddress(f"{host}-8000", f"http://{host}:8000", **options)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A roster that wants nothing yet."""
    told: list[Event] = []
    watches: list[Watch] = []
    fleet = Fleet(
        tell=told.append, clock=lambda: found.now, scrape_interval_s=60.0, stream_buffer_bytes=1,
        is_hungry=lambda _: False,
    )  # fmt: skip

    def watched(host: str, port: int, every_s: float, *, on_change: Any) -> Any:
        watches.append(Watch(on_change))
        return watches[-1]

    found = Site(Roster(fleet, watched=watched), fleet, told, watches)
    async with asyncio.TaskGroup() as tasks:
        fleet.run_in(tasks)
        found.roster.run_in(tasks)
        yield found
        found.roster.close()
        fleet.close()


async def test_an_address_that_vanished_is_drained_and_forgotten_once_empty(site: Site) -> None:
    """Pods come and go all day: each would be probed for ever."""
    await site.want((), Name())
    site.watches[0].find("10.0.0.1", "10.0.0.2")
    site.watches[0].find("10.0.0.2", "10.0.0.3")
    assert site.told == [DrainAsked("10.0.0.1-8000")]
    assert site.fleet.sweep(lambda name: False) == []
    assert site.fleet.sweep(lambda name: True) == ["10.0.0.1-8000"]
    assert site.fleet.names() == {"10.0.0.2-8000", "10.0.0.3-8000"}
    assert site.told[-1] == ReplicaRemoved("10.0.0.1-8000")


async def test_an_address_that_comes_back_in_time_is_kept(site: Site) -> None:
    """A resolver's mood must not cost a replica its streams, or its place."""
    await site.want((), Name())
    for hosts in (("10.0.0.1", "10.0.0.2"), ("10.0.0.2",), ("10.0.0.1", "10.0.0.2")):
        site.watches[0].find(*hosts)
    assert site.fleet.sweep(lambda name: True) == []
    assert site.told[-1] == DrainAsked("10.0.0.1-8000", draining=False)


async def test_a_name_that_is_no_longer_wanted_takes_its_replicas_along(site: Site) -> None:
    """But those that are configured by themselves stay."""
    await site.want([at("10.0.0.1")], Name())
    site.watches[0].find("10.0.0.1", "10.0.0.2")
    await site.want([at("10.0.0.1")])
    assert site.running == []
    assert site.fleet.sweep(lambda name: True) == ["10.0.0.2-8000"]
    assert DrainAsked("10.0.0.1-8000") not in site.told


async def test_a_name_that_stays_is_watched_once_and_keeps_its_replicas(site: Site) -> None:
    """Each change of the configuration must not add a watch."""
    await site.want((), Name())
    site.watches[0].find("10.0.0.1")
    client = site.fleet.client("10.0.0.1-8000")
    for _ in range(3):
        await site.want((), Name())
    assert len(site.watches) == 1
    assert site.fleet.client("10.0.0.1-8000") is client
    await site.want((), Name(weight=2.0))
    assert len(site.watches) == 1
    address = site.fleet.address("10.0.0.1-8000")
    assert address is not None
    assert address.weight == 2.0
    await site.want((), Name(every_s=9.0))
    assert site.running == [site.watches[1]]
    assert site.watches[1].urls == {"http://10.0.0.1:8000"}
    site.watches[1].find("10.0.0.4")
    assert site.fleet.sweep(lambda name: True) == ["10.0.0.1-8000"]


async def test_what_an_operator_drains_stays_drained(site: Site) -> None:
    """Reading the configuration again says nothing about it."""
    await site.want([at("10.0.0.1")])
    site.fleet.drain("10.0.0.1-8000")
    await site.want([at("10.0.0.1")])
    await site.want([at("10.0.0.1", weight=2.0)])
    assert site.told == [DrainAsked("10.0.0.1-8000")]


async def test_nothing_is_changed_by_a_plan(site: Site, tmp_path: Any) -> None:
    """Where one replica cannot be made, none may be."""
    await site.want([at("10.0.0.1")])
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    tls = ReplicaAddress("x", "https://10.0.0.9", ca_file=str(broken))
    with pytest.raises(OSError, match=r".+"):
        site.roster.plan([at("10.0.0.2"), tls], ())
    assert site.fleet.names() == {"10.0.0.1-8000"}


async def test_who_is_replaced_serves_until_the_successors_answer(site: Site) -> None:
    """Drained at once, it would leave a moment in which nobody serves the model."""
    await site.want([at("10.0.0.1")])
    await site.want([at("10.0.0.2")])
    assert site.fleet.sweep(lambda name: True) == []
    assert site.told == []
    site.fleet._members["10.0.0.2-8000"].probe.status = ReplicaStatus(up=True)
    assert site.fleet.sweep(lambda name: False) == []
    assert site.told == [DrainAsked("10.0.0.1-8000")]
    assert site.fleet.sweep(lambda name: True) == ["10.0.0.1-8000"]


async def test_who_is_replaced_does_not_wait_for_ever(site: Site) -> None:
    """A successor with a wrong address must not keep its predecessor."""
    await site.want([at("10.0.0.1")])
    await site.want([at("10.0.0.2")])
    site.now = HANDOVER_S
    assert site.fleet.sweep(lambda name: True) == ["10.0.0.1-8000"]
    await site.want([at("10.0.0.1")])
    await site.want([at("10.0.0.1"), at("10.0.0.2")])
    assert site.fleet.sweep(lambda name: True) == []
    assert site.told.count(DrainAsked("10.0.0.2-8000")) == 0
