"""The default store: one SQLite file, written by one thread, shared by the processes of a machine.

The file is made with the first write: who only looks leaves nothing behind. What it looks like
inside is in `sqlite_rows.py`, how it is opened in `sqlite_file.py`.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from gateway.tenancy.store import sqlite_rows
from gateway.tenancy.store.documents import changes_of, packed, summed
from gateway.tenancy.store.port import (
    AUDIT_PAGE_MAX,
    Answer,
    AuditEntry,
    Changes,
    Contents,
    Deed,
    Kept,
    Kind,
    StoreError,
    Write,
)
from gateway.tenancy.store.sqlite_file import (
    Identity,
    check_folder,
    check_schema,
    connected,
    explained,
    identity,
    let_go,
)

T = TypeVar("T")

CALL_S = 30.0
"""How long one call may take, those before it included; a disk that hangs must not hang callers.

Reading a hundred thousand records, or writing them in one commit, takes some seconds.
"""
CALLS_MAX = 1000
"""Calls that wait for the thread."""
HARMLESS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL})
"""After these the connection is as good as before."""


class SqliteStore:
    """`Store` in a file. A commit is on the disk when it returns."""

    def __init__(self, path: Path, kept: Kept | None = None) -> None:
        self._path = path.absolute()
        self._kept = kept or Kept()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="fairgate-store")
        self._calls = 0
        self._is_closed = False
        # The worker's own.
        self._connection: sqlite3.Connection | None = None
        self._identity: Identity = None

    async def open(self) -> None:
        """Check and migrate the file, if there is one already."""

        def check() -> None:
            if self._connected(creates=False) is None:
                check_folder(self._path)

        await self._call(check)

    async def close(self) -> None:
        """Let go of the file once what was begun is done."""
        if self._is_closed:
            return
        try:
            await self._call(self._let_go)
        finally:
            self._is_closed = True
            self._worker.shutdown(wait=False)

    async def read(self) -> Contents:
        """Everything."""
        return await self._look(sqlite_rows.read, Contents(revision=0))

    async def changes(self, since: int) -> Changes | None:
        """From the audit, as far as it goes."""
        none = None if since else Changes(revision=0)
        return await self._look(partial(sqlite_rows.changes, since=since), none)

    async def revision(self) -> int:
        """Of the last commit."""
        return await self._look(sqlite_rows.revision, 0)

    async def commit(
        self, writes: Sequence[Write], deed: Deed, answer: tuple[str, Answer] | None = None
    ) -> int:
        """All or nothing, on the disk when it returns."""
        kept_answer = None if answer is None else (answer[0], packed(answer[1]))
        return await self._write(
            partial(
                sqlite_rows.commit,
                writes=changes_of(writes),
                deed=deed,
                answer=kept_answer,
                kept=self._kept,
            )
        )

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: Kind | None = None,
        record_id: str | None = None,
    ) -> tuple[AuditEntry, ...]:  # fmt: skip
        """Newest first."""
        assert 0 < limit <= AUDIT_PAGE_MAX
        none: tuple[AuditEntry, ...] = ()
        wanted = partial(
            sqlite_rows.audit, before=before, limit=limit, kind=kind, record_id=record_id
        )
        return await self._look(wanted, none)

    async def answered(self, idempotency_key: str) -> Answer | None:
        """What was answered under this key."""
        return await self._look(partial(sqlite_rows.answered, key=idempotency_key), None)

    async def spent(self, periods: Sequence[str]) -> Mapping[tuple[str, str], int]:
        """By holder and period."""
        none: Mapping[tuple[str, str], int] = {}
        return await self._look(partial(sqlite_rows.spent, periods=tuple(periods)), none)

    async def spend(self, amounts: Mapping[tuple[str, str], int]) -> None:
        """Add; where power is lost, the last of it may be lost too."""
        if sums := summed(amounts):
            await self._write(partial(sqlite_rows.spend, amounts=sums))

    async def _look(self, work: Callable[[sqlite3.Connection], T], without: T) -> T:
        """The result of `work`, or `without` where there is no file yet."""

        def look() -> T:
            connection = self._connected(creates=False)
            return without if connection is None else work(connection)

        return await self._call(look)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def write() -> T:
            connection = self._connected(creates=True)
            assert connection is not None
            check_schema(connection, self._path)
            return work(connection)

        return await self._call(write)

    async def _call(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread. It is done even if its caller is cancelled or gives up."""
        if self._is_closed:
            raise StoreError(f"{self._path}: the store is closed")
        if self._calls >= CALLS_MAX:
            raise StoreError(f"{self._path}: {CALLS_MAX} calls wait already")
        self._calls += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._worker, partial(self._guarded, work))
        future.add_done_callback(self._done)
        done, _ = await asyncio.wait({future}, timeout=CALL_S)
        if not done:
            raise StoreError(f"{self._path}: the disk did not answer within {CALL_S:g} s")
        return future.result()

    def _done(self, future: "asyncio.Future[T]") -> None:
        self._calls -= 1
        if not future.cancelled():
            # Looked at, so that nobody is told of a failure that its caller left behind.
            future.exception()

    def _guarded(self, work: Callable[[], T]) -> T:
        """`work` in the thread; what SQLite says becomes a StoreError."""
        try:
            return work()
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in HARMLESS:
                self._drop()
            raise explained(self._path, error) from error

    def _connected(self, *, creates: bool) -> sqlite3.Connection | None:
        """The open file. What is written to one that was moved away would be lost unseen."""
        found = identity(self._path)
        if self._connection is None:
            self._connection = connected(self._path, creates=creates)
            self._identity = identity(self._path)
        elif found != self._identity:
            raise StoreError(
                f"{self._path} was moved, removed or replaced while it was in use: "
                "stop all gateways that use it, put the right one there, and start them again"
            )
        return self._connection

    def _let_go(self) -> None:
        if self._connection is not None:
            let_go(self._connection)
        self._connection = None

    def _drop(self) -> None:
        """Close without ado: the next call opens and checks the file anew."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
