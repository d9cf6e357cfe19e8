"""Gateways that are killed again and again in the middle of a batch: one, and three over Redis."""

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.chaos.conftest import Say
from tests.support.batches import CHAT, line, reached
from tests.support.ports import free_port
from tests.support.redis_server import running_redis

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3_600)]

ROOT = Path(__file__).resolve().parents[2]
LINES_MIN, LINES_PER_KILL, LINES_MAX = 6_000, 500, 50_000
IN_FLIGHT = 8
LEASE_S = 1.0
LIFE_S = 2.0
"""Of a gateway, at most, from its start or from when it is ready."""
READY_S_MAX = 60.0
END_S_MAX = 600.0
ENGINE = EmulatorOptions(profile="instant", max_num_seqs=8, models=("m",))


class Gateways:
    """So many processes with one store and one folder."""

    def __init__(self, engine: str, folder: Path, *, count: int, redis: str | None) -> None:
        self._ports = [free_port() for _ in range(count)]
        self._engine = engine
        self._folder = folder
        self._redis = redis
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self.https = [
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30.0)
            for port in self._ports
        ]

    async def start(self, index: int) -> None:
        """A gateway of its own process."""
        store = self._redis or f"sqlite:///{self._folder}/batches.db"
        words = [
            *("serve", "--port", str(self._ports[index]), "--replica", self._engine),
            *("--batches", str(self._folder / "files")),
            *(() if self._redis is None else ("--redis", self._redis)),
        ]
        self._running[index] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *words,
            cwd=self._folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "FAIRGATE_BATCHES__IN_FLIGHT": str(IN_FLIGHT),
                "FAIRGATE_BATCHES__LEASE_S": str(LEASE_S),
                "FAIRGATE_BATCHES__STORE": store,
                "FAIRGATE_STORE__URL": f"sqlite:///{self._folder}/{index}.db",
            },
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    async def kill(self, index: int) -> None:
        """It ends without a word."""
        process = self._running.pop(index)
        process.kill()
        await process.wait()

    async def ready(self, index: int) -> None:
        """Wait until it takes traffic."""

        async def is_ready() -> bool:
            try:
                answer = await self.https[index].get("/readyz")
            except httpx.HTTPError:
                return False
            return answer.status_code == 200

        await reached(is_ready, READY_S_MAX)

    async def close(self) -> None:
        """End all."""
        for index in list(self._running):
            await self.kill(index)
        for http in self.https:
            await http.aclose()


@asynccontextmanager
async def gateways(folder: Path, count: int) -> AsyncIterator[Gateways]:
    """One over a file, or several over Redis, all of them ready."""
    with ExitStack() as stack:
        redis = stack.enter_context(running_redis(folder)).url if count > 1 else None
        async with running_emulator(ENGINE) as engine:
            found = Gateways(engine.url, folder, count=count, redis=redis)
            try:
                for index in range(count):
                    await found.start(index)
                for index in range(count):
                    await found.ready(index)
                yield found
            finally:
                await found.close()


async def submitted(http: httpx.AsyncClient, lines: int) -> str:
    """The id of a batch."""
    data = b"".join(line(number, max_tokens=1) for number in range(lines))
    form = {"data": {"purpose": "batch"}, "files": {"file": data}}
    file: dict[str, Any] = (await http.post("/v1/files", **form)).json()  # type: ignore[arg-type] # by name
    wish = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    return str((await http.post("/v1/batches", json=wish)).json()["id"])


async def outputs(http: httpx.AsyncClient, batch: dict[str, Any]) -> list[dict[str, Any]]:
    """All lines of both files."""
    names = [batch["output_file_id"], batch["error_file_id"]]
    texts = [await http.get(f"/v1/files/{name}/content") for name in names if name is not None]
    return [json.loads(each) for text in texts for each in text.text.splitlines()]


@dataclass(slots=True)
class Blows:
    """Kills at instants, and of victims, that a seed decides."""

    several: Gateways
    chance: random.Random
    count: int
    """Of the gateways."""

    async def strike(self, times: int) -> list[float]:
        """So many, one after another; when each fell, in seconds since 1970."""
        fell = []
        for _ in range(times):
            victim = self.chance.randrange(self.count)
            if self.chance.random() < 0.7:
                await self.several.ready(victim)
            await asyncio.sleep(self.chance.random() * LIFE_S)
            fell.append(time.time())
            await self.several.kill(victim)
            await self.several.start(victim)
        return fell


async def over(http: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    """The batch, once all of it is done."""

    async def is_over() -> bool:
        batch: dict[str, object] = (await http.get(f"/v1/batches/{batch_id}")).json()
        return batch["status"] == "completed"

    await reached(is_over, END_S_MAX)
    batch: dict[str, Any] = (await http.get(f"/v1/batches/{batch_id}")).json()
    return batch


def in_the_middle(batch: dict[str, Any], fell: list[float]) -> int:
    """How many fell while lines ran. Instants of a batch are whole seconds, cut."""
    return sum(batch["in_progress_at"] + 1 <= at < batch["finalizing_at"] for at in fell)


def assert_each_once(found: list[dict[str, Any]], lines: int) -> None:
    """Each line of the input is in the outputs once, with a success."""
    assert [each for each in found if (each["response"] or {}).get("status_code") != 200] == []
    put_out = Counter(each["custom_id"] for each in found)
    assert put_out == Counter(f"c{number}" for number in range(lines))


@pytest.mark.parametrize("count", [1, 3])
async def test_each_line_is_put_out_once_however_often_gateways_are_killed(
    tmp_path: Path, say: Say, request: pytest.FixtureRequest, count: int
) -> None:
    """A user pays for each line once, and must find each answer."""
    kills, seed = request.config.getoption("--kills"), request.config.getoption("--seed")
    struck = tried = 0
    sizes: list[int] = []
    async with gateways(tmp_path, count) as several:
        http, blows = several.https[0], Blows(several, random.Random(seed or 0), count)
        while struck < kills:
            lines = min(LINES_MIN + LINES_PER_KILL * (kills - struck), LINES_MAX)
            batch_id = await submitted(http, lines)
            fell = await blows.strike(kills - struck)
            await several.ready(0)
            batch = await over(http, batch_id)
            assert_each_once(await outputs(http, batch), lines)
            tried, struck = tried + len(fell), struck + in_the_middle(batch, fell)
            sizes.append(lines)
    say(
        f"{count} gateways, {tried} kills, {struck} of them while lines ran: each of "
        f"{' + '.join(map(str, sizes))} lines put out once"
    )
