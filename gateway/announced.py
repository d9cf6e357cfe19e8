"""What is printed when the gateway starts: where it is, and who may come."""

from rich.console import Console

from gateway import __version__
from gateway.settings import Settings


def announce(settings: Settings, console: Console, made_key: str | None) -> None:
    """Print it. `made_key`: an admin key that was made for this run; None: one is configured."""
    base = f"http://{settings.listen.host}:{settings.listen.port}"
    apart = settings.listen.admin_port
    docs = base if apart is None else f"http://{settings.listen.host}:{apart}"
    console.print(f"fairgate {__version__} on {base}  (docs: {docs}/docs)")
    if settings.is_open:
        console.print("open mode: no API key is configured, so only this machine is served")
    if made_key is not None and not settings.is_local:
        console.print(f"admin key for /admin, /metrics and /docs, made for this run: {made_key}")
