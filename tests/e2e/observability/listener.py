"""Where alerts go: the one route of an Alertmanager that Prometheus uses, and what came there."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(slots=True)
class Listener:
    """Its address, and the alerts that came, newest last."""

    address: str = ""
    alerts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """Of all that ever fired."""
        return {each["labels"]["alertname"] for each in self.alerts}


@contextmanager
def listening() -> Iterator[Listener]:
    """It listens during the block, on a free port of loopback."""
    found = Listener()

    class Post(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.alerts += json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the library has it
            """Nothing: only what came matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Post)
    found.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
