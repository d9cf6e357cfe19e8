"""What is done for batches in this process: claim what there is to do, and do it.

One look at the store a second, and at once when somebody here made or changed a batch. Checking
and putting together are done here, lines by a `Job` for each batch; what outlived its time is
forgotten now and then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from gateway.batch.check import checked
from gateway.batch.files import FilesError
from gateway.batch.finish import Outputs
from gateway.batch.job import Job
from gateway.batch.record import (
    Batch,
    BatchStateError,
    StoredFile,
    ended,
    expired,
    invalid,
    validated,
)
from gateway.batch.store import CHECK, InUseError, Kept, Lease, LeaseLostError, StaleError
from gateway.batch.tools import Tools
from gateway.tenancy.store.port import StoreError

LOGGER = logging.getLogger("fairgate.batch")

LOOK_S = 1.0
SWEEP_S = 600.0
ORPHAN_S = 3_600.0
"""An object that nobody knows of is somebody's unfinished work until it is so old."""
BATCHES_MAX = 32
"""Batches that are worked on here at once."""
FAULT_S = 5.0
"""After a fault of the store or the files a batch is left alone for so long."""
HeadersOf = Callable[[Batch], list[tuple[bytes, bytes]]]


class Runner:
    """All work on batches in one process."""

    def __init__(self, tools: Tools, headers_of: HeadersOf, *, look_s: float = LOOK_S) -> None:
        """`headers_of` a batch: those of each of its lines."""
        self._tools = tools
        self._headers_of = headers_of
        self._look_s = look_s
        self._work: dict[str, asyncio.Task[None]] = {}
        self._jobs: dict[str, Job] = {}
        self._not_before: dict[str, float] = {}
        self._held: dict[str, str] = {}
        """Batches whose check or end waits, and why."""
        self._wake = asyncio.Event()
        self._sweep_at = 0.0
        self._is_open = False
        self.fault: str | None = None
        """Why the store cannot be used."""

    @property
    def faults(self) -> dict[str, str]:
        """Batches that do not go on now, and why."""
        jobs = {name: job.fault for name, job in self._jobs.items() if job.fault is not None}
        return self._held | jobs

    def look(self, batch_id: str | None = None) -> None:
        """There is something to do, or something changed."""
        self._wake.set()
        job = self._jobs.get(batch_id or "")
        if job is not None:
            job.look()

    async def open(self) -> None:
        """Open what is kept. Raises StoreError, FilesError."""
        await self._tools.store.open()
        await self._tools.files.open()
        self._is_open = True

    async def run(self) -> None:
        """Until it is cancelled; then what is under way is left for others."""
        try:
            while True:
                await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._look_s):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            for task in self._work.values():
                task.cancel()
            if self._work:
                await asyncio.wait(list(self._work.values()))

    async def _look(self) -> None:
        tools, now = self._tools, asyncio.get_running_loop().time()
        try:
            if not self._is_open:
                await self.open()
            await self._expire()
            if now >= self._sweep_at:
                self._sweep_at = now + SWEEP_S
                await self._sweep()
            if not tools.is_leaving():
                for batch_id in await tools.store.workable(tools.wall()):
                    self._begin(batch_id, now)
        except (StoreError, FilesError) as error:
            if self.fault is None:
                LOGGER.error("batches cannot go on: %s", error)
            self.fault = str(error)
        else:
            self.fault = None

    def _begin(self, batch_id: str, now: float) -> None:
        """Work on a batch, if nobody here does."""
        if batch_id in self._work or len(self._work) >= BATCHES_MAX:
            return
        if self._not_before.get(batch_id, 0.0) > now:
            return
        self._not_before.pop(batch_id, None)
        task = asyncio.get_running_loop().create_task(self._guarded(batch_id))
        self._work[batch_id] = task

    async def _guarded(self, batch_id: str) -> None:
        """Work on a batch; whatever goes wrong is told, and tried again later."""
        try:
            await self._work_on(batch_id)
            self._held.pop(batch_id, None)
        except (LeaseLostError, StaleError):
            # Somebody else changed it: the next look tells what is to be done.
            self._held.pop(batch_id, None)
        except (StoreError, FilesError) as error:
            self._hold(batch_id, str(error))
        except Exception:
            LOGGER.exception("%s failed inside the gateway, and is tried again", batch_id)
            self._not_before[batch_id] = asyncio.get_running_loop().time() + FAULT_S
        finally:
            self._work.pop(batch_id, None)
            self._wake.set()

    def _hold(self, batch_id: str, fault: str) -> None:
        """It is tried again later; why is told once."""
        if self._held.get(batch_id) != fault:
            LOGGER.error("%s waits: %s", batch_id, fault)
        self._held[batch_id] = fault
        self._not_before[batch_id] = asyncio.get_running_loop().time() + FAULT_S

    async def _work_on(self, batch_id: str) -> None:
        kept = await self._tools.store.batch(batch_id)
        if kept is None:
            return
        if kept.batch.status == "in_progress":
            await self._run_lines(kept.batch)
            return
        lease = await self._claimed(batch_id)
        if lease is None:
            return
        work = self._check if lease.part == CHECK else self._finish
        await self._under(lease, work(lease))

    async def _run_lines(self, batch: Batch) -> None:
        file = await self._input(batch)
        job = Job(self._tools, batch, file, headers=self._headers_of(batch))
        self._jobs[batch.id] = job
        try:
            await job.run()
        finally:
            del self._jobs[batch.id]

    async def _claimed(self, batch_id: str) -> Lease | None:
        now = self._tools.wall()
        return await self._tools.store.claim(
            batch_id,
            holder=self._tools.holder,
            until=now + self._tools.limits.lease_s,
            now=now,
            runs_lines=False,
        )

    async def _under(self, lease: Lease, work: Awaitable[None]) -> None:
        """Do `work` while the lease is renewed, and give it back where it came to nothing."""
        renewing = asyncio.get_running_loop().create_task(self._renew(lease))
        try:
            await work
        except BaseException:
            with suppress(StoreError):
                await self._tools.store.release([lease])
            raise
        finally:
            renewing.cancel()

    async def _renew(self, lease: Lease) -> None:
        lease_s = self._tools.limits.lease_s
        while True:
            await asyncio.sleep(lease_s / 3)
            with suppress(StoreError):
                await self._tools.store.renew([lease], self._tools.wall() + lease_s)

    async def _check(self, lease: Lease) -> None:
        tools, limits = self._tools, self._tools.limits
        batch = (await self._kept(lease)).batch
        found = await checked(
            tools.files,
            await self._input(batch),
            endpoint=batch.endpoint,
            lines_max=limits.lines,
            line_bytes_max=limits.line_bytes,
        )
        kept, now = await self._kept(lease), tools.wall()
        if found.faults:
            changed = invalid(kept.batch, now, found.faults)
            starts: tuple[tuple[int, int], ...] = ()
        else:
            changed = validated(kept.batch, now, total=found.total, model=found.model)
            starts = found.starts
        await tools.store.checked(lease, Kept(batch=changed, version=kept.version), starts)

    async def _finish(self, lease: Lease) -> None:
        tools, now = self._tools, self._tools.wall()
        kept = await self._kept(lease)
        batch = kept.batch
        outputs = Outputs(tools.files, batch, now=now, keep_s=tools.limits.keep_s)
        pieces = await tools.store.pieces(batch.id)
        output, errors = await outputs.written(
            pieces,
            await tools.store.rests(batch.id),
            file=await self._input(batch),
        )
        done = ended(
            batch,
            tools.wall(),
            output_file_id=None if output is None else output.id,
            error_file_id=None if errors is None else errors.id,
        )
        files = [file for file in (output, errors) if file is not None]
        try:
            await tools.store.finish(lease, Kept(batch=done, version=kept.version), files)
        except (LeaseLostError, StaleError):
            await outputs.abandon()
            raise
        for piece in pieces:
            with suppress(FilesError):  # swept later
                await tools.files.remove(piece.object)

    async def _kept(self, lease: Lease) -> Kept:
        """The batch as it is. Raises LeaseLostError."""
        kept = await self._tools.store.batch(lease.batch_id)
        if kept is None or not kept.batch.is_open:
            raise LeaseLostError
        return kept

    async def _input(self, batch: Batch) -> StoredFile:
        """The file of its requests: no open batch loses its file. Raises FilesError."""
        file = await self._tools.store.file(batch.input_file_id)
        if file is None:
            raise FilesError("an object is missing", f"the file {batch.input_file_id} is gone")
        return file

    async def _expire(self) -> None:
        """Close what is late, and forget files that are old."""
        tools, now = self._tools, self._tools.wall()
        late, old = await tools.store.due(now)
        for kept in late:
            with suppress(StaleError, BatchStateError):
                changed = expired(kept.batch, now)
                await tools.store.put(replace(kept, batch=changed))
                self.look(changed.id)
        for file in old:
            with suppress(InUseError):
                await tools.store.drop_file(file.id)
                await tools.files.remove(file.object)

    async def _sweep(self) -> None:
        """Forget old batches, and objects that somebody left behind who was killed."""
        tools = self._tools
        await tools.store.forget_batches(tools.wall() - tools.limits.keep_s)
        # In this order: what is made meanwhile is younger than what is looked at.
        names = await tools.files.names(older_than_s=ORPHAN_S)
        needed = await tools.store.objects() if names else set()
        for name in names:
            if name not in needed:
                await tools.files.remove(name)
