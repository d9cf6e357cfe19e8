"""Exit status 0 if `GET http://127.0.0.1:PORT/PATH` answers 200: the containers' health check.

    healthcheck.py [PORT [PATH]]

It speaks HTTP itself: importing an HTTP client every few seconds would cost more than asking.
"""

import os
import socket
import sys

TIMEOUT_S = 2.0


def is_healthy(port: int, path: str) -> bool:
    """Whether the server on this port answers 200; False where nobody answers in time."""
    request = f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            connection.sendall(request.encode("ascii"))
            return connection.recv(12)[8:] == b" 200"
    except OSError:
        return False


if __name__ == "__main__":
    wanted = sys.argv[1:]
    port = int(wanted[0] if wanted else os.environ.get("FAIRGATE_LISTEN__PORT") or 8080)
    sys.exit(not is_healthy(port, wanted[1] if len(wanted) > 1 else "/healthz"))
