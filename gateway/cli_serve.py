"""`fairgate serve`: arguments only, and all of the command that a serving process loads."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from gateway.settings import Settings

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="The YAML file; default: $FAIRGATE_CONFIG.")
]
ReplicaOption = Annotated[
    list[str] | None, typer.Option("--replica", help="URL of an engine; may be repeated.")
]
PolicyOption = Annotated[
    str | None, typer.Option("--policy", help="fair, or fifo: no queue, no gate, no fairness.")
]

NEVER_USED = ("httpx._main", "pydantic.v1")
"""httpx's command line, with rich where that is installed; what FastAPI holds each type against."""

app = typer.Typer(name="fairgate", pretty_exceptions_enable=False)


@app.callback()
def fairgate() -> None:
    """The fair, SLA-tiered front door of a self-hosted LLM fleet."""


@app.command()
def serve(
    *,
    config: ConfigOption = None,
    replica: ReplicaOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    policy: PolicyOption = None,
    insecure_no_auth: Annotated[
        bool, typer.Option("--insecure-no-auth", help="Serve other machines without API keys.")
    ] = False,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info (default), warning, error.")
    ] = None,
    request_log: Annotated[
        str | None,
        typer.Option(help="A file for one JSON line a request; - is standard output."),
    ] = None,
    redis: Annotated[
        str | None, typer.Option(help="URL of the Redis over which several gateways act as one.")
    ] = None,
    batches: Annotated[str | None, typer.Option(help="Folder or URL of the Batch API.")] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes on one port; above 1 it needs Redis.")
    ] = 1,
) -> None:
    """Run the gateway."""
    spare_what_is_never_used()
    from gateway.runtime.berth import berth_in
    from gateway.settings import load_settings

    path = config or Path(os.environ.get("FAIRGATE_CONFIG", ""))
    overrides: dict[str, object] = {
        "replicas": tuple(replica) if replica else None,
        "listen.host": host,
        "listen.port": port,
        "policy": policy,
        "insecure_no_auth": insecure_no_auth or None,
        "log.level": log_level,
        "log.requests": request_log,
        "redis.url": redis,
        "batches.files": batches,
    }
    settings = settings_of(config, overrides)

    def load() -> "Settings":
        return load_settings(config=config, environ=os.environ, overrides=overrides)

    # Without a file there is nothing to read again, and a terminal that goes ends what it started.
    reads_again = bool(path.name or settings.log.requests)
    worker = berth_in(os.environ)
    if worker is None and workers > 1:
        from gateway.workers import objection, supervise

        if why_not := objection(settings, workers):
            sys.stderr.write(f"{why_not}\n")
            raise typer.Exit(2)
        raise typer.Exit(supervise(settings, workers, hears_again=reads_again))
    from gateway.server import serve as run

    run(settings, load if reads_again else None, worker)


def spare_what_is_never_used() -> None:
    """4 MB in every worker. What is None among the modules counts as not installed."""
    for name in NEVER_USED:
        sys.modules.setdefault(name, cast(ModuleType, None))


def settings_of(config: Path | None, overrides: dict[str, object]) -> "Settings":
    """The settings, or every fault on stderr and exit status 2."""
    from gateway.settings import SettingsError, load_settings

    try:
        return load_settings(config=config, environ=os.environ, overrides=overrides)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(2) from None
