"""The route `/events`: what happens as server-sent events, until the listener leaves or lags."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header
from starlette.responses import Response

from gateway.admin.desk import Desk
from gateway.admin.door import PREFIX
from gateway.admin.events import HEARTBEAT, LAGGED, Happenings, Listener
from gateway.admin.problems import documented
from gateway.api.disconnect import (
    DEPARTURE,
    ClientLeftError,
    Receive,
    Scope,
    Send,
    cancelled_when_client_leaves,
)

SEND_S = 30.0
"""Who takes nothing for so long is left."""
RETRY = b"retry: 1000\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
EXAMPLE = (
    "id: 5f2c-18\nevent: replica.breaker\n"
    'data: {"at":1764504000.2,"replica":"gpu0-8000","state":"open","reason":"refused"}\n\n'
)
ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events, each with `id`, `event` and one line of JSON as `data`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": EXAMPLE}},
    }
}


def router(desk: Desk) -> APIRouter:
    """The route `/events`."""
    routes = APIRouter(prefix=f"{PREFIX}/events", tags=["events"])

    @routes.get(
        "", summary="What happens, as it happens", response_class=EventStream, status_code=200,
        responses={**ANSWER, **documented(503)},
    )  # fmt: skip
    async def events(
        last_event_id: Annotated[
            str | None,
            Header(max_length=128, description="Go on after this event, if it is still known."),
        ] = None,
    ) -> Response:
        happenings = desk.happenings
        return EventStream(happenings, happenings.listen(last_event_id))

    return routes


class EventStream(Response):
    """The answer of one listener."""

    media_type = "text/event-stream"

    def __init__(self, happenings: Happenings, listener: Listener) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._happenings = happenings
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what happens until one side ends it."""
        try:
            async with cancelled_when_client_leaves(receive, scope.get(DEPARTURE)):
                await self._run(send)
        except (ClientLeftError, TimeoutError):
            return
        finally:
            self._happenings.leave(self._listener)

    async def _run(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await self._send(send, RETRY)
        listener = self._listener
        while True:
            happening = await listener.next()
            if happening is not None:
                ident = self._happenings.id_of(happening)
                await self._send(send, _event(happening.kind, happening.body, ident))
            elif listener.has_lagged or listener.is_over:
                break
            else:
                await self._send(send, _event(HEARTBEAT, b"{}"))
        # Without an id: who comes again goes on after the last event that it saw.
        last = _event(LAGGED, b"{}") if listener.has_lagged else b""
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        async with asyncio.timeout(SEND_S):
            await send({"type": "http.response.body", "body": data, "more_body": True})


def _event(kind: str, body: bytes, ident: str | None = None) -> bytes:
    name = b"" if ident is None else b"id: %b\n" % ident.encode("ascii")
    return b"%bevent: %b\ndata: %b\n\n" % (name, kind.encode("ascii"), body)
