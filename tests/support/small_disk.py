"""A file system with next to no room, where the tests run as root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(parent: Path, size: int, *options: str) -> Iterator[Path]:
    """A folder of `size` bytes under `parent` for the block; skips where none can be mounted."""
    folder = parent / "small"
    folder.mkdir()
    words = ",".join((f"size={size}", *options))
    command = ["mount", "-t", "tmpfs", "-o", words, "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
