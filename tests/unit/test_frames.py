"""Where events begin and end, whatever the line ends and wherever the bytes are cut."""

import pytest

from gateway.upstream.frames import end_of_events, events_in, read_event

ENDS = (b"\n", b"\r", b"\r\n")


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", ENDS)
def test_two_line_ends_of_any_kind_end_an_event(first: bytes, second: bytes) -> None:
    """Some engines and proxies write CRLF, and the standard allows any mixture."""
    blank = first + second
    if blank == b"\r\n":
        blank = b"\r\r"  # a CR before an LF is one line end with it
    stream = b"data: 1" + blank + b"data: 2"
    assert list(events_in(stream)) == [b"data: 1" + blank, b"data: 2"]
    assert end_of_events(stream, 0) == 7 + len(blank)
    for cut in range(8):
        assert end_of_events(stream, cut) == 7 + len(blank)


@pytest.mark.parametrize("data", [b"", b"data: 1", b"data: 1\n", b"data: 1\r\n", b"data: 1\r"])
def test_one_line_end_ends_no_event(data: bytes) -> None:
    """A CRLF is not two line ends."""
    assert end_of_events(data, 0) == 0
    assert list(events_in(data)) == ([data] if data else [])


@pytest.mark.parametrize(
    ("event", "read"),
    [
        (b"event: a\ndata: 1\n\n", (b"a", b"1")),
        (b"event:a\r\ndata:1\r\n\r\n", (b"a", b"1")),
        (b"data: 1\rdata:  2\rdata:\r\r", (b"", b"1\n 2\n")),
        (b"event: a\nevent: b\ndata: 1\n\n", (b"b", b"1")),
        (b": data: 1\nid: 3\n\n", (b"", None)),
        (b"database: 1\n\n", (b"", None)),
        (b"\n", (b"", None)),
    ],
)
def test_name_and_data_of_an_event_are_read(event: bytes, read: tuple[bytes, bytes | None]) -> None:
    """A gateway that skipped `data:` without a space lost whole answers."""
    assert read_event(event) == read
