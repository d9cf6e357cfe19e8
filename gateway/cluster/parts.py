"""From one payload to what is published and back: a long one goes in parts, so that none is large.

A part that does not come makes its payload be dropped, and nothing else.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

PART_BYTES: Final = 256 << 10
PAYLOAD_BYTES_MAX: Final = 32 << 20
UNFINISHED_MAX: Final = 64
"""Payloads of which some parts came; of more, the oldest is dropped."""

WHOLE: Final = b"w"
PART: Final = b"p"
HEAD: Final = struct.Struct("!16sII")
"""Of a part: whose it is, which, and of how many."""


class PartError(Exception):
    """These bytes are no part of a payload of this version."""


def parts_of(payload: bytes, version: int, unique: Callable[[], bytes]) -> list[bytes]:
    """What to publish, in this order; `unique` makes 16 bytes that no other payload has.

    Raises PartError where it is too long.
    """
    mark = bytes((version,))
    if len(payload) <= PART_BYTES:
        return [b"".join((mark, WHOLE, payload))]
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise PartError(f"{len(payload)} bytes are too many for a message")
    count = -(-len(payload) // PART_BYTES)
    own = unique()
    return [
        b"".join((mark, PART, HEAD.pack(own, index, count),
                  payload[index * PART_BYTES : (index + 1) * PART_BYTES]))
        for index in range(count)
    ]  # fmt: skip


class Joiner:
    """Puts payloads together again, of all senders."""

    __slots__ = ("_unfinished", "_version")

    def __init__(self, version: int) -> None:
        self._version = version
        self._unfinished: OrderedDict[bytes, list[bytes]] = OrderedDict()

    def joined(self, data: bytes) -> bytes | None:
        """The payload that is whole now; None: more has to come, or a part is missing.

        Raises PartError for bytes that are none of ours.
        """
        if not data or data[0] != self._version:
            spoken = data[0] if data else 0
            raise PartError(f"version {spoken} of messages, and not {self._version}, is spoken")
        if data[1:2] == WHOLE:
            return data[2:]
        if data[1:2] != PART or len(data) < 2 + HEAD.size:
            raise PartError("neither a message nor a part of one")
        unique, index, count = HEAD.unpack_from(data, 2)
        if count * PART_BYTES > PAYLOAD_BYTES_MAX + PART_BYTES:
            raise PartError("a message of too many parts")
        pieces = self._unfinished.setdefault(unique, [])
        if index != len(pieces):
            del self._unfinished[unique]
            return None
        pieces.append(data[2 + HEAD.size :])
        if len(pieces) == count:
            return b"".join(self._unfinished.pop(unique))
        if len(self._unfinished) > UNFINISHED_MAX:
            self._unfinished.popitem(last=False)
        return None
