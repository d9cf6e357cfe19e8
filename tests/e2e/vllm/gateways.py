"""The gateway as its users start it: a process of its own, from a configuration file."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

READY_S_MAX = 30.0


@contextmanager
def serving(folder: Path, port: int, urls: list[str], **settings: Any) -> Iterator[str]:
    """`fairgate serve` before `urls`; yields its URL once it is ready."""
    document = {
        "listen": {"host": "127.0.0.1", "port": port},
        "replicas": [{"url": url} for url in urls],
        **settings,
    }
    config = folder / f"fairgate-{port}.yaml"
    config.write_text(yaml.safe_dump(document))
    process = subprocess.Popen([sys.executable, "-m", "gateway", "serve", "--config", str(config)])
    url = f"http://127.0.0.1:{port}"
    try:
        _await_ready(url, len(urls))
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_ready(url: str, replicas: int) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=2) as answer:  # noqa: S310 - ours
                if answer.read().count(b'"up":true') == replicas:
                    return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the gateway did not become ready")
