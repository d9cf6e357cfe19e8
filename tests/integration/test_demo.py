"""`fairgate demo` as people run it: a process that starts others, prints, and leaves nothing."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CURL = re.compile(r"^ *(curl .+)$", re.MULTILINE)

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
    pytest.mark.timeout(120),
]


@contextmanager
def demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running demo with a pipe for its output."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "demo", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        children = children_of(process.pid)
        process.kill()
        process.communicate()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """The processes that `pid` started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(stat.parent.name))
    return sorted(found)


def alive(pids: list[int]) -> list[int]:
    """Those of `pids` that still run."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """The output up to the line that holds `text`."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return "".join(seen)
    pytest.fail(f"the demo ended before it said {text!r}:\n{''.join(seen)}")


def test_a_short_demo_ends_by_itself_with_figures_and_a_command_that_works() -> None:
    """This is the first minute of everybody who tries the project."""
    began_at = time.monotonic()
    with demo("--seconds", "8") as process:
        said = read_until(process, "curl")
        children = children_of(process.pid)
        assert len(children) == 4
        if shutil.which("curl"):
            command = CURL.search(said)
            assert command is not None
            answer = subprocess.run(
                ["/bin/sh", "-c", f"{command[1]} -sS"],
                capture_output=True, text=True, timeout=30, check=True,
            )  # fmt: skip
            assert answer.stdout.rstrip().endswith("data: [DONE]")
            assert '"error"' not in answer.stdout
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert time.monotonic() - began_at < 40
    assert alive(children) == []
    assert "\x1b" not in out
    for phase in ("alone", "fair", "fifo"):
        assert re.search(rf"^\[{phase} +[\d.]+ s\] alice ", out, re.MULTILINE)
    assert re.search(r"flood, fair +(>= )?[\d.]+ s ", out)
    assert re.search(r"^fair <= 1.5 x alone .*: (yes|NO)$", out, re.MULTILINE)
    assert re.search(r"^fifo >= 10 x alone: .*: (yes|NO)$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGINT, "fair: a flood"), (signal.SIGTERM, "alone: ")]
)
def test_an_interrupt_leaves_no_process(number: signal.Signals, moment: str) -> None:
    """Ports that stay taken by invisible processes are the worst souvenir."""
    with demo("--policy", "fair", "--seconds", "20") as process:
        read_until(process, moment)
        children = children_of(process.pid)
        assert len(children) == 3
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert alive(children) == []
    assert "Traceback" not in err


def test_a_dead_replica_ends_the_demo_with_its_name() -> None:
    """Figures from half of the replicas would be shown as if they were the gateway's."""
    with demo("--policy", "fair") as process:
        read_until(process, "alone:")
        children = children_of(process.pid)
        os.kill(children[0], signal.SIGKILL)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "replica 0 ended with status -9" in err
    assert alive(children) == []


@pytest.mark.parametrize("arguments", [("--policy", "lifo"), ("--seconds", "0")])
def test_what_cannot_be_shown_is_refused_at_once(arguments: tuple[str, str]) -> None:
    """A typo must not cost a minute."""
    with demo(*arguments) as process:
        _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert arguments[0] in err
