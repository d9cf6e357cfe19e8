"""Processes of a benchmark: pinned, ready, ended."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.bench.launch import (
    OWN_PATH,
    Cores,
    StartFailed,
    choose_cores,
    environment,
    free_port,
    launched,
    log_tail,
    pinned,
    run_load,
    usable_cores,
    wait_ready,
)
from gateway.bench.load_spec import LoadSpec

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


def is_alive(pid: int) -> bool:
    """Whether the process still runs; one that only waits for its parent does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        ([], Cores()),
        ([3], Cores()),
        ([5, 2], Cores(upstream=2, load=2, gateway=5)),
        ([0, 1, 2, 3], Cores(upstream=0, load=1, gateway=2)),
    ],
)
def test_the_gateway_has_a_core_of_its_own(available: list[int], expected: Cores) -> None:
    """Shared with the load, its latency would be that of waiting for the load to stop."""
    assert choose_cores(available) == expected


def test_usable_cores_are_those_of_this_process() -> None:
    """In a container fewer are usable than the machine has."""
    assert set(usable_cores()) <= set(range(os.cpu_count() or 1))


def test_a_pinned_command_and_its_children_stay_on_one_core() -> None:
    """nginx forks its workers before anybody could pin them."""
    if not usable_cores():
        pytest.skip("this system does not pin")
    core = usable_cores()[-1]
    code = (
        "import subprocess, sys; "
        "subprocess.run([sys.executable, '-c', 'import os; print(os.sched_getaffinity(0))'])"
    )
    done = subprocess.run(
        pinned([sys.executable, "-c", code], core), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == f"{{{core}}}"


def test_without_a_core_a_command_is_left_as_it_is() -> None:
    """On a single core everything shares it anyway."""
    assert pinned(["nginx", "-v"], None) == ["nginx", "-v"]


def test_the_callers_gateway_settings_do_not_reach_the_gateway() -> None:
    """A policy in the caller's environment would be measured without a word in the report."""
    inherited = {"PATH": "/bin", "FAIRGATE_LISTEN__PORT": "1", "fairgate_x": "1"}
    kept = environment(inherited, python_path=OWN_PATH)
    assert set(kept) == {"PATH", "PYTHONPATH", "PYTHONSAFEPATH"}
    assert (Path(kept["PYTHONPATH"]) / "gateway" / "__init__.py").exists()


def test_the_callers_python_path_is_kept_for_our_own_processes() -> None:
    """Someone may run this from a checkout that is not installed."""
    kept = environment({"PYTHONPATH": "/somewhere"}, python_path=["/build"])
    assert kept["PYTHONPATH"] == "/build:/somewhere"


def test_a_peer_does_not_see_the_callers_python_path() -> None:
    """Our libraries in place of its own would be measured under its name."""
    assert environment({"PATH": "/bin", "PYTHONPATH": "/ours"}) == {"PATH": "/bin"}


def test_free_ports_are_ports() -> None:
    """Two processes of one benchmark on one port is one process."""
    assert 1024 < free_port() < 65536


def test_a_process_ends_with_its_block(tmp_path: Path) -> None:
    """What is left running eats the next run's core."""
    with launched(SLEEPS, folder=tmp_path, name="sleeper", core=None) as process:
        assert is_alive(process.pid)
    assert not is_alive(process.pid)


def test_the_children_of_a_process_end_with_it(tmp_path: Path) -> None:
    """A router that leaves its workers behind holds ports and memory."""
    code = (
        "import subprocess, sys, time; "
        f"child = subprocess.Popen({SLEEPS!r}); print(child.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with launched(command, folder=tmp_path, name="parent", core=None):
        log = tmp_path / "parent.log"
        deadline_s = time.monotonic() + 10
        while not log.read_text().strip() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        child = int(log.read_text())
        assert is_alive(child)
    deadline_s = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not is_alive(child)


def test_a_process_ends_when_the_block_fails(tmp_path: Path) -> None:
    """An error in the middle of a run must not leave servers behind."""
    with (
        pytest.raises(RuntimeError),
        launched(SLEEPS, folder=tmp_path, name="sleeper", core=None) as process,
    ):
        raise RuntimeError
    assert not is_alive(process.pid)


def test_a_process_that_dies_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    """Who wrote the wrong setting wants to read which."""
    command = [sys.executable, "-c", "raise SystemExit('no such setting: speed')"]
    log = tmp_path / "broken.log"
    with (
        launched(command, folder=tmp_path, name="broken", core=None) as process,
        pytest.raises(StartFailed, match=r"ended with status 1\nno such setting: speed"),
    ):
        wait_ready(process, port=free_port(), path="/readyz", key="", log=log)


def test_ready_is_when_it_answers_200(tmp_path: Path) -> None:
    """Load on a server that is still importing measures imports."""
    port = free_port()
    command = [sys.executable, "-m", "gateway.bench.upstream", "--port", str(port)]
    with launched(
        command, folder=tmp_path, name="engine", core=None, python_path=OWN_PATH
    ) as process:
        wait_ready(process, port=port, path="/health", key="", log=tmp_path / "engine.log")
        measured = run_load(LoadSpec(port=port, warm_s=0.0, window_s=0.1), core=None)
    assert measured.requests > 0
    assert measured.errors == 0


def test_a_load_generator_that_fails_says_why() -> None:
    """A traceback that nobody sees is a column of dashes."""
    with pytest.raises(StartFailed, match="the load generator failed"):
        run_load(LoadSpec(port=free_port(), events_per_s=10.0), core=None)


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    """The reason stands at the end; a whole debug log would push it off the screen."""
    log = tmp_path / "long.log"
    log.write_bytes(b"\xff\n" + b"".join(b"line %d\n" % number for number in range(100)))
    assert log_tail(log).splitlines()[-1] == "line 99"
    assert len(log_tail(log).splitlines()) == 15
