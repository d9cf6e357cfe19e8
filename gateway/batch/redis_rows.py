"""A batch as the fields of one hash of Redis: how they are written, and what may be claimed.

Pure: what is read, and what is written if that has not changed meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from gateway.batch.record import Batch, Counts, all_run
from gateway.batch.store import (
    CHECK,
    FINISH,
    Gains,
    Kept,
    Lease,
    LeaseLostError,
    Piece,
    Rest,
    StaleError,
)

Fields = Mapping[bytes, bytes]
BATCH, LEFT = b"batch", b"left"
PART, PIECE = b"part:", b"piece:"
GONE = b""
"""As a value: the field is not there, or is to be removed."""


NONE = Counts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One part."""

    first: int
    lines: int = 0
    start: int = 0
    done: bytes = b""
    is_done: bool = False
    epoch: int = 0
    holder: str | None = None
    until: float = 0.0
    counts: Counts = NONE


@dataclass(frozen=True, slots=True)
class Guarded:
    """Fields to be written if others are as they were."""

    unless_changed: Fields
    writes: Fields


_KEPT = msgspec.msgpack.Decoder(Kept)
_ROWS = msgspec.msgpack.Decoder(Row)
_PIECES = msgspec.msgpack.Decoder(Piece)


def made(batch: Batch) -> dict[bytes, bytes]:
    """The fields of a new batch."""
    rows = [Row(first=CHECK), Row(first=FINISH)]
    return {BATCH: _packed(Kept(batch=batch, version=1)), **_of(rows)}


def field_of(part: int) -> bytes:
    """Where a part stands."""
    return PART + b"%d" % part


def kept_in(fields: Fields) -> Kept:
    """The batch with its counts as they are."""
    kept = _KEPT.decode(fields[BATCH])
    if not kept.batch.is_open:
        return kept
    counts = Counts()
    for row in _rows_in(fields):
        counts = counts.plus(row.counts)
    return replace(kept, batch=replace(kept.batch, counts=counts))


def claimable(fields: Fields, now: float, *, runs_lines: bool | None = None) -> Row | None:
    """The next part that nobody works on; `runs_lines`: of lines, or of else; None: of any kind."""
    status = _KEPT.decode(fields[BATCH]).batch.status
    rows = _rows_in(fields)
    is_checked = all(row.is_done for row in rows if row.first == CHECK)
    may_run = {
        CHECK: status in ("validating", "cancelling"),
        FINISH: status in ("finalizing", "cancelling") and is_checked,
    }
    for row in rows:
        is_wanted = runs_lines is None or (row.first >= 0) is runs_lines
        is_free = row.holder is None or row.until <= now
        may = may_run.get(row.first, status == "in_progress")
        if may and is_wanted and is_free and not row.is_done:
            return row
    return None


def claimed(
    fields: Fields, row: Row, *, holder: str, until: float, batch_id: str
) -> tuple[Lease, Guarded]:
    """The lease on a part, and what makes it one."""
    taken = replace(row, holder=holder, until=until, epoch=row.epoch + 1)
    lease = Lease(
        batch_id=batch_id,
        part=row.first,
        epoch=taken.epoch,
        lines=row.lines,
        start=row.start,
        done=row.done,
        counts=row.counts,
    )
    return lease, Guarded(_same(fields, field_of(row.first), BATCH), _of([taken]))


def renewed(fields: Fields, lease: Lease, until: float) -> Guarded:
    """Raises LeaseLostError."""
    row = _held(fields, lease)
    if lease.part >= 0 and _KEPT.decode(fields[BATCH]).batch.status != "in_progress":
        raise LeaseLostError
    return Guarded(_same(fields, field_of(lease.part)), _of([replace(row, until=until)]))


def released(fields: Fields, lease: Lease) -> Guarded:
    """Raises LeaseLostError."""
    row = replace(_held(fields, lease), holder=None, until=0.0)
    return Guarded(_same(fields, field_of(lease.part)), _of([row]))


def changed(fields: Fields, kept: Kept) -> Guarded:
    """Raises StaleError. Of one that ended, only the batch itself is left."""
    if _KEPT.decode(fields[BATCH]).version != kept.version:
        raise StaleError(kept.batch.id)
    writes = {BATCH: _packed(replace(kept, version=kept.version + 1))}
    if not kept.batch.is_open:
        writes |= {name: GONE for name in fields if name != BATCH}
    return Guarded(_same(fields, BATCH), writes)


def checked(fields: Fields, lease: Lease, kept: Kept, starts: Sequence[tuple[int, int]]) -> Guarded:
    """Raises LeaseLostError, StaleError."""
    row = _held(fields, lease)
    done = changed(fields, kept)
    guards = {**done.unless_changed, **_same(fields, field_of(lease.part))}
    if not kept.batch.is_open:
        return Guarded(guards, done.writes)
    ends = [first for first, _ in starts[1:]] + [kept.batch.total]
    rows = [
        Row(first=first, lines=end - first, start=start, done=bytes(end - first))
        for (first, start), end in zip(starts, ends, strict=False)
    ]
    writes = {**done.writes, **_of([replace(row, is_done=True), *rows]), LEFT: b"%d" % len(rows)}
    return Guarded(guards, writes)


def gained(fields: Fields, gain: Gains, now: float) -> Guarded:
    """Raises LeaseLostError."""
    lease = gain.lease
    row, kept = _held(fields, lease), _KEPT.decode(fields[BATCH])
    if kept.batch.status != "in_progress":
        raise LeaseLostError
    is_done = gain.done.count(1) == len(gain.done)
    after = replace(row, done=gain.done, counts=gain.counts, is_done=is_done)
    writes = {**_of([after]), **{PIECE + p.object.encode(): _packed(p) for p in gain.pieces}}
    guards = _same(fields, field_of(lease.part), BATCH)
    if is_done:
        left = int(fields[LEFT]) - 1
        guards |= _same(fields, LEFT)
        writes[LEFT] = b"%d" % left
        if left == 0:
            finalizing = all_run(kept.batch, now)
            writes[BATCH] = _packed(Kept(batch=finalizing, version=kept.version + 1))
    return Guarded(guards, writes)


def finished(fields: Fields, lease: Lease, kept: Kept) -> Guarded:
    """Raises LeaseLostError, StaleError."""
    _held(fields, lease)
    done = changed(fields, kept)
    return Guarded({**done.unless_changed, **_same(fields, field_of(lease.part))}, done.writes)


def pieces_in(fields: Fields) -> list[Piece]:
    """In the order of their names."""
    found = [_PIECES.decode(value) for name, value in fields.items() if name.startswith(PIECE)]
    return sorted(found, key=lambda piece: piece.object)


def rests_in(fields: Fields) -> list[Rest]:
    """The parts of which not all requests were run."""
    return [
        Rest(first=row.first, start=row.start, done=row.done)
        for row in _rows_in(fields)
        if row.first >= 0 and not row.is_done
    ]


def _held(fields: Fields, lease: Lease) -> Row:
    value = fields.get(field_of(lease.part))
    row = None if not value else _ROWS.decode(value)
    if row is None or row.epoch != lease.epoch or row.is_done:
        raise LeaseLostError
    return row


def _rows_in(fields: Fields) -> list[Row]:
    found = [_ROWS.decode(value) for name, value in fields.items() if name.startswith(PART)]
    return sorted(found, key=lambda row: row.first)


def _of(rows: Sequence[Row]) -> dict[bytes, bytes]:
    return {field_of(row.first): _packed(row) for row in rows}


def _same(fields: Fields, *names: bytes) -> dict[bytes, bytes]:
    return {name: fields.get(name, GONE) for name in names}


def _packed(value: Kept | Row | Piece) -> bytes:
    return msgspec.msgpack.encode(value)
