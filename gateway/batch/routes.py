"""The routes `/v1/files` and `/v1/batches`: HTTP in, OpenAI's objects out."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, NoReturn

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import StreamingResponse

from gateway.api.auth import Headers, headers_of
from gateway.api.described import SECURITY, errors
from gateway.batch.desk import Caller, Desk, Order
from gateway.batch.views import batch_view, file_view, page
from gateway.errors import BadRequestError, BodyTooLargeError, GatewayError

BODY_BYTES_MAX = 64 << 10
"""Of a request that makes a batch."""
FILES_PAGE_MAX, BATCHES_PAGE_MAX = 10_000, 100
BATCHES_PAGE = 20
SECURED = {"security": SECURITY}
FORM = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"const": "batch"},
                    "expires_after[anchor]": {"const": "created_at"},
                    "expires_after[seconds]": {"type": "integer"},
                },
            }
        }
    },
}
WISH = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["input_file_id", "endpoint", "completion_window"],
                "properties": {
                    "input_file_id": {"type": "string"},
                    "endpoint": {"type": "string"},
                    "completion_window": {"type": "string"},
                    "metadata": {"type": ["object", "null"]},
                    "output_expires_after": {"type": ["object", "null"]},
                },
            }
        }
    },
}

CallerOf = Callable[[Headers], Caller]


def routes(
    desk: Desk, caller_of: CallerOf, objection: Callable[[], GatewayError | None]
) -> APIRouter:
    """All of them. `caller_of` raises GatewayError; `objection`: why nothing new may come in."""
    router = APIRouter(prefix="/v1")
    router.include_router(_files(desk, caller_of, objection))
    router.include_router(_file(desk, caller_of))
    router.include_router(_batches(desk, caller_of, objection))
    return router


def _files(
    desk: Desk, caller_of: CallerOf, objection: Callable[[], GatewayError | None]
) -> APIRouter:
    router = APIRouter(prefix="/files", tags=["files"])

    @router.post(
        "", summary="Upload a file for a batch", openapi_extra={**SECURED, "requestBody": FORM},
        responses=_said("400", "401", "403", "413", "429", "503", "507"),
    )  # fmt: skip
    async def upload(request: Request) -> dict[str, Any]:
        headers = headers_of(request.scope["headers"])
        caller = caller_of(headers)
        _let_in(objection)
        file = await desk.upload(
            caller,
            request.stream(),
            content_type=headers.get(b"content-type"),
            length=headers.get(b"content-length"),
        )
        return file_view(file)

    @router.get(
        "",
        summary="Files, newest first",
        openapi_extra=SECURED,
        responses=_said("400", "401", "503"),
    )
    async def files(
        request: Request,
        *,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=FILES_PAGE_MAX)] = FILES_PAGE_MAX,
        purpose: str | None = None,
        order: Order = "desc",
    ) -> dict[str, Any]:
        caller = _caller(request, caller_of)
        found = await desk.files(caller, after=after, limit=limit, purpose=purpose, order=order)
        return page([file_view(file) for file in found], limit)

    return router


def _file(desk: Desk, caller_of: CallerOf) -> APIRouter:
    router = APIRouter(prefix="/files/{file_id}", tags=["files"])

    @router.get(
        "", summary="One file", openapi_extra=SECURED,
        responses=_said("401", "404", "503"),
    )  # fmt: skip
    async def file(request: Request, file_id: str) -> dict[str, Any]:
        return file_view(await desk.file(_caller(request, caller_of), file_id))

    @router.get(
        "/content", summary="The bytes of a file", openapi_extra=SECURED,
        responses=_said("401", "404", "503", "507"), response_class=StreamingResponse,
    )  # fmt: skip
    async def content(request: Request, file_id: str) -> StreamingResponse:
        file = await desk.file(_caller(request, caller_of), file_id)
        slices: AsyncIterator[bytes] = await desk.content(file)
        headers = {"content-length": str(file.size)}
        return StreamingResponse(slices, media_type="application/octet-stream", headers=headers)

    @router.delete(
        "", summary="Delete a file", openapi_extra=SECURED,
        responses=_said("401", "404", "409", "503"),
    )  # fmt: skip
    async def delete(request: Request, file_id: str) -> dict[str, Any]:
        await desk.drop(_caller(request, caller_of), file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    return router


def _batches(
    desk: Desk, caller_of: CallerOf, objection: Callable[[], GatewayError | None]
) -> APIRouter:
    router = APIRouter(prefix="/batches", tags=["batches"])

    @router.post(
        "", summary="Run a file of requests", openapi_extra={**SECURED, "requestBody": WISH},
        responses=_said("400", "401", "404", "413", "429", "503"),
    )  # fmt: skip
    async def create(request: Request) -> dict[str, Any]:
        caller = _caller(request, caller_of)
        _let_in(objection)
        return batch_view(await desk.create(caller, await _object_of(request)))

    @router.get(
        "", summary="Batches, newest first", openapi_extra=SECURED,
        responses=_said("400", "401", "503"),
    )  # fmt: skip
    async def batches(
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=BATCHES_PAGE_MAX)] = BATCHES_PAGE,
    ) -> dict[str, Any]:
        found = await desk.batches(_caller(request, caller_of), after=after, limit=limit)
        return page([batch_view(batch) for batch in found], limit)

    @router.get(
        "/{batch_id}", summary="One batch", openapi_extra=SECURED,
        responses=_said("401", "404", "503"),
    )  # fmt: skip
    async def batch(request: Request, batch_id: str) -> dict[str, Any]:
        kept = await desk.batch(_caller(request, caller_of), batch_id)
        return batch_view(kept.batch)

    @router.post(
        "/{batch_id}/cancel", summary="End a batch", openapi_extra=SECURED,
        responses=_said("401", "404", "409", "503"),
    )  # fmt: skip
    async def cancel(request: Request, batch_id: str) -> dict[str, Any]:
        return batch_view(await desk.cancel(_caller(request, caller_of), batch_id))

    return router


def _caller(request: Request, caller_of: CallerOf) -> Caller:
    return caller_of(headers_of(request.scope["headers"]))


def _let_in(objection: Callable[[], GatewayError | None]) -> None:
    """Raises GatewayError where nothing new may come in."""
    error = objection()
    if error is not None:
        raise error


async def _object_of(request: Request) -> dict[str, Any]:
    """The body as an object. Raises BadRequestError, BodyTooLargeError."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise BodyTooLargeError(f"The body may have {BODY_BYTES_MAX} bytes at most.")
    try:
        found = orjson.loads(bytes(body))
    except orjson.JSONDecodeError:
        _no_object()
    if not isinstance(found, dict):
        _no_object()
    return found


def _no_object() -> NoReturn:
    raise BadRequestError("The request body must be a JSON object.")


def _said(*statuses: str) -> dict[int | str, dict[str, Any]]:
    return {int(status): answer for status, answer in errors(*statuses).items()}
