"""Files and batches as rows: how they are written, found, changed and forgotten.

Each function is the inside of one transaction, which its caller opens.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from gateway.batch.record import Batch, Counts, Owner, StoredFile, Tokens
from gateway.batch.store import CHECK, FINISH, InUseError, Kept, Quota, QuotaError, StaleError
from gateway.tenancy.store.sqlite_file import Migrations

FORGOTTEN_MAX = 1_000
"""Of each kind in one go."""

MIGRATIONS: Migrations = (
    (
        """CREATE TABLE files (
            sequence INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            user TEXT NOT NULL,
            purpose TEXT NOT NULL,
            size INTEGER NOT NULL,
            expires_at REAL,
            object TEXT NOT NULL,
            body BLOB NOT NULL
        ) STRICT""",
        "CREATE INDEX files_of ON files (tenant, user, sequence)",
        "CREATE INDEX files_due ON files (expires_at)",
        """CREATE TABLE batches (
            sequence INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            user TEXT NOT NULL,
            status TEXT NOT NULL,
            is_open INTEGER NOT NULL,
            input_file TEXT NOT NULL,
            created_at REAL NOT NULL,
            expires_at REAL NOT NULL,
            version INTEGER NOT NULL,
            body BLOB NOT NULL
        ) STRICT""",
        "CREATE INDEX batches_of ON batches (tenant, user, sequence)",
        "CREATE INDEX batches_open ON batches (is_open, sequence)",
        """CREATE TABLE parts (
            batch TEXT NOT NULL,
            first INTEGER NOT NULL,
            lines INTEGER NOT NULL,
            start INTEGER NOT NULL,
            done BLOB NOT NULL,
            is_done INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            holder TEXT,
            until REAL NOT NULL,
            completed INTEGER NOT NULL,
            failed INTEGER NOT NULL,
            input_tokens INTEGER NOT NULL,
            cached_tokens INTEGER NOT NULL,
            output_tokens INTEGER NOT NULL,
            PRIMARY KEY (batch, first)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE pieces (
            batch TEXT NOT NULL,
            object TEXT NOT NULL,
            size INTEGER NOT NULL,
            is_errors INTEGER NOT NULL,
            PRIMARY KEY (batch, object)
        ) STRICT, WITHOUT ROWID""",
    ),
)

_BATCHES = msgspec.json.Decoder(Batch)
_FILES = msgspec.json.Decoder(StoredFile)
_COUNTS = """SELECT total(completed), total(failed), total(input_tokens), total(cached_tokens),
    total(output_tokens) FROM parts WHERE batch = ?"""


def add_file(connection: sqlite3.Connection, file: StoredFile, quota: Quota) -> None:
    """Raises QuotaError."""
    row = connection.execute(
        "SELECT count(*), total(size) FROM files WHERE tenant = ?", (file.owner.tenant,)
    ).fetchone()
    if row[0] >= quota.files:
        raise QuotaError(f"Your organisation has {quota.files} files, which is all that it may.")
    if row[1] + file.size > quota.bytes:
        raise QuotaError(f"The files of your organisation may have {quota.bytes} bytes together.")
    put_file(connection, file)


def put_file(connection: sqlite3.Connection, file: StoredFile) -> None:
    """Keep it, whatever else there is."""
    connection.execute(
        "INSERT INTO files VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            file.id, file.owner.tenant, file.owner.user, file.purpose, file.size, file.expires_at,
            file.object, msgspec.json.encode(file),
        ),
    )  # fmt: skip


def file(connection: sqlite3.Connection, file_id: str) -> StoredFile | None:
    """The file of this id."""
    row = connection.execute("SELECT body FROM files WHERE id = ?", (file_id,)).fetchone()
    return None if row is None else _FILES.decode(row[0])


def files(
    connection: sqlite3.Connection,
    *,
    owner: Owner,
    after: str | None,
    limit: int,
    purpose: str | None,
    is_newest: bool,
) -> list[StoredFile]:
    """Of one owner, by age."""
    compared, order = ("<", "DESC") if is_newest else (">", "ASC")
    rows = connection.execute(
        # Words of our own are put in, nobody else's.
        f"""SELECT body FROM files WHERE tenant = ? AND user = ? AND (? IS NULL OR purpose = ?)
        AND (? IS NULL OR sequence {compared} (SELECT sequence FROM files WHERE id = ?))
        ORDER BY sequence {order} LIMIT ?""",  # noqa: S608 - see above
        (owner.tenant, owner.user, purpose, purpose, after, after, limit),
    )
    return [_FILES.decode(body) for (body,) in rows]


def drop_file(connection: sqlite3.Connection, file_id: str) -> None:
    """Raises InUseError."""
    wanted = connection.execute(
        "SELECT 1 FROM batches WHERE is_open = 1 AND input_file = ?", (file_id,)
    ).fetchone()
    if wanted:
        raise InUseError(file_id)
    connection.execute("DELETE FROM files WHERE id = ?", (file_id,))


def add_batch(connection: sqlite3.Connection, batch: Batch, quota: Quota) -> None:
    """Raises QuotaError."""
    row = connection.execute(
        "SELECT count(*) FROM batches WHERE is_open = 1 AND tenant = ?", (batch.owner.tenant,)
    ).fetchone()
    if row[0] >= quota.open_batches:
        text = f"Your organisation has {quota.open_batches} open batches, which is all that it may."
        raise QuotaError(text)
    connection.execute(
        "INSERT INTO batches VALUES (NULL, ?, ?, ?, ?, 1, ?, ?, ?, 1, ?)",
        (
            batch.id, batch.owner.tenant, batch.owner.user, batch.status, batch.input_file_id,
            batch.created_at, batch.expires_at, msgspec.json.encode(batch),
        ),
    )  # fmt: skip
    add_parts(connection, batch.id, [(CHECK, 0, 0), (FINISH, 0, 0)])


def add_parts(
    connection: sqlite3.Connection, batch_id: str, parts: Sequence[tuple[int, int, int]]
) -> None:
    """Parts by their first request, requests, and byte where they begin."""
    connection.executemany(
        "INSERT INTO parts VALUES (?, ?, ?, ?, ?, 0, 0, NULL, 0, 0, 0, 0, 0, 0)",
        [(batch_id, first, lines, start, bytes(lines)) for first, lines, start in parts],
    )


def batch(connection: sqlite3.Connection, batch_id: str) -> Kept | None:
    """With its counts as they are."""
    row = connection.execute(
        "SELECT body, version FROM batches WHERE id = ?", (batch_id,)
    ).fetchone()
    return None if row is None else Kept(batch=_counted(connection, row[0]), version=row[1])


def batches(
    connection: sqlite3.Connection, *, owner: Owner, after: str | None, limit: int
) -> list[Batch]:
    """Of one owner, newest first."""
    rows = connection.execute(
        """SELECT body FROM batches WHERE tenant = ? AND user = ?
        AND (? IS NULL OR sequence < (SELECT sequence FROM batches WHERE id = ?))
        ORDER BY sequence DESC LIMIT ?""",
        (owner.tenant, owner.user, after, after, limit),
    ).fetchall()
    return [_counted(connection, body) for (body,) in rows]


def newest(connection: sqlite3.Connection, *, limit: int) -> list[Batch]:
    """Of everybody, open ones first."""
    rows = connection.execute(
        "SELECT body FROM batches ORDER BY is_open DESC, sequence DESC LIMIT ?", (limit,)
    ).fetchall()
    return [_counted(connection, body) for (body,) in rows]


def put(connection: sqlite3.Connection, kept: Kept) -> None:
    """Raises StaleError. Of one that ended, only files and counts are left."""
    changed = kept.batch
    row = connection.execute(
        """UPDATE batches SET status = ?, is_open = ?, version = version + 1, body = ?
        WHERE id = ? AND version = ?""",
        (
            changed.status, changed.is_open, msgspec.json.encode(changed),
            changed.id, kept.version,
        ),
    )  # fmt: skip
    if row.rowcount != 1:
        raise StaleError(changed.id)
    if not changed.is_open:
        connection.execute("DELETE FROM parts WHERE batch = ?", (changed.id,))
        connection.execute("DELETE FROM pieces WHERE batch = ?", (changed.id,))


def due(connection: sqlite3.Connection, *, now: float) -> tuple[list[Kept], list[StoredFile]]:
    """Batches whose window has closed, and files to be forgotten."""
    late = connection.execute(
        """SELECT body, version FROM batches WHERE is_open = 1 AND expires_at <= ?
        AND status IN ('validating', 'in_progress') LIMIT ?""",
        (now, FORGOTTEN_MAX),
    ).fetchall()
    old = connection.execute(
        """SELECT body FROM files WHERE expires_at <= ? AND id NOT IN
        (SELECT input_file FROM batches WHERE is_open = 1) LIMIT ?""",
        (now, FORGOTTEN_MAX),
    )
    kept = [Kept(batch=_counted(connection, body), version=version) for body, version in late]
    return kept, [_FILES.decode(body) for (body,) in old]


def forget_batches(connection: sqlite3.Connection, *, before: float) -> None:
    """Those that ended."""
    connection.execute(
        """DELETE FROM batches WHERE id IN
        (SELECT id FROM batches WHERE is_open = 0 AND created_at < ? LIMIT ?)""",
        (before, FORGOTTEN_MAX),
    )


def objects(connection: sqlite3.Connection) -> set[str]:
    """All that anybody needs."""
    rows = connection.execute("SELECT object FROM files UNION SELECT object FROM pieces")
    return {name for (name,) in rows}


def _counted(connection: sqlite3.Connection, body: bytes) -> Batch:
    found = _BATCHES.decode(body)
    if not found.is_open:
        return found
    completed, failed, read, cached, written = map(
        int, connection.execute(_COUNTS, (found.id,)).fetchone()
    )
    tokens = Tokens(input=read, cached=cached, output=written)
    return replace(found, counts=Counts(completed=completed, failed=failed, tokens=tokens))
