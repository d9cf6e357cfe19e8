"""Processes that get a part of a core at most, as containers with a CPU limit do.

By Linux' control groups, of either version; each process in a group of its own. So several that are
as busy as they can be fit on a machine with few cores, and none is in another's way.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
PERIOD_US = 10_000
"""A process that has used its part up goes on with the next one of these. A tenth of the usual: it
stands still for no longer than a busy loop would be late."""


class NoLimits(Exception):
    """This system, or this user, cannot limit the CPU of a process."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Where groups are made that limit CPU time."""

    folder: Path
    is_unified: bool
    """Whether of the second version."""

    def limit(self, group: Path, cores: float) -> None:
        """Of all that is in it together. Raises OSError."""
        quota_us = round(cores * PERIOD_US)
        if self.is_unified:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))

    def of(self, pid: int, proc: Path) -> Path:
        """The group of a process. Raises OSError."""
        for line in (proc / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if ("" if self.is_unified else "cpu") in controllers.split(","):
                return self.folder / path.lstrip("/")
        return self.folder


def groups_below(root: Path = CONTROL_GROUPS) -> Groups:
    """Raises NoLimits."""
    for name in ("cpu", "cpu,cpuacct"):
        if (root / name / "cgroup.procs").exists():
            return Groups(root / name, is_unified=False)
    with suppress(OSError):
        if "cpu" in (root / "cgroup.subtree_control").read_text().split():
            return Groups(root, is_unified=True)
    raise NoLimits("there are no control groups that limit CPU time")


def why_not(root: Path = CONTROL_GROUPS) -> str:
    """Why no process can be limited here; empty where it can."""
    try:
        with _group(groups_below(root), os.getpid(), 1.0):
            return ""
    except (NoLimits, OSError) as error:
        return str(error)


@contextmanager
def limited(
    pids: Iterable[int], cores: float, *, root: Path = CONTROL_GROUPS, proc: Path = PROC
) -> Iterator[None]:
    """Each of these gets `cores` of CPU at most until the block ends.

    Raises:
        NoLimits: see `why_not`.
        OSError: the same, or one of them is gone.
    """
    groups = groups_below(root)
    with ExitStack() as stack:
        for pid in pids:
            group = stack.enter_context(_group(groups, pid, cores))
            before = groups.of(pid, proc)
            _move(pid, group)
            stack.callback(_move_back, pid, before)
        yield


@contextmanager
def _group(groups: Groups, pid: int, cores: float) -> Iterator[Path]:
    group = groups.folder / f"fairgate-bench-{pid}"
    group.mkdir()
    try:
        groups.limit(group, cores)
        yield group
    finally:
        group.rmdir()


def _move(pid: int, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(pid))


def _move_back(pid: int, group: Path) -> None:
    with suppress(OSError):  # it has ended, and is in no group any more
        _move(pid, group)
