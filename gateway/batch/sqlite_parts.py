"""Parts of batches as rows: who works on which, and how far it has come.

Each function is the inside of one transaction, which its caller opens.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from gateway.batch.record import Counts, StoredFile, Tokens, all_run
from gateway.batch.sqlite_rows import add_parts, put, put_file
from gateway.batch.sqlite_rows import batch as batch_of
from gateway.batch.store import (
    Gains,
    Kept,
    Lease,
    LeaseLostError,
    Piece,
    Rest,
)

WORKABLE_MAX = 1_000
_CLAIMABLE = """is_done = 0 AND (holder IS NULL OR until <= :now) AND (
    (first = -1 AND status IN ('validating', 'cancelling'))
    OR (first >= 0 AND status = 'in_progress')
    OR (first = -2 AND status IN ('finalizing', 'cancelling') AND NOT EXISTS (
        SELECT 1 FROM parts AS c
        WHERE c.batch = parts.batch AND c.first = -1 AND c.is_done = 0)))"""
"""A cancelled batch is checked to its end, so that it is known which lines did not run."""


def workable(connection: sqlite3.Connection, *, now: float) -> list[str]:
    """Batches of which something can be claimed, oldest first."""
    rows = connection.execute(
        f"""SELECT DISTINCT batches.id, sequence FROM batches
        JOIN parts ON parts.batch = batches.id
        WHERE is_open = 1 AND {_CLAIMABLE} ORDER BY sequence LIMIT :most""",  # noqa: S608 - constant
        {"now": now, "most": WORKABLE_MAX},
    )
    return [found for found, _ in rows]


def claim(
    connection: sqlite3.Connection,
    *,
    batch_id: str,
    holder: str,
    until: float,
    now: float,
    runs_lines: bool,
) -> Lease | None:
    """The next part of a batch."""
    row = connection.execute(
        f"""SELECT first, epoch, lines, start, done, completed, failed, input_tokens,
        cached_tokens, output_tokens FROM parts
        JOIN batches ON batches.id = parts.batch
        WHERE parts.batch = :batch AND (first >= 0) = :lines AND {_CLAIMABLE}
        ORDER BY first LIMIT 1""",  # noqa: S608 - same
        {"batch": batch_id, "now": now, "lines": runs_lines},
    ).fetchone()
    if row is None:
        return None
    first, epoch, lines, start, done, completed, failed, *tokens = row
    read, cached, written = tokens
    connection.execute(
        "UPDATE parts SET holder = ?, until = ?, epoch = ? WHERE batch = ? AND first = ?",
        (holder, until, epoch + 1, batch_id, first),
    )
    return Lease(
        batch_id=batch_id,
        part=first,
        epoch=epoch + 1,
        lines=lines,
        start=start,
        done=done,
        counts=Counts(
            completed=completed,
            failed=failed,
            tokens=Tokens(input=read, cached=cached, output=written),
        ),
    )


def renew(connection: sqlite3.Connection, *, leases: Sequence[Lease], until: float) -> list[Lease]:
    """Those that are still held, in a batch that still needs them."""
    held = []
    for lease in leases:
        row = connection.execute(
            """UPDATE parts SET until = ? WHERE batch = ? AND first = ? AND epoch = ?
            AND is_done = 0 AND (first < 0 OR
                (SELECT status FROM batches WHERE id = parts.batch) = 'in_progress')""",
            (until, lease.batch_id, lease.part, lease.epoch),
        )
        if row.rowcount == 1:
            held.append(lease)
    return held


def release(connection: sqlite3.Connection, *, leases: Sequence[Lease]) -> None:
    """Give them back."""
    connection.executemany(
        """UPDATE parts SET holder = NULL, until = 0
        WHERE batch = ? AND first = ? AND epoch = ?""",
        [(lease.batch_id, lease.part, lease.epoch) for lease in leases],
    )


def checked(
    connection: sqlite3.Connection,
    *,
    lease: Lease,
    kept: Kept,
    starts: Sequence[tuple[int, int]],
) -> None:
    """Raises LeaseLostError, StaleError."""
    _held(connection, lease)
    _done(connection, lease)
    ends = [first for first, _ in starts[1:]] + [kept.batch.total]
    parts = [(first, end - first, start) for (first, start), end in zip(starts, ends, strict=False)]
    add_parts(connection, kept.batch.id, parts)
    put(connection, kept)


def commit(connection: sqlite3.Connection, *, gains: Sequence[Gains], now: float) -> list[Lease]:
    """Keep gains; returns the leases that are lost."""
    lost = []
    for gain in gains:
        lease, counts = gain.lease, gain.counts
        try:
            kept = _held(connection, lease)
        except LeaseLostError:
            lost.append(lease)
            continue
        if kept.batch.status != "in_progress":
            lost.append(lease)
            continue
        is_done = gain.done.count(1) == len(gain.done)
        connection.execute(
            """UPDATE parts SET done = ?, is_done = ?, completed = ?, failed = ?,
            input_tokens = ?, cached_tokens = ?, output_tokens = ?
            WHERE batch = ? AND first = ?""",
            (
                gain.done, is_done, counts.completed, counts.failed, counts.tokens.input,
                counts.tokens.cached, counts.tokens.output, lease.batch_id, lease.part,
            ),
        )  # fmt: skip
        connection.executemany(
            """INSERT INTO pieces VALUES (?, ?, ?, ?)
            ON CONFLICT (batch, object) DO UPDATE SET size = excluded.size""",
            [(lease.batch_id, each.object, each.size, each.is_errors) for each in gain.pieces],
        )
        if is_done:
            _close_if_all_ran(connection, lease.batch_id, now)
    return lost


def pieces(connection: sqlite3.Connection, *, batch_id: str) -> list[Piece]:
    """In the order of their names, which is about that of the lines."""
    rows = connection.execute(
        "SELECT object, size, is_errors FROM pieces WHERE batch = ? ORDER BY object", (batch_id,)
    )
    return [Piece(object=name, size=size, is_errors=bool(errors)) for name, size, errors in rows]


def rests(connection: sqlite3.Connection, *, batch_id: str) -> list[Rest]:
    """The parts of which not all requests were run."""
    rows = connection.execute(
        """SELECT first, start, done FROM parts
        WHERE batch = ? AND first >= 0 AND is_done = 0 ORDER BY first""",
        (batch_id,),
    )
    return [Rest(first=first, start=start, done=done) for first, start, done in rows]


def finish(
    connection: sqlite3.Connection, *, lease: Lease, kept: Kept, files: Sequence[StoredFile]
) -> None:
    """Raises LeaseLostError, StaleError."""
    _held(connection, lease)
    for each in files:
        put_file(connection, each)
    put(connection, kept)


def _held(connection: sqlite3.Connection, lease: Lease) -> Kept:
    """The batch, if the lease is good. Raises LeaseLostError."""
    row = connection.execute(
        "SELECT 1 FROM parts WHERE batch = ? AND first = ? AND epoch = ? AND is_done = 0",
        (lease.batch_id, lease.part, lease.epoch),
    ).fetchone()
    kept = None if row is None else batch_of(connection, lease.batch_id)
    if kept is None:
        raise LeaseLostError
    return kept


def _done(connection: sqlite3.Connection, lease: Lease) -> None:
    connection.execute(
        "UPDATE parts SET is_done = 1 WHERE batch = ? AND first = ?", (lease.batch_id, lease.part)
    )


def _close_if_all_ran(connection: sqlite3.Connection, batch_id: str, now: float) -> None:
    left = connection.execute(
        "SELECT 1 FROM parts WHERE batch = ? AND first >= 0 AND is_done = 0", (batch_id,)
    ).fetchone()
    if left is None:
        kept = batch_of(connection, batch_id)
        assert kept is not None
        put(connection, replace(kept, batch=all_run(kept.batch, now)))
