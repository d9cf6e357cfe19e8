"""How records, entries and commits are written in Redis: names of keys, fields, arguments.

It talks to nobody: what is sent and what comes back is plain data here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from gateway.tenancy.store.documents import ENTRY_BYTES, Change, body_of, body_or_none
from gateway.tenancy.store.port import (
    AnsweredError,
    AuditEntry,
    ConflictError,
    Deed,
    Kept,
    Kind,
    Record,
    StoreError,
)

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The keys; the braces keep them together where a cluster spreads its keys."""

    prefix: str

    def _of(self, name: str) -> str:
        return f"{{{self.prefix}}}:{name}"

    @property
    def state(self) -> str:
        """Hash: schema, revision, sequence, sizes."""
        return self._of("state")

    @property
    def records(self) -> str:
        """Hash: `kind:id` to `version body`."""
        return self._of("records")

    @property
    def audit(self) -> str:
        """Stream: the sequence number is the id's first half."""
        return self._of("audit")

    @property
    def answers(self) -> str:
        """Hash: idempotency key to answer."""
        return self._of("answers")

    @property
    def periods(self) -> str:
        """Set of the periods of which anything was spent."""
        return self._of("periods")

    def spent(self, period: str) -> str:
        """Hash: holder to tokens."""
        return self._of(f"spent:{period}")

    def of_commit(self) -> list[str]:
        """As `commit.lua` wants them."""
        return [self.state, self.records, self.audit, self.answers, self._of("answer_order")]


def commit_arguments(
    writes: Sequence[Change], deed: Deed, answer: tuple[str, bytes] | None, kept: Kept
) -> list[str | bytes | int]:
    """As `commit.lua` wants them."""
    arguments: list[str | bytes | int] = [
        *(SCHEMA, repr(deed.at), deed.who, deed.action, deed.request_id),
        *(answer or ("", "")),
        *(kept.records, kept.audit, kept.audit_bytes, kept.answers, kept.answers_bytes),
        ENTRY_BYTES,
    ]
    for each in writes:
        expected = "" if each.expected is None else each.expected
        arguments += [each.kind, each.id, expected, int(each.text is not None), each.text or ""]
    return arguments


def committed(result: Sequence[bytes]) -> int:
    """The new revision. Raises what a store raises where the commit was refused."""
    match [part.decode() for part in result]:
        case ["done", revision]:
            return int(revision)
        case ["conflict", kind, id, found]:
            raise ConflictError(kind, id, int(found))
        case ["answered"]:
            raise AnsweredError("the idempotency key has an answer already")
        case ["full", count]:
            raise StoreError(f"the store holds {count} records already")
        case ["newer", schema]:
            raise newer(int(schema))
    raise AssertionError("commit.lua has no other answer")


def newer(schema: int) -> StoreError:
    """Somebody wrote there who knows more."""
    return StoreError(
        f"the store has schema {schema}, and this fairgate knows no newer one than {SCHEMA}: "
        "use the newer fairgate"
    )


def records_of(fields: Mapping[bytes, bytes]) -> tuple[Record, ...]:
    """The hash of records, by kind and id."""
    records = (_record(field.decode(), value) for field, value in fields.items())
    return tuple(sorted(records, key=lambda each: (each.kind, each.id)))


def entry_of(stream_id: bytes, fields: Mapping[bytes, bytes]) -> AuditEntry:
    """An entry of the stream."""
    deed = Deed(
        at=float(fields[b"at"]),
        who=fields[b"who"].decode(),
        action=fields[b"action"].decode(),
        request_id=fields[b"request_id"].decode(),
    )
    return AuditEntry(
        sequence=int(stream_id.partition(b"-")[0]),
        revision=int(fields[b"revision"]),
        deed=deed,
        kind=cast("Kind", fields[b"kind"].decode()),
        id=fields[b"id"].decode(),
        before=body_or_none(fields[b"before"] or None),
        after=body_or_none(fields[b"after"] or None),
    )


def _record(field: str, value: bytes) -> Record:
    kind, _, id = field.partition(":")
    version, _, text = value.partition(b" ")
    return Record(kind=cast("Kind", kind), id=id, version=int(version), body=body_of(text))
