"""What the kernel still holds of what was written to a client."""

import fcntl
import struct
import termios
from typing import Protocol


class HasFileno(Protocol):
    """A socket."""

    def fileno(self) -> int:
        """Its descriptor."""


def unsent_bytes(socket: HasFileno) -> int:
    """Bytes that the other side has not acknowledged yet; 0 where the system does not say."""
    try:
        answer = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except OSError:
        return 0
    return int(struct.unpack("i", answer)[0])
