"""Keys of a terminal, one at a time and without an echo; the terminal is left as it was found.

What a key means is not known here.
"""

import os
import select
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

BYTES_MAX: Final = 64
"""Read at once: a paste of more is read in parts."""
SEQUENCES: Final = (
    (b"\x1b[A", "up"),
    (b"\x1b[B", "down"),
    (b"\x1b[C", "right"),
    (b"\x1b[D", "left"),
    (b"\x1bOA", "up"),
    (b"\x1bOB", "down"),
    (b"\x1bOC", "right"),
    (b"\x1bOD", "left"),
    (b"\x1b[5~", "page-up"),
    (b"\x1b[6~", "page-down"),
    (b"\x1b[H", "home"),
    (b"\x1b[1~", "home"),
)
NAMED: Final = {b"\t": "tab", b"\x03": "ctrl-c", b"\x04": "ctrl-d"}


def keys_in(typed: bytes) -> list[str]:
    """The keys behind what a terminal sent; sequences that are not known are passed over."""
    found = []
    while typed:
        known = next(((name, code) for code, name in SEQUENCES if typed.startswith(code)), None)
        if known is not None:
            found.append(known[0])
            typed = typed[len(known[1]) :]
        elif typed[:1] == b"\x1b":
            typed = typed[_length(typed) :]
        else:
            found.append(NAMED.get(typed[:1]) or typed[:1].decode("latin-1"))
            typed = typed[1:]
    return found


def _length(typed: bytes) -> int:
    """Of an unknown sequence: to its final letter, or a lone escape."""
    if typed[1:2] not in (b"[", b"O"):
        return 1
    for index in range(2, len(typed)):
        if 0x40 <= typed[index] <= 0x7E:
            return index + 1
    return len(typed)


class Keyboard:
    """One terminal's keys."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_there = True

    def pressed(self, within_s: float) -> list[str]:
        """The keys that were pressed; empty where none was within `within_s`.

        A terminal that is gone quits.
        """
        ready, _, _ = select.select([self._descriptor], [], [], within_s)
        if not ready:
            return []
        try:
            typed = os.read(self._descriptor, BYTES_MAX)
        except OSError:
            typed = b""
        return keys_in(typed) if typed else ["q"]


@contextmanager
def keyboard(descriptor: int) -> Iterator[Keyboard]:
    """The keys of this terminal, until the block ends. Raises termios.error where it is none."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
