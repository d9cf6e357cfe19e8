"""Streams cut between their events, wherever the network cut them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.whole import BLANK_BYTES_MAX, HELD_BYTES_MAX, WholeEvents
from tests.support.sse_reference import events_of

EVENT = b"event: a\ndata: {}\n\n"
PIECES = st.lists(
    st.sampled_from([b"data: x", b"data:", b": c", b"\n", b"\r", b"\r\n", b"\xe5\x8c"])
)


@given(pieces=PIECES)
def test_no_byte_is_changed_and_none_is_lost(pieces: list[bytes]) -> None:
    """What is told here is the engine's answer."""
    whole = WholeEvents()
    left = [whole.chunk(piece) for piece in pieces]
    assert b"".join(left) + whole.held == b"".join(pieces)


@given(pieces=PIECES)
def test_a_reader_never_waits_for_the_rest_of_an_event(pieces: list[bytes]) -> None:
    """It has every event as soon as that is complete, and nothing of the next one."""
    whole, came, left = WholeEvents(), b"", b""
    for piece in pieces:
        came += piece
        left += whole.chunk(piece)
        assert events_of(left) == events_of(came)
        ended = left + b"data: error\n\n"
        assert events_of(ended) == [*events_of(came), ("", b"error")]


def test_whole_events_pass_as_they_are() -> None:
    """Engines send them so; a copy of each would be paid for nothing."""
    whole = WholeEvents()
    for data in (EVENT, EVENT * 3, b": keep-alive\n\n"):
        assert whole.chunk(data) is data


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_event_too_long_to_be_held_passes_and_ends_where_it_ends(end: bytes) -> None:
    """Its last byte may come alone, and nothing after it for a minute."""
    whole = WholeEvents()
    long = b"data: " + b"x" * HELD_BYTES_MAX + end
    left = whole.chunk(long[: -len(end)])
    assert len(left) + BLANK_BYTES_MAX == HELD_BYTES_MAX + len(b"data: ")
    for byte in end:
        left += whole.chunk(bytes([byte]))
    assert left + whole.held == long
    assert len(events_of(left)) == 1
