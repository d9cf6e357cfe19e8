"""Follows the advice, where that is switched on: drains, lets engines sleep, wakes and uses again.

Of several gateways the one that leads a pool acts for it. What is drained is kept as an operator's
deed is, so that it survives a restart and a change of leaders. When to do what is not decided here.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, Protocol

from gateway.admin.autoscale import Patience, PoolSeen, Rules, Seen, Step, released
from gateway.admin.desk import Desk
from gateway.admin.registry import AUTOSCALE, marking, records_of
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.errors import GatewayError
from gateway.tenancy.store.port import ConflictError, Deed, StoreError
from gateway.upstream.replicas import ReplicaAddress

LOGGER = logging.getLogger("fairgate.scaling")
LOOK_EVERY_S: Final = 1.0
GONE_S: Final = 600.0
"""A mark on a replica that has been gone for so long is taken off: its name may be used again."""


class Sleeping(Protocol):
    """Whoever puts engines to sleep."""

    async def is_asleep(self, address: ReplicaAddress) -> bool | None:
        """Whether it sleeps; None: it cannot be told."""

    async def put_to_sleep(self, address: ReplicaAddress) -> bool:
        """Whether it sleeps now."""

    async def wake(self, address: ReplicaAddress) -> bool:
        """Whether it is awake now."""


class Autoscaler:
    """What is done about the advice."""

    def __init__(
        self,
        desk: Desk,
        *,
        resting: Callable[[], frozenset[str]],
        sleeping: Sleeping,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`resting` are the replicas that were drained here, by this gateway or another one."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """Deeds by (what, outcome)."""
        self._desk = desk
        self._resting = resting
        self._sleeping = sleeping
        self._pause = pause
        self._patience = Patience()
        self._asleep: set[str] = set()
        self._sleepless: set[str] = set()
        """Those that cannot sleep: they are not asked again."""
        self._looked_at: set[str] = set()
        """Those that were asked once whether they sleep, from before this process."""
        self._gone_since: dict[str, float] = {}

    async def run(self) -> None:
        """Look once a second until cancelled."""
        while True:
            await self._pause(LOOK_EVERY_S)
            try:
                await self.look()
            except Exception:
                # Whatever is wrong here, requests are served.
                LOGGER.exception("the fleet's size was not looked after")

    async def look(self) -> None:
        """Do what is to be done now."""
        settings, resting = self._desk.settings(), self._resting()
        autoscale = settings.autoscale
        if not autoscale.drain and not resting and not self._asleep:
            return
        pools = [
            _seen(pool, resting)
            for pool in self._desk.scheduler.pools
            if pool.models and self._desk.fellows.acts_for(min(pool.models))
        ]
        rules = Rules(
            after_s=autoscale.drain_after_s,
            replicas_min=max(autoscale.min, settings.scaling.min),
        )
        now = self._desk.clock()
        steps = self._patience.steps(pools, rules, now) if autoscale.drain else released(pools)
        if pools:
            steps += self._forgotten(resting, now)
        await asyncio.gather(*(self._do(step) for step in steps))
        await self._lull(pools, may_sleep=autoscale.drain and autoscale.sleep)

    def _forgotten(self, resting: frozenset[str], now: float) -> list[Step]:
        """What takes the marks off those that are gone for good."""
        gone = resting - self._desk.fleet.names()
        for name in self._gone_since.keys() - gone:
            del self._gone_since[name]
        return [
            Step("undrain", name)
            for name in sorted(gone)
            if now - self._gone_since.setdefault(name, now) >= GONE_S
        ]

    async def _do(self, step: Step) -> None:
        name = step.replica
        if step.deed == "undrain" and not await self._awake(name):
            self._count("wake", is_done=False)
            LOGGER.warning("%s does not wake up: it is not used yet", name)
            return
        try:
            await self._mark(name, AUTOSCALE if step.deed == "drain" else False)
        except (StoreError, ConflictError, GatewayError) as error:
            self._count(step.deed, is_done=False)
            LOGGER.warning("%s of %s could not be kept: %s", step.deed, name, error)
            return
        self._sleepless.discard(name)
        self._count(step.deed, is_done=True)
        LOGGER.info("%s of %s, as advised", step.deed, name)

    async def _mark(self, name: str, mark: bool | str) -> None:
        records = records_of(self._desk.registry.contents.records, "replica")
        deed = Deed(
            at=self._desk.wall(),
            who=AUTOSCALE,
            action="replica.drain" if mark else "replica.undrain",
        )
        await self._desk.registry.change([marking(records.get(name), name, mark)], deed)

    async def _lull(self, pools: Sequence[PoolSeen], *, may_sleep: bool) -> None:
        """Put to sleep what rests and is empty; wake what is used though it sleeps."""
        seen = {each.name: each for pool in pools for each in pool.replicas}
        for known in (self._asleep, self._sleepless, self._looked_at):
            known.intersection_update(seen)
        used = [each.name for each in seen.values() if each.is_usable]
        if may_sleep:
            await asyncio.gather(*(self._look_whether(name) for name in used))
        resting = self._resting()
        awakening = [name for name in self._asleep if name not in resting]
        await asyncio.gather(*(self._awake(name) for name in awakening))
        if may_sleep:
            tired = [
                each.name
                for each in seen.values()
                if each.name in resting and self._is_empty(each.name)
            ]
            await asyncio.gather(*(self._lay_down(name) for name in tired))

    def _is_empty(self, name: str) -> bool:
        """Whether nobody works there, neither for us nor for others."""
        replica = self._desk.scheduler.replicas.get(name)
        is_new = name not in self._asleep and name not in self._sleepless
        return is_new and replica is not None and _is_idle(replica)

    async def _look_whether(self, name: str) -> None:
        """Once for each: one that slept when this process began would get requests."""
        address = self._desk.fleet.address(name)
        if name in self._looked_at or address is None:
            return
        self._looked_at.add(name)
        if await self._sleeping.is_asleep(address):
            self._asleep.add(name)

    async def _lay_down(self, name: str) -> None:
        address = self._desk.fleet.address(name)
        if address is None:
            return
        is_done = await self._sleeping.put_to_sleep(address)
        self._count("sleep", is_done=is_done)
        (self._asleep if is_done else self._sleepless).add(name)
        if not is_done:
            LOGGER.warning("%s cannot be put to sleep: it rests awake", name)

    async def _awake(self, name: str) -> bool:
        """Whether it is awake, if need be from now on."""
        address = self._desk.fleet.address(name)
        may_sleep = self._desk.settings().autoscale.sleep or name in self._asleep
        if address is None or not may_sleep:
            return True
        is_awake = await self._sleeping.wake(address)
        if is_awake:
            if name in self._asleep:
                self._count("wake", is_done=True)
            self._asleep.discard(name)
        return is_awake

    def _count(self, deed: str, *, is_done: bool) -> None:
        self.counts[deed, "done" if is_done else "failed"] += 1

    def figures(self) -> Iterator[tuple[tuple[str, str], float]]:
        """For metrics: (deed, outcome) and how often."""
        yield from ((labels, float(count)) for labels, count in self.counts.items())


def _seen(pool: Pool, resting: frozenset[str]) -> PoolSeen:
    return PoolSeen(
        key=frozenset(pool.models),
        advised=pool.advisor.advised,
        has_waiting=pool.count > 0,
        replicas=[
            Seen(
                name=name,
                models=replica.models,
                is_usable=replica.is_usable,
                is_resting=name in resting and not replica.is_lost and not replica.is_removed,
                running=len(replica.ledger.grants),
            )
            for name, replica in pool.replicas.items()
        ],
    )


def _is_idle(replica: Replica) -> bool:
    return not replica.ledger.grants and not replica.foreign and not replica.waiting
