"""A registry in memory: it keeps, audits and applies what operators change, as one with a store."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.app import Gateway
from gateway.settings import Settings
from gateway.settings_document import ReplicaSection
from gateway.tenancy.store.port import (
    Answer,
    AuditEntry,
    ConflictError,
    Contents,
    Deed,
    Kind,
    Record,
    StoreError,
    Write,
)

Place = tuple[Kind, str]


class KeptRegistry:
    """Replicas that are added become part of the settings, and the gateway follows them."""

    def __init__(self, *records: Record) -> None:
        self._records: dict[Place, Record] = {(each.kind, each.id): each for each in records}
        self._revision = max((each.version for each in records), default=0)
        self._audit: list[AuditEntry] = []
        self._answers: dict[str, Answer] = {}
        self._gateway: Gateway | None = None
        self._base: Settings | None = None
        self.is_reachable = True

    def serve(self, gateway: Gateway) -> None:
        """Apply to this gateway from now on; what is kept already it has at its start."""
        self._gateway, self._base = gateway, gateway.settings
        gateway.settings = self._overlaid()

    @property
    def contents(self) -> Contents:
        """See `Registry.contents`."""
        return Contents(revision=self._revision, records=tuple(self._records.values()))

    async def change(
        self, writes: Sequence[Write], deed: Deed, answer: tuple[str, Answer] | None = None
    ) -> int:
        """See `Registry.change`."""
        self._reach()
        for write in writes:
            known = self._records.get((write.kind, write.id))
            found = known.version if known else 0
            if write.expected not in (None, found):
                raise ConflictError(write.kind, write.id, found)
        self._revision += 1
        for write in writes:
            self._write(write, deed)
        if answer is not None:
            self._answers[answer[0]] = answer[1]
        assert self._gateway is not None
        self._gateway.reload(self._overlaid())
        return self._revision

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: Kind | None = None,
        record_id: str | None = None,
    ) -> tuple[AuditEntry, ...]:  # fmt: skip
        """See `Store.audit`."""
        self._reach()
        found = [
            entry
            for entry in reversed(self._audit)
            if (before is None or entry.sequence < before)
            and kind in (None, entry.kind)
            and record_id in (None, entry.id)
        ]
        return tuple(found[:limit])

    async def answered(self, idempotency_key: str) -> Answer | None:
        """See `Store.answered`."""
        self._reach()
        return self._answers.get(idempotency_key)

    def _reach(self) -> None:
        if not self.is_reachable:
            raise StoreError("the disk is gone")

    def _write(self, write: Write, deed: Deed) -> None:
        place: Place = (write.kind, write.id)
        before = self._records.pop(place, None)
        if write.body is not None:
            self._records[place] = Record(
                kind=write.kind, id=write.id, version=self._revision, body=write.body
            )
        entry = AuditEntry(
            sequence=len(self._audit) + 1, revision=self._revision, deed=deed, kind=write.kind,
            id=write.id, before=before.body if before else None, after=write.body,
        )  # fmt: skip
        self._audit.append(entry)

    def _overlaid(self) -> Settings:
        assert self._base is not None
        added = tuple(
            _section(record.body)
            for record in self._records.values()
            if record.kind == "replica" and ("url" in record.body or "dns" in record.body)
        )
        return self._base.model_copy(update={"replicas": self._base.replicas + added})


def _section(body: Mapping[str, Any]) -> ReplicaSection:
    return ReplicaSection.model_validate(
        {key: value for key, value in body.items() if key not in ("model", "drained")}
    )
