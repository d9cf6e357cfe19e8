"""Processes of a benchmark: where they run, when they are ready, how they end.

It ends only what it started, and knows nothing of what is measured.
"""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import gateway
from gateway.bench.core_spec import CoreResult
from gateway.bench.load_spec import LoadResult, LoadSpec

READY_WAIT_S = 120.0
READY_POLL_S = 0.05
STOP_WAIT_S = 5.0
LOAD_SLACK_S = 30.0
CORE_WAIT_S = 300.0
LOG_TAIL_LINES = 15
SETTINGS_PREFIX = "FAIRGATE_"
OWN_PATH = (str(Path(gateway.__file__).parents[1]),)
"""Where the package that runs lies, compiled or not."""


class StartFailed(Exception):
    """A process did not become ready; the text holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Which core each process is pinned to; None leaves it where the kernel puts it."""

    upstream: int | None = None
    load: int | None = None
    gateway: int | None = None


def choose_cores(available: Sequence[int]) -> Cores:
    """One core for the gateway, the rest for what measures it; no pinning on a single core."""
    match sorted(available):
        case [first, second]:
            return Cores(upstream=first, load=first, gateway=second)
        case [first, second, third, *_]:
            return Cores(upstream=first, load=second, gateway=third)
    return Cores()


def usable_cores() -> Sequence[int]:
    """The cores this process may use; empty where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def launched(
    command: Sequence[str],
    *,
    folder: Path,
    name: str,
    core: int | None,
    python_path: Sequence[str] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` in `folder` with its output in `<name>.log`; end it and its group at exit."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - the operator names the program
            pinned(command, core),
            cwd=folder,
            env=environment(os.environ, python_path=python_path),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _stop(process)


def wait_ready(
    process: subprocess.Popen[bytes], *, port: int, path: str, key: str, log: Path
) -> None:
    """Return once GET `path` answers 200; raises StartFailed when it ends or takes too long."""
    deadline_s = time.monotonic() + READY_WAIT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        if _answers(port, path, key):
            return
        time.sleep(READY_POLL_S)
    why = f"ended with status {process.poll()}" if process.poll() is not None else "is not ready"
    raise StartFailed(f"{why}\n{log_tail(log)}")


def run_load(spec: LoadSpec, *, core: int | None) -> LoadResult:
    """Run the load generator as a process of its own; raises StartFailed when it breaks."""
    command = [sys.executable, "-m", "gateway.bench.load", *spec.to_arguments()]
    limit_s = spec.length_s + LOAD_SLACK_S
    try:
        done = subprocess.run(  # noqa: S603 - our own module and numbers
            pinned(command, core),
            env=environment(os.environ, python_path=OWN_PATH),
            capture_output=True,
            check=True,
            timeout=limit_s,
        )
    except subprocess.SubprocessError as error:
        stderr = getattr(error, "stderr", None) or b""
        raise StartFailed(f"the load generator failed: {error}\n{stderr.decode()}") from error
    return LoadResult.from_json(done.stdout.decode())


def run_core(*, core: int | None, python_path: Sequence[str] = OWN_PATH) -> CoreResult:
    """Measure the scheduler core in a process of its own; raises StartFailed when it breaks.

    `python_path` leads to the build that is measured. Its progress goes to this process's stderr.
    """
    command = [sys.executable, "-m", "gateway.bench.core"]
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            pinned(command, core),
            env=environment(os.environ, python_path=python_path),
            stdout=subprocess.PIPE,
            check=True,
            timeout=CORE_WAIT_S,
        )
    except subprocess.SubprocessError as error:
        raise StartFailed(f"the scheduler core could not be measured: {error}") from error
    return CoreResult.from_json(done.stdout.decode())


def pinned(command: Sequence[str], core: int | None) -> list[str]:
    """`command`, started so that it and all its children stay on `core`."""
    if core is None:
        return list(command)
    pin_and_become = (
        "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); "
        "os.execvp(sys.argv[2], sys.argv[2:])"
    )
    return [sys.executable, "-c", pin_and_become, str(core), *command]


def environment(inherited: Mapping[str, str], *, python_path: Sequence[str] = ()) -> dict[str, str]:
    """The caller's environment without gateway settings, with `python_path` to import from.

    Where that is empty, the process is none of ours, and the caller's PYTHONPATH does not reach it.
    """
    kept = {name: value for name, value in inherited.items() if not _is_setting(name)}
    theirs = kept.pop("PYTHONPATH", "")
    if python_path:
        # The package that is named, compiled or not, and not the one below the current folder.
        kept["PYTHONSAFEPATH"] = "1"
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [*python_path, theirs]))
    return kept


def log_tail(log: Path) -> str:
    """The last lines of a log file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])


def _is_setting(name: str) -> bool:
    return name.upper().startswith(SETTINGS_PREFIX)


def _answers(port: int, path: str, key: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {key}"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_WAIT_S)
    # Also when the leader went in time: a child of it may have stayed.
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
