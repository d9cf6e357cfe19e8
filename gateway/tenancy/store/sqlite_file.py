"""A database file: made, recognised, checked, migrated, and let go of; never what is in its rows.

Several processes of one machine may hold the same file. Each keeps to SQLite's own locks.
"""

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from gateway.tenancy.store.port import StoreError

LOGGER = logging.getLogger("fairgate.store")

APPLICATION_ID = 0x66616972
"""`fair`, in the header of the file."""
BUSY_S = 2.0
"""How long another process may hold the lock on writing."""
TRY_AGAIN_S = 0.01
WAL_BYTES_KEPT = 4 << 20
"""Of the write-ahead log, after what it holds went into the file."""
MODE = 0o600

Identity = tuple[int, int] | None

Migrations = tuple[tuple[str, ...], ...]

MIGRATIONS: Migrations = (
    (
        """CREATE TABLE state (
            only INTEGER PRIMARY KEY CHECK (only = 1),
            revision INTEGER NOT NULL,
            records INTEGER NOT NULL,
            audit_bytes INTEGER NOT NULL,
            audit_floor INTEGER NOT NULL,
            answers_bytes INTEGER NOT NULL
        ) STRICT""",
        "INSERT INTO state VALUES (1, 0, 0, 0, 0, 0)",
        """CREATE TABLE records (
            kind TEXT NOT NULL,
            id TEXT NOT NULL,
            version INTEGER NOT NULL,
            body TEXT NOT NULL,
            PRIMARY KEY (kind, id)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE audit (
            sequence INTEGER PRIMARY KEY AUTOINCREMENT,
            revision INTEGER NOT NULL,
            size INTEGER NOT NULL,
            at REAL NOT NULL,
            who TEXT NOT NULL,
            action TEXT NOT NULL,
            request_id TEXT NOT NULL,
            kind TEXT NOT NULL,
            id TEXT NOT NULL,
            before TEXT,
            after TEXT
        ) STRICT""",
        """CREATE TABLE answers (
            sequence INTEGER PRIMARY KEY AUTOINCREMENT,
            size INTEGER NOT NULL,
            key TEXT NOT NULL UNIQUE,
            answer BLOB NOT NULL
        ) STRICT""",
        """CREATE TABLE spent (
            period TEXT NOT NULL,
            holder TEXT NOT NULL,
            tokens INTEGER NOT NULL,
            PRIMARY KEY (period, holder)
        ) STRICT, WITHOUT ROWID""",
    ),
)
"""Statements that lead from each schema to the next; the count is the version of the newest."""


def identity(path: Path) -> Identity:
    """Which file lies at `path`; None: none does."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def connected(
    path: Path, *, creates: bool, migrations: Migrations = MIGRATIONS
) -> sqlite3.Connection | None:
    """The database at `path`, checked and of the newest schema.

    None where there is no file and `creates` is false. Raises StoreError, sqlite3.Error, OSError.
    """
    if identity(path) is None:
        if not creates:
            return None
        _create(path)
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        _when_free(partial(_prepare, connection, path, migrations))
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, *, writes: bool) -> Iterator[None]:
    """All of the block at one state of the file, and what it writes as a whole or not at all."""
    connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def let_go(connection: sqlite3.Connection) -> None:
    """Close it; the log goes into the file and free pages to the disk, if nobody else is there."""
    with suppress(sqlite3.Error):
        # It frees a page each step, and `execute` makes one step only.
        connection.executescript("PRAGMA incremental_vacuum")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


def check_schema(
    connection: sqlite3.Connection, path: Path, migrations: Migrations = MIGRATIONS
) -> int:
    """The file's version of the schema. Raises StoreError where it is newer than this program."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(migrations):
        raise StoreError(
            f"{path} has schema {version}, and this fairgate knows no newer one than "
            f"{len(migrations)}: use the newer fairgate, or restore a backup of before its start"
        )
    return version


def explained(path: Path, error: Exception) -> StoreError:
    """What went wrong, and what an operator can do about it."""
    if isinstance(error, OSError):
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        code = sqlite3.SQLITE_FULL if is_full else sqlite3.SQLITE_CANTOPEN
    else:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    match code:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(path, str(error))
        case sqlite3.SQLITE_FULL:
            what = "the disk is full: nothing was written"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            what = f"another process held its lock for {BUSY_S:g} s: nothing was written"
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY:
            what = (
                f"cannot be written ({error}): its folder must be there, and the gateway's user "
                "must be allowed to write both; store.url says where it lies"
            )
        case _:
            what = str(error)
    return StoreError(f"{path}: {what}")


def damaged(path: Path, detail: str) -> StoreError:
    """The file is not what was written."""
    return StoreError(
        f"{path} is damaged ({' '.join(detail.split())}): stop what uses it, move it and its -wal "
        "file away, and put a backup there, or read one in with `fairgate store import`"
    )


def check_folder(path: Path) -> None:
    """Whether a file can be made at `path` later. Raises StoreError where there is no folder."""
    if not path.parent.is_dir():
        raise StoreError(f"{path}: there is no folder {path.parent}; store.url says where it lies")
    if not os.access(path.parent, os.W_OK):
        LOGGER.warning(
            "%s cannot be written: nothing that is changed while the gateway runs, and no budget "
            "that is spent, will survive it; set store.url",
            path,
        )


def _create(path: Path) -> None:
    """An empty file that only its owner reads: hashes of keys will lie there."""
    # Another process may be as quick; SQLite gives its own files beside it the same mode.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, MODE))


def _when_free(prepare: Callable[[], None]) -> None:
    """`prepare`, again where another process is just doing the same.

    SQLite itself does not wait for the change to a write-ahead log.
    """
    for is_last in (*(False,) * int(BUSY_S / TRY_AGAIN_S), True):
        try:
            prepare()
        except sqlite3.OperationalError as error:
            if is_last or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(TRY_AGAIN_S)
        else:
            return


def _prepare(connection: sqlite3.Connection, path: Path, migrations: Migrations) -> None:
    _recognise(connection, path)
    version = check_schema(connection, path, migrations)
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise damaged(path, verdict)
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(f"{path}: this file system cannot hold a write-ahead log; use another")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    connection.execute("PRAGMA trusted_schema = OFF")
    if version < len(migrations):
        _migrate(connection, path, migrations)


def _recognise(connection: sqlite3.Connection, path: Path) -> None:
    """Whether the file is ours, or nobody's yet."""
    # In this order: whoever makes it at this moment writes both at once, tables and mark.
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    if owner != APPLICATION_ID and (owner or tables):
        raise StoreError(
            f"{path} is the database of another program: store.url names the wrong one"
        )


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Migrations) -> None:
    """One transaction, so that a crash leaves the old schema or the new one."""
    with transaction(connection, writes=True):
        # Looked at again: another process may have been as quick.
        for statements in migrations[check_schema(connection, path, migrations) :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
