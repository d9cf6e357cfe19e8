"""One chat request of an operator, asked as a client would, with a client's key.

It goes through the same door as everything else of operators, since the console may send nothing
elsewhere, and then the way of every client: keys, limits, queue, replicas. Neither of the two keys
is enough, and the admin key is not passed on.
"""

from collections.abc import Iterable

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.admin.problems import documented
from gateway.api.disconnect import DEPARTURE, Receive, Scope, Send

PATH = "/console/chat"
ASKS = "/v1/chat/completions"
KEY_HEADER = b"x-playground-key"
"""The client's key; without it the request has none."""
PASSED_ON = frozenset(
    {
        b"accept", b"content-length", b"content-type", b"host", b"user-agent", b"x-fairgate-tier",
        b"x-fairgate-user", b"x-fairgate-patience-s", b"x-session-id",
    }
)  # fmt: skip
KEPT = ("type", "asgi", "http_version", "scheme", "client", "server", "state", DEPARTURE)
"""Of the scope; whatever the way here has added to it stays behind."""

Headers = list[tuple[bytes, bytes]]


def router(generation: ASGIApp) -> APIRouter:
    """The route of the playground: the console's own, so no document tells of it."""
    routes = APIRouter(tags=["console"], include_in_schema=False)

    @routes.post(PATH, summary="Ask as a client would", responses=documented())
    async def chat(request: Request) -> Response:
        return _Asked(generation)

    return routes


class _Asked(Response):
    """The answer that a client would get."""

    def __init__(self, generation: ASGIApp) -> None:
        super().__init__()
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask, and pass on what is answered as it comes."""
        asked = {name: scope[name] for name in KEPT if name in scope}
        asked |= {
            "method": "POST", "path": ASKS, "raw_path": ASKS.encode("ascii"), "query_string": b"",
            "root_path": "", "headers": as_client(scope["headers"]),
        }  # fmt: skip
        await self._generation(asked, receive, send)


def as_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of the request that is asked: what a client may say, and its key for ours."""
    headers = list(headers)
    own = [(name, value) for name, value in headers if name in PASSED_ON]
    keys = [value for name, value in headers if name == KEY_HEADER and value]
    return [*own, *((b"authorization", b"Bearer " + key) for key in keys[:1])]
