"""The gateway as its users start it: a process of its own, from a configuration file."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.ports import free_port

READY_S_MAX = 90.0
"""Generous for a loaded machine."""


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """The process, ended when the block is left."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def serving_process(
    folder: Path, port: int, replicas: Sequence[str | dict[str, Any]], **settings: Any
) -> Iterator[tuple[str, int]]:
    """`fairgate serve` before `replicas`; yields its URL and pid once all of them are up."""
    document = {
        "listen": {"host": "127.0.0.1", "port": port},
        "replicas": list(replicas),
        **settings,
    }
    config = folder / f"fairgate-{port}.yaml"
    config.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    url = f"http://127.0.0.1:{port}"
    with ended(subprocess.Popen(command)) as process:
        _await_ready(url, len(replicas))
        yield url, process.pid


@contextmanager
def serving(
    folder: Path, port: int, replicas: Sequence[str | dict[str, Any]], **settings: Any
) -> Iterator[str]:
    """As `serving_process`, where nobody asks for the process."""
    with serving_process(folder, port, replicas, **settings) as (url, _):
        yield url


@contextmanager
def emulating(*options: str) -> Iterator[str]:
    """`fairgate emulate` with these; yields its URL."""
    port = free_port()
    command = [sys.executable, "-m", "gateway", "emulate", "--port", str(port), *options]
    with ended(subprocess.Popen(command)):
        yield f"http://127.0.0.1:{port}"


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
