"""A gateway with tenants and an admin key, two engines, and as many clients as are wanted."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.tenancy.keys import key_hash
from tests.e2e.processes import ended, serving
from tests.support.gateway import READY_S_MAX
from tests.support.ports import free_port

ADMIN = "fgadm-console"
SLOTS = 8
AT_ONCE = 200
"""Connections that are opened side by side."""
KEYS = {
    "acme": ("fg-acme", "standard", "critical"),
    "beta": ("fg-beta", "standard", "high"),
    "gamma": ("fg-gamma", "background", "background"),
}
"""By tenant: its key, the key's tier, and the best it may ask for."""

TIERS = {"critical": 30, "high": 60, "standard": 300, "background": 3_600}
"""By name, as by default: for how long their requests wait."""


@dataclass(frozen=True, slots=True)
class Site:
    """A running gateway."""

    url: str
    admin_url: str

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """What an operator's own program would see."""
        headers = {"authorization": f"Bearer {ADMIN}"}
        with httpx.Client(base_url=f"{self.admin_url}/admin/v1", headers=headers) as http:
            return http.request(method, path, timeout=30, **options).raise_for_status().json()


@contextmanager
def running_site(folder: Path, *, speed: float, patience_s: float | None = None) -> Iterator[Site]:
    """Engines `speed` times as fast as the emulator is; `patience_s`: None: that of each tier."""
    ports = [free_port() for _ in range(4)]
    with ExitStack() as stack:
        for port in ports[:2]:
            command = [
                sys.executable, "-m", "gateway", "emulate", "--port", str(port), "--speed",
                str(speed), "--max-num-seqs", str(SLOTS), "--mean-tokens", "60",
            ]  # fmt: skip
            stack.enter_context(ended(subprocess.Popen(command)))
        replicas = [f"http://127.0.0.1:{port}" for port in ports[:2]]
        tenants = [{"name": "acme", "weight": 2}, {"name": "beta"}, {"name": "gamma"}]
        tiers = [
            {"name": name, "patience_s": patience_s or usual_s} for name, usual_s in TIERS.items()
        ]
        url = stack.enter_context(
            serving(
                folder, ports[2], replicas,
                admin={"key_sha256": key_hash(ADMIN.encode())}, keys=list(_keys()),
                tenants=tenants, store={"url": f"sqlite:///{folder}/fairgate.db"},
                bounds={"loop_lag_s": 0}, tiers=tiers,
                batches={
                    "files": f"{folder}/files", "store": f"sqlite:///{folder}/batches.db",
                },
            )
        )  # fmt: skip
        yield Site(url, url)


def _keys() -> Iterator[dict[str, Any]]:
    for tenant, (key, tier, best) in KEYS.items():
        yield {
            "tenant": tenant, "tier": tier, "max_tier": best, "speaks_for_users": True,
            "key_sha256": key_hash(key.encode()),
        }  # fmt: skip


class Crowd:
    """Clients that ask and wait for their answers, in a thread of their own."""

    def __init__(self, site: Site) -> None:
        self._port = int(site.url.rpartition(":")[2])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: list[asyncio.StreamWriter] = []
        self._thread.start()

    def come(self, count: int, *, tokens: int = 60) -> None:
        """So many more, of all tenants and tiers in turn; returns once all have asked."""
        asyncio.run_coroutine_threadsafe(self._come(count, tokens), self._loop).result(300)

    def leave(self) -> None:
        """All of them hang up."""
        self._loop.call_soon_threadsafe(self._hang_up)
        self._thread.join(READY_S_MAX)

    async def _come(self, count: int, tokens: int) -> None:
        for begin in range(0, count, AT_ONCE):
            numbers = range(begin, min(begin + AT_ONCE, count))
            await asyncio.gather(*(self._ask(number, tokens) for number in numbers))

    async def _ask(self, number: int, tokens: int) -> None:
        tenant = list(KEYS)[number % len(KEYS)]
        key, tier, best = KEYS[tenant]
        body = json.dumps(
            {
                "model": "emulated", "max_tokens": tokens,
                "messages": [{"role": "user", "content": f"question {number}"}],
            }
        ).encode()  # fmt: skip
        head = [
            "POST /v1/chat/completions HTTP/1.1", "host: x", f"authorization: Bearer {key}",
            f"x-fairgate-user: user-{number // len(KEYS) % 40}",
            f"x-fairgate-tier: {best if number % 5 == 0 else tier}",
            "content-type: application/json", f"content-length: {len(body)}",
        ]  # fmt: skip
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    def _hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._loop.call_soon(self._loop.stop)
