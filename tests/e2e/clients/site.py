"""The gateway with keys before one emulated engine, each a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.tenancy.keys import key_hash
from tests.e2e.processes import ended, serving
from tests.support.ports import free_port

KEY = "fg-alice"
NARROW_KEY = "fg-bob"
MODEL = "emulated"
OTHER_MODEL = "adapter"
KEYS = [
    {
        "tenant": "acme", "user": "alice", "tier": "standard", "max_tier": "high",
        "key_sha256": key_hash(KEY.encode()),
    },
    {
        "tenant": "acme", "user": "bob", "tier": "background", "models": [OTHER_MODEL],
        "key_sha256": key_hash(NARROW_KEY.encode()),
    },
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Site:
    """Where both listen; `url` is all that a client needs, with `KEY`."""

    url: str
    engine: str

    def fault(self, *faults: str) -> None:
        """Inject faults into the engine, after those of others are cleared."""
        asked = {"clear": True, "inject": list(faults)}
        httpx.post(f"{self.engine}/_fault", json=asked).raise_for_status()

    def load(self) -> int:
        """Requests inside the engine."""
        return int(httpx.get(f"{self.engine}/load").json()["server_load"])


@contextmanager
def running_site(folder: Path, *flags: str, slots: int, **settings: Any) -> Iterator[Site]:
    """An emulated engine with `flags` and so many slots, and a gateway with keys before it."""
    port = free_port()
    command = [
        sys.executable, "-m", "gateway", "emulate", "--port", str(port), "--model", MODEL,
        "--model", OTHER_MODEL, "--max-num-seqs", str(slots), *flags,
    ]  # fmt: skip
    engine = f"http://127.0.0.1:{port}"
    replica = {"url": engine, "max_num_seqs": slots}
    with (
        ended(subprocess.Popen(command, stdout=subprocess.DEVNULL)),
        serving(folder, free_port(), [replica], keys=KEYS, **settings) as url,
    ):
        yield Site(url=url, engine=engine)
