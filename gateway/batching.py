"""Batches of a gateway, made of its settings: the store, the files, the runner and the routes.

Loaded only where batches are configured; what they are is in `gateway.batch`.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from urllib.parse import unquote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from gateway.admin.batches import ProgressView
from gateway.admin.problems import of_validation
from gateway.api.auth import Asking, Headers, authenticated
from gateway.api.doors import Doors
from gateway.api.ops import on_gateway_error
from gateway.api.relay import Relay
from gateway.batch.desk import Caller, Desk
from gateway.batch.files import FilesError, files_at
from gateway.batch.record import Batch, Owner, seconds_left
from gateway.batch.routes import routes
from gateway.batch.runner import Runner
from gateway.batch.sqlite import SqliteBatches
from gateway.batch.store import BatchStore, Quota
from gateway.batch.tools import Limits, Tools
from gateway.errors import BatchStoreError, GatewayError
from gateway.settings import Settings, SettingsError
from gateway.tenancy.keys import Keyring
from gateway.tenancy.store.port import StoreError

LOGGER = logging.getLogger("fairgate.batch")
STORE_RETRY_S = 5.0


class Batching:
    """Files and batches of one gateway process."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        *,
        relay: Relay,
        keyring: Keyring,
        asking: Asking,
        doors: Doors,
        wall: Callable[[], float],
        store: BatchStore | None = None,
    ) -> None:
        """`settings`: as they are now. `store`: None: the configured one. Raises SettingsError."""
        section = settings().batches
        assert section.files is not None
        self._settings = settings
        self._keyring, self._asking, self._doors = keyring, asking, doors
        try:
            files = files_at(section.files)
        except ValueError as error:
            raise SettingsError((str(error),)) from None
        self.tools = Tools(
            store=store or _store_at(section.store, prefix=settings().redis.prefix),
            files=files,
            limits=limits_of(settings()),
            serve=relay,
            wall=wall,
            holder=token_hex(8),
            is_leaving=lambda: doors.is_leaving,
        )
        self.runner = Runner(self.tools, self._headers_of)
        self.desk = Desk(self.tools, self.runner)
        self._running: asyncio.Task[None] | None = None

    def serve_from(self, app: FastAPI) -> None:
        """The routes, and what goes wrong behind them in our shape."""
        app.include_router(routes(self.desk, self._caller_of, self._doors.objection))
        app.add_exception_handler(StoreError, _on_store_error)
        app.add_exception_handler(RequestValidationError, _on_invalid)

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Open what is kept, and go on with what was left: now, or as soon as that can be done.

        Whoever has no batches is served meanwhile.
        """
        try:
            await self.runner.open()
        except (StoreError, FilesError) as error:
            LOGGER.error("batches cannot be used yet: %s", error)
        self._running = tasks.create_task(self.runner.run())

    async def stop(self) -> None:
        """Leave what is under way to others, or to the next start."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self.tools.store.close()
        self.tools.files.close()

    async def progress(self, limit: int) -> list[ProgressView]:
        """So many batches of everybody, open ones first. Raises StoreError."""
        now, faults = self.tools.wall(), self.runner.faults
        return [
            progress_view(batch, now, waits_for=faults.get(batch.id, self.runner.fault))
            for batch in await self.tools.store.newest(limit)
        ]

    def _caller_of(self, headers: Headers) -> Caller:
        """Who asks, and in which tier its lines would run. Raises GatewayError."""
        principal = authenticated(self._keyring, headers)
        user = self._asking.user(principal, headers, None)
        settings = self._settings()
        tiers = settings.tier_names
        own = settings.batches.tier or tiers[-1]
        named = self._asking.named_tier(principal, headers)
        return Caller(
            owner=Owner(tenant=principal.tenant, user=user),
            key_id=principal.key_id,
            tier=own if named is None else tiers[named],
        )

    def _headers_of(self, batch: Batch) -> list[tuple[bytes, bytes]]:
        tiers = self._settings().tier_names
        # The tier may be gone since; what remains is the last one.
        tier = batch.tier if batch.tier in tiers else tiers[-1]
        return [
            (b"x-fairgate-tier", tier.encode()),
            (b"x-fairgate-user", batch.owner.user.encode()),
        ]


def progress_view(batch: Batch, now: float, *, waits_for: str | None) -> ProgressView:
    """As operators see it; what keeps work from going on matters to one that is open only."""
    return ProgressView(
        id=batch.id,
        tenant=batch.owner.tenant,
        user=batch.owner.user,
        tier=batch.tier,
        status=batch.status,
        model=batch.model,
        endpoint=batch.endpoint,
        total=batch.total,
        completed=batch.counts.completed,
        failed=batch.counts.failed,
        created_at=batch.created_at,
        began_at=batch.in_progress_at,
        expires_at=batch.expires_at,
        left_s=seconds_left(
            batch.status,
            began_at=batch.in_progress_at,
            done=batch.counts.completed + batch.counts.failed,
            total=batch.total,
            now=now,
        ),
        waits_for=waits_for if batch.is_open else None,
    )


def limits_of(settings: Settings) -> Limits:
    """The bounds that are configured."""
    section = settings.batches
    return Limits(
        quota=Quota(
            files=section.files_per_tenant,
            bytes=section.bytes_per_tenant,
            open_batches=section.open_per_tenant,
        ),
        file_bytes=section.file,
        lines=section.lines,
        line_bytes=settings.bounds.body,
        in_flight=section.in_flight,
        attempts=section.attempts,
        keep_s=section.keep_s,
        lease_s=section.lease_s,
    )


def _store_at(url: str, *, prefix: str) -> BatchStore:
    if url.startswith("sqlite:///"):
        return SqliteBatches(Path(unquote(url.removeprefix("sqlite:///"))))
    # The library takes a second to import: only who uses it pays.
    from gateway.batch.redis import RedisBatches  # noqa: PLC0415 - see above

    return RedisBatches(url, prefix=prefix)


async def _on_store_error(request: Request, error: Exception) -> Response:
    LOGGER.error("the store of batches cannot be used: %s", error)
    told: GatewayError = BatchStoreError(
        "Files and batches cannot be kept now.", retry_after_s=STORE_RETRY_S
    )
    return await on_gateway_error(request, told)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await on_gateway_error(request, of_validation(error))
