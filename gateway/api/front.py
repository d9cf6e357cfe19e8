"""The ASGI entry: generation routes go straight to the relay, everything else to FastAPI.

A route inside FastAPI costs 27 us more a request than one in front of it, for nothing that the
relay needs. Matching is by the exact path; whatever else a caller makes of a URL is not a route.
"""

from secrets import token_hex

from starlette.types import ASGIApp

from gateway.api.disconnect import Receive, Scope, Send
from gateway.api.doors import ELSEWHERE_S, Doors
from gateway.api.relay import Relay
from gateway.api.reply import Reply
from gateway.api.routes import RESPONSES_PREFIX, ROUTES, Route
from gateway.api.shapes import RESPONSE, shape_of
from gateway.api.stored import StoredResponses
from gateway.errors import GatewayError, MethodNotAllowedError, OverloadedError


class Front:
    """The whole gateway as one ASGI application."""

    def __init__(
        self, relay: Relay, stored: StoredResponses, app: ASGIApp, doors: Doors | None = None
    ) -> None:
        self._relay = relay
        self._stored = stored
        self._app = app
        self._doors = Doors() if doors is None else doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = ROUTES.get(scope["path"])
        if route is None and not scope["path"].startswith(RESPONSES_PREFIX):
            await self._app(scope, receive, send)
        elif route is not None and scope["method"] != "POST":
            error = MethodNotAllowedError(f"{route.path} takes POST.")
            await _refused(send, route, error, (b"allow", b"POST"))
        elif (objection := self._doors.objection()) is not None:
            await _refused(send, route, objection)
        else:
            doors = self._doors
            doors.inside += 1
            try:
                if route is None:
                    await self._stored(scope, receive, send)
                else:
                    await self._relay(scope, receive, send, route)
            finally:
                doors.inside -= 1

    async def surplus(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request on a connection beyond the bound: operators only."""
        route = ROUTES.get(scope["path"])
        if route is None and not scope["path"].startswith(RESPONSES_PREFIX):
            await self._app(scope, receive, send)
        else:
            text = "The gateway has no connections left."
            await _refused(send, route, OverloadedError(text, retry_after_s=ELSEWHERE_S))


async def _refused(
    send: Send, route: Route | None, error: GatewayError, *headers: tuple[bytes, bytes]
) -> None:
    """Answer with an error, in the shape of the route, before anything is read."""
    shape = RESPONSE if route is None else shape_of(route)
    reply = Reply(send, token_hex(12).encode("ascii"), shape)
    for name, value in headers:
        reply.add_header(name, value)
    await reply.fail(error)
