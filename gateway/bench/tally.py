"""What the clients of one load have seen since its window began; what it means is figured later."""

from array import array

ERROR_KINDS_MAX = 16
MARKS_PER_EVENT = 2
"""An event's stamp has a mark at either end, and nothing else in a stream is one."""


class Tally:
    """Counts and times of one window, shared by all clients of a load."""

    __slots__ = (
        "chunk_delay_ns",
        "error_kinds",
        "in_flight",
        "is_recording",
        "is_stopping",
        "latency_ns",
        "marks",
        "ttft_ns",
    )

    def __init__(self) -> None:
        self.latency_ns = array("q")
        self.ttft_ns = array("q")
        self.chunk_delay_ns = array("q")
        self.marks = 0
        self.error_kinds: dict[str, int] = {}
        self.in_flight = 0
        self.is_recording = False
        self.is_stopping = False

    @property
    def events(self) -> int:
        """Events that arrived: marks are counted, so that one cut in two by a read counts once."""
        return self.marks // MARKS_PER_EVENT

    def count_error(self, kind: str) -> None:
        """Count one failed request; kinds beyond `ERROR_KINDS_MAX` are counted together."""
        if self.is_recording:
            if kind not in self.error_kinds and len(self.error_kinds) >= ERROR_KINDS_MAX:
                kind = "other"
            self.error_kinds[kind] = self.error_kinds.get(kind, 0) + 1
