"""Ports that stay one's own while nobody listens on them."""

import os
import socket
from itertools import count

FIRST, LAST = 15_000, 32_000
"""Below what systems hand out for outgoing connections (Linux: from 32,768): one of those would
take the port of a server that is started again a moment later."""
APART = 101
"""Between the first ports of processes that were started one after the other."""

_numbers = count(os.getpid() * APART)


def free_port() -> int:
    """A loopback port that nobody has now, and that is handed out once in this process."""
    for number in _numbers:
        port = FIRST + number % (LAST - FIRST)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("numbers do not end")
