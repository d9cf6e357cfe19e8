"""What is done about advice in a running gateway: by whom, in which order, and what may fail."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from gateway.admin.autoscaler import GONE_S, Autoscaler
from gateway.admin.desk import Desk
from gateway.admin.engine_sleep import EngineSleep
from gateway.admin.registry import AUTOSCALE, DRAINED, resting_names
from gateway.settings_document import AutoscaleSection, ScalingSection
from gateway.tenancy.store.port import Contents, Deed, Record, StoreError, Write
from gateway.upstream.replicas import ReplicaAddress
from tests.support.parts import a_replica, put

MODELS = frozenset({"m"})


class Kept:
    """A registry that keeps marks, and what is done to a gateway with them."""

    def __init__(self, house: "House") -> None:
        self._house = house
        self.records: dict[str, Record] = {}
        self.deeds: list[tuple[str, str, str]] = []
        self.is_lost = False

    @property
    def contents(self) -> Contents:
        return Contents(revision=1, records=tuple(self.records.values()))

    async def change(self, writes: Sequence[Write], deed: Deed) -> int:
        if self.is_lost:
            raise StoreError("gone")
        for write in writes:
            self.records.pop(write.id, None)
            if write.body is not None:
                self.records[write.id] = Record(
                    kind="replica", id=write.id, version=1, body=write.body
                )
            self.deeds.append((deed.who, deed.action, write.id))
            if write.id in self._house.pool.replicas:
                self._house.pool.replicas[write.id].mark(draining=write.body is not None)
        return 1


class Sleepers:
    """Engines that sleep as they are told; it remembers what was asked of them."""

    def __init__(self) -> None:
        self.asleep: set[str] = set()
        self.stuck: set[str] = set()
        self.asked: list[tuple[str, str]] = []

    async def is_asleep(self, address: ReplicaAddress) -> bool | None:
        self.asked.append(("ask", address.name))
        return address.name in self.asleep

    async def put_to_sleep(self, address: ReplicaAddress) -> bool:
        self.asked.append(("sleep", address.name))
        if address.name in self.stuck:
            return False
        self.asleep.add(address.name)
        return True

    async def wake(self, address: ReplicaAddress) -> bool:
        self.asked.append(("wake", address.name))
        if address.name in self.stuck:
            return False
        self.asleep.discard(address.name)
        return True


class House:
    """The parts of a gateway that the autoscaler looks at."""

    def __init__(self, **section: Any) -> None:
        self.now = 0.0
        self.acts = True
        self.pool = SimpleNamespace(
            models=MODELS, count=0, advisor=SimpleNamespace(advised=None),
            replicas={name: a_replica(name) for name in "abc"},
        )  # fmt: skip
        for replica in self.pool.replicas.values():
            replica.models = MODELS
        self.configure(**{"drain": True, "drain_after_s": 0.0, **section})
        self.kept, self.sleepers = Kept(self), Sleepers()
        self.gone: set[str] = set()
        self.scaler = self.again()

    def again(self) -> Autoscaler:
        """Another process, or another gateway, that knows nothing."""
        fleet = SimpleNamespace(
            names=lambda: self.pool.replicas.keys() - self.gone,
            address=lambda name: ReplicaAddress(name, f"http://{name}:1"),
        )
        desk = SimpleNamespace(
            settings=lambda: self.settings, registry=self.kept, fleet=fleet,
            scheduler=SimpleNamespace(pools=[self.pool], replicas=self.pool.replicas),
            fellows=SimpleNamespace(acts_for=lambda _: self.acts),
            clock=lambda: self.now, wall=lambda: 1.0,
        )  # fmt: skip
        return Autoscaler(
            cast(Desk, desk),
            resting=lambda: resting_names(self.kept.records.values()),
            sleeping=self.sleepers,
        )

    def configure(self, **section: Any) -> None:
        """Other settings."""
        self.settings = SimpleNamespace(
            autoscale=AutoscaleSection(**section), scaling=ScalingSection()
        )

    async def advise(self, replicas: int, *, looks: int = 1, every_s: float = 1.0) -> None:
        """So many are advised, and it is looked at."""
        self.pool.advisor.advised = replicas
        for _ in range(looks):
            self.now += every_s
            await self.scaler.look()

    @property
    def drained(self) -> list[str]:
        """Who is drained."""
        return sorted(self.kept.records)


async def test_it_drains_one_by_one_and_uses_them_again() -> None:
    """The advice becomes a smaller fleet, and a larger one when work comes back."""
    house = House()
    await house.advise(1, looks=9)
    assert house.drained == ["a", "b"]
    assert house.kept.deeds[0] == (AUTOSCALE, "replica.drain", "a")
    assert house.kept.records["a"].body[DRAINED] == AUTOSCALE
    await house.advise(3)
    assert house.drained == []
    assert dict(house.scaler.counts) == {("drain", "done"): 2, ("undrain", "done"): 2}


async def test_switched_off_it_does_nothing() -> None:
    """Off is the default, and nobody's engine goes by default."""
    house = House(drain=False)
    await house.advise(0, looks=9)
    assert house.kept.deeds == []


async def test_only_who_leads_acts() -> None:
    """Three gateways that each drain one would leave nothing of three."""
    house = House()
    house.acts = False
    await house.advise(1, looks=9)
    assert house.kept.deeds == []


async def test_what_an_operator_drained_is_not_used_again() -> None:
    """It was drained to be repaired."""
    house = House()
    body = {DRAINED: True}
    house.kept.records["a"] = Record(kind="replica", id="a", version=1, body=body)
    house.pool.replicas["a"].mark(draining=True)
    await house.advise(3, looks=3)
    assert house.drained == ["a"]


async def test_an_engine_sleeps_when_it_is_empty_and_wakes_before_it_is_used() -> None:
    """One that sleeps while a request runs, or is asked while it sleeps, answers nobody."""
    house = House(sleep=True)
    grant = put(house.pool.replicas["a"])
    house.pool.replicas["b"].ledger.grants.update({"x": grant, "y": grant})
    house.pool.replicas["c"].ledger.grants.update({"x": grant, "y": grant})
    await house.advise(2, looks=2)
    assert (house.drained, house.sleepers.asleep) == (["a"], set())
    house.pool.replicas["a"].ledger = a_replica().ledger
    await house.advise(2, looks=2)
    assert house.sleepers.asleep == {"a"}
    assert house.sleepers.asked.count(("sleep", "a")) == 1
    await house.advise(3)
    assert house.sleepers.asked[-1] == ("wake", "a")
    assert (house.drained, house.sleepers.asleep) == ([], set())


async def test_an_engine_that_does_not_wake_is_not_used() -> None:
    """Requests would be sent to somebody who sleeps."""
    house = House(sleep=True)
    await house.advise(2, looks=2)
    house.sleepers.stuck.add("a")
    await house.advise(3, looks=2)
    assert house.drained == ["a"]
    assert house.scaler.counts["wake", "failed"] == 2
    house.sleepers.stuck.clear()
    await house.advise(3)
    assert house.drained == []


async def test_one_that_cannot_sleep_rests_awake_and_is_not_asked_for_ever() -> None:
    """Without vLLM's development mode there is no such route."""
    house = House(sleep=True)
    house.sleepers.stuck.add("a")
    await house.advise(2, looks=9)
    assert house.sleepers.asked.count(("sleep", "a")) == 1
    assert house.drained == ["a"]


async def test_an_operator_who_uses_a_sleeping_engine_wakes_it() -> None:
    """`replicas undrain` says nothing of sleep."""
    house = House(sleep=True)
    await house.advise(2, looks=2)
    await house.kept.change(
        [Write(kind="replica", id="a", body=None)], Deed(at=0.0, who="x", action="replica.undrain")
    )
    await house.advise(3)
    assert house.sleepers.asleep == set()


async def test_one_that_slept_before_this_process_began_is_woken() -> None:
    """The gateway that put it to sleep may be gone, with what it knew."""
    house = House(sleep=True)
    house.sleepers.asleep.add("b")
    await house.advise(3, looks=2)
    assert house.sleepers.asleep == set()
    assert house.sleepers.asked.count(("ask", "b")) == 1


async def test_another_leader_goes_on_from_what_is_kept() -> None:
    """A leader that changes must neither drain twice nor forget who rests."""
    house = House(sleep=True)
    await house.advise(2, looks=3)
    house.scaler = house.again()
    await house.advise(3)
    assert (house.drained, house.sleepers.asleep) == ([], set())


async def test_a_store_that_is_lost_is_tried_again_at_the_next_look() -> None:
    """What is not kept is not done; and requests go on."""
    house = House()
    house.kept.is_lost = True
    await house.advise(2)
    assert (house.drained, house.scaler.counts["drain", "failed"]) == ([], 1)
    house.kept.is_lost = False
    await house.advise(2)
    assert house.drained == ["a"]


async def test_switched_off_later_it_gives_back_what_rests() -> None:
    """Nobody else would."""
    house = House(sleep=True)
    await house.advise(1, looks=5)
    assert house.sleepers.asleep
    house.configure()
    await house.advise(1, looks=2)
    assert (house.drained, house.sleepers.asleep) == ([], set())


async def test_the_mark_of_one_that_is_gone_for_good_is_taken_off() -> None:
    """The next pod with that address would be drained from its first moment."""
    house = House()
    await house.advise(2)
    house.pool.replicas.pop("a")
    await house.advise(2, looks=2)
    assert house.drained == ["a"]
    await house.advise(2, every_s=GONE_S)
    assert house.drained == []


def engine(*asleep: object, status: int = 200) -> tuple[EngineSleep, list[str]]:
    """Sleep mode of an engine that says this, one answer after another, of itself."""
    said, asked = list(asleep), list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.raw_path.decode()}")
        if request.url.path == "/is_sleeping":
            value = said.pop(0) if len(said) > 1 else said[0]
            if isinstance(value, int) and not isinstance(value, bool):
                return httpx.Response(value)
            return httpx.Response(200, json={"is_sleeping": value})
        return httpx.Response(status)

    async def at_once(_: float) -> None:
        """Time passes."""

    return EngineSleep(transport=httpx.MockTransport(answer), pause=at_once), asked


@pytest.mark.parametrize(
    ("asleep", "status", "is_done", "last"),
    [
        ((False,), 200, True, "POST /sleep?level=1"),
        ((True,), 200, True, "GET /is_sleeping"),
        ((404,), 404, False, "POST /sleep?level=1"),
        ((False,), 500, False, "POST /sleep?level=1"),
    ],
)
async def test_an_engine_is_put_to_sleep_once(
    asleep: tuple[object, ...], status: int, is_done: bool, last: str
) -> None:
    """Whoever says that it sleeps must not be wrong."""
    sleeping, asked = engine(*asleep, status=status)
    assert await sleeping.put_to_sleep(ReplicaAddress("a", "http://a:1")) is is_done
    assert asked[-1] == last


@pytest.mark.parametrize(
    ("asleep", "count"), [((False,), 1), ((404,), 1), ((True, True, 503, False), 5)]
)
async def test_waking_waits_until_it_is_awake(asleep: tuple[object, ...], count: int) -> None:
    """The answer to /wake_up is no promise that weights are back."""
    sleeping, asked = engine(*asleep)
    assert await sleeping.wake(ReplicaAddress("a", "http://a:1"))
    assert len(asked) == count
