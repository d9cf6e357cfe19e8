"""The operators' side put together: all routers on one application, behind one door."""

from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from gateway.admin import (
    audit,
    event_stream,
    overview,
    pages,
    playground,
    problems,
    queues,
    replicas,
    requests,
    scale,
    user_lines,
)
from gateway.admin.console_pages import console_pages
from gateway.admin.desk import Desk
from gateway.admin.door import Door
from gateway.admin.guard import Guard
from gateway.admin.idempotency import Idempotency
from gateway.admin.siblings import Headers
from gateway.api.described import SECURITY, described
from gateway.api.ops import new_app

PREFIX = "/admin/v1"


def door(
    desk: Desk,
    *,
    public: FastAPI,
    metrics: Callable[[Headers], Awaitable[tuple[bytes, str]]],
    guard: Guard,
    generation: ASGIApp,
    more: Iterable[APIRouter] = (),
) -> Door:
    """The way in. `more` are routers of others under `/admin/v1`; `public`: what is not behind it.

    `generation` is what the playground asks: all that clients may.

    The document tells of both sides.
    """
    app = new_app()
    problems.install(app)

    @cache
    def document() -> dict[str, Any]:
        return _secured(described([*public.routes, *app.routes]))

    app.include_router(pages.router(metrics, document))
    app.include_router(playground.router(generation))
    for each in (overview, user_lines, replicas, queues, requests, scale, audit, event_stream):
        app.include_router(each.router(desk), prefix=PREFIX)
    for router in more:
        app.include_router(router, prefix=PREFIX)
    return Door(
        app,
        app.routes,
        guard=guard,
        once=Idempotency(desk.registry.answered),
        pages=console_pages(),
    )


def _secured(document: dict[str, Any]) -> dict[str, Any]:
    """Each route of operators says that it needs a key."""
    for path, operations in document["paths"].items():
        if path.startswith(PREFIX) or path in ("/metrics", "/docs", "/openapi.json"):
            for operation in operations.values():
                operation["security"] = SECURITY
    return document
