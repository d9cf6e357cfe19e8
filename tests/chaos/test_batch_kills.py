"""A gateway that is killed again and again in the middle of a batch."""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.chaos.conftest import Say
from tests.support.batches import CHAT, line, reached
from tests.support.ports import free_port

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_800)]

ROOT = Path(__file__).resolve().parents[2]
LINES = 6_000
LEASE_S = 1.0
READY_S_MAX = 30.0
ENGINE = EmulatorOptions(profile="instant", max_num_seqs=8, models=("m",))


async def started(port: int, engine: str, folder: Path) -> asyncio.subprocess.Process:
    """A gateway of its own process, with batches in `folder`."""
    words = ["serve", "--port", str(port), "--replica", engine, "--batches", str(folder / "files")]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *words,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FAIRGATE_BATCHES__LEASE_S": str(LEASE_S),
            "FAIRGATE_BATCHES__STORE": f"sqlite:///{folder}/batches.db",
        },
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


async def answers(http: httpx.AsyncClient, path: str) -> httpx.Response | None:
    """What a gateway says that may not be there."""
    try:
        return await http.get(path)
    except httpx.HTTPError:
        return None


async def ready(http: httpx.AsyncClient) -> None:
    """Wait until it takes traffic."""

    async def is_ready() -> bool:
        answer = await answers(http, "/readyz")
        return answer is not None and answer.status_code == 200

    await reached(is_ready, READY_S_MAX)


async def test_each_line_is_put_out_once_however_often_the_gateway_is_killed(
    tmp_path: Path, say: Say, request: pytest.FixtureRequest
) -> None:
    """A user pays for each line once, and must find each answer."""
    kills_wanted, seed = request.config.getoption("--kills"), request.config.getoption("--seed")
    chance = random.Random(seed or 0)
    data = b"".join(line(number, max_tokens=1) for number in range(LINES))
    port, kills = free_port(), 0
    url = f"http://127.0.0.1:{port}"
    async with (
        running_emulator(ENGINE) as engine,
        httpx.AsyncClient(base_url=url, timeout=30.0) as http,
    ):
        process = await started(port, engine.url, tmp_path)
        try:
            await ready(http)
            file = (
                await http.post("/v1/files", data={"purpose": "batch"}, files={"file": data})
            ).json()
            wish = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
            batch = (await http.post("/v1/batches", json=wish)).json()
            while True:
                # Any moment of a life: its start, its check, its lines, its end.
                await asyncio.sleep(chance.random() * (LEASE_S + 2.0))
                if kills < kills_wanted:
                    process.send_signal(signal.SIGKILL)
                    await process.wait()
                    kills += 1
                    process = await started(port, engine.url, tmp_path)
                    continue
                await ready(http)
                batch = (await http.get(f"/v1/batches/{batch['id']}")).json()
                if batch["status"] == "completed":
                    break
            found = [
                json.loads(each)
                for name in (batch["output_file_id"], batch["error_file_id"])
                if name is not None
                for each in (await http.get(f"/v1/files/{name}/content")).text.splitlines()
            ]
        finally:
            process.kill()
            await process.wait()
    failed = [each for each in found if (each["response"] or {}).get("status_code") != 200]
    assert failed == []
    put_out = Counter(each["custom_id"] for each in found)
    assert put_out == Counter(f"c{number}" for number in range(LINES))
    say(f"{LINES} lines, killed {kills} times at {time.strftime('%H:%M')}: each put out once")
