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
from gateway.admin.door import PREFIX, Door
from gateway.admin.guard import Guard
from gateway.admin.idempotency import Idempotency
from gateway.admin.siblings import Headers
from gateway.api.described import SECURITY, described
from gateway.api.ops import add_routes, new_app


def door(
    desk: Desk,
    *,
    public: FastAPI,
    metrics: Callable[[Headers], Awaitable[tuple[bytes, str]]],
    guard: Guard,
    generation: ASGIApp,
    more: Iterable[APIRouter] = (),
) -> Door:
    """The way in. `more` are routers of others; `public`: what is not behind it.

    `generation` is what the playground asks: all that clients may.

    The document tells of both sides.
    """
    app = new_app()
    problems.install(app)

    @cache
    def document() -> dict[str, Any]:
        return _secured(described([*public.routes, *app.routes]))

    own = (overview, user_lines, replicas, queues, requests, scale, audit, event_stream)
    add_routes(
        app,
        pages.router(metrics, document),
        playground.router(generation),
        *(each.router(desk) for each in own),
        *more,
    )
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
