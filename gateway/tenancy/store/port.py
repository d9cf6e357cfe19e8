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

BODY_BYTES_MAX = 1 << 20
"""Of one record, as JSON."""
AUDIT_PAGE_MAX = 1000
"""Entries that one call of `audit` may ask for."""
CHANGES_MAX = 1000
"""Entries of the audit that `changes` goes back; beyond it `read` is cheaper."""
PERIODS_KEPT = 4
"""Of each length, days and months: what was spent in older ones is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How much a store keeps. What exceeds it leaves with the commits that do, the oldest first."""

    records: int = 100_000
    """A commit beyond it is refused: nobody wants a record to leave by itself."""
    audit: int = 100_000
    audit_bytes: int = 64 << 20
    answers: int = 10_000
    """To requests with an idempotency key."""
    answers_bytes: int = 64 << 20


class StoreError(Exception):
    """The store cannot be used, and why: not reachable, damaged, full, or of a newer version.

    Where a commit ends so, it may have been made nevertheless: only reading tells.
    """


class AnsweredError(Exception):
    """A commit's idempotency key has its answer already; `answered` tells which."""


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
class Changes:
    """What became of records since some revision: as they are now, and those that are gone."""

    revision: int
    records: tuple[Record, ...] = ()
    gone: tuple[tuple[Kind, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was answered to a request that named an idempotency key."""

    fingerprint: str
    """Hash of the request: the same key with another request is a mistake of the caller."""
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Store(Protocol):
    """All methods raise StoreError when the store cannot be reached, within a bounded time.

    A store that is back may have lost what it had acknowledged (a database restored from a
    backup, a replica that took over): after a StoreError, `read` anew, and compare revisions for
    being other, not greater.
    """

    async def open(self) -> None:
        """Connect, check integrity, migrate. Raises StoreError, for a newer schema too."""
        ...

    async def close(self) -> None:
        """Let go of it; what was acknowledged is kept."""
        ...

    async def read(self) -> Contents:
        """Everything, at one revision, by kind and id."""
        ...

    async def changes(self, since: int) -> Changes | None:
        """What became of the records that revision `since` did not have as they are now.

        None where the audit does not tell, or tells too much: then `read`.
        """
        ...

    async def revision(self) -> int:
        """Of the last commit, by whichever gateway; 0 for an empty store. Cheap: it is polled."""
        ...

    async def commit(
        self, writes: Sequence[Write], deed: Deed, answer: tuple[str, Answer] | None = None
    ) -> int:
        """All of `writes` with their audit entries, or nothing; returns the new revision.

        `answer`, under its idempotency key, is part of the commit. A record that is deleted and
        was not there leaves no entry. A caller that is cancelled cancels no commit.

        Raises:
            ConflictError: a record is not at its expected version; nothing was written.
            AnsweredError: the idempotency key has an answer already; nothing was written.
            ValueError: a body is no JSON or larger than `BODY_BYTES_MAX`, or a record is written
                twice.
        """
        ...

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: Kind | None = None,
        record_id: str | None = None,
    ) -> tuple[AuditEntry, ...]:  # fmt: skip
        """Entries, newest first, of a sequence number less than `before`.

        At most `limit`, 1 to `AUDIT_PAGE_MAX`; fewer only where there are no more.
        """
        ...

    async def answered(self, idempotency_key: str) -> Answer | None:
        """What was answered under this key."""
        ...

    async def spent(self, periods: Sequence[str]) -> Mapping[tuple[str, str], int]:
        """Tokens by (holder, period) of the named periods, like `2026-11` or `2026-11-30`."""
        ...

    async def spend(self, amounts: Mapping[tuple[str, str], int]) -> None:
        """Add to what was spent; negative amounts take back. Old periods are forgotten.

        It makes no revision, and may be lost where power is. There are as many sums as holders
        times `PERIODS_KEPT`: whoever calls knows its holders by records, not by requests.
        """
        ...
