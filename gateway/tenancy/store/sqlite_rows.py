"""What a store does, as statements on an open database. Each function is one transaction.

Where the file lies, who else has it open and which thread this is are not known here.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from gateway.tenancy.store.documents import (
    ENTRY_BYTES,
    Change,
    body_of,
    body_or_none,
    changes_in,
    entry_bytes,
    forgotten,
    unpacked,
)
from gateway.tenancy.store.port import (
    CHANGES_MAX,
    Answer,
    AnsweredError,
    AuditEntry,
    Changes,
    ConflictError,
    Contents,
    Deed,
    Kept,
    Kind,
    Record,
    StoreError,
)
from gateway.tenancy.store.sqlite_file import transaction

SEQUENCE_MAX = (1 << 63) - 1
ANY = (None,) * 4
NEWEST_FIRST = (
    "SELECT sequence, revision, at, who, action, request_id, kind, id, before, after FROM audit"
    " WHERE sequence < ? AND (? IS NULL OR kind = ?) AND (? IS NULL OR id = ?)"
    " ORDER BY sequence DESC LIMIT ?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """How a table that keeps its newest rows is asked and trimmed."""

    newest: str
    oldest: str
    drop: str


AUDIT = Table(
    newest="SELECT max(sequence) FROM audit",
    oldest="SELECT sequence, size, revision FROM audit ORDER BY sequence",
    drop="DELETE FROM audit WHERE sequence <= ?",
)
ANSWERS = Table(
    newest="SELECT max(sequence) FROM answers",
    oldest="SELECT sequence, size, 0 FROM answers ORDER BY sequence",
    drop="DELETE FROM answers WHERE sequence <= ?",
)


def read(connection: sqlite3.Connection) -> Contents:
    """Everything."""
    with transaction(connection, writes=False):
        found = revision(connection)
        rows = connection.execute(
            "SELECT kind, id, version, body FROM records ORDER BY kind, id"
        ).fetchall()
    records = (
        Record(kind=kind, id=id, version=version, body=body_of(body))
        for kind, id, version, body in rows
    )
    return Contents(revision=found, records=tuple(records))


def revision(connection: sqlite3.Connection) -> int:
    """Of the last commit."""
    return int(connection.execute("SELECT revision FROM state").fetchone()[0])


def changes(connection: sqlite3.Connection, since: int) -> Changes | None:
    """From the audit, as far as it goes."""
    with transaction(connection, writes=False):
        found, floor = connection.execute("SELECT revision, audit_floor FROM state").fetchone()
        if not floor <= since <= found:
            return None
        # Not by an index on revisions: what changed lately are the last few.
        rows = connection.execute(NEWEST_FIRST, (SEQUENCE_MAX, *ANY, CHANGES_MAX + 1))
        entries = list(takewhile(lambda entry: entry.revision > since, map(_entry, rows)))
    return None if len(entries) > CHANGES_MAX else changes_in(entries, found)


def commit(
    connection: sqlite3.Connection,
    writes: Sequence[Change],
    deed: Deed,
    *,
    answer: tuple[str, bytes] | None,
    kept: Kept,
) -> int:
    """All or nothing, on the disk when it returns."""
    connection.execute("PRAGMA synchronous = FULL")
    with transaction(connection, writes=True):
        row = connection.execute(
            "SELECT revision, records, audit_bytes, audit_floor, answers_bytes FROM state"
        ).fetchone()
        last, records, audit_bytes, audit_floor, answers_bytes = row
        _check_answer(connection, answer)
        befores = [_before(connection, each) for each in writes]
        grown = sum(_grows(each, before) for each, before in zip(writes, befores, strict=True))
        if grown > 0 and records + grown > kept.records:
            raise StoreError(f"the store holds {records} records already")
        for each, before in zip(writes, befores, strict=True):
            _write(connection, each, last + 1)
            audit_bytes += _note(connection, each, before, (last + 1, deed))
        if answer is not None:
            answers_bytes += _keep_answer(connection, *answer)
        dropped, floor = _trim(connection, AUDIT, (kept.audit, kept.audit_bytes), audit_bytes)
        freed, _ = _trim(connection, ANSWERS, (kept.answers, kept.answers_bytes), answers_bytes)
        connection.execute(
            "UPDATE state SET revision = ?, records = ?, audit_bytes = ?, audit_floor = ?, "
            "answers_bytes = ?",
            (
                last + 1,
                records + grown,
                audit_bytes - dropped,
                max(floor, audit_floor),
                answers_bytes - freed,
            ),
        )
    return int(last) + 1


def audit(
    connection: sqlite3.Connection,
    *,
    before: int | None,
    limit: int,
    kind: Kind | None,
    record_id: str | None,
) -> tuple[AuditEntry, ...]:
    """Newest first."""
    first = SEQUENCE_MAX if before is None else before
    rows = connection.execute(NEWEST_FIRST, (first, kind, kind, record_id, record_id, limit))
    return tuple(map(_entry, rows))


def answered(connection: sqlite3.Connection, key: str) -> Answer | None:
    """What was answered under this key."""
    row = connection.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
    return None if row is None else unpacked(row[0])


def spent(connection: sqlite3.Connection, periods: Sequence[str]) -> Mapping[tuple[str, str], int]:
    """By holder and period."""
    return {
        (holder, period): tokens
        for period in periods
        for holder, tokens in connection.execute(
            "SELECT holder, tokens FROM spent WHERE period = ?", (period,)
        )
    }


def spend(connection: sqlite3.Connection, amounts: Sequence[tuple[str, str, int]]) -> None:
    """Add, without waiting for the disk: a crash of the process loses nothing of it."""
    connection.execute("PRAGMA synchronous = NORMAL")
    with transaction(connection, writes=True):
        connection.executemany(
            "INSERT INTO spent VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET tokens = tokens + excluded.tokens",
            amounts,
        )
        periods = connection.execute("SELECT DISTINCT period FROM spent").fetchall()
        connection.executemany(
            "DELETE FROM spent WHERE period = ?",
            [(old,) for old in forgotten(period for (period,) in periods)],
        )


def _check_answer(connection: sqlite3.Connection, answer: tuple[str, bytes] | None) -> None:
    if answer is not None and answered(connection, answer[0]) is not None:
        raise AnsweredError(answer[0])


def _before(connection: sqlite3.Connection, change: Change) -> str | None:
    """The body that is there. Raises ConflictError where its version is not the expected one."""
    row = connection.execute(
        "SELECT version, body FROM records WHERE kind = ? AND id = ?", change.place
    ).fetchone()
    version, body = row or (0, None)
    if change.expected not in (None, version):
        raise ConflictError(change.kind, change.id, version)
    return None if body is None else str(body)


def _grows(change: Change, before: str | None) -> int:
    """By how many records the store grows."""
    return (change.text is not None) - (before is not None)


def _write(connection: sqlite3.Connection, change: Change, version: int) -> None:
    if change.text is None:
        connection.execute("DELETE FROM records WHERE kind = ? AND id = ?", change.place)
        return
    connection.execute(
        "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)",
        (*change.place, version, change.text),
    )


def _note(
    connection: sqlite3.Connection, change: Change, before: str | None, made: tuple[int, Deed]
) -> int:
    """The change's entry; returns its size."""
    if before is None and change.text is None:
        return 0
    number, deed = made
    size = entry_bytes(change, before)
    connection.execute(
        "INSERT INTO audit VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(number, size, deed.at, deed.who, deed.action, deed.request_id),
            *(change.kind, change.id, before, change.text),
        ),
    )
    return size


def _keep_answer(connection: sqlite3.Connection, key: str, value: bytes) -> int:
    size = ENTRY_BYTES + len(value)
    connection.execute("INSERT INTO answers VALUES (NULL, ?, ?, ?)", (size, key, value))
    return size


def _trim(
    connection: sqlite3.Connection, table: Table, bounds: tuple[int, int], size: int
) -> tuple[int, int]:
    """Drop the oldest rows beyond the bounds on their number and bytes.

    Returns the bytes dropped and, of the audit, the newest revision that is not whole any more.
    """
    rows_max, bytes_max = bounds
    newest = connection.execute(table.newest).fetchone()[0] or 0
    dropped = floor = last = 0
    for sequence, row_bytes, revision_of_row in connection.execute(table.oldest):
        if sequence > newest - rows_max and size - dropped <= bytes_max:
            break
        last, dropped, floor = sequence, dropped + row_bytes, revision_of_row
    connection.execute(table.drop, (last,))
    return dropped, floor


def _entry(row: tuple[Any, ...]) -> AuditEntry:
    sequence, number, at, who, action, request_id, kind, id, before, after = row
    return AuditEntry(
        sequence=sequence,
        revision=number,
        deed=Deed(at=at, who=who, action=action, request_id=request_id),
        kind=kind,
        id=id,
        before=body_or_none(before),
        after=body_or_none(after),
    )
