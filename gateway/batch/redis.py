"""Batches in Redis, for gateways on several machines: a hash for each, lists of who has which.

Each change of a batch is read, thought of, and written by one script if nothing of what it
rests on has changed meanwhile; else it is thought of anew. What is in a hash is in `redis_rows.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from redis.exceptions import RedisError, WatchError

from gateway.batch import redis_rows
from gateway.batch.record import Batch, Owner, StoredFile
from gateway.batch.redis_rows import Fields, Guarded
from gateway.batch.store import (
    Gains,
    InUseError,
    Kept,
    Lease,
    LeaseLostError,
    Piece,
    Quota,
    QuotaError,
    Rest,
)
from gateway.tenancy.store.port import StoreError
from gateway.tenancy.store.redis_client import client

T = TypeVar("T")

CALL_S = 5.0
CONNECTIONS_MAX = 8
TRIES_MAX = 100
"""So often a change is thought of anew: each time somebody else has made one."""
FORGOTTEN_MAX = 1_000
SCRIPT = Path(__file__).with_name("guarded.lua")

_FILES = msgspec.msgpack.Decoder(StoredFile)


class RedisBatches:
    """`BatchStore` in Redis."""

    def __init__(self, url: str, *, prefix: str = "fairgate") -> None:
        self._redis: Any = client(
            url, connections_max=CONNECTIONS_MAX, wait_s=CALL_S, socket_s=CALL_S
        )
        self._guarded = self._redis.register_script(SCRIPT.read_bytes())
        self._where = urlsplit(url).hostname or "redis"
        # In braces: one slot of a cluster, so that transactions may span them.
        self._names = partial("{{{}:batches}}:{}".format, prefix)

    async def open(self) -> None:
        """Connect."""
        async with self._told():
            await self._redis.ping()

    async def close(self) -> None:
        """Disconnect."""
        await self._redis.aclose()

    async def add_file(self, file: StoredFile, quota: Quota) -> None:
        """Keep a file. Raises QuotaError."""
        sizes = self._names(f"sizes:{file.owner.tenant}")
        async with self._told(), self._redis.pipeline(transaction=True) as pipe:
            for _ in range(TRIES_MAX):
                await pipe.watch(sizes)
                held = [int(size) for size in await pipe.hvals(sizes)]
                if len(held) >= quota.files:
                    text = f"Your organisation has {quota.files} files, which is all that it may."
                    raise QuotaError(text)
                if sum(held) + file.size > quota.bytes:
                    text = f"The files of your organisation may have {quota.bytes} bytes together."
                    raise QuotaError(text)
                pipe.multi()
                await self._put_file(pipe, file)
                try:
                    await pipe.execute()
                except WatchError:
                    continue
                return
        raise self._crowded()

    async def file(self, file_id: str) -> StoredFile | None:
        """The file of this id."""
        async with self._told():
            value = await self._redis.hget(self._names("files"), file_id)
        return None if value is None else _FILES.decode(value)

    async def files(
        self, owner: Owner, *, after: str | None, limit: int, purpose: str | None, is_newest: bool
    ) -> list[StoredFile]:
        """Files of `owner`."""
        found: list[StoredFile] = []
        async with self._told():
            ids = await self._listed(self._owned("files", owner), after, is_newest=is_newest)
            for at in range(0, len(ids), FORGOTTEN_MAX):
                some = ids[at : at + FORGOTTEN_MAX]
                values = await self._redis.hmget(self._names("files"), some)
                files = [_FILES.decode(value) for value in values if value is not None]
                found += [file for file in files if purpose in (None, file.purpose)]
                if len(found) >= limit:
                    break
        return found[:limit]

    async def drop_file(self, file_id: str) -> None:
        """Forget a file. Raises InUseError."""
        if any(kept.batch.input_file_id == file_id for kept in await self._open_batches()):
            raise InUseError(file_id)
        file = await self.file(file_id)
        if file is None:
            return
        async with self._told(), self._redis.pipeline(transaction=True) as pipe:
            pipe.hdel(self._names("files"), file_id)
            pipe.hdel(self._names(f"sizes:{file.owner.tenant}"), file_id)
            pipe.zrem(self._owned("files", file.owner), file_id)
            pipe.zrem(self._names("expiring"), file_id)
            await pipe.execute()

    async def add_batch(self, batch: Batch, quota: Quota) -> None:
        """Keep a new batch. Raises QuotaError."""
        of_tenant = self._names(f"open:{batch.owner.tenant}")
        async with self._told(), self._redis.pipeline(transaction=True) as pipe:
            for _ in range(TRIES_MAX):
                await pipe.watch(of_tenant)
                if await pipe.scard(of_tenant) >= quota.open_batches:
                    text = f"Your organisation has {quota.open_batches} open batches, "
                    raise QuotaError(f"{text}which is all that it may.")
                sequence = await pipe.incr(self._names("sequence"))
                pipe.multi()
                pipe.sadd(of_tenant, batch.id)
                pipe.zadd(self._names("open"), {batch.id: sequence})
                pipe.zadd(self._owned("batches", batch.owner), {batch.id: sequence})
                pipe.zadd(self._names("made"), {batch.id: batch.created_at})
                pipe.hset(self._batch(batch.id), mapping=redis_rows.made(batch))
                try:
                    await pipe.execute()
                except WatchError:
                    continue
                return
        raise self._crowded()

    async def batch(self, batch_id: str) -> Kept | None:
        """A batch with its counts."""
        fields = await self._fields(batch_id)
        return redis_rows.kept_in(fields) if fields else None

    async def batches(self, owner: Owner, *, after: str | None, limit: int) -> list[Batch]:
        """Batches of `owner`, newest first."""
        async with self._told():
            ids = await self._listed(self._owned("batches", owner), after, is_newest=True)
        found = [await self.batch(name.decode()) for name in ids[:limit]]
        return [kept.batch for kept in found if kept is not None]

    async def newest(self, limit: int) -> list[Batch]:
        """Batches of everybody, open ones first."""
        async with self._told():
            ids = await self._redis.zrevrange(self._names("open"), 0, limit - 1)
            ids += await self._redis.zrevrange(self._names("made"), 0, limit - 1)
        found = [await self.batch(name.decode()) for name in list(dict.fromkeys(ids))[:limit]]
        batches = [kept.batch for kept in found if kept is not None]
        # Those of a moment ago may have ended since.
        return sorted(batches, key=lambda batch: not batch.is_open)

    async def put(self, kept: Kept) -> None:
        """Change a batch. Raises StaleError."""
        await self._change(kept.batch.id, lambda fields: redis_rows.changed(fields, kept))
        if not kept.batch.is_open:
            await self._close(kept.batch)

    async def workable(self, now: float) -> list[str]:
        """Batches of which something can be claimed, oldest first."""
        async with self._told():
            ids = await self._redis.zrange(self._names("open"), 0, FORGOTTEN_MAX)
        found = []
        for name in ids:
            batch_id = name.decode()
            fields = await self._fields(batch_id)
            if fields and not redis_rows.kept_in(fields).batch.is_open:
                await self._close(redis_rows.kept_in(fields).batch)  # killed before it could
            elif fields and redis_rows.claimable(fields, now) is not None:
                found.append(batch_id)
        return found

    async def claim(
        self, batch_id: str, *, holder: str, until: float, now: float, runs_lines: bool
    ) -> Lease | None:
        """The next part that nobody works on."""
        lease: Lease | None = None

        def take(fields: Fields) -> Guarded | None:
            nonlocal lease
            row = redis_rows.claimable(fields, now, runs_lines=runs_lines)
            if row is None:
                lease = None
                return None
            lease, guarded = redis_rows.claimed(
                fields, row, holder=holder, until=until, batch_id=batch_id
            )
            return guarded

        await self._change(batch_id, take)
        return lease

    async def renew(self, leases: Sequence[Lease], until: float) -> list[Lease]:
        """Those that are still held."""
        held = []
        for lease in leases:
            try:
                await self._change(
                    lease.batch_id,
                    partial(redis_rows.renewed, lease=lease, until=until),
                    part=lease.part,
                )
            except LeaseLostError:
                continue
            held.append(lease)
        return held

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give parts back."""
        for lease in leases:
            try:
                await self._change(
                    lease.batch_id, partial(redis_rows.released, lease=lease), part=lease.part
                )
            except LeaseLostError:
                continue

    async def checked(self, lease: Lease, kept: Kept, starts: Sequence[tuple[int, int]]) -> None:
        """The file was checked. Raises LeaseLostError, StaleError."""
        await self._change(
            lease.batch_id, partial(redis_rows.checked, lease=lease, kept=kept, starts=starts)
        )
        if not kept.batch.is_open:
            await self._close(kept.batch)

    async def commit(self, gains: Sequence[Gains], now: float) -> list[Lease]:
        """Keep gains, part by part; to tell one twice is to tell it once."""
        lost = []
        for gain in gains:
            try:
                await self._change(
                    gain.lease.batch_id,
                    partial(redis_rows.gained, gain=gain, now=now),
                    part=gain.lease.part,
                )
            except LeaseLostError:
                lost.append(gain.lease)
        return lost

    async def pieces(self, batch_id: str) -> list[Piece]:
        """All bytes of output that count."""
        return redis_rows.pieces_in(await self._fields(batch_id))

    async def rests(self, batch_id: str) -> list[Rest]:
        """The parts of which not all requests were run."""
        return redis_rows.rests_in(await self._fields(batch_id))

    async def finish(self, lease: Lease, kept: Kept, files: Sequence[StoredFile]) -> None:
        """The outputs are there. Raises LeaseLostError, StaleError."""
        key = self._batch(lease.batch_id)
        async with self._told(), self._redis.pipeline(transaction=True) as pipe:
            for _ in range(TRIES_MAX):
                await pipe.watch(key)
                guarded = redis_rows.finished(await pipe.hgetall(key), lease, kept)
                pipe.multi()
                for name, value in guarded.writes.items():
                    if value == redis_rows.GONE:
                        pipe.hdel(key, name)
                    else:
                        pipe.hset(key, name, value)
                for file in files:
                    await self._put_file(pipe, file)
                self._close_in(pipe, kept.batch)
                try:
                    await pipe.execute()
                except WatchError:
                    continue
                return
        raise self._crowded()

    async def due(self, now: float) -> tuple[list[Kept], list[StoredFile]]:
        """Batches whose window has closed, and files to be forgotten."""
        kept = await self._open_batches()
        late = [
            each
            for each in kept
            if each.batch.expires_at <= now and each.batch.status in ("validating", "in_progress")
        ]
        needed = {each.batch.input_file_id for each in kept}
        async with self._told():
            ids = await self._redis.zrangebyscore(
                self._names("expiring"), "-inf", now, start=0, num=FORGOTTEN_MAX
            )
        files = [await self.file(name.decode()) for name in ids]
        return late, [file for file in files if file is not None and file.id not in needed]

    async def forget_batches(self, before: float) -> None:
        """Forget batches that ended."""
        async with self._told():
            ids = await self._redis.zrangebyscore(
                self._names("made"), "-inf", f"({before}", start=0, num=FORGOTTEN_MAX
            )
        for name in ids:
            kept = await self.batch(name.decode())
            if kept is not None and kept.batch.is_open:
                continue
            async with self._told(), self._redis.pipeline(transaction=True) as pipe:
                pipe.delete(self._batch(name.decode()))
                pipe.zrem(self._names("made"), name)
                if kept is not None:
                    pipe.zrem(self._owned("batches", kept.batch.owner), name)
                await pipe.execute()

    async def objects(self) -> set[str]:
        """Names of all objects that are needed."""
        async with self._told():
            values = await self._redis.hvals(self._names("files"))
            ids = await self._redis.zrange(self._names("open"), 0, -1)
        found = {_FILES.decode(value).object for value in values}
        for name in ids:
            found |= {piece.object for piece in await self.pieces(name.decode())}
        return found

    async def _change(
        self,
        batch_id: str,
        think: Callable[[Fields], Guarded | None],
        *,
        part: int | None = None,
    ) -> None:
        """Write what `think` makes of the batch, unless others changed what it rests on.

        `part`: it looks at this part only. Raises what it raises, and LeaseLostError where there
        is no such batch.
        """
        for _ in range(TRIES_MAX):
            fields = await self._fields(batch_id, part)
            if redis_rows.BATCH not in fields:
                raise LeaseLostError
            guarded = think(fields)
            if guarded is None:
                return
            words: list[bytes | int] = [len(guarded.unless_changed)]
            for pairs in (guarded.unless_changed, guarded.writes):
                words += [word for pair in pairs.items() for word in pair]
            async with self._told():
                if await self._guarded(keys=[self._batch(batch_id)], args=words):
                    return
        raise self._crowded()

    async def _fields(self, batch_id: str, part: int | None = None) -> dict[bytes, bytes]:
        """All fields of a batch, or those that tell of one part."""
        key = self._batch(batch_id)
        async with self._told():
            if part is None:
                found: dict[bytes, bytes] = await self._redis.hgetall(key)
                return found
            names = [redis_rows.BATCH, redis_rows.LEFT, redis_rows.field_of(part)]
            values = await self._redis.hmget(key, names)
        pairs = zip(names, values, strict=True)
        return {name: value for name, value in pairs if value is not None}

    async def _open_batches(self) -> list[Kept]:
        async with self._told():
            ids = await self._redis.zrange(self._names("open"), 0, -1)
        found = [await self.batch(name.decode()) for name in ids]
        return [kept for kept in found if kept is not None and kept.batch.is_open]

    async def _close(self, batch: Batch) -> None:
        """It is open no more; whoever looks for work does this where its doer was killed."""
        async with self._told(), self._redis.pipeline(transaction=True) as pipe:
            self._close_in(pipe, batch)
            await pipe.execute()

    def _close_in(self, pipe: Any, batch: Batch) -> None:
        pipe.zrem(self._names("open"), batch.id)
        pipe.srem(self._names(f"open:{batch.owner.tenant}"), batch.id)

    async def _put_file(self, pipe: Any, file: StoredFile) -> None:
        sequence = await self._redis.incr(self._names("sequence"))
        pipe.hset(self._names("files"), file.id, msgspec.msgpack.encode(file))
        pipe.hset(self._names(f"sizes:{file.owner.tenant}"), file.id, file.size)
        pipe.zadd(self._owned("files", file.owner), {file.id: sequence})
        if file.expires_at is not None:
            pipe.zadd(self._names("expiring"), {file.id: file.expires_at})

    async def _listed(self, key: str, after: str | None, *, is_newest: bool) -> list[bytes]:
        """Ids of a list behind `after`."""
        low, high = "-inf", "+inf"
        if after is not None:
            score = await self._redis.zscore(key, after)
            if score is None:
                return []
            low, high = (low, f"({score}") if is_newest else (f"({score}", high)
        if is_newest:
            return list(await self._redis.zrevrangebyscore(key, high, low))
        return list(await self._redis.zrangebyscore(key, low, high))

    def _batch(self, batch_id: str) -> str:
        return self._names(f"batch:{batch_id}")

    def _owned(self, kind: str, owner: Owner) -> str:
        # The length keeps a name that holds the separator from meaning another user.
        return self._names(f"{kind}:{len(owner.tenant)}:{owner.tenant}:{owner.user}")

    def _crowded(self) -> StoreError:
        return StoreError(f"{self._where}: others change the same all the time")

    @asynccontextmanager
    async def _told(self) -> AsyncIterator[None]:
        """What Redis says becomes a StoreError."""
        try:
            async with asyncio.timeout(CALL_S):
                yield
        except WatchError:
            raise
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreError(f"{self._where}: {error or 'no answer'}") from error
