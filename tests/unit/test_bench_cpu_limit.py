"""Limits of CPU: made-up control groups of either version, and real ones where there are any."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.bench.cpu_limit import PERIOD_US, NoLimits, groups_below, limited, why_not

FIRST = "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n0::/\n"
SECOND = "0::/user.slice\n"


def made_up(root: Path, *, is_unified: bool) -> Path:
    """The folder in which groups are made, with one that a process is in."""
    if is_unified:
        (root / "user.slice").mkdir(parents=True)
        (root / "cgroup.subtree_control").write_text("cpuset cpu io\n")
        return root
    folder = root / "cpu,cpuacct"
    (folder / "docker" / "abc").mkdir(parents=True)
    (folder / "cgroup.procs").touch()
    return folder


@pytest.fixture(name="removable")
def _removable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's groups are removed with what is in them; folders are not."""
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)


@pytest.mark.usefixtures("removable")
@pytest.mark.parametrize("is_unified", [False, True])
def test_each_process_has_a_group_and_goes_back_to_its_own(
    tmp_path: Path, *, is_unified: bool
) -> None:
    """Two in one group would share what each should have; one that stays is limited for ever."""
    root, proc = tmp_path / "groups", tmp_path / "proc"
    folder = made_up(root, is_unified=is_unified)
    for pid in (7, 8):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cgroup").write_text(SECOND if is_unified else FIRST)
    with limited([7, 8], 0.25, root=root, proc=proc):
        for pid in (7, 8):
            group = folder / f"fairgate-bench-{pid}"
            assert (group / "cgroup.procs").read_text() == str(pid)
            if is_unified:
                assert (group / "cpu.max").read_text() == f"{PERIOD_US // 4} {PERIOD_US}"
            else:
                assert (group / "cpu.cfs_quota_us").read_text() == str(PERIOD_US // 4)
                assert (group / "cpu.cfs_period_us").read_text() == str(PERIOD_US)
    assert not list(folder.glob("fairgate-bench-*"))
    home = folder / ("user.slice" if is_unified else "docker/abc")
    assert (home / "cgroup.procs").read_text() in {"7", "8"}


def test_without_control_groups_it_is_told_why(tmp_path: Path) -> None:
    """A figure that nobody limited would be read as one that was."""
    with pytest.raises(NoLimits, match="control groups"):
        groups_below(tmp_path)
    assert "control groups" in why_not(tmp_path)
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    assert why_not(tmp_path)
    with pytest.raises(NoLimits), limited([os.getpid()], 0.5, root=tmp_path):
        pytest.fail("nothing limits it")


def test_a_real_process_is_limited_and_let_go() -> None:
    """The names of the files are the kernel's."""
    if reason := why_not():
        pytest.skip(reason)
    process = subprocess.Popen(["sleep", "60"])
    child = process.pid
    try:
        before = Path(f"/proc/{child}/cgroup").read_text()
        with limited([child], 0.25):
            assert f"/fairgate-bench-{child}" in Path(f"/proc/{child}/cgroup").read_text()
        assert Path(f"/proc/{child}/cgroup").read_text() == before
    finally:
        process.kill()
        process.wait()
    assert not (groups_below().folder / f"fairgate-bench-{child}").exists()
