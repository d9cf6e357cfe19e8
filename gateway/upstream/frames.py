"""Where the events of a stream begin and end, on bytes.

Follows the HTML standard (9.2.6, interpreting an event stream): lines end in LF, CR or CRLF, and a
blank line ends an event. What an event means is not known here.
"""

import re
from collections.abc import Iterator

from gateway.upstream.chunks import CR

_BLANK_LINE = re.compile(rb"\r\n\r\n|\r\n\n|\r\n\r|\n\r\n|\n\n|\n\r|\r\r\n|\r\r")
"""Spelt out: a search for one of two first bytes is quick, and a CRLF never counts as two."""
_END_OF_LINE = re.compile(rb"\r\n|\n|\r")


def end_of_events(data: bytes, seen: int) -> int:
    """Index behind the last blank line, 0 where there is none.

    The first `seen` bytes are known to hold no blank line, but perhaps the beginning of one.
    After a CR nobody knows yet whether an LF belongs to it; it then begins the next bytes.
    """
    start = max(0, seen - 3)
    if CR not in data:
        found = data.rfind(b"\n\n", start)
        return 0 if found < 0 else found + 2
    end = 0
    for blank in _BLANK_LINE.finditer(data, start):
        end = blank.end()
    return end


def events_in(data: bytes) -> Iterator[bytes]:
    """Each event with the blank line that ends it; what follows the last one comes last."""
    if CR not in data:
        *whole, rest = data.split(b"\n\n")
        for event in whole:
            yield event + b"\n\n"
        if rest:
            yield rest
        return
    start = 0
    for blank in _BLANK_LINE.finditer(data):
        yield data[start : blank.end()]
        start = blank.end()
    if start < len(data):
        yield data[start:]


def read_event(event: bytes) -> tuple[bytes, bytes | None]:
    """Name and data of an event; no name is empty, and None stands for no data.

    Several lines of data are joined by a newline.
    """
    name = b""
    lines = []
    for line in _END_OF_LINE.split(event) if CR in event else event.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            name = line[6:].removeprefix(b" ")
    return name, b"\n".join(lines) if lines else None
