"""The beginning of a long JSON text, found by looking at no more than is read of it."""

import json
from random import Random

import pytest

from gateway.api.skim import LONG_BYTES, READ_BYTES_MAX, _first_part
from gateway.api.strings import end_of_string, shortened

SHORT = ("a", '"', "\\", "\\\\", '\\"', "北", "x" * 1_000)
ENOUGH_BYTES = 2 * READ_BYTES_MAX


def strings_of(random: Random) -> list[str]:
    """Short ones, and seldom a long one; all together longer than what is read."""
    strings: list[str] = []
    size = 0
    while size < ENOUGH_BYTES:
        string = "".join(random.choices(SHORT, k=random.randrange(60)))
        if random.random() < 0.02:
            string += random.choice(SHORT[:4]) * LONG_BYTES
        strings.append(string)
        size += len(string) + 4
    return strings


def string_by_string(text: bytes) -> bytes:
    """The same, plainly right and slow: every string is looked at."""
    pieces: list[bytes] = []
    room, at = READ_BYTES_MAX, 0
    while room > 0 and at < len(text):
        quote = text.find(b'"', at)
        end = end_of_string(text, quote + 1) if quote >= 0 else len(text)
        piece = text[at:end]
        if quote >= 0 and end - quote > LONG_BYTES and quote - at < room:
            piece = text[at:quote] + shortened(text, quote, end)
        pieces.append(piece[:room])
        room -= len(piece)
        at = end
    return b"".join(pieces)


EDGES = [
    ["a" * (READ_BYTES_MAX - lead), "b" * LONG_BYTES, "c" * LONG_BYTES, "d"] for lead in range(12)
]


@pytest.mark.parametrize("case", range(40))
def test_it_is_what_a_look_at_every_string_finds(case: int) -> None:
    """A conversation whose beginning reads otherwise would lose its warm replica."""
    strings = EDGES[case] if case < len(EDGES) else strings_of(Random(case))
    text = json.dumps(strings, ensure_ascii=False).encode()[: 1 << 20]
    assert _first_part(text) == string_by_string(text)
