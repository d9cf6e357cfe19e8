"""Several gateways over one Redis before the same engines, each a process that can be harmed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.fleet import Replica, running_fleet, until
from tests.chaos.schedule import Engine
from tests.e2e.processes import ended
from tests.support.chaos_proxy import ChaosProxy, chaos_proxy
from tests.support.ports import free_port

READY_S_MAX = 60.0
GATEWAYS = 3
ENGINES = 2
SLOTS = 8
SPEED = 1.0
MODEL = "emulated"
SCRAPE_S = 0.2
ENGINE = Engine(slots=SLOTS, speed=SPEED, is_process=False, has_line=False)


@dataclass(slots=True)
class Member:
    """One gateway, and its own way to Redis."""

    name: str
    port: int
    process: "subprocess.Popen[bytes]"
    http: httpx.AsyncClient
    log: Path
    way: ChaosProxy | None = None

    def signal(self, number: int) -> None:
        """Send it this signal."""
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    @property
    def is_there(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    async def ready(self) -> dict[str, Any]:
        """What `/readyz` says; nothing where it does not answer."""
        with suppress(httpx.HTTPError, ValueError):
            told: dict[str, Any] = (await self.http.get("/readyz")).json()
            return told
        return {}

    async def cluster(self) -> dict[str, Any]:
        """What it says of the cluster."""
        return (await self.ready()).get("cluster") or {}

    async def phase(self) -> str:
        """Of the one pool: leading, following, alone, ..., or nothing."""
        pools = (await self.cluster()).get("pools") or {}
        return next((str(pool["phase"]) for pool in pools.values()), "")

    async def held(self) -> int:
        """What its scheduler still holds."""
        told = await self.ready()
        return int(told["granted"]) + int(told["waiting"]) if told else -1


@dataclass(slots=True)
class House:
    """All of it."""

    folder: Path
    members: list[Member]
    engines: list[Replica]
    started: AsyncExitStack
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def alive(self) -> list[Member]:
        """Gateways whose process runs."""
        return [member for member in self.members if member.is_there]

    async def leader(self) -> Member | None:
        """Who leads the pool; None: nobody says so."""
        phases = await phases_of(self.alive)
        return next(
            (each for each, phase in zip(self.alive, phases, strict=True) if phase == "leading"),
            None,
        )

    async def follower(self) -> Member:
        """One that does not."""
        leader = await self.leader()
        return next(member for member in self.alive if member is not leader)

    async def is_whole(self) -> bool:
        """Whether one leads, and all others follow it."""
        return await are_one(self.alive)

    async def whole(self, within_s: float) -> None:
        """Wait for that. Raises TimeoutError."""
        await until(self.is_whole, within_s)

    async def chief(self, within_s: float) -> Member:
        """Who leads, once somebody does. Raises TimeoutError."""
        await self.whole(within_s)
        leader = await self.leader()
        assert leader is not None
        return leader

    async def all_alone(self, members: Iterable[Member]) -> bool:
        """Whether each of these decides for itself."""
        return set(await phases_of(members)) == {"alone"}

    async def empty(self, within_s: float) -> None:
        """Wait until no gateway holds anything, and no engine works. Raises TimeoutError."""
        await until(self._is_empty, within_s)

    async def _is_empty(self) -> bool:
        held = [await member.held() for member in self.alive]
        busy = [await replica.engine.busy() for replica in self.engines]
        return not any(held) and not any(busy)


async def phases_of(members: Iterable[Member]) -> list[str]:
    """Of all of them, asked at once."""
    return list(await asyncio.gather(*(member.phase() for member in members)))


async def are_one(members: Iterable[Member]) -> bool:
    """Whether one of these leads, and the others follow."""
    phases = sorted(await phases_of(members))
    return phases == ["following"] * (len(phases) - 1) + ["leading"]


@asynccontextmanager
async def house(
    folder: Path,
    redis_url: str,
    *,
    gateways: int = GATEWAYS,
    engines: int = ENGINES,
    way_to: int | None = None,
    **settings: Any,
) -> AsyncIterator[House]:
    """Once one of the gateways leads and the others follow.

    `way_to`: port of Redis, if each gateway shall have a line of its own there that can be cut.
    """
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(running_fleet([ENGINE] * engines))
        found = House(folder, [], fleet, stack, settings)
        for number in range(gateways):
            way = None if way_to is None else await stack.enter_async_context(chaos_proxy(way_to))
            url = redis_url if way is None else f"redis://127.0.0.1:{way.port}/0"
            await join(found, f"gw{number}", url, way)
        await found.whole(READY_S_MAX)
        yield found


async def join(found: House, name: str, redis_url: str, way: ChaosProxy | None = None) -> Member:
    """One more gateway, once all engines are up for it."""
    port = free_port()
    config, log = found.folder / f"{name}.yaml", found.folder / f"{name}.log"
    document = {
        "listen": {"host": "127.0.0.1", "port": port},
        "replicas": [replica.url for replica in found.engines],
        "scheduling": {"scrape_interval_s": SCRAPE_S},
        "redis": {"url": redis_url, "name": name},
        "store": {"url": "memory:"},
        "shutdown": {"lag_s": 0},
        # All processes share two threads, and make each other late.
        "bounds": {"loop_lag_s": 0},
        **found.settings,
    }
    config.write_text(json.dumps(document))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stderr=output)  # noqa: ASYNC220 - returns at once
    found.started.enter_context(ended(process))
    http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=5.0)
    await found.started.enter_async_context(http)
    member = Member(name, port, process, http, log, way)
    found.members.append(member)
    await until(partial(_all_up, member, len(found.engines)), READY_S_MAX)
    return member


async def _all_up(member: Member, replicas: int) -> bool:
    assert member.is_there, member.log.read_text()
    told = (await member.ready()).get("replicas", {})
    return sum(bool(each["up"]) for each in told.values()) == replicas
