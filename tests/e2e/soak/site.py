"""A gateway whose loop is watched, before engines that cost next to nothing, each a process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection
from time import monotonic, sleep
from typing import Any

import httpx

from gateway.bench.process import sample_tree
from tests.e2e.processes import ended
from tests.support.ports import free_port

READY_S_MAX = 30.0
SEQUENCES = 4_096
"""More than any test keeps open: nothing is to wait for a slot."""
MB = 1_000_000
REQUESTS = "fairgate_flow_control_requests_total{"


@dataclass(frozen=True, slots=True)
class Held:
    """The longest time that the gateway's loop did not turn, in ms."""

    wall_ms: float
    """As seen from outside; on a busy machine it waits for a core, too."""
    cpu_ms: float
    """Of it, what the gateway itself worked."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A running gateway and its engines."""

    port: int
    ticks_port: int
    pid: int
    engines: tuple[str, ...]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def rss_mb(self) -> float:
        """Its memory now."""
        return sample_tree(self.pid).rss_bytes / MB

    def forget_peak(self) -> None:
        """Let `peak_mb` begin anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def peak_mb(self) -> float:
        """The most memory that it had since."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024 / MB

    def cpu_s(self) -> float:
        """Its CPU time so far."""
        return sample_tree(self.pid).cpu_s

    def held(self) -> Held:
        """The longest block since this was asked last."""
        with create_connection(("127.0.0.1", self.ticks_port)) as asking:
            told = json.loads(asking.makefile().read())
        return Held(wall_ms=told["wall_s"] * 1000, cpu_ms=told["cpu_s"] * 1000)

    def cut(self) -> float:
        """Requests so far whose client got no end, or left."""
        metrics = httpx.get(f"{self.url}/metrics", timeout=10.0).text
        lines = [line for line in metrics.splitlines() if line.startswith(REQUESTS)]
        return sum(float(line.split()[-1]) for line in lines if 'outcome="done"' not in line)

    def ready(self) -> dict[str, Any]:
        """What `/readyz` says."""
        told: dict[str, Any] = httpx.get(f"{self.url}/readyz", timeout=10.0).json()
        return told


@contextmanager
def watched(
    folder: Path,
    *engine_commands: tuple[str, ...],
    alias: tuple[str, str] | None = None,
    **settings: Any,
) -> Iterator[Watched]:
    """The gateway before one engine for each command, which gets its `--port` appended.

    `alias` is one more name, and the model of the last engine that it stands for.
    """
    ports = [free_port() for _ in engine_commands]
    engines = tuple(f"http://127.0.0.1:{port}" for port in ports)
    port, ticks_port = free_port(), free_port()
    document: dict[str, Any] = {
        "listen": {"host": "127.0.0.1", "port": port},
        "replicas": [{"url": url, "max_num_seqs": SEQUENCES} for url in engines],
        # What is slow here is not the engines: the gate must not take it for that.
        "tiers": [{"name": "standard", "tpot_limit_ms": 60_000.0, "prefill_limit_s": 600.0}],
        "service_tiers": {},
        **settings,
    }
    if alias is not None:
        name, model = alias
        replica = document["replicas"][-1]
        document["models"] = [{"name": model, "aliases": [name], "replicas": [replica]}]
    config = folder / f"watched-{port}.yaml"
    config.write_text(json.dumps(document))
    module = "tests.e2e.soak.ticked"
    arguments = ["-m", module, "--config", str(config), "--ticks", str(ticks_port)]
    with ExitStack() as stack:
        for command, engine_port in zip(engine_commands, ports, strict=True):
            process = subprocess.Popen([sys.executable, *command, "--port", str(engine_port)])
            stack.enter_context(ended(process))
        gateway = stack.enter_context(ended(subprocess.Popen([sys.executable, *arguments])))
        found = Watched(port=port, ticks_port=ticks_port, pid=gateway.pid, engines=engines)
        _await_ready(found)
        yield found


def _await_ready(site: Watched) -> None:
    deadline = monotonic() + READY_S_MAX
    while monotonic() < deadline:
        try:
            replicas = site.ready()["replicas"].values()
            if all(replica["up"] for replica in replicas):
                return
        except (httpx.HTTPError, KeyError):
            pass
        sleep(0.1)
    raise AssertionError("the gateway did not become ready")
