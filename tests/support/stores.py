"""Stores under test: what several gateways see of the same one, and short words for commits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.tenancy.store.memory import MemoryStore
from gateway.tenancy.store.port import Deed, Kept, Kind, Store, Write
from gateway.tenancy.store.redis import RedisStore
from gateway.tenancy.store.sqlite import SqliteStore

DEED = Deed(at=1.5, who="ann", action="key.create", request_id="r-1")


class Place:
    """Where one store lies; each call of `store` is another gateway's view of it."""

    def __init__(self, kind: str, *, folder: Path, redis_url: str = "") -> None:
        self.kind = kind
        self.file = folder / "fairgate.db"
        self._redis_url = redis_url
        self._prefix = folder.name
        self._memory: MemoryStore | None = None

    def store(self, kept: Kept | None = None) -> Store:
        """A view of it, not opened yet."""
        match self.kind:
            case "sqlite":
                return SqliteStore(self.file, kept)
            case "redis":
                return RedisStore(self._redis_url, prefix=self._prefix, kept=kept)
        self._memory = self._memory or MemoryStore(kept)
        return self._memory


def put(
    id: str, body: Mapping[str, Any], *, kind: Kind = "key", expected: int | None = None
) -> Write:
    """A document put."""
    return Write(kind=kind, id=id, body=body, expected=expected)


def drop(id: str, *, kind: Kind = "key", expected: int | None = None) -> Write:
    """A document deleted."""
    return Write(kind=kind, id=id, body=None, expected=expected)


async def bodies(store: Store) -> dict[str, Mapping[str, Any]]:
    """All bodies by id."""
    return {record.id: record.body for record in (await store.read()).records}


async def all_entries(store: Store, page: int = 7) -> list[tuple[str, Any, Any]]:
    """(id, before, after) of the whole audit, the oldest first, read in pages."""
    found: list[tuple[str, Any, Any]] = []
    before: int | None = None
    while entries := await store.audit(before=before, limit=page):
        found += [(each.id, each.before, each.after) for each in entries]
        before = entries[-1].sequence
    return found[::-1]


async def put_each(store: Store, ids: Sequence[str], body: Mapping[str, Any]) -> list[int]:
    """One commit for each id."""
    return [await store.commit([put(id, body)], DEED) for id in ids]
