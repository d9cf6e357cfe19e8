"""What users may do with files and batches, and whose they are; HTTP is not known here."""

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Literal

from gateway.api.routes import ROUTES
from gateway.batch.files import FilesError, full
from gateway.batch.intake import received
from gateway.batch.record import Batch, BatchStateError, Owner, StoredFile, cancelled
from gateway.batch.runner import Runner
from gateway.batch.store import InUseError, Kept, QuotaError, StaleError
from gateway.batch.tools import Tools
from gateway.errors import (
    BadRequestError,
    BatchNotFoundError,
    BatchQuotaError,
    BatchStateConflictError,
    FileIdNotFoundError,
)

PURPOSE = "batch"
ENDPOINTS = frozenset(
    path for path, route in ROUTES.items() if not route.is_form and path.startswith("/v1/")
)
"""What a batch may ask for: a form with a file cannot stand in a line."""
EXPIRY_S_MIN, EXPIRY_S_MAX = 3_600, 30 * 86_400
WINDOW_S_MAX = 7 * 86_400
UNIT_S: Mapping[str, int] = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
METADATA_MAX = 16
METADATA_KEY_CHARS_MAX, METADATA_VALUE_CHARS_MAX = 64, 512
CANCEL_TRIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks."""

    owner: Owner
    key_id: str
    tier: str
    """In which the lines of a batch that it makes run."""


class Desk:
    """Files and batches of all users."""

    def __init__(self, tools: Tools, runner: Runner) -> None:
        self._tools = tools
        self._runner = runner

    async def upload(
        self,
        caller: Caller,
        pieces: AsyncIterator[bytes],
        *,
        content_type: bytes | None,
        length: bytes | None,
    ) -> StoredFile:
        """Keep the file of a form. Raises GatewayError; then nothing is kept."""
        tools = self._tools
        file_id = f"file-{token_hex(12)}"
        writer = tools.files.writer(file_id)
        try:
            form = await received(
                pieces,
                writer,
                content_type=content_type,
                length=length,
                bytes_max=tools.limits.file_bytes,
            )
            now = tools.wall()
            if form.fields.get("purpose") != PURPOSE:
                text = "Files are kept for batches only: purpose must be `batch`."
                raise BadRequestError(text, param="purpose")
            file = StoredFile(
                id=file_id,
                owner=caller.owner,
                name=form.name,
                purpose=PURPOSE,
                size=writer.size,
                created_at=now,
                expires_at=now + _expiry_of_form(form.fields, tools.limits.keep_s),
                object=file_id,
            )
            await tools.store.add_file(file, tools.limits.quota)
        except FilesError as error:
            await _abandoned(writer)
            raise full(error) from error
        except QuotaError as error:
            await _abandoned(writer)
            raise BatchQuotaError(str(error)) from None
        except BaseException:
            await _abandoned(writer)
            raise
        return file

    async def files(
        self, caller: Caller, *, after: str | None, limit: int, purpose: str | None, order: str
    ) -> list[StoredFile]:
        """Those of the caller, one more than `limit` if there are."""
        return await self._tools.store.files(
            caller.owner, after=after, limit=limit + 1, purpose=purpose, is_newest=order == "desc"
        )

    async def file(self, caller: Caller, file_id: str) -> StoredFile:
        """Raises FileIdNotFoundError, the same for one of somebody else."""
        file = await self._tools.store.file(file_id)
        if file is None or file.owner != caller.owner:
            raise FileIdNotFoundError(f"No such file: `{file_id[:128]}`.", param="id")
        return file

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Its bytes; the first slice is read before anything is returned. Raises GatewayError."""
        slices = self._tools.files.slices(file.object, file.size)
        try:
            first = await anext(slices, b"")
        except FilesError as error:
            raise full(error) from error

        async def rest() -> AsyncIterator[bytes]:
            yield first
            async for data in slices:
                yield data

        return rest()

    async def drop(self, caller: Caller, file_id: str) -> None:
        """Delete a file. Raises GatewayError."""
        file = await self.file(caller, file_id)
        try:
            await self._tools.store.drop_file(file_id)
        except InUseError:
            text = f"The file `{file_id}` is the input of a batch that is not done."
            raise BatchStateConflictError(text) from None
        try:
            await self._tools.files.remove(file.object)
        except FilesError:
            return  # it is nobody's now, and swept later

    async def create(self, caller: Caller, wish: Mapping[str, Any]) -> Batch:
        """A new batch of what the body of the request says. Raises GatewayError."""
        tools, now = self._tools, self._tools.wall()
        endpoint = wish.get("endpoint")
        if endpoint not in ENDPOINTS:
            text = f"endpoint must be one of {', '.join(sorted(ENDPOINTS))}."
            raise BadRequestError(text, param="endpoint")
        window, window_s = _window(wish.get("completion_window"))
        file_id = wish.get("input_file_id")
        if not isinstance(file_id, str):
            raise BadRequestError("input_file_id must be the id of a file.", param="input_file_id")
        file = await self.file(caller, file_id)
        if file.purpose != PURPOSE:
            text = f"The file `{file_id}` has not the purpose `batch`."
            raise BadRequestError(text, param="input_file_id")
        batch = Batch(
            id=f"batch_{token_hex(12)}",
            owner=caller.owner,
            key_id=caller.key_id,
            tier=caller.tier,
            endpoint=str(endpoint),
            input_file_id=file_id,
            completion_window=window,
            created_at=now,
            expires_at=now + window_s,
            metadata=_metadata(wish.get("metadata")),
            output_expires_after_s=_expiry(wish.get("output_expires_after")),
        )
        try:
            await tools.store.add_batch(batch, tools.limits.quota)
        except QuotaError as error:
            raise BatchQuotaError(str(error)) from None
        self._runner.look()
        return batch

    async def batches(self, caller: Caller, *, after: str | None, limit: int) -> list[Batch]:
        """Those of the caller, newest first, one more than `limit` if there are."""
        return await self._tools.store.batches(caller.owner, after=after, limit=limit + 1)

    async def batch(self, caller: Caller, batch_id: str) -> Kept:
        """Raises BatchNotFoundError, the same for one of somebody else."""
        kept = await self._tools.store.batch(batch_id)
        if kept is None or kept.batch.owner != caller.owner:
            raise BatchNotFoundError(f"No such batch: `{batch_id[:128]}`.", param="id")
        return kept

    async def cancel(self, caller: Caller, batch_id: str) -> Batch:
        """End a batch; what is done already is kept. Raises GatewayError."""
        for _ in range(CANCEL_TRIES):
            kept = await self.batch(caller, batch_id)
            try:
                changed = cancelled(kept.batch, self._tools.wall())
                if changed is not kept.batch:
                    await self._tools.store.put(Kept(batch=changed, version=kept.version))
            except BatchStateError as error:
                raise BatchStateConflictError(str(error)) from None
            except StaleError:
                continue
            self._runner.look(batch_id)
            return changed
        raise BatchStateConflictError("The batch changes all the time: try again.")


async def _abandoned(writer: Any) -> None:
    try:
        await writer.abandon()
    except FilesError:
        return  # swept later


def _window(text: object) -> tuple[str, int]:
    """(as it was written, seconds). Raises BadRequestError."""
    match = re.fullmatch(r"([1-9]\d{0,5})([smhd])", text) if isinstance(text, str) else None
    window_s = int(match[1]) * UNIT_S[match[2]] if match else 0
    if match is None or window_s > WINDOW_S_MAX:
        error = "completion_window must be a time of at most 7 days, like 24h, 90m or 7d."
        raise BadRequestError(error, param="completion_window")
    return match[0], window_s


def _metadata(given: object) -> dict[str, str] | None:
    """Raises BadRequestError."""
    if given is None:
        return None
    if isinstance(given, dict) and len(given) <= METADATA_MAX:
        found = {
            key: value
            for key, value in given.items()
            if isinstance(value, str)
            and len(key) <= METADATA_KEY_CHARS_MAX
            and len(value) <= METADATA_VALUE_CHARS_MAX
        }
        if len(found) == len(given):
            return found
    text = (
        f"metadata must be at most {METADATA_MAX} texts of {METADATA_VALUE_CHARS_MAX} characters "
        f"under names of {METADATA_KEY_CHARS_MAX}."
    )
    raise BadRequestError(text, param="metadata")


def _expiry(given: object, param: str = "output_expires_after") -> float | None:
    """Seconds after it is made. Raises BadRequestError."""
    if given is None:
        return None
    if isinstance(given, Mapping) and given.get("anchor") == "created_at":
        seconds = given.get("seconds")
        if isinstance(seconds, int) and EXPIRY_S_MIN <= seconds <= EXPIRY_S_MAX:
            return float(seconds)
    text = (
        f'{param} must be {{"anchor": "created_at", "seconds": N}} with N from {EXPIRY_S_MIN} '
        f"to {EXPIRY_S_MAX}."
    )
    raise BadRequestError(text, param=param)


def _expiry_of_form(fields: Mapping[str, str], keep_s: float) -> float:
    """Raises BadRequestError."""
    given = {name: fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds")}
    if given == {"anchor": None, "seconds": None}:
        return keep_s
    seconds = given["seconds"] or ""
    wish = {
        "anchor": given["anchor"],
        "seconds": int(seconds) if re.fullmatch(r"\d{1,9}", seconds) else None,
    }
    return _expiry(wish, "expires_after") or keep_s


Order = Literal["asc", "desc"]
