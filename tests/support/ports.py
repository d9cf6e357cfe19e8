"""Ports that stay one's own while nobody listens on them."""

import random
import socket

FIRST, LAST = 15_000, 32_000
"""Below what systems hand out for outgoing connections (Linux: from 32,768): one of those would
take the port of a server that is started again a moment later."""
TRIES = 200


def free_port() -> int:
    """A loopback port that nobody has now, and that no connection will be given."""
    for _ in range(TRIES):
        port = random.SystemRandom().randint(FIRST, LAST)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is free")
