"""The ASGI entry: generation routes go straight to the relay, everything else to FastAPI.

A route inside FastAPI costs 27 us more a request than one in front of it, for nothing that the
relay needs. Matching is by the exact path; whatever else a caller makes of a URL is not a route.
"""

from secrets import token_hex

from starlette.types import ASGIApp

from gateway.api.disconnect import Receive, Scope, Send
from gateway.api.relay import Relay
from gateway.api.reply import Reply
from gateway.api.routes import RESPONSES_PREFIX, ROUTES
from gateway.api.shapes import shape_of
from gateway.api.stored import StoredResponses
from gateway.errors import MethodNotAllowedError


class Front:
    """The whole gateway as one ASGI application."""

    def __init__(self, relay: Relay, stored: StoredResponses, app: ASGIApp) -> None:
        self._relay = relay
        self._stored = stored
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = ROUTES.get(scope["path"])
        if route is None:
            is_stored = scope["path"].startswith(RESPONSES_PREFIX)
            await (self._stored if is_stored else self._app)(scope, receive, send)
        elif scope["method"] == "POST":
            await self._relay(scope, receive, send, route)
        else:
            reply = Reply(send, token_hex(12).encode("ascii"), shape_of(route))
            reply.add_header(b"allow", b"POST")
            await reply.fail(MethodNotAllowedError(f"{route.path} takes POST."))
