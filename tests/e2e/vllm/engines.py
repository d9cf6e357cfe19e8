"""Two real vLLM replicas on the CPU, started once a session; skips where they cannot be had.

`VLLM_CPU_DIR` names an installation (made on the first run where it does not exist yet).
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.shared import shared_path

READY_S_MAX = 600.0
"""On a machine that others use too; alone it takes a minute."""
SLOTS = 4
MODEL = "tiny"
"""The name under which the start script serves every model."""


def installation() -> Path:
    """The folder with vLLM and the random models; installs them when they are missing."""
    folder = Path(os.environ.get("VLLM_CPU_DIR", Path(tempfile.gettempdir()) / "fairgate-vllm"))
    setup = shared_path("tools", "vllm_cpu", "setup.sh")
    if not (folder / "slow" / "config.json").exists():
        subprocess.run(["bash", str(setup), str(folder)], check=True)
    return folder


@dataclass(frozen=True, slots=True)
class Replica:
    """One running engine: its API server leads the process group."""

    url: str
    process: "subprocess.Popen[bytes]"

    def kill(self) -> None:
        """All of it dies at once, as with its machine."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def kill_core(self) -> None:
        """The process with the model dies; its API server lives on for a moment and says so."""
        self._signal_core(signal.SIGKILL)

    def terminate(self) -> None:
        """Its operator asks it to end."""
        os.kill(self.process.pid, signal.SIGTERM)

    def freeze_core(self) -> None:
        """The process with the model stands still; its API server says that all is well."""
        self._signal_core(signal.SIGSTOP)

    def thaw_core(self) -> None:
        """It goes on."""
        self._signal_core(signal.SIGCONT)

    def _signal_core(self, number: int) -> None:
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                group = (folder / "stat").read_text().rpartition(")")[2].split()[2]
                if int(group) == self.process.pid and int(folder.name) != self.process.pid:
                    os.kill(int(folder.name), number)


@contextmanager
def running_vllm(
    *ports: int, flags: Sequence[str] = (), model: str = "slow"
) -> Iterator[list[str]]:
    """A replica on each port, started together; yields their URLs once all answer."""
    with running_replicas(*ports, flags=flags, model=model) as replicas:
        yield [each.url for each in replicas]


@contextmanager
def running_replicas(
    *ports: int, flags: Sequence[str] = (), model: str = "slow"
) -> Iterator[list[Replica]]:
    """The same, with their processes."""
    folder = installation()
    start = shared_path("tools", "vllm_cpu", "start.sh")
    started: list[tuple[subprocess.Popen[bytes], str, Path]] = []
    try:
        for number, port in enumerate(ports):
            assert _is_free(port), f"something listens on {port} already"
            log = Path(tempfile.gettempdir()) / f"fairgate-vllm-{port}.log"
            # Unpinned, the engines of a small machine take each other's time in turns of seconds;
            # and they stand for GPUs, which take no processor time from a gateway.
            core = str(sorted(os.sched_getaffinity(0))[number % len(os.sched_getaffinity(0))])
            arguments = [
                "nice",
                "-n",
                "5",
                "taskset",
                "-c",
                core,
                "bash",
                str(start),
                str(folder),
                str(port),
                str(folder / model),
                *flags,
            ]
            with log.open("w") as output:
                process = subprocess.Popen(
                    arguments, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            started.append((process, f"http://127.0.0.1:{port}", log))
        for process, url, log in started:
            _await_health(url, process, log)
        yield [Replica(url, process) for process, url, _ in started]
    finally:
        for process, _, _ in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _await_health(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):  # noqa: S310 - our own URL
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"vLLM did not start: {log.read_text()[-2000:]}")
