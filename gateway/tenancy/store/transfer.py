"""A store as lines of JSON and back: for backups, and for the way from one kind to another.

A header, a line for each record and, if wanted, each entry of the audit, and an end that counts
them, by which a file that was cut short is known. Answers to idempotency keys stay behind, since
one may show a key; so do sums of what was spent. What a document means is not known here.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, cast, get_args

import orjson

from gateway.tenancy.store.port import AUDIT_PAGE_MAX, AuditEntry, Deed, Kind, Record, Store, Write

SCHEMA = 1
KINDS = frozenset(get_args(Kind))


class TransferError(Exception):
    """What is to be read in cannot be, and why; nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import made, in records."""

    put: int
    removed: int


async def exported(store: Store, *, with_audit: bool) -> AsyncIterator[bytes]:
    """The lines, the entries of the audit newest first. Raises StoreError."""
    contents = await store.read()
    yield _line({"fairgate_store": SCHEMA, "revision": contents.revision})
    for record in contents.records:
        yield _line({"record": _fields(record)})
    audit = 0
    before: int | None = None
    while with_audit and (entries := await store.audit(before=before, limit=AUDIT_PAGE_MAX)):
        before = entries[-1].sequence
        for entry in entries:
            # Of the revision in the header, whatever happens meanwhile.
            if entry.revision <= contents.revision:
                audit += 1
                yield _line({"audit": _entry_fields(entry)})
    yield _line({"end": {"records": len(contents.records), "audit": audit}})


def read_lines(lines: Iterable[bytes]) -> tuple[Record, ...]:
    """The records of an export; its audit is for people, and passed over.

    Raises TransferError with the number of the line that is wrong.
    """
    records: dict[tuple[str, str], Record] = {}
    audit = number = 0
    end: object = None
    for number, line in enumerate(lines, 1):
        match _object(line, number):
            case {"fairgate_store": int(schema)} if number == 1:
                _check(schema <= SCHEMA, number, f"schema {schema} is of a newer fairgate")
            case _ if number == 1:
                raise TransferError("line 1: this is no export of a store")
            case _ if end is not None:
                raise TransferError(f"line {number}: there is something after the end")
            case {"record": {"kind": str(kind), "id": str(id), "version": int(version),
                             "body": dict(body)}}:  # fmt: skip
                _check(kind in KINDS, number, f"there is no kind {kind!r}")
                _check((kind, id) not in records, number, f"{kind} {id!r} is there twice")
                record = Record(kind=cast("Kind", kind), id=id, version=version, body=body)
                records[kind, id] = record
            case {"audit": dict()}:
                audit += 1
            case {"end": dict(end)}:
                pass
            case _:
                raise TransferError(f"line {number}: neither a record nor an entry of the audit")
    if end != {"records": len(records), "audit": audit}:
        raise TransferError(f"line {number}: the file is not whole")
    return tuple(records.values())


async def imported(
    store: Store, records: tuple[Record, ...], deed: Deed, *, replaces: bool
) -> Imported:
    """Put the records into a store in one commit; with `replaces` in place of all that are there.

    Raises TransferError for a store that is
    not empty and `replaces` false; StoreError; ConflictError, where somebody else was as quick.
    """
    there = {(each.kind, each.id): each.version for each in (await store.read()).records}
    if there and not replaces:
        raise TransferError(f"the store has {len(there)} records: --replace puts these in place")
    wanted = {(each.kind, each.id) for each in records}
    writes = [
        Write(
            kind=each.kind, id=each.id, body=each.body, expected=there.get((each.kind, each.id), 0)
        )
        for each in records
    ]
    gone = [
        Write(kind=kind, id=id, body=None, expected=version)
        for (kind, id), version in there.items()
        if (kind, id) not in wanted
    ]
    try:
        await store.commit([*writes, *gone], deed)
    except ValueError as error:
        raise TransferError(str(error)) from None
    return Imported(put=len(writes), removed=len(gone))


def _line(content: dict[str, Any]) -> bytes:
    return orjson.dumps(content) + b"\n"


def _fields(record: Record) -> dict[str, Any]:
    return {
        "kind": record.kind,
        "id": record.id,
        "version": record.version,
        "body": dict(record.body),
    }


def _entry_fields(entry: AuditEntry) -> dict[str, Any]:
    deed = entry.deed
    return {
        "sequence": entry.sequence,
        "revision": entry.revision,
        "at": deed.at,
        "who": deed.who,
        "action": deed.action,
        "request_id": deed.request_id,
        "kind": entry.kind,
        "id": entry.id,
        "before": entry.before,
        "after": entry.after,
    }


def _object(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TransferError(f"line {number}: no JSON: {error}") from None
    _check(isinstance(found, dict), number, "no JSON object")
    return cast("dict[str, Any]", found)


def _check(holds: bool, number: int, what: str) -> None:
    if not holds:
        raise TransferError(f"line {number}: {what}")
