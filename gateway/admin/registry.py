"""The one way in which operators change what is kept: the port, and what is read from it.

How a change is validated, kept and applied is not known here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from gateway.tenancy.store.port import (
    Answer,
    AuditEntry,
    Contents,
    Deed,
    Kind,
    Record,
    Write,
)


class Registry(Protocol):
    """What was decided at run time. All methods raise StoreError when it cannot be reached."""

    @property
    def contents(self) -> Contents:
        """What is in effect in this gateway."""
        ...

    async def change(
        self, writes: Sequence[Write], deed: Deed, answer: tuple[str, Answer] | None = None
    ) -> int:
        """Validate, keep and apply `writes`, all or nothing; returns the new revision.

        Raises GatewayError where they make no sense, ConflictError where something changed.
        """
        ...

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: Kind | None = None,
        record_id: str | None = None,
    ) -> tuple[AuditEntry, ...]:  # fmt: skip
        """See `Store.audit`."""
        ...

    async def answered(self, idempotency_key: str) -> Answer | None:
        """See `Store.answered`."""
        ...


DRAINED = "drained"
"""Field of a replica's record; a record without url and dns is that flag of a configured one."""


AUTOSCALE = "autoscale"
"""Its value where the autoscaler drained it, and not an operator."""


def marking(record: Record | None, name: str, mark: bool | str) -> Write:
    """What drains a replica, by a true mark, or uses it again; `record`: what is kept of it."""
    body = {key: value for key, value in record.body.items() if key != DRAINED} if record else {}
    if mark:
        body[DRAINED] = mark
    version = record.version if record else 0
    return Write(kind="replica", id=name, body=body or None, expected=version)


def records_of(records: Iterable[Record], kind: Kind) -> Mapping[str, Record]:
    """The records of one kind by their id."""
    return {record.id: record for record in records if record.kind == kind}


def is_address(body: Mapping[str, Any]) -> bool:
    """Whether a replica's record says where the replica is."""
    return body.get("url") is not None or body.get("dns") is not None


def drained_names(records: Iterable[Record]) -> frozenset[str]:
    """Replicas that somebody drained: to be told to the scheduler after each start."""
    return frozenset(
        record.id for record in records if record.kind == "replica" and record.body.get(DRAINED)
    )


def resting_names(records: Iterable[Record]) -> frozenset[str]:
    """Those of them that the autoscaler drained: it uses them again where more are wanted."""
    return frozenset(
        record.id
        for record in records
        if record.kind == "replica" and record.body.get(DRAINED) == AUTOSCALE
    )
