"""Whole events of a stream: the beginning of one is held back until the rest of it has come.

Clients read no event before it is complete, so they lose nothing by it; what broke off in the
middle of one would be taken for an event with the error that follows, or for one that is no JSON.
"""

from gateway.upstream.frames import end_of_events

HELD_BYTES_MAX = 1 << 20
"""A longer event is passed on as it comes."""
BLANK_BYTES_MAX = 3
"""Of a blank line that is not complete; the longest is CR LF CR LF."""


class WholeEvents:
    """Cuts a stream between its events, wherever the network cut it; changes no byte."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = b""
        """The beginning of an event. It belongs to the client only if the stream ended well."""

    def chunk(self, data: bytes) -> bytes:
        """The next bytes of the stream; returns what is complete with them."""
        seen = len(self.held)
        if not seen and data.endswith(b"\n\n"):
            return data
        data = self.held + data
        end = end_of_events(data, seen)
        if len(data) - end > HELD_BYTES_MAX:
            end = len(data) - BLANK_BYTES_MAX
        self.held = data[end:]
        return data[:end]
