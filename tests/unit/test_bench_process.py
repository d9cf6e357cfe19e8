"""CPU time and memory of process trees, read from a made-up /proc and from the real one."""

import os
import time
from pathlib import Path

import pytest

from gateway.bench.process import (
    PAGE_BYTES,
    TICKS_PER_S,
    machine_busy_s,
    parse_busy_s,
    parse_schedstat_s,
    parse_stat,
    sample_tree,
    tree_pids,
)


def stat_line(pid: int, parent: int, *, ticks: tuple[int, int] = (0, 0), pages: int = 0) -> str:
    """A /proc/PID/stat line as the kernel writes it, with zeros where nobody looks."""
    fields = ["S", str(parent), *"0" * 9, str(ticks[0]), str(ticks[1]), *"0" * 8, str(pages)]
    return f"{pid} (python3) {' '.join(fields)} 0 0\n"


class FakeProc:
    """A folder that looks like /proc to those who read only stat and schedstat."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(
        self,
        pid: int,
        parent: int,
        *,
        ticks: tuple[int, int] = (0, 0),
        pages: int = 0,
        threads_ns: tuple[int, ...] | None = None,
    ) -> None:
        """A process; without `threads_ns` the kernel keeps no schedstat."""
        folder = self.root / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(stat_line(pid, parent, ticks=ticks, pages=pages))
        for number, on_cpu_ns in enumerate(threads_ns or ()):
            thread = folder / "task" / str(pid + number)
            thread.mkdir(parents=True)
            (thread / "schedstat").write_text(f"{on_cpu_ns} 12345 678\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """An empty machine, but for what is in every /proc beside processes."""
    (tmp_path / "sys").mkdir()
    (tmp_path / "stat").write_text("cpu  1 2 3 400 50 6 7 8 0 0\n")
    return FakeProc(tmp_path)


def test_a_stat_line_gives_parent_ticks_and_pages() -> None:
    """A field off by one would report the wrong process's CPU as the gateway's."""
    stat = parse_stat(stat_line(42, 7, ticks=(30, 12), pages=99))
    assert (stat.pid, stat.parent_pid, stat.cpu_ticks, stat.rss_pages) == (42, 7, 42, 99)


@pytest.mark.parametrize("name", ["tmux: server", "a) b", "((x))", "1 2 3"])
def test_a_command_name_may_hold_anything(name: str) -> None:
    """One oddly named process on the machine must not end a benchmark."""
    line = stat_line(42, 7, ticks=(1, 2)).replace("python3", name)
    assert parse_stat(line).parent_pid == 7


def test_schedstat_begins_with_ns_on_a_cpu() -> None:
    """The second field is time spent waiting: it would charge the gateway for its neighbours."""
    assert parse_schedstat_s("1500000000 99 3\n") == 1.5


def test_busy_time_leaves_out_idle_and_waiting_for_disks() -> None:
    """An idle machine would be taken for one that is busy with other things."""
    busy_s = parse_busy_s("cpu  100 20 30 9000 800 4 5 6 70 8\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert busy_s == (100 + 20 + 30 + 4 + 5 + 6) / TICKS_PER_S


def test_busy_time_comes_from_the_machines_own_stat(proc: FakeProc) -> None:
    """The first line is the sum over the cores; a core's own line is not."""
    assert machine_busy_s(proc=proc.root) == (1 + 2 + 3 + 6 + 7 + 8) / TICKS_PER_S


def test_a_tree_is_the_root_and_all_below_it(proc: FakeProc) -> None:
    """A gateway with workers, or nginx with its master, must be counted whole and alone."""
    proc.add(10, 1, threads_ns=(1_000_000_000,), pages=10)
    proc.add(11, 10, threads_ns=(2_000_000_000,), pages=20)
    proc.add(12, 11, threads_ns=(3_000_000_000,), pages=30)
    proc.add(20, 1, threads_ns=(50_000_000_000,), pages=500)
    sample = sample_tree(10, proc=proc.root)
    assert (sample.cpu_s, sample.rss_bytes, sample.processes) == (6.0, 60 * PAGE_BYTES, 3)
    assert sorted(tree_pids(10, proc=proc.root)) == [10, 11, 12]


def test_all_threads_count(proc: FakeProc) -> None:
    """The schedstat of a process is that of its first thread only: a Rust peer would look free."""
    proc.add(10, 1, threads_ns=(1_000_000_000, 500_000_000, 250_000_000))
    assert sample_tree(10, proc=proc.root).cpu_s == 1.75


def test_clock_ticks_stand_in_where_the_kernel_keeps_no_schedstat(proc: FakeProc) -> None:
    """On such a kernel the figures are coarser, not zero."""
    proc.add(10, 1, ticks=(150, 50))
    assert sample_tree(10, proc=proc.root).cpu_s == 200 / TICKS_PER_S


def test_a_process_that_is_gone_counts_for_nothing(proc: FakeProc) -> None:
    """Processes come and go on any machine; a sample must not fail for one that just left."""
    proc.add(10, 1, threads_ns=(1,))
    (proc.root / "11").mkdir()
    assert sample_tree(10, proc=proc.root).processes == 1
    assert sample_tree(99, proc=proc.root).processes == 0


def test_work_of_this_very_process_is_seen() -> None:
    """If the real /proc were misread, every CPU figure would be wrong on every machine."""
    before = sample_tree(os.getpid())
    started_s = time.process_time()
    while time.process_time() - started_s < 0.05:
        sum(range(1_000))
    after = sample_tree(os.getpid())
    # The kernel updates a running thread's time at its own ticks of up to 10 ms.
    assert after.cpu_s - before.cpu_s > 0.03
    assert after.rss_bytes > 5_000_000
