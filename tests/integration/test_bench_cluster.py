"""What the benchmark of several gateways asks of real parts: Redis, a gateway, an engine."""

import asyncio
import json
import shutil
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from gateway.bench.cluster_power import power_load
from gateway.bench.cluster_redis import start_redis
from gateway.bench.cluster_site import Engine, Node
from gateway.bench.cluster_spec import ClusterPlan
from gateway.bench.launch import StartFailed
from gateway.bench.replies import MODEL
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from tests.support.gateway import Running, running_gateway

SLOTS = 2
USERS = {"power": 6, "light": 1}
LOOKS = 150
"""At the clock, about three a request: so much is done however busy the machine is."""
SHORT = ClusterPlan(power_s=float(LOOKS), settle_s=10.0)


def node_of(running: Running) -> Node:
    """As the benchmark knows a gateway that it started."""
    port = int(running.url.rpartition(":")[2])
    return Node(name="one", port=port, pid=0, keys=dict.fromkeys(USERS, "k"))


def engine_of(emulator: Emulator) -> Engine:
    """The same of an engine."""
    return Engine(port=int(emulator.url.rpartition(":")[2]), slots=SLOTS)


async def test_what_each_user_gets_and_what_waits_inside_an_engine_is_seen() -> None:
    """A figure of nothing would meet every target."""
    options = EmulatorOptions(models=(MODEL,), max_num_seqs=SLOTS, speed=20.0)
    async with (
        running_emulator(options) as emulator,
        running_gateway(emulator.url) as running,
    ):
        node = node_of(running)
        found = await power_load(
            [node], [engine_of(emulator)], SHORT, USERS, clock=count().__next__
        )
        ended = await asyncio.to_thread(node.requests)
        phases = await asyncio.to_thread(node.phases)
    assert found.errors == 0
    assert found.looks > 0
    assert all(each.requests and each.took_s for each in found.users.values())
    assert found.users["power"].waited_s > 0.0
    assert ended >= sum(each.requests for each in found.users.values())
    assert phases == set()


async def test_an_engine_that_is_overfilled_is_seen() -> None:
    """The one figure that must never be too high has to be able to be."""
    options = EmulatorOptions(models=(MODEL,), max_num_seqs=SLOTS, speed=20.0)
    async with (
        running_emulator(options) as emulator,
        running_gateway(emulator.url, policy="fifo") as running,
    ):
        found = await power_load(
            [node_of(running)], [engine_of(emulator)], SHORT, USERS, clock=count().__next__
        )
    assert found.queued_most > 3


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server here")
def test_a_redis_of_its_own_counts_what_goes_through_it(tmp_path: Path) -> None:
    """Figures of somebody else's Redis would be somebody else's."""
    with ExitStack() as stack:
        redis = start_redis(stack, tmp_path)
        before, after = redis.info(), redis.info()
        name = "total_commands_processed"
        assert int(after[name]) == int(before[name]) + 1
        assert json.loads(after["total_net_output_bytes"]) > 0
    with pytest.raises(OSError, match="refused"):
        redis.info()


def test_a_missing_redis_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the words that help, instead of a traceback."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with ExitStack() as stack, pytest.raises(StartFailed, match="redis-server"):
        start_redis(stack, tmp_path)
