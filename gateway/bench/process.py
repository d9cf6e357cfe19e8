"""CPU time and memory of a process and all its descendants, read from /proc.

It only reads counters: which window they belong to is the caller's business.
"""

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSample:
    """A process tree at one instant; `cpu_s` is user plus system time since each member's start."""

    cpu_s: float
    rss_bytes: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process tree used in a window, and its memory before the load and at the end."""

    cpu_s: float
    rss_at_rest_bytes: int
    rss_alone_bytes: int
    """With the first client alone; at rest where the load has no such moment."""
    rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """The fields of one /proc/PID/stat line that are used here."""

    pid: int
    parent_pid: int
    cpu_ticks: int
    rss_pages: int


def parse_stat(line: str) -> Stat:
    """Parse a /proc/PID/stat line; the command name in it may hold spaces and parentheses."""
    head, _, rest = line.rpartition(")")
    fields = rest.split()
    return Stat(
        pid=int(head.split(maxsplit=1)[0]),
        parent_pid=int(fields[1]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        rss_pages=int(fields[21]),
    )


def parse_schedstat_s(line: str) -> float:
    """Seconds on a CPU of one thread: the first field, in ns, of /proc/PID/task/TID/schedstat."""
    return int(line.split(maxsplit=1)[0]) / 1e9


def parse_busy_s(stat: str) -> float:
    """Seconds all cores together were not idle, from the text of /proc/stat; stolen time counts."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def machine_busy_s(*, proc: Path = PROC) -> float:
    """Seconds since boot that this machine's cores, added up, were not idle."""
    return parse_busy_s((proc / "stat").read_text())


def sample_tree(root_pid: int, *, proc: Path = PROC) -> TreeSample:
    """Sum over `root_pid` and its descendants; a member that ends meanwhile counts for nothing."""
    members = _descendants(_stats(proc), root_pid)
    return TreeSample(
        cpu_s=sum(_cpu_s(stat, proc) for stat in members),
        rss_bytes=sum(stat.rss_pages for stat in members) * PAGE_BYTES,
        processes=len(members),
    )


def tree_pids(root_pid: int, *, proc: Path = PROC) -> list[int]:
    """Of `root_pid` and its descendants."""
    return [stat.pid for stat in _descendants(_stats(proc), root_pid)]


def _stats(proc: Path) -> list[Stat]:
    found = []
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                found.append(parse_stat((folder / "stat").read_text()))
            except OSError:
                continue
    return found


def _descendants(stats: list[Stat], root_pid: int) -> list[Stat]:
    children: dict[int, list[Stat]] = {}
    for stat in stats:
        children.setdefault(stat.parent_pid, []).append(stat)
    members = [stat for stat in stats if stat.pid == root_pid]
    for member in members:
        members.extend(children.get(member.pid, ()))
    return members


def _cpu_s(stat: Stat, proc: Path) -> float:
    """From schedstat, exact to the ns, where the kernel has it; else from 10 ms clock ticks."""
    total_s = 0.0
    try:
        for thread in (proc / str(stat.pid) / "task").iterdir():
            total_s += parse_schedstat_s((thread / "schedstat").read_text())
    except OSError:
        return stat.cpu_ticks / TICKS_PER_S
    return total_s
