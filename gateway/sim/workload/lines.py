"""The lines of a file that somebody else wrote: each with its number and place, within a bound.

Knows nothing of what stands in them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

LINE_BYTES_MAX = 65_536


class Line(NamedTuple):
    """One line."""

    number: int
    """From 1."""
    place: int
    """Where in the file it begins, in bytes."""
    text: bytes | None
    """Without its end; None: longer than `LINE_BYTES_MAX`."""


def lines_of(path: Path) -> Iterator[Line]:
    """All lines that are not blank; raises OSError when the file cannot be read."""
    with path.open("rb") as file:
        number = place = 0
        while raw := file.readline(LINE_BYTES_MAX):
            number += 1
            begins, place = place, place + len(raw)
            is_whole = raw.endswith(b"\n") or len(raw) < LINE_BYTES_MAX
            if not is_whole:
                place += _passed(file)
            if not is_whole or raw.strip():
                yield Line(number, begins, raw.rstrip(b"\r\n") if is_whole else None)


def line_at(file: BinaryIO, place: int) -> bytes:
    """The line that begins there; one that was too long is cut."""
    file.seek(place)
    return file.readline(LINE_BYTES_MAX).rstrip(b"\r\n")


def _passed(file: BinaryIO) -> int:
    """Go to the next line; the number of bytes passed over."""
    passed = 0
    while rest := file.readline(LINE_BYTES_MAX):
        passed += len(rest)
        if rest.endswith(b"\n"):
            break
    return passed
