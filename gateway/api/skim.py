"""The beginning of a JSON text as objects: all of a short one, of a long one what stands in front.

Who looks at more than some thousand characters of a prompt is served badly here. Equal beginnings
give equal objects, however the texts go on.
"""

from typing import Any

import orjson
from pydantic_core import from_json

from gateway.api.strings import end_of_string, shortened

LONG_BYTES = 64 << 10
"""A longer text is cut, and a longer string in it shortened."""
READ_BYTES_MAX = 64 << 10
"""Of a long text no more is read."""


def beginning(text: memoryview) -> Any:
    """What `text`, which is known to be JSON, begins with; None where that cannot be read."""
    try:
        if len(text) <= LONG_BYTES:
            return orjson.loads(text)
        return from_json(_first_part(bytes(text)), allow_partial="trailing-strings")
    except ValueError:
        return None  # nested too deep, or a number that fits nowhere


def _first_part(text: bytes) -> bytes:
    """As much of `text` as is read, its long strings shortened."""
    pieces: list[bytes] = []
    room, at = READ_BYTES_MAX, 0
    while room > 0 and at < len(text):
        piece, end = text[at : at + room], at + room
        # A long string is longer than the room: it can only be the one in which that ends.
        quote = _open_quote(piece)
        if quote >= 0:
            over = end_of_string(text, at + quote + 1)
            if over - at - quote > LONG_BYTES:
                piece = (piece[:quote] + shortened(text, at + quote, over))[:room]
                end = over
        pieces.append(piece)
        room -= len(piece)
        at = end
    return b"".join(pieces)


def _open_quote(text: bytes) -> int:
    """Where the string begins that is not over at the end of `text`; -1: none is open."""
    if text.find(92) >= 0:  # a backslash
        text = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    return text.rfind(b'"') if text.count(b'"') % 2 else -1
