"""Several Redis servers as they are run for availability: under a sentinel, or as a cluster."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from tests.support.ports import free_port
from tests.support.redis_server import OPTIONS, RedisServer, running_redis

MASTER = "main"
PLAIN = ("--save", "", "--appendonly", "no")
DOWN_MS = 400
"""A sentinel takes a master for down that did not answer for so long."""
START_S_MAX = 20.0


class Watched:
    """A master, a replica, and a sentinel that makes the one the other."""

    def __init__(self, master: RedisServer, replica: RedisServer, port: int) -> None:
        self.master = master
        self.replica = replica
        self.url = f"redis+sentinel://127.0.0.1:{port}/{MASTER}"
        self._sentinel: Any = Redis(port=port)

    def knows(self) -> int:
        """The port of the master, as the sentinel says."""
        found = self._sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        return int(found[1])


@contextmanager
def watched_redis(folder: Path) -> Iterator[Watched]:
    """A master with a replica and a sentinel; skipped where no Redis is installed."""
    with ExitStack() as stack:
        folders = [folder / name for name in ("master", "replica", "sentinel")]
        for each in folders:
            each.mkdir()
        master = stack.enter_context(running_redis(folders[0], PLAIN))
        follows = (*PLAIN, "--replicaof", "127.0.0.1", str(master.port))
        replica = stack.enter_context(running_redis(folders[1], follows))
        link: Any = Redis(port=replica.port)
        _wait(lambda: link.info("replication")["master_link_status"] == "up")
        port = free_port()
        config = folders[2] / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folders[2]}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {master.port} 1\n"
            f"sentinel down-after-milliseconds {MASTER} {DOWN_MS}\n"
            f"sentinel failover-timeout {MASTER} 3000\n"
        )
        process = subprocess.Popen(
            ["redis-server", str(config), "--sentinel"], stdout=subprocess.DEVNULL
        )
        stack.callback(process.wait)
        stack.callback(os.kill, process.pid, signal.SIGKILL)
        watcher: Any = Redis(port=port)
        _wait(lambda: watcher.sentinel_master(MASTER)["num-slaves"] == 1)
        yield Watched(master, replica, port)


@contextmanager
def clustered_redis(folder: Path, nodes: int = 3) -> Iterator[list[RedisServer]]:
    """A cluster of masters, each with its part of the slots."""
    with ExitStack() as stack:
        found = []
        for number in range(nodes):
            own = folder / f"node{number}"
            own.mkdir()
            options = (*OPTIONS, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
            found.append(stack.enter_context(running_redis(own, options)))
        links: list[Any] = [Redis(port=each.port) for each in found]
        first = links[0]
        for each, link in zip(found[1:], links[1:], strict=True):
            bus = link.config_get("cluster-port")["cluster-port"]
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", str(each.port), bus)
        bounds = [16384 * number // nodes for number in range(nodes + 1)]
        for link, low, high in zip(links, bounds, bounds[1:], strict=False):
            link.execute_command("CLUSTER", "ADDSLOTSRANGE", str(low), str(high - 1))
        for link in links:
            _wait(partial(_is_whole, link))
        yield found


def _is_whole(node: Any) -> bool:
    return "cluster_state:ok" in str(node.execute_command("CLUSTER", "INFO"))


def _wait(holds: Callable[[], object]) -> None:
    end = time.monotonic() + START_S_MAX
    while True:
        with suppress(RedisError):
            if holds():
                return
        assert time.monotonic() < end, "it does not come up"
        time.sleep(0.05)
