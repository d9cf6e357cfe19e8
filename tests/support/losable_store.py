"""A store in memory that a test can take away, and give back."""

from collections.abc import Sequence

from gateway.tenancy.store.memory import MemoryStore
from gateway.tenancy.store.port import (
    Answer,
    AuditEntry,
    Contents,
    Deed,
    Kind,
    StoreError,
    Write,
)


class LosableStore(MemoryStore):
    """While `is_lost`, nothing can be read and nothing kept."""

    def __init__(self) -> None:
        super().__init__()
        self.is_lost = False

    async def read(self) -> Contents:
        """Everything."""
        self._reach()
        return await super().read()

    async def revision(self) -> int:
        """Of the last commit."""
        self._reach()
        return await super().revision()

    async def commit(
        self, writes: Sequence[Write], deed: Deed, answer: tuple[str, Answer] | None = None
    ) -> int:
        """All or nothing."""
        self._reach()
        return await super().commit(writes, deed, answer)

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: Kind | None = None,
        record_id: str | None = None,
    ) -> tuple[AuditEntry, ...]:  # fmt: skip
        """Newest first."""
        self._reach()
        return await super().audit(before=before, limit=limit, kind=kind, record_id=record_id)

    async def answered(self, idempotency_key: str) -> Answer | None:
        """What was answered under this key."""
        self._reach()
        return await super().answered(idempotency_key)

    def _reach(self) -> None:
        if self.is_lost:
            raise StoreError("the line is cut")
