"""Batches in one SQLite file: written by one thread, shared by the processes of a machine.

What the rows look like is in `sqlite_rows.py`. A commit is on the disk when it returns.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from gateway.batch import sqlite_parts, sqlite_rows
from gateway.batch.record import Batch, Owner, StoredFile
from gateway.batch.store import Gains, Kept, Lease, Piece, Quota, Rest
from gateway.tenancy.store.port import StoreError
from gateway.tenancy.store.sqlite_file import connected, explained, let_go, transaction

T = TypeVar("T")

CALL_S = 30.0
CALLS_MAX = 1_000
"""Calls that wait for the thread."""


class SqliteBatches:
    """`BatchStore` in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="fairgate-batches")
        self._calls = 0
        self._is_closed = False
        self._connection: sqlite3.Connection | None = None
        """The worker's own."""

    async def open(self) -> None:
        """Make or migrate the file."""
        await self._call(lambda: self._connected() and None)

    async def close(self) -> None:
        """Let go of the file once what was begun is done."""
        if self._is_closed:
            return
        try:
            await self._call(self._let_go)
        finally:
            self._is_closed = True
            self._worker.shutdown(wait=False)

    async def add_file(self, file: StoredFile, quota: Quota) -> None:
        """Keep a file. Raises QuotaError."""
        await self._write(partial(sqlite_rows.add_file, file=file, quota=quota))

    async def file(self, file_id: str) -> StoredFile | None:
        """The file of this id."""
        return await self._look(partial(sqlite_rows.file, file_id=file_id))

    async def files(
        self, owner: Owner, *, after: str | None, limit: int, purpose: str | None, is_newest: bool
    ) -> list[StoredFile]:
        """Files of `owner`."""
        wanted = partial(
            sqlite_rows.files,
            owner=owner,
            after=after,
            limit=limit,
            purpose=purpose,
            is_newest=is_newest,
        )
        return await self._look(wanted)

    async def drop_file(self, file_id: str) -> None:
        """Forget a file. Raises InUseError."""
        await self._write(partial(sqlite_rows.drop_file, file_id=file_id))

    async def add_batch(self, batch: Batch, quota: Quota) -> None:
        """Keep a new batch. Raises QuotaError."""
        await self._write(partial(sqlite_rows.add_batch, batch=batch, quota=quota))

    async def batch(self, batch_id: str) -> Kept | None:
        """A batch with its counts."""
        return await self._look(partial(sqlite_rows.batch, batch_id=batch_id))

    async def batches(self, owner: Owner, *, after: str | None, limit: int) -> list[Batch]:
        """Batches of `owner`, newest first."""
        wanted = partial(sqlite_rows.batches, owner=owner, after=after, limit=limit)
        return await self._look(wanted)

    async def newest(self, limit: int) -> list[Batch]:
        """Batches of everybody, open ones first."""
        return await self._look(partial(sqlite_rows.newest, limit=limit))

    async def put(self, kept: Kept) -> None:
        """Change a batch. Raises StaleError."""
        await self._write(partial(sqlite_rows.put, kept=kept))

    async def workable(self, now: float) -> list[str]:
        """Batches of which something can be claimed."""
        return await self._look(partial(sqlite_parts.workable, now=now))

    async def claim(
        self, batch_id: str, *, holder: str, until: float, now: float, runs_lines: bool
    ) -> Lease | None:
        """The next part that nobody works on."""
        wanted = partial(
            sqlite_parts.claim,
            batch_id=batch_id,
            holder=holder,
            until=until,
            now=now,
            runs_lines=runs_lines,
        )
        return await self._write(wanted)

    async def renew(self, leases: Sequence[Lease], until: float) -> list[Lease]:
        """Those that are still held."""
        return await self._write(partial(sqlite_parts.renew, leases=leases, until=until))

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give parts back."""
        await self._write(partial(sqlite_parts.release, leases=leases))

    async def checked(self, lease: Lease, kept: Kept, starts: Sequence[tuple[int, int]]) -> None:
        """The file was checked. Raises LeaseLostError, StaleError."""
        await self._write(partial(sqlite_parts.checked, lease=lease, kept=kept, starts=starts))

    async def commit(self, gains: Sequence[Gains], now: float) -> list[Lease]:
        """Keep gains; returns the leases that are lost."""
        return await self._write(partial(sqlite_parts.commit, gains=gains, now=now))

    async def pieces(self, batch_id: str) -> list[Piece]:
        """All bytes of output that count."""
        return await self._look(partial(sqlite_parts.pieces, batch_id=batch_id))

    async def rests(self, batch_id: str) -> list[Rest]:
        """The parts of which not all requests were run."""
        return await self._look(partial(sqlite_parts.rests, batch_id=batch_id))

    async def finish(self, lease: Lease, kept: Kept, files: Sequence[StoredFile]) -> None:
        """The outputs are there. Raises LeaseLostError."""
        await self._write(partial(sqlite_parts.finish, lease=lease, kept=kept, files=files))

    async def due(self, now: float) -> tuple[list[Kept], list[StoredFile]]:
        """Batches whose window has closed, and files to be forgotten."""
        return await self._look(partial(sqlite_rows.due, now=now))

    async def forget_batches(self, before: float) -> None:
        """Forget batches that ended."""
        await self._write(partial(sqlite_rows.forget_batches, before=before))

    async def objects(self) -> set[str]:
        """Names of all objects that are needed."""
        return await self._look(sqlite_rows.objects)

    async def _look(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def look() -> T:
            connection = self._connected()
            with transaction(connection, writes=False):
                return work(connection)

        return await self._call(look)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def write() -> T:
            connection = self._connected()
            with transaction(connection, writes=True):
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
            raise explained(self._path, error) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connected(
                self._path, creates=True, migrations=sqlite_rows.MIGRATIONS
            )
            assert self._connection is not None
        return self._connection

    def _let_go(self) -> None:
        if self._connection is not None:
            let_go(self._connection)
        self._connection = None
