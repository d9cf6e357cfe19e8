"""`fairgate store`: a store as lines of JSON, and back. It decides what is printed, and where."""

import asyncio
import os
import sys
import time
from collections.abc import Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.tenancy.store.port import Store

app = typer.Typer(
    help="What is kept beyond a restart: records of tenants, keys, replicas and policy.",
    no_args_is_help=True,
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="The YAML file; default: $FAIRGATE_CONFIG.")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Of the store; default: store.url of the settings.")
]


@app.command("export")
def store_export(
    *,
    config: ConfigOption = None,
    url: UrlOption = None,
    audit: Annotated[bool, typer.Option("--audit", help="The audit too.")] = False,
) -> None:
    """Write all records to standard output, a line each; while gateways run, too."""
    from gateway.tenancy.store.transfer import exported

    async def export() -> None:
        count = -2  # the first line and the last are none
        async with _open(config, url) as store:
            async for line in exported(store, with_audit=audit):
                sys.stdout.buffer.write(line)
                count += 1
        sys.stdout.buffer.flush()
        sys.stderr.write(f"{count} lines of records{' and audit' if audit else ''} exported.\n")

    _run(export())


@app.command("import")
def store_import(
    file: Annotated[Path, typer.Argument(help="What `store export` wrote; - is standard input.")],
    *,
    config: ConfigOption = None,
    url: UrlOption = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take away the records that are there.")
    ] = False,
) -> None:
    """Put all records of an export into a store, in one commit; gateways that run follow it."""
    from gateway.tenancy.store.port import Deed
    from gateway.tenancy.store.transfer import imported, read_lines

    async def put() -> None:
        if str(file) == "-":
            records = read_lines(sys.stdin.buffer)
        else:
            with file.open("rb") as lines:
                records = read_lines(lines)
        deed = Deed(at=time.time(), who="command line", action="store.import")
        async with _open(config, url) as store:
            made = await imported(store, records, deed, replaces=replace)
        sys.stderr.write(f"{made.put} records imported, {made.removed} others removed.\n")

    _run(put())


@asynccontextmanager
async def _open(config: Path | None, url: str | None) -> "AsyncIterator[Store]":
    """The store of the settings, or the one at `url`."""
    from gateway.settings import load_store_url
    from gateway.tenancy.store.opening import is_shared, store_of

    if url is None:
        url = load_store_url(config=config, environ=os.environ)
    if not is_shared(url):
        raise ValueError("a store in memory is nobody's but its gateway's: store.url names another")
    store = store_of(url)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def _run(command: Coroutine[Any, Any, None]) -> None:
    """Exit status 0, or what went wrong on stderr and exit status 1, or 2 for the settings."""
    from gateway.settings import SettingsError
    from gateway.tenancy.store.port import ConflictError, StoreError
    from gateway.tenancy.store.transfer import TransferError

    try:
        asyncio.run(command)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(2) from None
    except ConflictError:
        sys.stderr.write("somebody changed the store in this moment; nothing was written\n")
        raise typer.Exit(1) from None
    except (StoreError, TransferError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(1) from None
