"""A Redis with a replica and three sentinels that put the replica in its place."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_port
from tests.support.redis_server import RedisServer, running_redis

MASTER = "house"
SENTINELS = 3
QUORUM = 2
DOWN_AFTER_MS = 1_000
SETTLE_S_MAX = 20.0
OPTIONS = ("--save", "", "--appendonly", "no")


@dataclass(slots=True)
class Sentinels:
    """All of them."""

    master: RedisServer
    replica: RedisServer
    ports: list[int]

    @property
    def url(self) -> str:
        """How the gateways find whoever is the master."""
        places = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"redis+sentinel://{places}/{MASTER}/0"


@contextmanager
def running_sentinels(folder: Path) -> Iterator[Sentinels]:
    """Once the sentinels know the replica and one another."""
    with ExitStack() as stack:
        for name in ("master", "replica"):
            (folder / name).mkdir()
        master = stack.enter_context(running_redis(folder / "master", OPTIONS))
        follows = ("--replicaof", "127.0.0.1", str(master.port))
        replica = stack.enter_context(running_redis(folder / "replica", (*OPTIONS, *follows)))
        ports = [free_port() for _ in range(SENTINELS)]
        for port in ports:
            stack.enter_context(_sentinel(folder, port, master.port))
        end = time.monotonic() + SETTLE_S_MAX
        while not all(_knows_all(port) for port in ports):
            assert time.monotonic() < end, "the sentinels do not find one another"
            time.sleep(0.1)
        yield Sentinels(master, replica, ports)


@contextmanager
def _sentinel(folder: Path, port: int, master: int) -> Iterator[None]:
    config = folder / f"sentinel-{port}.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor {MASTER} 127.0.0.1 {master} {QUORUM}\n"
        f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n"
        f"sentinel failover-timeout {MASTER} 10000\n"
    )
    process = subprocess.Popen(
        ["redis-server", str(config), "--sentinel"], stdout=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def _knows_all(port: int) -> bool:
    asked = ["redis-cli", "-p", str(port), "sentinel", "master", MASTER]
    lines = subprocess.run(asked, check=False, capture_output=True, text=True).stdout.split("\n")
    told = dict(zip(lines[::2], lines[1::2], strict=False))
    return (told.get("num-slaves"), told.get("num-other-sentinels")) == ("1", str(SENTINELS - 1))
