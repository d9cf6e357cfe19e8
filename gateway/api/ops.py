"""What operators and clients ask besides generation: health, readiness, metrics, models, docs."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from gateway import __version__
from gateway.api.auth import authenticated, credential, headers_of
from gateway.api.models import ModelTable
from gateway.api.openai import error_body, retry_headers
from gateway.api.readiness import Readiness
from gateway.api.routes import RESPONSES_PREFIX, ROUTES, Route
from gateway.errors import (
    ForbiddenError,
    GatewayError,
    MethodNotAllowedError,
    ModelNotFoundError,
    RouteNotFoundError,
)
from gateway.telemetry.metrics import Metrics
from gateway.tenancy.keys import Keyring, is_key

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True, kw_only=True)
class Operations:
    """What these routes answer from; the key changes with the configuration."""

    keyring: Keyring
    models: ModelTable
    metrics: Metrics
    readiness: Callable[[], Readiness]
    operator_key_sha256: str | None
    """None: metrics and docs need no key, since only this machine can reach them."""

    def require_operator(self, request: Request) -> None:
        """Raises ForbiddenError unless the admin key is presented where it is needed."""
        if self.operator_key_sha256 is None:
            return
        presented = credential(headers_of(request.scope["headers"]))
        if not is_key(presented, self.operator_key_sha256):
            raise ForbiddenError("This needs the admin key.")


def build_app(operations: Operations, **options: Any) -> FastAPI:
    """The FastAPI application behind the relay. `options` go to FastAPI unchanged."""
    app = FastAPI(
        title="fairgate", version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False,  # a redirect would be built from the caller's Host header
        **options,
    )  # fmt: skip
    app.include_router(_public(operations))
    app.include_router(_for_operators(operations, app))
    app.add_exception_handler(GatewayError, _on_gateway_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    return app


def _public(operations: Operations) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz", summary="Whether the process answers at all")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/readyz", summary="Whether traffic should be sent here, and if not, why")
    async def readyz() -> Response:
        readiness = operations.readiness()
        return Response(
            orjson.dumps(asdict(readiness)),
            status_code=200 if readiness.ready else 503,
            media_type="application/json",
        )

    @router.get("/v1/models", summary="The models this key may use")
    async def models(request: Request) -> dict[str, Any]:
        principal = authenticated(operations.keyring, headers_of(request.scope["headers"]))
        return {"object": "list", "data": operations.models.cards(principal)}

    @router.get("/v1/models/{model:path}", summary="One model")
    async def model(model: str, request: Request) -> dict[str, Any]:
        principal = authenticated(operations.keyring, headers_of(request.scope["headers"]))
        for card in operations.models.cards(principal):
            if card["id"] == model:
                return card
        raise ModelNotFoundError(f"The model `{model[:128]}` does not exist.", param="model")

    return router


def _for_operators(operations: Operations, app: FastAPI) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        operations.require_operator(request)
        return Response(operations.metrics.text(), media_type=METRICS_TYPE)

    @router.get("/docs")
    async def docs(request: Request) -> HTMLResponse:
        operations.require_operator(request)
        return get_swagger_ui_html(openapi_url="/openapi.json", title="fairgate")

    @router.get("/openapi.json")
    async def openapi(request: Request) -> dict[str, Any]:
        operations.require_operator(request)
        return described(app)

    return router


def described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the relayed routes that FastAPI itself never sees."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for route in ROUTES.values():
        document["paths"][route.path] = {"post": _operation(route)}
    of_id = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}
    for method, path, summary in STORED:
        answers = _answers("404", "405", is_anthropic=False)
        operation = {"summary": summary, "operationId": summary, "parameters": [of_id]}
        document["paths"][path] = {method: {**operation, "responses": answers}}
    return document


STORED = (
    ("get", f"{RESPONSES_PREFIX}{{response_id}}", "Fetch a stored response"),
    ("post", f"{RESPONSES_PREFIX}{{response_id}}/cancel", "Cancel a response"),
)
"""Method, path and summary of what is asked of a response that an engine keeps."""


def _operation(route: Route) -> dict[str, Any]:
    return {
        "summary": route.summary,
        "operationId": f"{route.name}{route.path}".replace("/", "_"),
        "requestBody": {
            "required": True,
            "content": _content("multipart/form-data" if route.is_form else "application/json"),
        },
        "responses": _answers("400", "413", "429", "503", is_anthropic=route.is_anthropic),
    }


def _answers(*statuses: str, is_anthropic: bool) -> dict[str, Any]:
    shape = "Anthropic's" if is_anthropic else "OpenAI's"
    error = {"description": f"An error in {shape} shape", "content": _content()}
    success = {"description": "The engine's answer, byte for byte", "content": _content()}
    named = sorted({*statuses, "401", "404", "502", "504"})
    return {"200": success, **dict.fromkeys(named, error)}


def _content(media_type: str = "application/json") -> Mapping[str, Any]:
    return {media_type: {"schema": {"type": "object"}}}


async def _on_gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    response = Response(error_body(error), status_code=error.status, media_type="application/json")
    response.raw_headers.extend(retry_headers(error))
    return response


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return await _on_gateway_error(
            request, MethodNotAllowedError("This route takes another method.")
        )
    return await _on_gateway_error(request, RouteNotFoundError("There is no such route."))
