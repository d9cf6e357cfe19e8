"""What can be wrong with a request of an operator, and how it is told: in OpenAI's error shape.

Each route documents its errors from here, so that what is documented is what is sent.
"""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gateway.api.ops import on_gateway_error
from gateway.errors import BadRequestError, GatewayError
from gateway.tenancy.store.port import ConflictError, StoreError

LOGGER = logging.getLogger("fairgate.admin")
MESSAGE_CHARS_MAX = 512
PARAM_CHARS_MAX = 256
BODY = ("body", "query", "path", "header")


class NotFoundError(GatewayError):
    """There is no such thing."""

    status, type = 404, "invalid_request_error"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"There is no {what} `{name[:128]}`.")
        self.code = f"{what.replace(' ', '_')}_not_found"


class TakenError(GatewayError):
    """What is to be made exists."""

    status, type, code = 409, "invalid_request_error", "already_exists"


class ConfiguredInFileError(GatewayError):
    """The configuration file defines it: it cannot be changed here."""

    status, type, code = 409, "invalid_request_error", "configured_in_file"


class ChangedMeanwhileError(GatewayError):
    """Somebody else changed it meanwhile."""

    status, type, code = 409, "invalid_request_error", "conflict"


class PreconditionFailedError(GatewayError):
    """It is no longer what `If-Match` says."""

    status, type, code = 412, "invalid_request_error", "precondition_failed"


class KeyReusedError(GatewayError):
    """An idempotency key came with another request before."""

    status, type, code = 422, "invalid_request_error", "idempotency_key_reused"


class InFlightError(GatewayError):
    """A request with this idempotency key is being answered."""

    status, type, code = 409, "invalid_request_error", "idempotency_in_flight"


class StoreUnavailableError(GatewayError):
    """What has to be kept cannot be kept now."""

    status, type, code = 503, "service_unavailable", "store_unavailable"


class Problem(BaseModel):
    """What went wrong."""

    message: str = Field(description="In words, for people.")
    type: str = Field(description="The class of errors, as OpenAI's clients know them.")
    param: str | None = Field(description="The part of the request that is at fault.")
    code: str = Field(description="The error, for programs.")


class ProblemAnswer(BaseModel):
    """The body of every error."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "error": {
                    "message": "There is no replica `gpu7-8000`.",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "replica_not_found",
                }
            }
        }
    )
    error: Problem


MEANINGS: Mapping[int, str] = MappingProxyType(
    {
        400: "The request cannot be understood; `param` says where.",
        401: "No API key, or one that is not known.",
        403: "No admin key, a wrong one, or a web page of somebody else asks.",
        404: "There is nothing of that name.",
        409: "It exists already, is configured in the file, or changed meanwhile.",
        412: "It is no longer what `If-Match` says.",
        413: "The body is larger than 1 MiB.",
        422: "The idempotency key came with another request before.",
        428: "It is changed only with `If-Match`.",
        429: "Too many wrong admin keys came from this address.",
        503: "It cannot be done now.",
    }
)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route for OpenAPI; what any route may answer is among them."""
    return {
        status: {"model": ProblemAnswer, "description": MEANINGS[status]}
        for status in sorted({400, 403, 413, 429, *statuses})
    }


def install(app: FastAPI) -> None:
    """Tell all that goes wrong inside `app` in our shape."""
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(ConflictError, _on_conflict)
    app.add_exception_handler(StoreError, _on_store_error)
    app.add_exception_handler(Exception, _on_failure)


def store_unavailable() -> StoreUnavailableError:
    """What is told where the store cannot be used."""
    return StoreUnavailableError("What has to be kept cannot be kept now.", retry_after_s=1.0)


def failed() -> GatewayError:
    """What is told of a fault of ours, whose details are in the log."""
    return GatewayError("The gateway failed; its log says why.")


def of_validation(error: RequestValidationError) -> BadRequestError:
    """The first fault that was found; the place is dotted, without saying that it is the body."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    if place[:1] and place[0] in BODY:
        place = place[1:]
    param = ".".join(place)[:PARAM_CHARS_MAX] or None
    count = len(error.errors())
    more = f" ({count - 1} more)" if count > 1 else ""
    message = str(first["msg"]).removeprefix("Value error, ")[:MESSAGE_CHARS_MAX]
    where = "" if param is None else f"{param}: "
    return BadRequestError(f"{where}{message}{more}", param=param)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await on_gateway_error(request, of_validation(error))


async def _on_conflict(request: Request, error: Exception) -> Response:
    assert isinstance(error, ConflictError)
    told = ChangedMeanwhileError(f"{str(error)[:MESSAGE_CHARS_MAX]}: it changed meanwhile.")
    return await on_gateway_error(request, told)


async def _on_store_error(request: Request, error: Exception) -> Response:
    LOGGER.error("the store cannot be used: %s", error)
    return await on_gateway_error(request, store_unavailable())


async def _on_failure(request: Request, error: Exception) -> Response:
    return await on_gateway_error(request, failed())
