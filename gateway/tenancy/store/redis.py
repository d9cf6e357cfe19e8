"""A store that gateways of several machines share: Redis, one script for each commit.

A commit is acknowledged once Redis has it. Whether it outlives Redis itself is Redis' own
setting: `open` looks at that and warns. No key ever expires by itself.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.tenancy.store.documents import (
    changes_in,
    changes_of,
    forgotten,
    packed,
    summed,
    unpacked,
)
from gateway.tenancy.store.port import (
    AUDIT_PAGE_MAX,
    CHANGES_MAX,
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
from gateway.tenancy.store.redis_client import client
from gateway.tenancy.store.redis_texts import (
    SCHEMA,
    Names,
    commit_arguments,
    committed,
    entry_of,
    newer,
    records_of,
)

Row = tuple[bytes, dict[bytes, bytes]]
LOGGER = logging.getLogger("fairgate.store")
SCRIPT = Path(__file__).with_name("commit.lua")

QUICK_S = 0.1
"""The budget of what requests wait for: `revision`, `spent`, `spend`."""
SLOW_S = 2.0
"""The budget of what operators wait for."""
READ_S = 20.0
"""The budget of reading everything, up to a hundred thousand records."""
WRITE_S = 0.001
"""What each record of a commit adds to its budget."""
PAUSE_S = 0.25
"""After a quick call failed, further ones fail at once for so long, so that none waits in vain."""
CHANGES_FEW = 32
"""Entries that are asked for first: most changes are of a few records."""
CONNECTIONS_MAX = 16
VERSION_MIN = (6, 2)
PREFIX = "fairgate"
SAFE_EVICTION = "noeviction"


class RedisStore:
    """`Store` in Redis. Connects by itself, and again after each loss."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = PREFIX,
        kept: Kept | None = None,
        clock: Callable[[], float] = monotonic,
        quick_s: float = QUICK_S,
    ) -> None:
        self._kept = kept or Kept()
        self._names = Names(prefix=prefix)
        self._clock = clock
        self._quick_s = quick_s
        self._paused_until = 0.0
        self._where = _without_password(url)
        # No retries inside: a commit that may have been made must not be made again.
        self._redis = client(
            url,
            connections_max=CONNECTIONS_MAX,
            wait_s=SLOW_S,
            # Each call has its budget; this is for what it leaves behind.
            socket_s=READ_S,
            retry=Retry(NoBackoff(), 0),
        )
        self._script = self._redis.register_script(SCRIPT.read_bytes())

    async def open(self) -> None:
        """Connect, and look at what Redis would do to what is kept there."""
        async with self._within(SLOW_S):
            info = await self._redis.info()
            schema = int(await self._redis.hget(self._names.state, "schema") or 0)
        if schema > SCHEMA:
            raise newer(schema)
        version = str(info["redis_version"])
        if tuple(map(int, version.split(".")[:2])) < VERSION_MIN:
            raise StoreError(f"{self._where} is Redis {version}, too old: 6.2 is needed")
        for warning in _warnings(info):
            LOGGER.warning("%s %s", self._where, warning)

    async def close(self) -> None:
        """Disconnect."""
        await self._redis.aclose()

    async def read(self) -> Contents:
        """Everything."""
        async with self._within(READ_S), self._redis.pipeline(transaction=True) as pipe:
            pipe.hget(self._names.state, "revision")
            pipe.hgetall(self._names.records)
            revision, values = await pipe.execute()
        # Not in the loop: there may be a hundred thousand.
        records = await asyncio.to_thread(records_of, values)
        return Contents(revision=int(revision or 0), records=records)

    async def changes(self, since: int) -> Changes | None:
        """From the audit, as far as it goes."""
        for count in (CHANGES_FEW, CHANGES_MAX + 1):
            async with self._within(SLOW_S), self._redis.pipeline(transaction=True) as pipe:
                pipe.hmget(self._names.state, "revision", "audit_floor")
                pipe.xrevrange(self._names.audit, count=count)
                (found, floor), rows = await pipe.execute()
            if not int(floor or 0) <= since <= int(found or 0):
                return None
            newest = [entry_of(*row) for row in rows]
            entries = [entry for entry in newest if entry.revision > since]
            if len(entries) < count:
                return changes_in(entries, int(found or 0))
        return None

    async def revision(self) -> int:
        """Of the last commit."""
        async with self._quickly():
            return int(await self._redis.hget(self._names.state, "revision") or 0)

    async def commit(
        self, writes: Sequence[Write], deed: Deed, answer: tuple[str, Answer] | None = None
    ) -> int:
        """All or nothing, in one script."""
        kept_answer = None if answer is None else (answer[0], packed(answer[1]))
        arguments = commit_arguments(changes_of(writes), deed, kept_answer, self._kept)
        async with self._within(SLOW_S + WRITE_S * len(writes)):
            result = await self._script(keys=self._names.of_commit(), args=arguments)
        return committed(result)

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: Kind | None = None,
        record_id: str | None = None,
    ) -> tuple[AuditEntry, ...]:  # fmt: skip
        """Newest first; page by page, since Redis cannot choose by kind and id."""
        assert 0 < limit <= AUDIT_PAGE_MAX
        found: list[AuditEntry] = []
        if before is not None and before < 1:
            return ()
        last = "+" if before is None else f"({before}-0"
        count = limit if kind is None and record_id is None else AUDIT_PAGE_MAX
        async with self._within(SLOW_S):
            while len(found) < limit:
                rows = await self._redis.xrevrange(self._names.audit, max=last, count=count)
                entries = [entry_of(*cast("Row", row)) for row in rows or ()]
                found += [
                    e for e in entries if kind in (None, e.kind) and record_id in (None, e.id)
                ]
                if len(entries) < count:
                    break
                last = f"({entries[-1].sequence}-0"
        return tuple(found[:limit])

    async def answered(self, idempotency_key: str) -> Answer | None:
        """What was answered under this key."""
        async with self._within(SLOW_S):
            value = await self._redis.hget(self._names.answers, idempotency_key)
        return None if value is None else unpacked(cast("bytes", value))

    async def spent(self, periods: Sequence[str]) -> Mapping[tuple[str, str], int]:
        """By holder and period."""
        async with self._quickly(), self._redis.pipeline(transaction=False) as pipe:
            for period in periods:
                pipe.hgetall(self._names.spent(period))
            sums = await pipe.execute()
        return {
            (holder.decode(), period): int(tokens)
            for period, holders in zip(periods, sums, strict=True)
            for holder, tokens in holders.items()
        }

    async def spend(self, amounts: Mapping[tuple[str, str], int]) -> None:
        """Add."""
        sums = summed(amounts)
        if not sums:
            return
        async with self._quickly():
            async with self._redis.pipeline(transaction=True) as pipe:
                for period, holder, tokens in sums:
                    pipe.hincrby(self._names.spent(period), holder, tokens)
                pipe.sadd(self._names.periods, *{period for period, _, _ in sums})
                pipe.smembers(self._names.periods)
                *_, periods = await pipe.execute()
            old = forgotten(period.decode() for period in periods)
            if old:
                async with self._redis.pipeline(transaction=True) as pipe:
                    pipe.srem(self._names.periods, *old)
                    pipe.delete(*map(self._names.spent, old))
                    await pipe.execute()

    @asynccontextmanager
    async def _quickly(self) -> AsyncIterator[None]:
        """For what requests wait for: little time, and none right after a failure."""
        if self._clock() < self._paused_until:
            raise StoreError(f"{self._where} did not answer a moment ago")
        try:
            async with self._within(self._quick_s):
                yield
        except StoreError:
            self._paused_until = self._clock() + PAUSE_S
            raise

    @asynccontextmanager
    async def _within(self, limit_s: float) -> AsyncIterator[None]:
        """What Redis and the network say becomes a StoreError, after `limit_s` at the latest."""
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError:
            raise StoreError(f"{self._where} did not answer within {limit_s:g} s") from None
        except (RedisError, OSError) as error:
            raise StoreError(f"{self._where}: {error}") from error


def _without_password(url: str) -> str:
    """Host, port and number of the database."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _warnings(info: Mapping[str, Any]) -> list[str]:
    """How Redis, as it is set, may lose what it acknowledged."""
    found = []
    eviction = info.get("maxmemory_policy", SAFE_EVICTION)
    if eviction != SAFE_EVICTION and not str(eviction).startswith("volatile-"):
        found.append(
            f"evicts keys where memory runs out (maxmemory-policy {eviction}), those of the store "
            f"too: set it to {SAFE_EVICTION}"
        )
    if not info.get("aof_enabled"):
        found.append(
            "has no append-only file: what was changed since its last snapshot is lost where it "
            "crashes; set appendonly yes"
        )
    return found
