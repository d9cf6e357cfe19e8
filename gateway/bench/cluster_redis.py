"""A Redis of the benchmark's own, and what it counts about itself. It keeps nothing on disk."""

import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.bench.launch import READY_POLL_S, StartFailed, free_port, launched, log_tail

PROGRAM = "redis-server"
START_S_MAX = 20.0
ANSWER_S_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    """One that answers."""

    port: int
    socket: Path
    pid: int

    @property
    def url(self) -> str:
        """Where it is for gateways that may be on other machines."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def local_url(self) -> str:
        """Where it is for processes beside it."""
        return f"unix://{self.socket}"

    def info(self) -> Mapping[str, str]:
        """All that INFO says, by name. Raises OSError."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S_MAX) as line:
            line.sendall(b"INFO\r\n")
            return parse_info(_bulk(line))


def start_redis(stack: ExitStack, folder: Path) -> Redis:
    """One that lives until `stack` ends. Raises StartFailed, also where it is not installed."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise StartFailed(f"no {PROGRAM!r} on the PATH (apt-get install redis-server)")
    port, path = free_port(), folder / "redis.sock"
    options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    command = [program, "--port", str(port), "--unixsocket", str(path), *options]
    process = stack.enter_context(launched(command, folder=folder, name="redis", core=None))
    redis = Redis(port=port, socket=path, pid=process.pid)
    end = time.monotonic() + START_S_MAX
    while process.poll() is None and time.monotonic() < end:
        try:
            redis.info()
        except OSError:
            time.sleep(READY_POLL_S)
        else:
            return redis
    raise StartFailed(f"{PROGRAM} does not answer\n{log_tail(folder / 'redis.log')}")


def parse_info(text: bytes) -> Mapping[str, str]:
    """The lines `name:value` of an answer to INFO."""
    lines = (line.partition(":") for line in text.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}


def _bulk(line: socket.socket) -> bytes:
    """One bulk string. Raises OSError where it is none."""
    with line.makefile("rb") as answer:
        head = answer.readline()
        if not head.startswith(b"$"):
            raise OSError(f"Redis answered {head!r}")
        return answer.read(int(head[1:]))
