"""Several processes on one port, as an operator has them: started, killed, replaced, ended."""

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.child import Child, child
from tests.support.gateway import eventually
from tests.support.held_engine import HeldEngine, running_held_engine
from tests.support.redis_server import RedisServer, running_redis

PATH = "/v1/chat/completions"
STREAM = {"model": "raw", "messages": [{"role": "user", "content": "x"}], "stream": True}
WORKERS = 2
START_S_MAX = 90.0
"""Each is an interpreter of its own, and machines of tests are slow."""
FOUND_S = 1.0
"""The worker that came last finds the engine within this time."""
SERVED = re.compile(r"worker (\d+) serves")
ENDED = re.compile(r"worker (\d+) ended with status (-?\d+)")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One Redis of the test's own."""
    folder = tmp_path / "redis"
    folder.mkdir()
    with running_redis(folder) as server:
        yield server


@asynccontextmanager
async def workers(
    folder: Path, engine: HeldEngine, redis: RedisServer, **settings: Any
) -> AsyncIterator[Child]:
    """`fairgate serve --workers 2`, all of them serving."""
    options = ("--workers", str(WORKERS), "--redis", redis.url)
    started = child(folder, engine.url, options=options, within_s=START_S_MAX, **settings)
    async with started as found:
        await eventually(lambda: len(living(found)) == WORKERS, START_S_MAX)
        await asyncio.sleep(FOUND_S)
        yield found


def living(found: Child) -> list[int]:
    """Workers that serve, the oldest first."""
    ended = {int(pid) for pid, _ in ENDED.findall(found.said)}
    return [pid for pid in map(int, SERVED.findall(found.said)) if pid not in ended]


async def counted(url: str) -> dict[str, float]:
    """Every sample without labels, and the sum of those with, as one scrape tells them."""
    found: dict[str, float] = {}
    async with httpx.AsyncClient(timeout=20) as http:
        text = (await http.get(f"{url}/metrics")).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


REQUESTS = "fairgate_flow_control_requests_total"


async def asked(url: str, engine: HeldEngine, times: int) -> None:
    """So many requests, each over a connection of its own, so that all workers get some."""
    before = len(engine.asked)
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(once(url)) for _ in range(times)]
        for number in range(before, before + times):
            await eventually(partial(reached, engine, number))
            engine.asked[number].begin()
            engine.asked[number].event()
            engine.asked[number].finish()
    assert [call.result() for call in calls] == [200] * times


def reached(engine: HeldEngine, number: int) -> bool:
    """Whether the engine has so many requests and one more."""
    return len(engine.asked) > number


async def once(url: str) -> int:
    """The status of one request, which must be complete."""
    async with httpx.AsyncClient(timeout=3 * START_S_MAX) as http:
        answer = await http.post(url + PATH, json=STREAM)
        assert answer.status_code != 200 or answer.text.endswith("data: [DONE]\n\n")
        return answer.status_code


async def test_all_workers_serve_one_port_and_one_scrape_tells_of_all(
    tmp_path: Path, redis: RedisServer
) -> None:
    """A scrape reaches any of them: it must not count a part of what was served."""
    async with running_held_engine(16) as engine, workers(tmp_path, engine, redis) as gateway:
        await asked(gateway.url, engine, 24)
        for _ in range(6):
            found = await counted(gateway.url)
            assert found[REQUESTS] == 24
            assert found["fairgate_workers"] == WORKERS
            assert found["fairgate_workers_silent"] == 0


async def test_a_worker_that_is_killed_is_replaced_and_no_sum_falls(
    tmp_path: Path, redis: RedisServer
) -> None:
    """Its streams are lost with it; nobody else is, and no counter seems to start anew."""
    async with running_held_engine(16) as engine, workers(tmp_path, engine, redis) as gateway:
        await asked(gateway.url, engine, 16)
        assert (await counted(gateway.url))[REQUESTS] == 16
        os.kill(living(gateway)[0], signal.SIGKILL)
        await asked(gateway.url, engine, 16)
        await eventually(lambda: len(living(gateway)) == WORKERS, START_S_MAX)
        found = await counted(gateway.url)
        assert found[REQUESTS] == 32
        assert found["fairgate_workers_silent"] == 0


async def test_a_rolling_restart_loses_nothing(tmp_path: Path, redis: RedisServer) -> None:
    """Neither a stream that runs, nor a request that comes at any moment of it."""
    async with running_held_engine(64) as engine, workers(tmp_path, engine, redis) as gateway:
        streams = [asyncio.create_task(once(gateway.url)) for _ in range(8)]
        await eventually(lambda: len(engine.here) == 8, 30)
        for held in engine.asked:
            held.begin()
            held.event()
        held_here = list(engine.asked)
        old = living(gateway)
        gateway.signal(signal.SIGUSR2)
        async with asyncio.timeout(2 * START_S_MAX):
            while len([pid for pid in living(gateway) if pid not in old]) < WORKERS:
                await asked(gateway.url, engine, 2)
        assert not any(stream.done() for stream in streams)
        for held in held_here:
            held.event(2)
            held.finish()
        assert await asyncio.gather(*streams) == [200] * 8
        await eventually(lambda: not set(old) & set(living(gateway)), 30)
        assert all(status == "0" for _, status in ENDED.findall(gateway.said))
        found = await counted(gateway.url)
        assert found[REQUESTS] == len(engine.asked)
        assert found["fairgate_workers"] == WORKERS


async def test_a_roll_whose_first_successor_fails_replaces_nobody(
    tmp_path: Path, redis: RedisServer
) -> None:
    """A broken configuration is found with one worker, and all go on with what they have."""
    async with running_held_engine(16) as engine, workers(tmp_path, engine, redis) as gateway:
        old = living(gateway)
        gateway.write(bounds={"waiting": "many"})
        gateway.signal(signal.SIGUSR2)
        await gateway.says("ended with status 2")
        await asked(gateway.url, engine, 8)
        assert living(gateway) == old


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_stop_all_finish_what_runs_and_it_ends_with_status_0(
    tmp_path: Path, redis: RedisServer, number: int
) -> None:
    """An orchestrator sees one process, which ends as one gateway does."""
    async with (
        running_held_engine(16) as engine,
        workers(tmp_path, engine, redis, shutdown={"lag_s": 0.2}) as gateway,
    ):
        calls = [asyncio.create_task(once(gateway.url)) for _ in range(8)]
        await eventually(lambda: len(engine.here) == 8, 30)
        pids = living(gateway)
        gateway.signal(number)
        await asyncio.sleep(0.5)
        for held in engine.asked:
            held.begin()
            held.event()
            held.finish()
        assert await asyncio.gather(*calls) == [200] * 8
        assert await gateway.status() == 0
        assert not any(is_there(pid) for pid in pids)
        assert "Traceback" not in gateway.said


async def test_a_second_signal_ends_all_at_once(tmp_path: Path, redis: RedisServer) -> None:
    """With a status that says that they were not allowed to finish."""
    async with (
        running_held_engine(16) as engine,
        workers(tmp_path, engine, redis, shutdown={"lag_s": 60}) as gateway,
    ):
        gateway.signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert gateway.process.returncode is None
        gateway.signal(signal.SIGTERM)
        assert await asyncio.wait_for(gateway.status(), 5) == 128 + signal.SIGTERM


async def test_without_the_process_above_them_the_workers_leave(
    tmp_path: Path, redis: RedisServer
) -> None:
    """Nobody would replace or stop them, and the next start would share its port with them."""
    async with running_held_engine(16) as engine, workers(tmp_path, engine, redis) as gateway:
        pids = living(gateway)
        gateway.process.kill()
        await gateway.process.wait()
        await eventually(lambda: not any(is_there(pid) for pid in pids), 20)


async def test_all_read_the_settings_again(tmp_path: Path, redis: RedisServer) -> None:
    """SIGHUP goes to one process, and the port belongs to several."""
    async with running_held_engine(16) as engine, workers(tmp_path, engine, redis) as gateway:
        gateway.write(keepalive_after_s=7)
        gateway.signal(signal.SIGHUP)
        await eventually(lambda: gateway.said.count("changed: keepalive_after_s") == WORKERS)


async def test_a_port_that_somebody_has_is_an_error_at_the_start(
    tmp_path: Path, redis: RedisServer
) -> None:
    """The system would let a second gateway share the port: half of all requests went astray."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        options = ("--workers", "2", "--redis", redis.url, "--port", str(port))
        with pytest.raises(AssertionError, match="cannot be listened on"):
            async with child(
                tmp_path, "http://127.0.0.1:9", options=options, ready=False, within_s=START_S_MAX
            ):
                pass


async def test_all_workers_share_the_key_that_is_made_for_a_run(
    tmp_path: Path, redis: RedisServer
) -> None:
    """It is printed once: any worker must take it."""
    options = ("--workers", "2", "--redis", redis.url, "--host", "0.0.0.0", "--insecure-no-auth")  # noqa: S104 - the case in question
    async with child(
        tmp_path, "http://127.0.0.1:9", options=options, ready=False, within_s=START_S_MAX
    ) as gateway:
        await eventually(lambda: len(living(gateway)) == WORKERS, START_S_MAX)
        (key,) = re.findall(r"made for this run:\s+(\S+)", gateway.said)
        for _ in range(8):
            async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}) as http:
                answer = await http.get(f"{gateway.url}/metrics")
            assert answer.status_code == 200
            assert "\nfairgate_workers 2.0\n" in answer.text


def is_there(pid: int) -> bool:
    """Whether the process has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
