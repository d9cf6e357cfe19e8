"""What happens inside a gateway that is measured with a log level or a profiler."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from gateway.bench.contenders import WITHIN
from gateway.bench.within import CallProfiler, Sampler, costs_of

LOOP = """
import logging, signal, sys, uvloop, asyncio

def spin(count):
    return sum(range(count))

def turn():
    spin(20_000)
    asyncio.get_running_loop().call_soon(turn)

async def main():
    turn()
    logging.getLogger("any").info("told")
    print("ready", sys.argv[1:], flush=True)
    await asyncio.sleep(20)

uvloop.run(main())
"""


def here() -> FrameType:
    """The caller's frame."""
    return sys._getframe(1)


def inner(sampler: Sampler) -> None:
    """A function that is interrupted."""
    sampler.sample(0, here())


def outer(sampler: Sampler) -> None:
    """A function that spends its time in another one."""
    inner(sampler)


class Timer:
    """Notes how it is set."""

    def __init__(self) -> None:
        self.set: list[float] = []

    def __call__(self, which: int, first_s: float, interval_s: float) -> None:
        """Note it."""
        assert which == signal.ITIMER_PROF
        self.set.append(interval_s)


@contextmanager
def looking() -> Iterator[Sampler]:
    """A sampler without a timer; the process's signal function comes back afterwards."""
    before = signal.getsignal(signal.SIGPROF)
    sampler = Sampler(set_timer=Timer())
    sampler.start()
    try:
        yield sampler
    finally:
        signal.signal(signal.SIGPROF, before)


def test_time_is_charged_to_the_function_that_runs_and_to_its_callers() -> None:
    """Where the time goes, and by way of whom: the two columns of the table."""
    with looking() as sampler:
        outer(sampler)
        seen = sampler.stop()
    by_name = {cost.name: cost for cost in seen.costs}
    assert seen.samples == 1
    assert (by_name["inner"].own_share, by_name["inner"].total_share) == (1.0, 1.0)
    assert (by_name["outer"].own_share, by_name["outer"].total_share) == (0.0, 1.0)
    assert seen.costs[0].name == "inner"


def test_the_dearest_line_of_a_function_is_told() -> None:
    """In a long function the name alone does not say what is dear."""
    code = inner.__code__
    costs = costs_of(Counter({(code, 5): 1, (code, 7): 3}), Counter({code: 4}), samples=4)
    assert costs[0].place == f"{code.co_filename}:7"
    assert costs[0].own_share == 1.0


def test_a_function_that_has_not_begun_is_not_charged() -> None:
    """The loop's own time would be charged to whichever callback comes next."""

    def callee() -> None:
        """Interrupted at its first instruction, where CPython looks for signals."""

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is callee.__code__:
            sampler.sample(0, frame)

    with looking() as sampler:
        before = sys.getprofile()
        sys.setprofile(interrupt)
        callee()
        sys.setprofile(before)
        seen = sampler.stop()
    assert seen.samples == 1
    assert seen.costs[0].name == "test_a_function_that_has_not_begun_is_not_charged"
    assert not any("callee" in cost.name for cost in seen.costs)


def test_a_process_outside_python_is_not_sampled() -> None:
    """There is no frame to charge."""
    with looking() as sampler:
        sampler.sample(0, None)
        assert sampler.stop().samples == 0


def test_the_timer_runs_only_while_it_looks() -> None:
    """A profiler that is forgotten slows the gateway for ever."""
    timer, before = Timer(), signal.getsignal(signal.SIGPROF)
    sampler = Sampler(set_timer=timer)
    sampler.start()
    sampler.stop()
    signal.signal(signal.SIGPROF, before)
    assert timer.set[0] > 0
    assert timer.set[-1] == 0


def test_calls_are_counted_those_into_c_too() -> None:
    """A million calls of something cheap is dear, and no sample says so."""
    profiler = CallProfiler()
    profiler.start()
    for _ in range(10):
        "a-b".split("-")
    seen = profiler.stop()
    split = next(cost for cost in seen.costs if "split" in cost.name)
    assert split.calls == 10
    assert split.place == "C"
    assert seen.samples is None


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in the gateway's place: a uvloop that is busy."""
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").touch()
    (tmp_path / "gateway" / "__main__.py").write_text(LOOP)
    return tmp_path


@pytest.mark.parametrize("kind", ["samples", "calls"])
def test_a_busy_uvloop_is_profiled_between_two_signals(package: Path, kind: str) -> None:
    """The event loop that the gateway runs on is not Python's own."""
    out = package / "seen.json"
    options = ["--log-level", "INFO", "--profile", kind, "--out", str(out), "--", "serve", "-x"]
    environment = {"PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"}
    process = subprocess.Popen(
        [sys.executable, WITHIN, *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready ['serve', '-x']\n"
        os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGUSR2)
        deadline_s = time.monotonic() + 20
        while not out.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        costs = json.loads(out.read_text())["costs"]
    finally:
        process.kill()
        _, told = process.communicate()
    assert any(cost["name"] == "spin" for cost in costs[:4])
    assert b"INFO any: told" in told
