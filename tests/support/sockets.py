"""The transport of one connection that leads nowhere: what is written to it is kept."""

import asyncio


class Socket(asyncio.Transport):
    """The transport of one connection; keeps each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_ended = False
        self.is_reading_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """One system call, most often."""
        assert not self.is_ended, "something is written after the end"
        self.writes.append(bytes(data))

    def close(self) -> None:
        """An orderly end."""
        self.is_ended = True

    def abort(self) -> None:
        """An end at once."""
        self.is_ended = True

    def get_write_buffer_size(self) -> int:
        """All was sent."""
        return 0

    def is_closing(self) -> bool:
        """Whether it ended."""
        return self.is_ended

    def pause_reading(self) -> None:
        """The server wants no more for now."""
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        """It does again."""
        self.is_reading_paused = False
