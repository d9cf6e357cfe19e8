"""A gateway under load before two emulated engines, and a real Prometheus that scrapes it."""

import asyncio
import hashlib
import json
import math
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.observability.listener import Listener, listening
from tests.e2e.processes import ended, serving
from tests.support.ports import free_port
from tests.support.redis_server import running_redis

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy" / "prometheus"
EVERY_S = 1
"""Between two scrapes."""
READY_S_MAX = 60.0
ADMIN_KEY = "fgadm-observed"
KEYS = {
    "critical": "sk-critical",
    "high": "sk-high",
    "standard": "sk-standard",
    "background": "sk-b",
}
LIMITED_KEY = "sk-limited"
CAPPED_KEY = "sk-capped"
STREAMS_BY_TIER = {"critical": 2, "high": 3, "standard": 6, "background": 6}


def need(program: str) -> None:
    """Skip, loudly, where a program is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"SKIPPED: no {program} here (apt-get install prometheus)")


@dataclass(slots=True)
class Site:
    """Where all of it is."""

    gateway: str
    prometheus: str
    engines: list["subprocess.Popen[bytes]"]
    listener: Listener
    log: Path
    at: float = 0.0
    """The instant as of which queries are answered; 0: now."""

    def ask(self, path: str, **query: str) -> Any:
        """Prometheus' answer. A query that it cannot read is an AssertionError."""
        url = f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - ours
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None

    def values(self, query: str) -> list[float]:
        """What an instant query finds, less what is no number."""
        found = self.ask("query", query=query, **({"time": str(self.at)} if self.at else {}))
        if found["resultType"] == "scalar":
            return [float(found["result"][1])]
        values = (float(each["value"][1]) for each in found["result"])
        return [value for value in values if not math.isnan(value)]


@contextmanager
def site(folder: Path, *, patience: str = "1s") -> Iterator[Site]:
    """All of it; `patience` replaces how long alerts wait before they fire."""
    need("prometheus")
    with ExitStack() as stack:
        redis = stack.enter_context(running_redis(folder)).url
        ports = [free_port(), free_port()]
        engines = [stack.enter_context(ended(subprocess.Popen(_engine(port)))) for port in ports]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        settings = _settings(folder, redis)
        gateway = stack.enter_context(serving(folder, free_port(), urls, **settings))
        listener = stack.enter_context(listening())
        prometheus = stack.enter_context(_prometheus(folder, gateway, listener, patience))
        yield Site(gateway, prometheus, engines, listener, folder / "requests.log")


async def load(gateway: str, seconds: float) -> None:
    """Streams and plain answers of all tiers and some tenants, more than there are slots."""
    end = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=200)
    async with (
        httpx.AsyncClient(base_url=gateway, timeout=60.0, limits=limits) as http,
        asyncio.TaskGroup() as tasks,
    ):
        for tier, count in STREAMS_BY_TIER.items():
            for number in range(count):
                tasks.create_task(_ask_on(http, KEYS[tier], end, streams=number % 3 != 2))
        for key in (LIMITED_KEY, CAPPED_KEY, CAPPED_KEY, CAPPED_KEY):
            tasks.create_task(_ask_on(http, key, end, streams=True))
        tasks.create_task(_ask_on(http, KEYS["background"], end, streams=False, patience=1))


async def _ask_on(
    http: httpx.AsyncClient, key: str, end: float, *, streams: bool, patience: int | None = None
) -> None:
    headers = {"authorization": f"Bearer {key}"}
    if patience is not None:
        headers["x-fairgate-patience-s"] = str(patience)
    body = {
        "model": "emulated", "stream": streams, "max_tokens": 40,
        "messages": [{"role": "user", "content": f"Tell {key} a story. " * 40}],
    }  # fmt: skip
    while time.monotonic() < end:
        answer = await http.post("/v1/chat/completions", json=body, headers=headers)
        if answer.status_code != 200:
            await asyncio.sleep(0.5)


def _engine(port: int) -> list[str]:
    return [
        sys.executable, "-m", "gateway", "emulate", "--port", str(port), "--max-num-seqs", "4",
    ]  # fmt: skip


def _key(secret: str, tier: str, tenant: str) -> dict[str, Any]:
    return {
        "tenant": tenant, "user": "u", "tier": tier, "max_tier": tier,
        "key_sha256": hashlib.sha256(secret.encode()).hexdigest(),
    }  # fmt: skip


def _settings(folder: Path, redis: str) -> dict[str, Any]:
    admin = hashlib.sha256(ADMIN_KEY.encode()).hexdigest()
    return {
        "admin": {"key_sha256": admin},
        "log": {"requests": str(folder / "requests.log")},
        "scheduling": {"scrape_interval_s": 0.5, "inflight_limit": 64},
        "scaling": {"hold_s": 0, "cooldown_s": 1},
        "tenants": [
            {"name": "limited", "limits": {"requests_per_minute": 2}},
            {"name": "capped", "limits": {"concurrent": 1}},
        ],
        "keys": [
            *(_key(secret, tier, f"team-{tier}") for tier, secret in KEYS.items()),
            _key(LIMITED_KEY, "standard", "limited"),
            _key(CAPPED_KEY, "standard", "capped"),
        ],
        "redis": {"url": redis},
    }


@contextmanager
def _prometheus(folder: Path, gateway: str, listener: Listener, patience: str) -> Iterator[str]:
    """Started with the files of this repository; only addresses and times are others."""
    rules = folder / "rules"
    rules.mkdir()
    for file in (DEPLOY / "rules").iterdir():
        document = yaml.safe_load(file.read_text())
        for group in document["groups"]:
            for rule in group["rules"]:
                if "alert" in rule:
                    rule["for"] = patience
        (rules / file.name).write_text(yaml.safe_dump(document))
    key = folder / "admin-key"
    key.write_text(ADMIN_KEY)
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": f"{EVERY_S}s", "evaluation_interval": f"{EVERY_S}s"}
    scrape = config["scrape_configs"][0]
    scrape["authorization"]["credentials_file"] = str(key)
    scrape["static_configs"][0]["targets"] = [gateway.removeprefix("http://")]
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [listener.address]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        "prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]  # fmt: skip
    with ended(subprocess.Popen(command)):
        url = f"http://127.0.0.1:{port}"
        _await_ready(url)
        yield url


def _await_ready(url: str) -> None:
    end = time.monotonic() + READY_S_MAX
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=2):  # noqa: S310 - ours
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("Prometheus did not become ready")
