"""Which of three applications serves a request: decided by the exact path and the method."""

import json
from collections.abc import MutableMapping
from typing import Any, cast

import pytest

from gateway.api.front import Front
from gateway.api.relay import Relay
from gateway.api.routes import ROUTES, Route
from gateway.api.stored import StoredResponses

pytestmark = pytest.mark.sources


class Served:
    """A front, and who served what."""

    def __init__(self) -> None:
        self.by: list[tuple[str, str]] = []
        self.sent: list[MutableMapping[str, Any]] = []
        front = Front(
            cast(Relay, self._relay), cast(StoredResponses, self._noting("stored")),
            self._noting("app"),
        )  # fmt: skip
        self._front = front

    async def _relay(self, scope: Any, receive: Any, send: Any, route: Route) -> None:
        assert route is ROUTES[scope["path"]]
        self.by.append(("relay", scope["path"]))

    def _noting(self, name: str) -> Any:
        async def serve(scope: Any, receive: Any, send: Any) -> None:
            self.by.append((name, scope.get("path", "")))

        return serve

    async def __call__(
        self, method: str, path: str, *headers: tuple[bytes, bytes], kind: str = "http"
    ) -> str:
        """Who serves this; "" for the front itself."""

        async def send(message: MutableMapping[str, Any]) -> None:
            self.sent.append(message)

        async def receive() -> MutableMapping[str, Any]:
            raise AssertionError("nobody reads the body before it is known who serves it")

        scope = {"type": kind, "method": method, "path": path, "headers": list(headers)}
        before = len(self.by)
        await self._front(scope, receive, send)
        return self.by[-1][0] if len(self.by) > before else ""


@pytest.fixture
def served() -> Served:
    """A front before three applications that only note what they get."""
    return Served()


@pytest.mark.parametrize("path", ROUTES)
async def test_generation_routes_go_straight_to_the_relay(served: Served, path: str) -> None:
    """Through FastAPI each request would cost more than all that the relay does."""
    assert await served("POST", path) == "relay"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "post", "TRACE"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_they_take_nothing_but_post(served: Served, method: str, path: str) -> None:
    """405 names what is taken, in the shape of the route."""
    assert await served(method, path) == ""
    begun, body = served.sent
    assert (begun["status"], dict(begun["headers"])[b"allow"]) == (405, b"POST")
    assert ("type" in json.loads(body["body"])) is (path == "/v1/messages")


@pytest.mark.parametrize(
    ("path", "by"),
    [
        ("/v1/responses/resp_1", "stored"), ("/v1/responses/", "stored"),
        ("/v1/responses/../../sleep", "stored"), ("/v1/models", "app"), ("/healthz", "app"),
        ("/V1/chat/completions", "app"), ("//v1/chat/completions", "app"), ("", "app"),
        ("/v1/chat/completions/", "app"), ("/v1/chat/completions/x", "app"), ("/sleep", "app"),
    ],
)  # fmt: skip
async def test_only_the_exact_path_is_a_route(served: Served, path: str, by: str) -> None:
    """Whatever else a caller makes of a URL is not one."""
    for method in ("GET", "POST"):
        assert await served(method, path) == by


async def test_what_is_no_request_goes_to_the_application(served: Served) -> None:
    """The start and the end of the process are announced there."""
    for kind in ("lifespan", "websocket"):
        assert await served("", "/v1/chat/completions", kind=kind) == "app"
