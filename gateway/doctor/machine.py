"""What is wrong on the gateway's own side: open files, the store, keys in clear, a proxy in front.

It looks at this machine and at the settings; it starts nothing and leaves nothing behind.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import disk_usage
from typing import Final
from urllib.parse import unquote, urlsplit

from gateway.check import Finding
from gateway.runtime.descriptors import RESERVED, connections_for
from gateway.settings import Settings

DISK_BYTES_MIN: Final = 256 << 20
BUSY_S: Final = 2.0


def of_descriptors(settings: Settings, limit: int, used: int) -> Iterator[Finding]:
    """Whether as many may be connected as the settings let wait; `limit` open files are allowed."""
    possible, bounds = connections_for(limit, used), settings.bounds
    wanted = bounds.connections or bounds.waiting
    if possible >= wanted:
        yield Finding("ok", "open files", f"{limit} allowed: {possible} clients at once")
        return
    needed = int(wanted / 0.75) + RESERVED + used + 1
    yield Finding(
        "warning", "open files", f"{limit} are allowed, which is {possible} clients at once; "
        f"{wanted} may wait",
        f"raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile) to {needed} or more",
        "who comes beyond that is refused at the door, whatever their tier",
    )  # fmt: skip


def of_store(settings: Settings) -> Iterator[Finding]:
    """Whether changes could be kept: a SQLite file's folder, lock and disk."""
    url = settings.store.url
    if url is None or url.startswith("memory:"):
        yield Finding(
            "warning", "store", "nothing is kept beyond a restart",
            "set store.url to a file or a Redis",
            "keys, tenants and policies that are made while it runs are gone when it ends",
        )  # fmt: skip
        return
    if urlsplit(url).scheme == "sqlite":
        yield from _of_file(Path(unquote(urlsplit(url).path[1:])))


def _of_file(path: Path) -> Iterator[Finding]:
    folder = path.parent
    mend = "give the gateway's user a folder that it may write to"
    why = "no change over REST can be kept: they are answered 503"
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding("error", "store", f"the folder {folder} cannot be written to", mend, why)
        return
    if path.exists():
        try:
            _lock(path)
        except sqlite3.Error as error:
            yield Finding("error", "store", f"{path} cannot be written to: {error}", mend, why)
            return
    free = disk_usage(folder).free
    if free < DISK_BYTES_MIN:
        yield Finding(
            "warning", "store", f"{free >> 20} MiB are free on the disk of {path}",
            "make room, or move the store", "once it is full, changes are answered 503",
        )  # fmt: skip
    else:
        yield Finding("ok", "store", f"{path} can be written to")


def _lock(path: Path) -> None:
    """Take the lock on writing and give it back. Raises sqlite3.Error."""
    address = f"{path.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as file:
        file.isolation_level = None
        file.execute("BEGIN IMMEDIATE")
        file.execute("ROLLBACK")


def of_exposure(settings: Settings) -> Iterator[Finding]:
    """Keys of clients on their way here: the gateway itself speaks no TLS."""
    if settings.is_local or settings.is_open:
        return
    yield Finding(
        "note", f"{settings.listen.host}:{settings.listen.port}",
        "clients reach it over http: it speaks no TLS itself",
        "put a proxy with TLS in front of it, and say its timeout with --proxy-timeout-s",
        "without one, keys and prompts are read by whoever listens on the way",
    )  # fmt: skip


def of_proxy(settings: Settings, timeout_s: float | None) -> Iterator[Finding]:
    """Whether a proxy in front waits long enough; `timeout_s`: for how long it hears nothing."""
    if timeout_s is None:
        return
    comments_s = settings.keepalive_after_s
    if timeout_s <= comments_s:
        yield Finding(
            "error", "proxy",
            f"it gives up after {timeout_s:g} s, and a stream that waits is silent for "
            f"{comments_s:g} s",
            f"raise its read timeout (nginx: proxy_read_timeout) well above {comments_s:g} s, or "
            "lower keepalive_after_s",
            "streams are cut off while they wait for their turn",
        )  # fmt: skip
        return
    tiers = settings.policy().tiers
    patient = [tier for tier in tiers if tier.patience_s > timeout_s]
    if patient:
        longest = max(patient, key=lambda tier: tier.patience_s)
        yield Finding(
            "warning", "proxy",
            f"it gives up after {timeout_s:g} s, and {longest.name} may wait for "
            f"{longest.patience_s:g} s",
            f"raise its read timeout above {longest.patience_s:g} s and the time of an answer, or "
            "lower the tier's patience_s",
            "a plain request gets no byte while it waits and is worked on: the proxy ends it with "
            "504, and its client comes again",
        )  # fmt: skip
    else:
        yield Finding("ok", "proxy", f"{timeout_s:g} s are longer than anybody's patience")
