"""What the demo runs on: two emulated replicas, and a gateway in front of them for each policy.

Decides arguments and ports, and when all are ready. Which load follows is not known here.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpx

from gateway.bench.launch import free_port
from gateway.demo.children import HOST, Child, ChildFailedError, Children, free_port_from
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
    """Where the gateways listen."""

    urls: Mapping[PolicyName, str]


async def open_site(children: Children, shown: Sequence[PolicyName]) -> Site:
    """Start everything and wait until each gateway sees both replicas.

    Raises:
        ChildFailedError: one was not ready within `READY_WAIT_S`.
    """
    engines = []
    for seed in range(REPLICAS):
        port = free_port()
        await children.start(f"replica {seed}", emulate_arguments(port, seed))
        engines.append(f"http://{HOST}:{port}")
    urls: dict[PolicyName, str] = {}
    gateways: list[tuple[Child, str]] = []
    port = PORT
    for policy in shown:
        port = free_port_from(port)
        child = await children.start(f"{policy} gateway", serve_arguments(port, policy, engines))
        urls[policy] = f"http://{HOST}:{port}"
        gateways.append((child, urls[policy]))
        port += 1
    async with httpx.AsyncClient(timeout=ANSWER_WAIT_S, trust_env=False) as client:
        await _wait_ready(client, gateways)
    return Site(urls=urls)


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


def sees_all(readiness: Mapping[str, Mapping[str, Mapping[str, object]]]) -> bool:
    """Whether this answer of `/readyz` shows all replicas up."""
    replicas = readiness.get("replicas", {}).values()
    return len(replicas) == REPLICAS and all(replica.get("up") for replica in replicas)


async def _wait_ready(client: httpx.AsyncClient, gateways: Sequence[tuple[Child, str]]) -> None:
    """Return once all are ready. Raises ChildFailedError for the first that is not in time."""
    deadline = asyncio.get_running_loop().time() + READY_WAIT_S
    for child, url in gateways:
        try:
            async with asyncio.timeout_at(deadline):
                while not await _is_ready(client, url):
                    await asyncio.sleep(READY_POLL_S)
        except TimeoutError:
            raise child.failure(f"was not ready within {READY_WAIT_S:g} s") from None


async def _is_ready(client: httpx.AsyncClient, url: str) -> bool:
    with suppress(httpx.HTTPError):
        response = await client.get(f"{url}/readyz")
        return response.status_code == 200 and sees_all(response.json())
    return False
