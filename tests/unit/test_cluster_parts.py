"""Long messages in parts: whole again at the other end, or dropped as a whole."""

import os

import pytest

from gateway.cluster.parts import (
    PART_BYTES,
    PAYLOAD_BYTES_MAX,
    UNFINISHED_MAX,
    Joiner,
    PartError,
    parts_of,
)

VERSION = 1


def unique() -> bytes:
    """Another one each time."""
    return os.urandom(16)


def in_parts(payload: bytes) -> list[bytes]:
    """As it is published."""
    return parts_of(payload, VERSION, unique)


def joined(joiner: Joiner, parts: list[bytes]) -> list[bytes]:
    """The payloads that came out."""
    return [whole for part in parts if (whole := joiner.joined(part)) is not None]


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_a_payload_of_any_size_arrives_whole(size: int) -> None:
    """A new leader that is told of ten thousand requests at once."""
    payload = os.urandom(size)
    parts = in_parts(payload)
    assert joined(Joiner(VERSION), parts) == [payload]
    assert max(map(len, parts)) < PART_BYTES + 64


def test_parts_of_several_senders_come_between_one_another() -> None:
    """All gateways tell a new leader at the same time."""
    one, two = os.urandom(2 * PART_BYTES), os.urandom(2 * PART_BYTES)
    mixed = [part for pair in zip(in_parts(one), in_parts(two), strict=True) for part in pair]
    assert joined(Joiner(VERSION), mixed) == [one, two]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_payload_that_lacks_a_part_is_dropped_and_the_next_one_is_not(lost: int) -> None:
    """A line that was lost amid a message: half of the requests must not pass for all."""
    parts = in_parts(os.urandom(3 * PART_BYTES))
    del parts[lost]
    joiner = Joiner(VERSION)
    assert joined(joiner, parts) == []
    payload = os.urandom(2 * PART_BYTES)
    assert joined(joiner, in_parts(payload)) == [payload]


def test_unfinished_payloads_are_bounded() -> None:
    """A gateway that dies amid a message, a thousand times."""
    joiner = Joiner(VERSION)
    oldest = in_parts(bytes(2 * PART_BYTES))
    joiner.joined(oldest[0])
    for _ in range(UNFINISHED_MAX + 1):
        joiner.joined(in_parts(bytes(2 * PART_BYTES))[0])
    assert joiner.joined(oldest[1]) is None
    assert len(joiner._unfinished) <= UNFINISHED_MAX


@pytest.mark.parametrize(
    "data",
    [b"", b"\x02w", b"\x01", b"\x01x", b"\x01p", b"\x01p" + bytes(20) + b"\xff\xff\xff\xff"],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    """A gateway of another version on the same Redis."""
    with pytest.raises(PartError):
        Joiner(VERSION).joined(data)


def test_a_payload_that_is_far_too_long_is_not_sent() -> None:
    """Redis would cut off whoever listens."""
    with pytest.raises(PartError):
        in_parts(bytes(PAYLOAD_BYTES_MAX + 1))
