"""A store that keeps nothing beyond the process: what the other ones are measured against."""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile

from gateway.tenancy.store.documents import (
    ENTRY_BYTES,
    Change,
    body_of,
    body_or_none,
    changes_in,
    changes_of,
    entry_bytes,
    forgotten,
    packed,
    summed,
    unpacked,
)
from gateway.tenancy.store.port import (
    AUDIT_PAGE_MAX,
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
    Write,
)


class MemoryStore:
    """`Store` in dictionaries. Bodies are kept as text, so that nobody changes them from afar."""

    def __init__(self, kept: Kept | None = None) -> None:
        self._kept = kept or Kept()
        self._revision = 0
        self._sequence = 0
        self._records: dict[tuple[Kind, str], tuple[int, str]] = {}
        self._audit: deque[tuple[AuditEntry, int]] = deque()
        self._audit_bytes = 0
        self._audit_floor = 0
        self._answers: dict[str, bytes] = {}
        self._answers_bytes = 0
        self._spent: dict[str, dict[str, int]] = {}

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def read(self) -> Contents:
        """Everything."""
        records = (
            Record(kind=kind, id=id, version=version, body=body_of(text))
            for (kind, id), (version, text) in sorted(self._records.items())
        )
        return Contents(revision=self._revision, records=tuple(records))

    async def changes(self, since: int) -> Changes | None:
        """From the audit, as far as it goes."""
        if not self._audit_floor <= since <= self._revision:
            return None
        newest = (entry for entry, _ in reversed(self._audit))
        entries = tuple(takewhile(lambda entry: entry.revision > since, newest))
        return None if len(entries) > CHANGES_MAX else changes_in(entries, self._revision)

    async def revision(self) -> int:
        """Of the last commit."""
        return self._revision

    async def commit(
        self, writes: Sequence[Write], deed: Deed, answer: tuple[str, Answer] | None = None
    ) -> int:
        """All or nothing."""
        changes = changes_of(writes)
        if answer is not None and answer[0] in self._answers:
            raise AnsweredError(answer[0])
        records = dict(self._records)
        for change in changes:
            found = records.get(change.place, (0, ""))[0]
            if change.expected not in (None, found):
                raise ConflictError(change.kind, change.id, found)
            if change.text is None:
                records.pop(change.place, None)
            else:
                records[change.place] = (self._revision + 1, change.text)
        if len(records) > max(self._kept.records, len(self._records)):
            raise StoreError(f"the store holds {len(self._records)} records already")
        self._revision += 1
        for change in changes:
            self._note(change, deed)
        self._records = records
        if answer is not None:
            self._answers[answer[0]] = packed(answer[1])
            self._answers_bytes += ENTRY_BYTES + len(self._answers[answer[0]])
        self._trim()
        return self._revision

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: Kind | None = None,
        record_id: str | None = None,
    ) -> tuple[AuditEntry, ...]:  # fmt: skip
        """Newest first."""
        assert 0 < limit <= AUDIT_PAGE_MAX
        entries = (
            entry
            for entry, _ in reversed(self._audit)
            if (before is None or entry.sequence < before)
            and kind in (None, entry.kind)
            and record_id in (None, entry.id)
        )
        return tuple(islice(entries, limit))

    async def answered(self, idempotency_key: str) -> Answer | None:
        """What was answered under this key."""
        value = self._answers.get(idempotency_key)
        return None if value is None else unpacked(value)

    async def spent(self, periods: Sequence[str]) -> Mapping[tuple[str, str], int]:
        """By holder and period."""
        return {
            (holder, period): tokens
            for period in periods
            for holder, tokens in self._spent.get(period, {}).items()
        }

    async def spend(self, amounts: Mapping[tuple[str, str], int]) -> None:
        """Add."""
        for period, holder, tokens in summed(amounts):
            holders = self._spent.setdefault(period, {})
            holders[holder] = holders.get(holder, 0) + tokens
        for period in forgotten(self._spent):
            del self._spent[period]

    def _note(self, change: Change, deed: Deed) -> None:
        _, before = self._records.get(change.place, (0, None))
        if before is None and change.text is None:
            return
        self._sequence += 1
        entry = AuditEntry(
            sequence=self._sequence,
            revision=self._revision,
            deed=deed,
            kind=change.kind,
            id=change.id,
            before=body_or_none(before),
            after=body_or_none(change.text),
        )
        size = entry_bytes(change, before)
        self._audit.append((entry, size))
        self._audit_bytes += size

    def _trim(self) -> None:
        """Drop the oldest of what is beyond the bounds."""
        kept = self._kept
        while len(self._audit) > kept.audit or self._audit_bytes > kept.audit_bytes:
            entry, size = self._audit.popleft()
            self._audit_bytes -= size
            self._audit_floor = entry.revision
        while len(self._answers) > kept.answers or self._answers_bytes > kept.answers_bytes:
            value = self._answers.pop(next(iter(self._answers)))
            self._answers_bytes -= ENTRY_BYTES + len(value)
