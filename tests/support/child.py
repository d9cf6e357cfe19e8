"""The gateway as a process of its own, inside an async test: its signals, its limits, its end."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import yaml

from tests.support.ports import free_port

READY_S_MAX = 30.0
END_S_MAX = 20.0


@dataclass
class Child:
    """One process, where it listens, and its configuration file."""

    process: asyncio.subprocess.Process
    url: str
    config: Path
    log: Path
    document: dict[str, Any] = field(default_factory=dict)

    def signal(self, number: int) -> None:
        """Send it this signal."""
        self.process.send_signal(number)

    def write(self, **changes: object) -> None:
        """The file, with these top-level keys changed; None: without them."""
        self.document |= changes
        kept = {key: value for key, value in self.document.items() if value is not None}
        self.config.write_text(yaml.safe_dump(kept))

    @property
    def said(self) -> str:
        """All that it wrote."""
        return self.log.read_text()

    async def status(self) -> int:
        """Its exit status."""
        return await asyncio.wait_for(self.process.wait(), END_S_MAX)

    async def says(self, text: str) -> None:
        """Wait until it wrote this."""
        async with asyncio.timeout(READY_S_MAX):
            while text not in self.said:  # noqa: ASYNC110 - a file tells of nothing
                await asyncio.sleep(0.02)


@asynccontextmanager
async def child(
    folder: Path,
    *replicas: str | Mapping[str, object],
    before: Sequence[str] = (),
    options: Sequence[str] = (),
    ready: bool = True,
    within_s: float = READY_S_MAX,
    environ: Mapping[str, str] = MappingProxyType({}),
    **settings: object,
) -> AsyncIterator[Child]:
    """`python -m gateway serve` before `replicas`; `before` is what it is started with.

    It is waited for, `within_s` seconds at most: until it knows all of them if it shall be `ready`.
    """
    port = free_port()
    document = {
        "listen": {"host": "127.0.0.1", "port": port},
        "replicas": [dict(each) if isinstance(each, Mapping) else each for each in replicas],
        "scheduling": {"scrape_interval_s": 0.1},
        "shutdown": {"lag_s": 0},
        **settings,
    }
    config, log = folder / "fairgate.yaml", folder / "gateway.log"
    command = [*before, sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    with log.open("wb") as output:
        config.write_text(yaml.safe_dump(document))
        process = await asyncio.create_subprocess_exec(
            *command, *options, stderr=output, env={**os.environ, **environ}
        )
    found = Child(process, f"http://127.0.0.1:{port}", config, log, document)
    try:
        await _await_ready(found, len(replicas) if ready else None, within_s)
        yield found
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _await_ready(found: Child, replicas: int | None, within_s: float) -> None:
    async with asyncio.timeout(within_s), httpx.AsyncClient(base_url=found.url) as http:
        while found.process.returncode is None:
            try:
                answer = json.loads((await http.get("/readyz")).text)
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            up = sum(each["up"] for each in answer["replicas"].values())
            if replicas is None or up == replicas:
                return
            await asyncio.sleep(0.02)
    raise AssertionError(f"the gateway ended: {found.said}")
