"""Writes each alert that Alertmanager posts as one line: where alerts go until somebody is named.

    alert_log.py PORT

It knows Alertmanager's webhook and nothing else. Whatever is posted gets 200, so that nothing is
sent twice.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BYTES_MAX = 1_048_576


class Alerts(BaseHTTPRequestHandler):
    """One request of Alertmanager's, or of the health check's."""

    timeout = 10

    def do_GET(self) -> None:
        """The health check: whoever listens is healthy."""
        self._answered()

    def do_POST(self) -> None:
        """A group of alerts."""
        size = min(int(self.headers.get("content-length") or 0), BYTES_MAX)
        for line in lines(self.rfile.read(size)):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        self._answered()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing about requests: the log is for alerts."""

    def _answered(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


def lines(body: bytes) -> list[str]:
    """One line for each alert: status, severity, name, and what it says of itself."""
    try:
        alerts = json.loads(body)["alerts"]
        return [_line(alert) for alert in alerts]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"not a webhook of Alertmanager's: {body[:200]!r}"]


def _line(alert: dict[str, dict[str, str]]) -> str:
    labels, said = alert["labels"], alert.get("annotations", {})
    head = f"{alert['status']} {labels.get('severity', '-')} {labels['alertname']}"
    return f"{head}: {said.get('summary', '-')} | {said.get('runbook', '-')}".replace("\n", " ")


if __name__ == "__main__":
    ThreadingHTTPServer(("", int(sys.argv[1])), Alerts).serve_forever()
