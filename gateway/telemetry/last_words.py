"""What workers have counted, kept on the disk: a sum that was told never falls when one ends.

Each worker writes down what it is about to tell, before it tells it. Who is gone is added to one
file by the process above, once; whose words are there twice for a moment is counted once.
"""

import os
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.telemetry.merging import merged, sums_of

GONE = "gone.prom"
NAMES = "# of "
NAMES_MAX = 64
"""Files that were added to the sum last: a reader may have seen both."""


class LastWords:
    """The words of one process among those of its siblings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"{os.getpid()}-{time.time_ns()}.prom"

    def keep(self, text: str) -> None:
        """Write down what this process is about to tell. Raises OSError."""
        _write(self._folder / self._name, sums_of(text))

    def known(self) -> "Known":
        """The words of all others, to be read before any of them is asked.

        Whoever ends after this is not in the sum of those that are gone, and is not counted twice.
        """
        words: dict[str, tuple[int, str]] = {}
        for path in self._folder.glob("*-*.prom"):
            pid, _, _ = path.name.partition("-")
            if pid.isdigit() and path.name != self._name:
                words[path.name] = int(pid), _read(path)
        # After the files: one that was added to the sum in between is seen there by its name.
        gone = _read(self._folder / GONE)
        for name in _names_in(gone):
            words.pop(name, None)
        return Known(gone, tuple(words.values()))


@dataclass(frozen=True, slots=True)
class Known:
    """What other processes have counted, as far as they wrote it down."""

    gone: str
    """The sum of those that ended."""
    words: tuple[tuple[int, str], ...]
    """(process, its words) of those that have not, or not long ago."""

    def without(self, pids: Collection[int]) -> list[str]:
        """All but what these processes tell themselves."""
        return [self.gone, *(text for pid, text in self.words if pid not in pids)]


def add_to_gone(folder: Path, pid: int) -> None:
    """The process `pid` has ended: its last words go into the sum of all that have. OSError."""
    for path in sorted(folder.glob(f"{pid}-*.prom")):
        before = _read(folder / GONE)
        names = [*_names_in(before), path.name][-NAMES_MAX:]
        total = merged((), gone=(before, _read(path)))
        _write(folder / GONE, f"{NAMES}{' '.join(names)}\n{total}")
        path.unlink()


def _names_in(text: str) -> list[str]:
    first = text.partition("\n")[0]
    return first.removeprefix(NAMES).split() if first.startswith(NAMES) else []


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def _write(path: Path, text: str) -> None:
    """As a whole or not at all."""
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(text)
    fresh.replace(path)
