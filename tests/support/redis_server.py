"""A real Redis of a test's own, on a free port and with its files in the test's folder."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import free_port

START_S_MAX = 20.0
OPTIONS = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")


class RedisServer:
    """One server; it can be paused, killed, and started again with what it had on disk."""

    def __init__(self, folder: Path, options: tuple[str, ...] = OPTIONS) -> None:
        self._folder = folder
        self._options = options
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = subprocess.Popen(
            [
                *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--dir", str(self._folder), "--daemonize", "no", *self._options),
            ],
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + START_S_MAX
        while not self._answers():
            assert self._process.poll() is None, "redis-server ended"
            assert time.monotonic() < end, "redis-server does not answer"
            time.sleep(0.02)

    def pause(self) -> None:
        """It keeps its connections and answers nothing, as a frozen machine does."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """It ends without a word."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._process = None

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as link:
                link.sendall(b"PING\r\n")
                return link.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


@contextmanager
def running_redis(folder: Path, options: tuple[str, ...] = OPTIONS) -> Iterator[RedisServer]:
    """A Redis for the block; the test is skipped where none is installed."""
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server here (apt-get install redis-server)")
    server = RedisServer(folder, options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
