"""What is printed when the gateway starts: where it is, and who may come."""

import sys

from gateway import __version__
from gateway.settings import Settings


def announce(settings: Settings, made_key: str | None) -> None:
    """Print it. `made_key`: an admin key that was made for this run; None: one is configured."""
    base = f"http://{settings.listen.host}:{settings.listen.port}"
    apart = settings.listen.admin_port
    theirs = base if apart is None else f"http://{settings.listen.host}:{apart}"
    lines = [f"fairgate {__version__} on {base}  (console: {theirs}/console, docs: {theirs}/docs)"]
    if settings.is_open:
        lines.append("open mode: no API key is configured, so only this machine is served")
    if made_key is not None and not settings.is_local:
        lines.append(
            f"admin key for /console, /admin, /metrics and /docs, made for this run: {made_key}"
        )
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
