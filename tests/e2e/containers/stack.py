"""The project's own compose file, brought up for tests under a name, a port and keys of its own."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.containers.engine import BUILD_S, ROOT, Engine

GATEWAY = "gateway-cpu"
ENGINES = ("emulator-0", "emulator-1")
COLLECTOR = "collector"
"""Where traces are sent; whoever wants to see them is on the network `front` under this name."""
COLLECTOR_PORT = 4318
UP_S = 120
DOWN_S = 60
REACH = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor

def reached(target):
    host, port = target.split(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError:
        return False
    return True

targets = sys.argv[1:]
with ThreadPoolExecutor(len(targets)) as pool:
    print(*(t for t, r in zip(targets, pool.map(reached, targets)) if r))
"""
"""Prints those of its arguments, HOST:PORT each, that accept a connection."""


@dataclass(frozen=True)
class Stack:
    """The running containers, and the client's side of the gateway."""

    engine: Engine
    profiles: tuple[str, ...]
    project: str
    image: str
    env_file: Path
    secrets: Mapping[str, str]
    url: str
    prometheus_url: str
    """Where Prometheus is, in the profile `observability`."""
    up_s: float
    """From images that are built to all health checks passed."""

    def compose(self, *arguments: str, timeout_s: float = DOWN_S) -> str:
        """Standard output of a compose command on these containers that must succeed."""
        return self.engine.docker(*self._compose(), *arguments, timeout_s=timeout_s)

    def inside(self, service: str, *command: str) -> str:
        """Output of a command inside a running service, whatever its exit status."""
        return self.engine.tried(*self._compose(), "exec", "-T", service, *command).stdout

    def container(self, service: str) -> str:
        """The id of a service's container, running or not."""
        return self.compose("ps", "--all", "--quiet", service).strip()

    def inspected(self, service: str, template: str) -> str:
        """A field of a container, by Docker's template language."""
        return self.engine.docker("inspect", "-f", template, self.container(service)).strip()

    def health(self, service: str) -> str:
        """What the container engine thinks of it: `starting`, `healthy` or `unhealthy`."""
        return self.inspected(service, "{{.State.Health.Status}}")

    def address(self, service: str, network: str) -> str:
        """The IP address of a service in one of this project's networks."""
        field = f'(index .NetworkSettings.Networks "{self.network(network)}").IPAddress'
        return self.inspected(service, f"{{{{{field}}}}}")

    def network(self, name: str) -> str:
        """The engine's name of one of this project's networks."""
        return f"{self.project}_{name}"

    def reached_from(self, network: str, *targets: str) -> set[str]:
        """Those of `targets` (HOST:PORT) that a new container in `network` can connect to."""
        where = ("--network", network, "--entrypoint", "python", self.image)
        return set(self.engine.docker("run", "--rm", *where, "-c", REACH, *targets).split())

    def headers(self) -> dict[str, str]:
        """What a client sends to be let in."""
        return {"authorization": f"Bearer {self.secrets['GATEWAY_API_KEY']}"}

    def ask(self, *, tokens: int = 4, timeout_s: float = 20) -> httpx.Response:
        """A plain chat request through the gateway."""
        return httpx.post(
            f"{self.url}/v1/chat/completions",
            headers=self.headers(),
            json=chat(tokens),
            timeout=timeout_s,
        )

    def up_by_replica(self) -> dict[str, bool]:
        """Service -> whether the gateway believes it to be up."""
        answer: dict[str, Any] = httpx.get(f"{self.url}/readyz", timeout=5).json()
        found = answer["replicas"].items()
        return {name.rpartition("-")[0]: bool(replica["up"]) for name, replica in found}

    def _compose(self) -> tuple[str, ...]:
        return composing(self.project, self.env_file, self.profiles)


def composing(project: str, env_file: Path, profiles: tuple[str, ...]) -> tuple[str, ...]:
    """The beginning of every compose command on a project."""
    chosen = (word for profile in profiles for word in ("--profile", profile))
    return ("compose", "--project-name", project, "--env-file", str(env_file), *chosen)


def chat(tokens: int, *, streams: bool = False) -> dict[str, object]:
    """The body of a chat request for so many tokens."""
    messages = [{"role": "user", "content": "Hello"}]
    return {"model": "emulated", "max_tokens": tokens, "stream": streams, "messages": messages}


def wait_until(holds: Callable[[], bool], what: str, *, timeout_s: float) -> float:
    """Seconds until `holds()`; fails with `what` after `timeout_s`."""
    began = time.monotonic()
    while not holds():
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.25)
    return time.monotonic() - began


@contextmanager
def running_stack(
    engine: Engine, folder: Path, *, profiles: tuple[str, ...], services: tuple[str, ...] = ()
) -> Iterator[Stack]:
    """All that `docker compose up` gives a person; removed again, volumes and image included.

    `services`: these alone of the profiles.
    """
    env_file = folder / ".env"
    secrets = make_env(env_file)
    project = f"fairgate-test-{os.getpid()}-{profiles[0]}"
    ports = {
        name: _free_port()
        for name in ("GATEWAY_PORT", "PROMETHEUS_PORT", "ALERTMANAGER_PORT", "GRAFANA_PORT")
    }
    image = f"{project}:local"
    with env_file.open("a") as file:
        file.writelines(f"{name}={port}\n" for name, port in ports.items())
        file.write(f"GATEWAY_IMAGE={image}\n")
        for variable, name in _images(profiles).items():
            stand_in = engine.stand_in(name)
            file.write(f"{variable}={stand_in}\n" if stand_in else "")
        file.write(f"FAIRGATE_LOG__TRACES=http://{COLLECTOR}:{COLLECTOR_PORT}\n")
        if "cluster" in profiles:
            file.write("PROMETHEUS_CONFIG=./deploy/compose/prometheus.cluster.yml\n")
    compose = composing(project, env_file, profiles)
    try:
        engine.docker(*compose, "build", timeout_s=BUILD_S)
        began = time.monotonic()
        engine.docker(*compose, "up", "--detach", "--wait", *services, timeout_s=UP_S)
        up_s = time.monotonic() - began
        url, prometheus_url = (
            f"http://127.0.0.1:{ports[name]}" for name in ("GATEWAY_PORT", "PROMETHEUS_PORT")
        )
        stack = Stack(
            engine, profiles, project, image, env_file, secrets, url, prometheus_url, up_s
        )
        wait_until(lambda: all(stack.up_by_replica().values()), "both engines up", timeout_s=15)
        yield stack
    finally:
        engine.tried(*compose, "unpause")
        engine.docker(*compose, "down", "--volumes", "--timeout", "5", timeout_s=DOWN_S)
        engine.tried("image", "rm", image)


def make_env(file: Path) -> dict[str, str]:
    """What `make-env.sh` wrote, by name."""
    script = ROOT / "deploy" / "compose" / "make-env.sh"
    subprocess.run(["sh", str(script), str(file)], check=True, capture_output=True)
    lines = (line.partition("=") for line in file.read_text().splitlines() if line[:1].isalpha())
    return {name: value.strip("'") for name, _, value in lines}


def _images(profiles: tuple[str, ...]) -> dict[str, str]:
    """What the profiles need beside the gateway: variable of the image -> its stand-in."""
    wanted: dict[str, str] = {}
    if "cluster" in profiles:
        wanted |= {"REDIS_IMAGE": "redis", "BALANCER_IMAGE": "others"}
    if "observability" in profiles:
        wanted |= {"PROMETHEUS_IMAGE": "others", "ALERTMANAGER_IMAGE": "others"}
    return wanted


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
