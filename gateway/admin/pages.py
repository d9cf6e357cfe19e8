"""The operators' pages: metrics, and what may be asked as a document and as a page."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from gateway.admin.problems import documented
from gateway.admin.siblings import Headers

KINDS = ("text/plain", "application/openmetrics-text")
SAMPLE = 'fairgate_flow_control_queue_size{tier="standard",model="llama-3-8b"} 3\n'


def router(
    metrics: Callable[[Headers], Awaitable[tuple[bytes, str]]],
    document: Callable[[], dict[str, Any]],
) -> APIRouter:
    """`/metrics`, `/docs` and `/openapi.json`.

    `metrics` is told who asks for what, in headers, and tells the media type too.
    """
    routes = APIRouter(tags=["pages"])

    @routes.get(
        "/metrics", summary="Metrics, in Prometheus' text format, or as OpenMetrics",
        response_class=PlainTextResponse,
        responses={**documented(), 200: {"content": {kind: {"example": SAMPLE} for kind in KINDS}}},
    )  # fmt: skip
    async def metrics_text(request: Request) -> Response:
        text, media_type = await metrics(request.headers.raw)
        return Response(text, headers={"content-type": media_type, "vary": "accept"})

    @routes.get(
        "/docs", summary="This document as a page", response_class=HTMLResponse,
        responses=documented(),
    )  # fmt: skip
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(openapi_url="/openapi.json", title="fairgate")

    @routes.get("/openapi.json", summary="This document", responses=documented())
    async def openapi() -> dict[str, Any]:
        return document()

    return routes
