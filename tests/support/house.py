"""A gateway before emulated engines with a tap on each wire, and its books open to be read."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import monotonic

import httpx

from gateway.api.watch import give_up_stalled
from gateway.core import invariants
from gateway.core.breaker import Circuit
from gateway.core.endings import BUSY_REST_S
from gateway.core.messages import Woke
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from gateway.telemetry.record import SettledRequest
from tests.support.asks import Ask
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.tap import Exchanged, Tap, tapped

ALL_FREE_WITHIN_S = 5.0
"""Generous for a loaded machine."""


class AheadClock:
    """The real clock, and a lead over it that a test may enlarge."""

    def __init__(self) -> None:
        self.lead_s = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return monotonic() + self.lead_s


@dataclass(slots=True)
class House:
    """Everything that one request passes."""

    engines: list[Emulator]
    taps: list[Tap]
    running: Running
    http: httpx.AsyncClient
    settled: list[SettledRequest]
    clock: AheadClock

    @property
    def seen(self) -> list[Exchanged]:
        """What reached an engine, engine by engine."""
        return [each for tap in self.taps for each in tap.seen]

    def forget(self) -> None:
        """The next request is the first one."""
        for engine in self.engines:
            engine.faults.clear()
        for tap in self.taps:
            tap.seen.clear()
        self.settled.clear()
        gateway = self.running.gateway
        for replica in gateway.scheduler.replicas.values():
            replica.circuit = Circuit()  # nobody knows any ill of it
            gateway.scheduler.touch(replica)

    async def post(self, ask: Ask, body: bytes | None = None, /, **headers: str) -> httpx.Response:
        """The whole answer to `ask`."""
        content = ask.body() if body is None else body
        headers = {"content-type": ask.content_type, **headers}
        return await self.http.post(ask.route.path, content=content, headers=headers)

    async def post_and(
        self, ask: Ask, act: Callable[[], None], *, when: Callable[[], bool], **headers: str
    ) -> httpx.Response:
        """The same, but something happens once the answer is in the state that is waited for."""
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(self.post(ask, **headers))
            await eventually(when)
            act()
            return await answer

    def is_owed(self) -> bool:
        """Whether an engine has a request as a whole and has said nothing to it."""
        return bool(self.seen) and self.seen[-1].is_sent

    def is_passing(self) -> bool:
        """Whether some of a stream was passed on, and the engine owes the rest."""
        return any(
            each._is_passing and each.silent_since is not None
            for each in self.running.gateway.relay.open
        )

    def has_bounced(self) -> bool:
        """Whether a request waits that an engine sent back."""
        return bool(self.seen and self.running.gateway.scheduler.waiting)

    def end_rest(self) -> None:
        """An engine that was busy may be asked again."""
        self.clock.lead_s += BUSY_REST_S
        self.running.gateway.dispatcher.tell(Woke())

    def give_up(self) -> None:
        """What an engine owes, it will owe for ever."""
        gateway = self.running.gateway
        give_up_stalled(gateway.relay, lambda *_, **__: True, gateway.clock())

    async def settle(self) -> SettledRequest:
        """The record of the only request, once nothing is left of it anywhere."""
        scheduler = self.running.gateway.scheduler

        def is_all_free() -> bool:
            engines = (each.engine for each in self.engines)
            return (
                not self.running.in_flight
                and not any(engine.running + engine.waiting for engine in engines)
                and not self.running.gateway.relay.open
            )

        await eventually(lambda: is_all_free() and self.settled, ALL_FREE_WITHIN_S)
        invariants.check(scheduler)
        for replica in scheduler.replicas.values():
            assert (replica.ledger.sequences, replica.ledger.kv_tokens) == (0, 0)
        (record,) = self.settled
        return record


def settled_by(running: Running) -> list[SettledRequest]:
    """All that is settled from now on."""
    records: list[SettledRequest] = []
    relay = running.gateway.relay
    settled = relay._settled

    def keep(record: SettledRequest) -> None:
        records.append(record)
        settled(record)

    relay._settled = keep
    return records


@asynccontextmanager
async def house(
    *options: EmulatorOptions, replica: Mapping[str, object] | None = None, **overrides: object
) -> AsyncIterator[House]:
    """A gateway before one engine for each of `options`; `replica`: what it is told of each."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running_emulator(each)) for each in options]
        taps = [await stack.enter_async_context(tapped(engine.url)) for engine in engines]
        replicas = [{"url": tap.url, **(replica or {})} for tap in taps]
        clock = AheadClock()
        gateway = running_gateway(*replicas, clock=clock, **overrides)  # type: ignore[arg-type]  # free keywords
        running = await stack.enter_async_context(gateway)
        http = await stack.enter_async_context(client(running))
        yield House(engines, taps, running, http, settled_by(running), clock)


@asynccontextmanager
async def asking(house: House, ask: Ask, body: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A request on a connection of its own, which is cut off when the block is left."""
    host, port = house.running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(ask.raw(body=body))
    await writer.drain()
    try:
        yield reader
    finally:
        writer.close()
