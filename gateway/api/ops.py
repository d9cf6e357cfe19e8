"""What everybody may ask besides generation: health, readiness, models."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from gateway import __version__
from gateway.api.auth import authenticated, headers_of
from gateway.api.described import SECURITY, TITLE, errors
from gateway.api.models import ModelTable
from gateway.api.openai import error_body, retry_headers
from gateway.api.readiness import Readiness
from gateway.errors import (
    BadRequestError,
    BodyTooLargeError,
    GatewayError,
    MethodNotAllowedError,
    ModelNotFoundError,
    RouteNotFoundError,
)
from gateway.tenancy.keys import Keyring

CARD = {"id": "llama-3-8b", "object": "model", "created": 1764504000, "owned_by": "vllm"}
SECURED = {"security": SECURITY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What these routes answer from."""

    keyring: Keyring
    models: ModelTable
    readiness: Callable[[], Readiness]


def build_app(operations: Operations, **options: Any) -> FastAPI:
    """The FastAPI application behind the relay. `options` go to FastAPI unchanged."""
    app = new_app(**options)
    add_routes(app, _health(operations), _models(operations))
    return app


def new_app(**options: Any) -> FastAPI:
    """An application without routes, which tells what goes wrong in our shape."""
    app = FastAPI(
        title=TITLE, version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False,  # a redirect would be built from the caller's Host header
        **options,
    )  # fmt: skip
    app.add_exception_handler(GatewayError, on_gateway_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    return app


def add_routes(app: FastAPI, *routers: APIRouter) -> None:
    """The routes of `routers` as they are: `include_router` would keep each a second time, changed.

    That is 3 MB, for the schemas of what each takes and answers.
    """
    for router in routers:
        app.router.routes.extend(router.routes)


def _health(operations: Operations) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz", summary="Whether the process answers at all")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get(
        "/readyz", summary="Whether traffic should be sent here, and if not, why",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "It should not; `reason` says why."}},
    )  # fmt: skip
    async def readyz() -> Response:
        readiness = operations.readiness()
        return Response(
            orjson.dumps(asdict(readiness)),
            status_code=200 if readiness.ready else 503,
            media_type="application/json",
        )

    return router


def _models(operations: Operations) -> APIRouter:
    router = APIRouter(prefix="/v1/models", tags=["models"])

    @router.get(
        "", summary="The models this key may use", openapi_extra=SECURED,
        responses={**_numbered(errors("401")), 200: _shown({"object": "list", "data": [CARD]})},
    )  # fmt: skip
    async def models(request: Request) -> dict[str, Any]:
        principal = authenticated(operations.keyring, headers_of(request.scope["headers"]))
        return {"object": "list", "data": operations.models.cards(principal)}

    @router.get(
        "/{model:path}", summary="One model", openapi_extra=SECURED,
        responses={**_numbered(errors("401", "404")), 200: _shown(CARD)},
    )  # fmt: skip
    async def model(model: str, request: Request) -> dict[str, Any]:
        principal = authenticated(operations.keyring, headers_of(request.scope["headers"]))
        for card in operations.models.cards(principal):
            if card["id"] == model:
                return card
        raise ModelNotFoundError(f"The model `{model[:128]}` does not exist.", param="model")

    return router


def _numbered(answers: Mapping[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {int(status): answer for status, answer in answers.items()}


def _shown(example: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"example": example}}}


async def on_gateway_error(request: Request, error: Exception) -> Response:
    """An error of ours as an answer."""
    assert isinstance(error, GatewayError)
    response = Response(error_body(error), status_code=error.status, media_type="application/json")
    response.raw_headers.extend(retry_headers(error))
    return response


async def _on_http_error(request: Request, error: Exception) -> Response:
    """What the framework itself refuses."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        text = "This route takes another method."
        response = await on_gateway_error(request, MethodNotAllowedError(text))
        response.headers.update(error.headers or {})
        return response
    if error.status_code == 404:
        return await on_gateway_error(request, RouteNotFoundError("There is no such route."))
    if error.status_code == 413:
        return await on_gateway_error(request, BodyTooLargeError("The body is too large."))
    return await on_gateway_error(request, BadRequestError(str(error.detail)))
