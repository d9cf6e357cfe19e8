"""What has to survive the process, behind one small port: records, audit, what was spent.

A store keeps documents by kind and id and knows nothing of what they mean. Whatever belongs to one
change is one commit: after a crash it is there as a whole or not at all, and once `commit` has
returned it is there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Kind = Literal["policy", "tenant", "user", "key", "replica"]
Body = Mapping[str, Any]

AUDIT_KEPT = 100_000
"""Entries; the oldest are dropped with the commits that go beyond it."""
ANSWERS_KEPT = 10_000
"""Answers to requests with an idempotency key; the oldest are dropped first."""
BODY_BYTES_MAX = 1 << 20
"""Of one record, as JSON."""


class StoreError(Exception):
    """The store cannot be used, and why: not reachable, damaged, or of a newer version."""


class ConflictError(Exception):
    """Somebody else changed a record in the meantime; `found` is its version now, 0: none."""

    def __init__(self, kind: str, record_id: str, found: int) -> None:
        self.kind, self.record_id, self.found = kind, record_id, found
        super().__init__(f"{kind} {record_id!r} is at version {found}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One document. Its version is the revision of the commit that wrote it."""

    kind: Kind
    id: str
    version: int
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One document put, or deleted where `body` is None."""

    kind: Kind
    id: str
    body: Body | None
    expected: int | None = None
    """The version that must be there; 0: there must be none; None: whatever there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Who changes something, when and by what request; what it was before the store adds."""

    at: float
    """Seconds since 1970, UTC."""
    who: str
    action: str
    """Like `policy.put`, `key.rotate`."""
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One record's part of a commit, as it was and as it became; None: it was not there."""

    sequence: int
    """Grows with each entry; several entries of one commit share its revision."""
    revision: int
    deed: Deed
    kind: Kind
    id: str
    before: Body | None
    after: Body | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All records at one revision."""

    revision: int
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was answered to a request that named an idempotency key."""

    fingerprint: str
    """Hash of the request: the same key with another request is a mistake of the caller."""
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Store(Protocol):
    """All methods raise StoreError when the store cannot be reached, within a bounded time."""

    async def open(self) -> None:
        """Connect, check integrity, migrate. Raises StoreError, for a newer schema too."""
        ...

    async def close(self) -> None:
        """Let go of it; what was acknowledged is kept."""
        ...

    async def read(self) -> Contents:
        """Everything, at one revision."""
        ...

    async def revision(self) -> int:
        """Of the last commit, by whichever gateway; 0 for an empty store. Cheap: it is polled."""
        ...

    async def commit(
        self, writes: Sequence[Write], deed: Deed, answer: tuple[str, Answer] | None = None
    ) -> int:
        """All of `writes` with their audit entries, or nothing; returns the new revision.

        `answer`, under its idempotency key, is part of the commit. Raises ConflictError.
        """
        ...

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: Kind | None = None,
        record_id: str | None = None,
    ) -> tuple[AuditEntry, ...]:  # fmt: skip
        """Entries, newest first, of a sequence number less than `before`."""
        ...

    async def answered(self, idempotency_key: str) -> Answer | None:
        """What was answered under this key."""
        ...

    async def spent(self, periods: Sequence[str]) -> Mapping[tuple[str, str], int]:
        """Tokens by (holder, period) of the named periods, like `2026-11` or `2026-11-30`."""
        ...

    async def spend(self, amounts: Mapping[tuple[str, str], int]) -> None:
        """Add to what was spent; negative amounts take back. Old periods are forgotten."""
        ...
