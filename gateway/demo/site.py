"""What the demo runs on: two emulated replicas, and a gateway in front of them for each policy.

Decides arguments and ports, and when all are ready. Which load follows is not known here.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.bench.launch import free_port
from gateway.demo.children import HOST, Child, Children, free_port_from
from gateway.demo.load import MODEL
from gateway.demo.plan import PolicyName

REPLICAS = 2
PORT = 8080
"""Of the first gateway, or the next one that is free."""
READY_WAIT_S = 20.0
READY_POLL_S = 0.1
ANSWER_WAIT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The gateways, by what they are shown for."""

    gateways: Mapping[PolicyName, Child]
    urls: Mapping[PolicyName, str]

    async def wait_ready(self) -> None:
        """Return once each gateway sees all replicas.

        Raises:
            ChildFailedError: one did not within `READY_WAIT_S`.
        """
        deadline = asyncio.get_running_loop().time() + READY_WAIT_S
        async with httpx.AsyncClient(timeout=ANSWER_WAIT_S, trust_env=False) as client:
            for policy, gateway in self.gateways.items():
                try:
                    async with asyncio.timeout_at(deadline):
                        await _wait_ready(client, self.urls[policy])
                except TimeoutError:
                    raise gateway.failure(f"was not ready within {READY_WAIT_S:g} s") from None


async def start_site(children: Children, shown: Sequence[PolicyName]) -> Site:
    """Start everything. Raises ChildFailedError when there is no port to listen on."""
    engines = []
    for seed in range(REPLICAS):
        port = free_port()
        await children.start(f"replica {seed}", emulate_arguments(port, seed))
        engines.append(f"http://{HOST}:{port}")
    gateways: dict[PolicyName, Child] = {}
    urls: dict[PolicyName, str] = {}
    port = PORT - 1
    for policy in shown:
        port = free_port_from(port + 1)
        arguments = serve_arguments(port, policy, engines)
        gateways[policy] = await children.start(f"{policy} gateway", arguments)
        urls[policy] = f"http://{HOST}:{port}"
    return Site(gateways=gateways, urls=urls)


def emulate_arguments(port: int, seed: int) -> list[str]:
    """An engine with 4 slots, 20 ms a token, and answers of 1/3 to all of `max_tokens`."""
    return [
        *("emulate", "--port", str(port), "--host", HOST, "--model", MODEL),
        *("--profile", "demo", "--output-jitter", "0.5", "--seed", str(seed)),
    ]


def serve_arguments(port: int, policy: PolicyName, engines: Sequence[str]) -> list[str]:
    """A gateway in open mode: users are told apart by the header that names them."""
    replicas = [word for url in engines for word in ("--replica", url)]
    return ["serve", "--host", HOST, "--port", str(port), "--policy", policy, *replicas]


def sees_all(readiness: Mapping[str, Any]) -> bool:
    """Whether this answer of `/readyz` shows all replicas up."""
    replicas = readiness.get("replicas", {}).values()
    return len(replicas) == REPLICAS and all(replica["up"] for replica in replicas)


async def _wait_ready(client: httpx.AsyncClient, url: str) -> None:
    while True:
        with suppress(httpx.HTTPError):
            response = await client.get(f"{url}/readyz")
            if response.status_code == 200 and sees_all(response.json()):
                return
        await asyncio.sleep(READY_POLL_S)
