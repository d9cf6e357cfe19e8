"""Gateways before the same engines, alone or as one over Redis, and emulated engines.

They are started as an operator starts them, and asked what an operator can ask; nothing is measured
here.
"""

import hashlib
import http.client
import json
import secrets
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.bench.contenders import OPEN_SEQUENCES, WITHIN
from gateway.bench.launch import (
    OWN_PATH,
    READY_POLL_S,
    READY_WAIT_S,
    StartFailed,
    free_port,
    launched,
    wait_ready,
)
from gateway.bench.replies import MODEL
from gateway.bench.targets import Entrant

REQUESTS = "fairgate_request_duration_seconds_count"
LOSSES = "fairgate_cluster_losses_total"
ASK_S_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One that answers."""

    port: int
    slots: int = OPEN_SEQUENCES


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A gateway that answers, with all its workers."""

    name: str
    port: int
    pid: int
    keys: dict[str, str]
    """By user."""

    def get(self, path: str) -> str:
        """The body of an answer. Raises OSError."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ASK_S_MAX)
        try:
            key = next(iter(self.keys.values()))
            line.request("GET", path, headers={"authorization": f"Bearer {key}"})
            return line.getresponse().read().decode()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            line.close()

    def phases(self) -> set[str]:
        """Of its pools."""
        return {str(pool["phase"]) for pool in self._cluster().get("pools", {}).values()}

    def gateways(self) -> int:
        """How many are one with it, this one included."""
        return len(self._cluster().get("gateways", ()))

    def _cluster(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/readyz")).get("cluster") or {}
        return found

    def requests(self) -> int:
        """How many have ended here since it was started."""
        return count_of(REQUESTS, self.get("/metrics"))

    def losses(self) -> int:
        """How often it, or one of its workers, lost its Redis."""
        return count_of(LOSSES, self.get("/metrics"))


def count_of(name: str, page: str) -> int:
    """The sum of all series of that name in the text of a metrics page."""
    lines = (line.rsplit(maxsplit=1) for line in page.splitlines() if line.startswith(name))
    return round(sum(float(value) for series, value in lines if series.split("{")[0] == name))


class Site:
    """Everything of one measurement, until its stack ends."""

    def __init__(self, stack: ExitStack, folder: Path, gateway: Entrant, log_level: str) -> None:
        self._stack = stack
        self._folder = folder
        self._gateway = gateway
        self._log_level = log_level
        self.keys: dict[str, str] = {}

    def know(self, users: Iterable[str]) -> None:
        """Gateways that are started from now on know these users, all of one tenant."""
        self.keys = {user: f"bench-{secrets.token_urlsafe(24)}" for user in users}

    def emulated(self, count: int, slots: int) -> list[Engine]:
        """Emulated engines. Raises StartFailed."""
        found = []
        for number in range(count):
            port = free_port()
            options = ["--port", str(port), "--model", MODEL, "--max-num-seqs", str(slots)]
            command = [sys.executable, "-m", "gateway", "emulate", *options]
            name = f"engine{number}"
            process = self._stack.enter_context(
                launched(command, folder=self._folder, name=name, core=None, python_path=OWN_PATH)
            )
            log = self._folder / f"{name}.log"
            wait_ready(process, port=port, path="/health", key="", log=log)
            found.append(Engine(port=port, slots=slots))
        return found

    def gateway(
        self, name: str, engines: Sequence[Engine], *, redis: str | None = None, workers: int = 1
    ) -> Node:
        """One gateway, or several processes on one port. Raises StartFailed or OSError."""
        own = self._folder / name
        own.mkdir()
        port = free_port()
        config = own / "fairgate.yaml"
        # Workers are a cluster of their own; gateways of one name's beginning are another.
        prefix = name if workers > 1 else "bench"
        found = settings(port, engines, self.keys, redis=redis, prefix=prefix, name=name)
        config.write_text(json.dumps(found))  # JSON is YAML
        serve = ["serve", "--config", str(config), "--workers", str(workers)]
        within = [WITHIN, "--log-level", self._log_level.upper(), "--"]
        process = self._stack.enter_context(
            launched(
                [self._gateway.program, *within, *serve],
                folder=own,
                name="output",
                core=None,
                python_path=self._gateway.contender.python_path,
            )
        )
        key = next(iter(self.keys.values()))
        wait_ready(process, port=port, path="/readyz", key=key, log=own / "output.log")
        return Node(name=name, port=port, pid=process.pid, keys=self.keys)


def settings(
    port: int,
    engines: Sequence[Engine],
    keys: dict[str, str],
    *,
    redis: str | None,
    prefix: str,
    name: str,
) -> dict[str, object]:
    """Of one gateway: auth, scheduling, metrics and accounting on."""
    replicas = [
        {"url": f"http://127.0.0.1:{each.port}", "max_num_seqs": each.slots} for each in engines
    ]
    return {
        "listen": {"host": "127.0.0.1", "port": port},
        "models": [{"name": MODEL, "replicas": replicas}],
        "tenants": [{"name": "bench", "users": {user: {"weight": 1} for user in keys}}],
        "keys": [
            {
                "tenant": "bench",
                "user": user,
                "tier": "standard",
                "key_sha256": hashlib.sha256(key.encode()).hexdigest(),
            }
            for user, key in keys.items()
        ],
        "redis": {"url": redis, "prefix": prefix, "name": name},
        "store": {"url": "memory:"},
        "shutdown": {"lag_s": 0},
        # Many processes share few cores here and make each other late; nobody is to be sent away.
        "bounds": {"loop_lag_s": 0},
    }


def leader_of(nodes: Sequence[Node]) -> Node:
    """Who leads, once one does and all others follow. Raises StartFailed."""
    end = time.monotonic() + READY_WAIT_S
    while time.monotonic() < end:
        phases = [each.phases() for each in nodes]
        if sorted(map(sorted, phases)) == [["following"]] * (len(nodes) - 1) + [["leading"]]:
            return nodes[phases.index({"leading"})]
        time.sleep(READY_POLL_S)
    raise StartFailed("the gateways do not become one")


def wait_whole(workers: Node, count: int) -> None:
    """Return once that many processes behind one port are one. Raises StartFailed."""
    end = time.monotonic() + READY_WAIT_S
    while time.monotonic() < end:
        if workers.gateways() == count and workers.phases() <= {"leading", "following"}:
            return
        time.sleep(READY_POLL_S)
    raise StartFailed("the workers do not become one")


def wait_alone(workers: Node) -> None:
    """Return once the process that answers decides alone. Raises StartFailed."""
    end = time.monotonic() + READY_WAIT_S
    while time.monotonic() < end:
        if workers.phases() == {"alone"}:
            return
        time.sleep(READY_POLL_S)
    raise StartFailed("the workers do not decide alone")
