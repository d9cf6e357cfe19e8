"""The replicas that a gateway knows: found, drained, removed, and called by name."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from gateway.core.messages import DrainAsked, Event, ReplicaFound, ReplicaRemoved
from gateway.upstream.fleet import Fleet
from gateway.upstream.replicas import ReplicaAddress, ReplicaStatus
from tests.support.gateway import eventually
from tests.support.raw_engine import RawEngine, running_raw_engine


class Watched:
    """A fleet and what it told."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.fleet = Fleet(
            tell=self.told.append,
            clock=time.monotonic,
            scrape_interval_s=0.02,
            stream_buffer_bytes=1 << 16,
            is_hungry=lambda name: False,
        )

    def heard(self, kind: type[Event]) -> list[Event]:
        """What was told of that kind."""
        return [event for event in self.told if isinstance(event, kind)]


@pytest.fixture
async def engine() -> AsyncIterator[RawEngine]:
    """An engine with one model, `raw`."""
    async with running_raw_engine() as raw:
        yield raw


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    """A fleet without replicas; its probes end with the test."""
    fleet = Watched()
    async with asyncio.TaskGroup() as tasks:
        fleet.fleet.run_in(tasks)
        yield fleet
        fleet.fleet.close()
    assert fleet.fleet.statuses() == {}


async def test_a_replica_that_answers_is_found(watched: Watched, engine: RawEngine) -> None:
    """And only then: nothing is sent to one that was never heard of."""
    watched.fleet.add(ReplicaAddress("gpu0", engine.url, max_num_seqs=8))
    assert watched.told == []
    await eventually(lambda: watched.heard(ReplicaFound))
    found = watched.told[0]
    assert isinstance(found, ReplicaFound)
    assert (found.replica, found.models, found.slots) == ("gpu0", frozenset({"raw"}), 8)
    assert watched.fleet.statuses()["gpu0"].up


async def test_adding_a_known_replica_ends_its_drain(watched: Watched, engine: RawEngine) -> None:
    """Its address came back to DNS: a second probe would tell everything twice."""
    address = ReplicaAddress("gpu0", engine.url)
    watched.fleet.add(address)
    watched.fleet.drain("gpu0")
    watched.fleet.drain("unknown")
    client = watched.fleet.client("gpu0")
    watched.fleet.add(address)
    assert watched.told == [DrainAsked("gpu0"), DrainAsked("gpu0", draining=False)]
    assert watched.fleet.client("gpu0") is client


async def test_a_removed_replica_is_forgotten_and_asked_no_more(
    watched: Watched, engine: RawEngine
) -> None:
    """Checks of replicas that are long gone have filled logs for weeks elsewhere."""
    watched.fleet.add(ReplicaAddress("gpu0", engine.url))
    await eventually(lambda: watched.heard(ReplicaFound))
    watched.fleet.remove("gpu0")
    watched.fleet.remove("gpu0")
    assert watched.heard(ReplicaRemoved) == [ReplicaRemoved("gpu0")]
    await asyncio.sleep(0.01)
    count = len(watched.told)
    await asyncio.sleep(0.1)
    assert len(watched.told) == count
    assert watched.fleet.cards() == {}


async def test_one_dead_replica_does_not_hold_up_the_others(
    watched: Watched, engine: RawEngine
) -> None:
    """A scraper that asks one after another stalls on the first that is down."""
    for n in range(5):
        watched.fleet.add(ReplicaAddress(f"dead{n}", "http://127.0.0.1:9"))
    watched.fleet.add(ReplicaAddress("gpu0", engine.url))
    await eventually(lambda: watched.heard(ReplicaFound), 2.0)
    assert not watched.fleet.statuses()["dead0"].up


async def test_cards_are_those_of_the_models_that_are_served(
    watched: Watched, engine: RawEngine
) -> None:
    """An engine may have models that this gateway was not told to offer."""
    watched.fleet.add(ReplicaAddress("gpu0", engine.url, models=frozenset({"other"})))
    await eventually(lambda: watched.fleet.statuses()["gpu0"].cards)
    assert watched.fleet.cards() == {}
    watched.fleet.add(ReplicaAddress("gpu1", engine.url))
    await eventually(watched.fleet.cards)
    assert watched.fleet.cards()["raw"]["max_model_len"] == 1024


@pytest.mark.parametrize(
    ("engine_name", "policy", "priorities"),
    [
        ("vllm", "priority", (0, 3)),
        ("vllm", "fcfs", (None, None)),
        (None, "priority", (None, None)),
    ],
)
async def test_the_priority_is_in_the_engines_own_polarity(
    watched: Watched,
    engine: RawEngine,
    engine_name: str | None,
    policy: str,
    priorities: tuple[int | None, int | None],
) -> None:
    """Upside down the lowest tier would be served first; an engine unknown is told nothing."""
    address = ReplicaAddress("gpu0", engine.url, engine=engine_name, scheduling_policy=policy)
    watched.fleet.add(address)
    assert tuple(watched.fleet.engine_priority("gpu0", tier, 4) for tier in (0, 3)) == priorities


@pytest.mark.parametrize(
    ("away_at", "answered_at", "expected"),
    [
        (None, 9.0, None),
        (None, 10.0, None),
        (None, 11.0, False),
        (9.0, 11.0, False),
        (11.0, 9.0, None),
        (11.0, 11.0, None),
        (11.0, 12.0, True),
        (11.0, None, None),
    ],
)
async def test_a_replica_that_failed_at_ten_was_away_or_was_there_all_the_time(
    watched: Watched, away_at: float | None, answered_at: float | None, expected: bool | None
) -> None:
    """A request that it failed is sent there once more only if another engine may be there."""
    watched.fleet.add(ReplicaAddress("gpu0", "http://127.0.0.1:9"))
    probe = watched.fleet._members["gpu0"].probe
    probe.status = ReplicaStatus(away_at=away_at, last_success_at=answered_at)
    assert watched.fleet.has_returned_since("gpu0", 10.0) is expected
    assert watched.fleet.has_returned_since("unknown", 10.0) is False
