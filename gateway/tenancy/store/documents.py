"""The written form of what stores keep: bodies as JSON text, answers as bytes, which periods go.

It knows neither where the text is kept nor what a document means.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import orjson

from gateway.tenancy.store.port import (
    BODY_BYTES_MAX,
    PERIODS_KEPT,
    Answer,
    AuditEntry,
    Body,
    Changes,
    Kind,
    Record,
    StoreError,
    Write,
)

ENTRY_BYTES = 200
"""What an entry or an answer takes besides its texts, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A write whose body is text already."""

    kind: Kind
    id: str
    text: str | None
    expected: int | None

    @property
    def place(self) -> tuple[Kind, str]:
        """What identifies the record."""
        return self.kind, self.id


def changes_of(writes: Sequence[Write]) -> tuple[Change, ...]:
    """The writes of one commit. Raises ValueError for one that cannot be kept."""
    for each in writes:
        each.id.encode()
    changes = tuple(
        Change(kind=each.kind, id=each.id, text=_text_of(each), expected=each.expected)
        for each in writes
    )
    if len({change.place for change in changes}) < len(changes):
        raise ValueError("a commit writes a record once")
    return changes


def body_of(text: str | bytes) -> Body:
    """The body that a text is of. Raises StoreError where the text is not what was written."""
    try:
        body: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise StoreError(f"a stored document is damaged: {error}") from None
    return body


def body_or_none(text: str | bytes | None) -> Body | None:
    """The same where the record may not be there."""
    return None if text is None else body_of(text)


def entry_bytes(change: Change, before: str | bytes | None) -> int:
    """What an entry of the audit takes, about."""
    texts = (change.id, before or "", change.text or "")
    return ENTRY_BYTES + sum(map(len, texts))


def packed(answer: Answer) -> bytes:
    """An answer as one value: a line of JSON, then its body."""
    head = {
        "fingerprint": answer.fingerprint,
        "status": answer.status,
        "headers": dict(answer.headers),
    }
    return orjson.dumps(head) + b"\n" + answer.body


def unpacked(value: bytes) -> Answer:
    """The answer that `packed` made the value of."""
    head, _, body = value.partition(b"\n")
    return Answer(body=body, **orjson.loads(head))


def changes_in(entries: Iterable[AuditEntry], revision: int) -> Changes:
    """What entries, newest first, made of records in the end."""
    latest: dict[tuple[Kind, str], AuditEntry] = {}
    for entry in entries:
        latest.setdefault((entry.kind, entry.id), entry)
    records = (
        Record(kind=each.kind, id=each.id, version=each.revision, body=each.after)
        for each in latest.values()
        if each.after is not None
    )
    gone = (place for place, each in latest.items() if each.after is None)
    return Changes(revision=revision, records=tuple(records), gone=tuple(gone))


def forgotten(periods: Iterable[str]) -> tuple[str, ...]:
    """Those of the periods that are older than the newest `PERIODS_KEPT` of their length."""
    by_length = groupby(sorted(set(periods), key=lambda each: (len(each), each)), key=len)
    return tuple(old for _, group in by_length for old in list(group)[:-PERIODS_KEPT])


def summed(amounts: Mapping[tuple[str, str], int]) -> list[tuple[str, str, int]]:
    """(period, holder, tokens) of what changes anything."""
    return [(period, holder, tokens) for (holder, period), tokens in amounts.items() if tokens]


def _text_of(write: Write) -> str | None:
    if write.body is None:
        return None
    try:
        if not _is_finite(write.body):
            raise TypeError("a number is not finite")
        text = orjson.dumps(dict(write.body))
    except TypeError as error:
        raise ValueError(f"{write.kind} {write.id!r} is no JSON: {error}") from None
    if len(text) > BODY_BYTES_MAX:
        raise ValueError(
            f"{write.kind} {write.id!r} has {len(text)} bytes, the most are {BODY_BYTES_MAX}"
        )
    return text.decode()


def _is_finite(value: object) -> bool:
    """JSON has no other numbers: they would come back as null."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_is_finite, value))
