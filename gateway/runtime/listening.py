"""Sockets on one port for several processes: one each, and the kernel shares out connections.

Whoever binds them keeps them open, so that what a worker that died had not accepted yet waits for
the next one in its place, and nobody is told that a connection was refused.
"""

import socket
from collections.abc import Sequence

BACKLOG = 2_048
"""Connections that may wait to be accepted, for each socket."""


def is_shareable() -> bool:
    """Whether this system shares out the connections of one port."""
    return hasattr(socket, "SO_REUSEPORT")


def bound(host: str, port: int, *, is_first: bool = False) -> tuple[socket.socket, ...]:
    """A socket on each address of `host`, not listening yet; port 0: any, the same on all.

    `is_first`: nobody else may have the port. Raises OSError where an address cannot be had.
    """
    sockets: list[socket.socket] = []
    try:
        for family, address in _addresses(host, port):
            opened = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(opened)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if is_first and port:
                _look_for_others(family, port, address)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            opened.bind((address[0], port or address[1], *address[2:]))
            port = port or opened.getsockname()[1]
    except OSError:
        for each in sockets:
            each.close()
        raise
    return tuple(sockets)


def is_listening(opened: socket.socket) -> bool:
    """Whether connections come in there already."""
    return bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def adopted(numbers: Sequence[int]) -> list[socket.socket]:
    """The sockets that this process inherited as these descriptors."""
    return [socket.socket(fileno=number) for number in numbers]


def _look_for_others(family: int, port: int, address: tuple[str, int]) -> None:
    """Another gateway on this port would share its connections, and nobody would be told."""
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tried.bind((address[0], port, *address[2:]))


def _addresses(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    unique = dict.fromkeys((family, address) for family, _, _, _, address in found)
    return [(int(family), address) for family, address in unique]  # type: ignore[misc]  # of IP
