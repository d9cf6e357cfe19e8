"""Members of a JSON object by their place in its text, so that one can be read or changed alone.

For text that is known to be JSON: nothing is checked. Brackets, commas and quotes inside strings
are never taken for structure.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_KEY = re.compile(rb"\s*(%b)\s*:\s*" % _STRING, re.DOTALL)
_SCALAR = re.compile(rb"%b|[^\s,\]}]*" % _STRING, re.DOTALL)
_NESTING = re.compile(rb"%b|[{}\[\]]" % _STRING, re.DOTALL)
_COMMA = re.compile(rb"\s*,")
_SPACE = re.compile(rb"\s*")


class Member(NamedTuple):
    """One member of an object: indices into the text."""

    name: bytes
    """As written, without its quotes."""
    start: int
    """Of the name's opening quote."""
    value: int
    end: int
    """Behind the value."""


def end_of_value(text: bytes, at: int) -> int:
    """Index behind the value that begins at `at`; the end of `text` where it is cut off."""
    if text[at : at + 1] not in (b"{", b"["):
        scalar = _SCALAR.match(text, at)
        return scalar.end() if scalar else at
    depth = 0
    for token in _NESTING.finditer(text, at):
        first = text[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
            if depth == 0:
                return token.end()
    return len(text)


def members(text: bytes, at: int) -> Iterator[Member]:
    """The members of the object whose brace opens at `at`, not those of objects inside it."""
    at += 1
    while key := _KEY.match(text, at):
        end = end_of_value(text, key.end())
        yield Member(key[1][1:-1], key.start(1), key.end(), end)
        comma = _COMMA.match(text, end)
        if comma is None:
            return
        at = comma.end()


def member(text: bytes, at: int, name: bytes) -> Member | None:
    """The member called `name` of the object that opens at `at`."""
    return next((found for found in members(text, at) if found.name == name), None)


def with_value(text: bytes, at: int, name: bytes, value: bytes, *, adds: bool) -> bytes:
    """`text` with `name` set to `value` in the object that opens at `at`.

    Where it is missing it is put first if `adds`, and left out otherwise.
    """
    found = member(text, at, name)
    if found is not None:
        return text[: found.value] + value + text[found.end :]
    if not adds:
        return text
    head, tail = text[: at + 1], text[at + 1 :]
    comma = b"" if tail.lstrip().startswith(b"}") else b","
    return b'%b"%b":%b%b%b' % (head, name, value, comma, tail)


def without(text: bytes, at: int, name: bytes) -> bytes:
    """`text` less the member `name` of the object that opens at `at`, and less its comma."""
    before = -1
    for found in members(text, at):
        if found.name == name:
            if before >= 0:
                return text[:before] + text[found.end :]
            comma = _COMMA.match(text, found.end)
            if comma is None:
                return text[: found.start] + text[found.end :]
            space = _SPACE.match(text, comma.end())
            return text[: found.start] + text[space.end() if space else comma.end() :]
        before = found.end
    return text
