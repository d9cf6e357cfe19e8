"""Picks a handful of metrics out of an engine's Prometheus text without reading the rest.

It decides nothing about what the numbers mean. vLLM answers with 50 kB and 586 lines of which 15
matter; a general parser spends milliseconds on the event loop there, one precompiled expression
over the bytes about a tenth of one. A line that is malformed is no line; text that is not
Prometheus at all holds no metric. Lines begin with the metric's name, as every engine writes them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_LINE_AFTER_NAME = (
    rb"(?=[ \t{])[ \t]*+"
    rb'(?:\{([^"}\n]*+(?:"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+"[^"}\n]*+)*+)\})?[ \t]*+'
    rb"([^ \t\r\n{]++)"
)
"""Labels (a brace inside quotes does not end them) and the value; what follows is a timestamp."""

_QUOTED = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_OTHER_LABELS = rb'(?:[^"]*+' + _QUOTED + rb")*?[ \t,]*+"
_ESCAPE = re.compile(rb'\\([\\"n])')


class Sample(NamedTuple):
    """One line: its value (NaN and infinities as they stand) and its labels, not yet read."""

    value: float
    raw_labels: bytes = b""

    def label(self, name: str) -> str | None:
        """The value of one label, unescaped; None where the line does not carry it.

        Bytes that are not UTF-8 become U+FFFD.
        """
        wanted = re.escape(name.encode()) + rb"[ \t]*+=[ \t]*+(" + _QUOTED + rb")"
        match = re.match(_OTHER_LABELS + wanted, self.raw_labels, re.DOTALL)
        if match is None:
            return None
        return _ESCAPE.sub(_unescaped, match.group(1)[1:-1]).decode(errors="replace")


class Scan:
    """A fixed set of metric names, compiled once, to be found in any number of texts."""

    __slots__ = ("_pattern", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        """`names` are exact sample names, `_sum` and `_count` of a histogram included."""
        assert names, "a scan for nothing"
        self.names = names
        either = _either([name.encode() for name in names])
        self._pattern = re.compile(rb"\n(" + either + rb")" + _LINE_AFTER_NAME)

    def samples(self, text: bytes) -> Mapping[str, tuple[Sample, ...]]:
        """The samples of each wanted name in order of appearance; absent names are absent keys."""
        found: dict[str, list[Sample]] = {}
        for name, labels, value in self._pattern.findall(b"\n" + text):
            number = _number(value)
            if number is not None:
                found.setdefault(name.decode(), []).append(Sample(number, labels))
        return {name: tuple(samples) for name, samples in found.items()}


def _either(words: Sequence[bytes]) -> bytes:
    """An expression for exactly `words`, common beginnings taken out so that it fails early."""
    rests: dict[bytes, list[bytes]] = {}
    for word in filter(None, words):
        rests.setdefault(word[:1], []).append(word[1:])
    branches = [re.escape(first) + _either(rest) for first, rest in rests.items()]
    may_end_here = b"" in words
    if len(branches) == 1 and not may_end_here:
        return branches[0]
    return b"(?:" + b"|".join(branches) + b")" + b"?" * may_end_here if branches else b""


def _number(value: bytes) -> float | None:
    # Python reads 1_000 as a number, Prometheus does not.
    if b"_" in value:
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _unescaped(match: re.Match[bytes]) -> bytes:
    character: bytes = match.group(1)
    return b"\n" if character == b"n" else character
