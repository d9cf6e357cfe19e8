"""`fairgate batch submit|list|show|cancel`: files of requests that run when there is room.

Each command is a few requests to `/v1/files` and `/v1/batches`. It decides how they look.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.batch.record import seconds_left
from gateway.cli_operate import JsonOption, UrlOption, show, show_one

if TYPE_CHECKING:
    from rich.progress import Progress

    from gateway.remote_batches import RemoteBatches

app = typer.Typer(help="Files of requests that run when there is room.", no_args_is_help=True)

KeyOption = Annotated[str | None, typer.Option("--key", help="Default: $FAIRGATE_API_KEY.")]
BatchId = Annotated[str, typer.Argument(help="As `batch list` tells it.")]
COLUMNS = ("id", "status", "endpoint", "done", "failed", "total", "left", "created")
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
ASK_S = 1.0


@app.command("submit")
def submit(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSONL, as OpenAI's.")],
    *,
    endpoint: Annotated[
        str | None, typer.Option(help="Default: what the first line asks for.")
    ] = None,
    window: Annotated[str, typer.Option(help="It must be done in: 24h, 90m, 7d.")] = "24h",
    tier: Annotated[str | None, typer.Option(help="Default: `batches.tier`.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="For the answers; default: beside FILE.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Follow it to its end.")] = True,
    gateway: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Upload FILE, run it, and fetch its answers. Ctrl-C leaves the batch running."""
    from gateway.remote import RemoteError

    with _gateway_at(gateway, key) as remote, _progress() as progress:
        task = progress.add_task("upload", total=file.stat().st_size)
        file_id = remote.upload(file, lambda size: progress.advance(task, size))
        progress.remove_task(task)
        try:
            asked = endpoint or _endpoint_of(file)
        except ValueError as error:
            raise RemoteError(f"{file}: {error}") from None
        batch = remote.create(file_id, endpoint=asked, window=window, tier=tier)
        sys.stdout.write(f"{batch['id']}\n")
        if not wait:
            return
        batch = _followed(remote, batch, progress)
    _report(batch)
    with _gateway_at(gateway, key) as remote:
        _fetch(remote, batch, output or file.with_suffix(".output.jsonl"))
    raise typer.Exit(0 if batch["status"] == "completed" else 1)


@app.command("list")
def list_batches(
    *, gateway: UrlOption = None, key: KeyOption = None, as_json: JsonOption = False
) -> None:
    """The batches of this key's user, newest first."""
    with _gateway_at(gateway, key) as remote:
        found = list(remote.all())
    now = time.time()
    rows = found if as_json else [row_of(batch, now) for batch in found]
    show(rows, COLUMNS, as_json=as_json)


@app.command("show")
def show_batch(
    batch_id: BatchId,
    *,
    gateway: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """All that is known of one batch."""
    with _gateway_at(gateway, key) as remote:
        show_one(remote.batch(batch_id), as_json=as_json)


@app.command("cancel")
def cancel(
    batch_id: BatchId,
    *,
    gateway: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a batch; what it has done is kept."""
    with _gateway_at(gateway, key) as remote:
        show_one(remote.cancel(batch_id), as_json=as_json)


def row_of(batch: Mapping[str, Any], now: float) -> dict[str, Any]:
    """What a table shows of a batch at `now`, in seconds since 1970."""
    counts = batch["request_counts"]
    left_s = left_of(batch, now)
    made = time.localtime(batch["created_at"])
    return {
        **batch,
        "done": counts["completed"],
        "failed": counts["failed"],
        "total": counts["total"],
        "left": None if left_s is None else _duration(left_s),
        "created": time.strftime("%Y-%m-%d %H:%M", made),
    }


def left_of(batch: Mapping[str, Any], now: float) -> float | None:
    """See `seconds_left`, of a batch as `/v1/batches` tells it."""
    counts = batch["request_counts"]
    return seconds_left(
        batch["status"],
        began_at=batch["in_progress_at"],
        done=counts["completed"] + counts["failed"],
        total=counts["total"],
        now=now,
    )


def _duration(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}"


def _followed(
    remote: "RemoteBatches", batch: dict[str, Any], progress: "Progress"
) -> dict[str, Any]:
    """The batch once it has ended."""
    task = progress.add_task(batch["status"], total=None)
    while batch["status"] not in ENDED:
        time.sleep(ASK_S)
        batch = remote.batch(batch["id"])
        counts = batch["request_counts"]
        progress.update(
            task,
            description=batch["status"],
            total=counts["total"] or None,
            completed=counts["completed"] + counts["failed"],
        )
    return batch


def _report(batch: Mapping[str, Any]) -> None:
    counts = batch["request_counts"]
    sys.stderr.write(
        f"{batch['status']}: {counts['completed']} of {counts['total']} answered, "
        f"{counts['failed']} failed\n"
    )
    for fault in (batch["errors"] or {"data": []})["data"]:
        line = "" if fault["line"] is None else f"line {fault['line']}: "
        sys.stderr.write(f"  {line}{fault['message']}\n")


def _fetch(remote: "RemoteBatches", batch: Mapping[str, Any], path: Path) -> None:
    """What it put out, as files."""
    errors = path.with_name(f"{path.stem}.errors.jsonl")
    for file_id, target in ((batch["output_file_id"], path), (batch["error_file_id"], errors)):
        if file_id is not None:
            remote.download(file_id, target)
            sys.stderr.write(f"written: {target}\n")


def _endpoint_of(file: Path) -> str:
    """What the first line asks for. Raises ValueError."""
    import json

    with file.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    try:
        return str(json.loads(first)["url"])
    except (ValueError, KeyError, TypeError):
        raise ValueError("the first line names no url; give --endpoint") from None


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


@contextmanager
def _gateway_at(url: str | None, key: str | None) -> Iterator["RemoteBatches"]:
    """The gateway that is meant; what it refuses ends the command with status 1."""
    from gateway.remote import URL_DEFAULT, URL_VARIABLE, RemoteError
    from gateway.remote_batches import KEY_VARIABLE, RemoteBatches

    where = url or os.environ.get(URL_VARIABLE) or URL_DEFAULT
    try:
        with RemoteBatches(where, key or os.environ.get(KEY_VARIABLE)) as remote:
            yield remote
    except RemoteError as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(1) from None
