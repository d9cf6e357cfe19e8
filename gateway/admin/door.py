"""The way in for operators: which routes exist, who asks, and how much of a request is read.

The table of routes is all there is. A request that matches none of them gets 404 here; one that
does reaches the application behind only after the guard let it in, and its body is complete and
within its bound. The pages of the console tell nothing of this gateway, and need no key. Paths are
matched as they came, never built anew.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from secrets import token_hex
from urllib.parse import parse_qsl

from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message

from gateway.admin.console_pages import ENTRY, ENTRY_PAGES, StaticPage
from gateway.admin.guard import Guard
from gateway.admin.idempotency import HEADER, Attempt, Idempotency, fingerprint_of
from gateway.admin.problems import failed, store_unavailable
from gateway.api.auth import headers_of
from gateway.api.disconnect import Receive, Scope, Send
from gateway.api.openai import error_body, retry_headers
from gateway.errors import (
    BadRequestError,
    BodyTooLargeError,
    GatewayError,
    MethodNotAllowedError,
    RouteNotFoundError,
)
from gateway.tenancy.store.port import Answer, StoreError

LOGGER = logging.getLogger("fairgate.admin")
BODY_BYTES_MAX = 1 << 20
"""Of one request of an operator."""
PREFIX = "/admin/v1"
PUBLIC = ("/healthz", "/readyz", "/v1/")
"""How paths begin that are never operators' own."""
PARAMETERS_MAX = 64
"""In a query."""
WHO = "fairgate.who"
"""Key of the scope: who asks, by name."""
REQUEST_ID = "fairgate.request_id"
ATTEMPT = "fairgate.attempt"
"""Key of the scope: the `Attempt` of a request with an idempotency key."""
SAFE_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
JSON_TYPE = (b"content-type", b"application/json")


class ClientGoneError(Exception):
    """The client left before its body was there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One route."""

    pattern: re.Pattern[str]
    methods: frozenset[str]
    parameters: frozenset[str]
    """Names that its query may have."""


class Door:
    """The operators' side as one ASGI application."""

    def __init__(
        self,
        app: ASGIApp,
        routes: Iterable[BaseRoute],
        *,
        guard: Guard,
        once: Idempotency,
        pages: Mapping[str, StaticPage],
    ) -> None:
        """`routes` are those of `app`, and no others of it can be reached.

        `pages` by path are the same for everybody, and are shown without a key.
        """
        self._app = app
        self._pages = pages
        self._guard = guard
        self._once = once
        self._entries = tuple(_entries(routes))

    def knows(self, path: str) -> bool:
        """Whether there is such a route, for whatever method."""
        return (
            path in self._pages
            or path == ENTRY
            or any(entry.pattern.match(path) for entry in self._entries)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request_id = scope[REQUEST_ID] = token_hex(12)
        reply = _Reply(send, request_id.encode("ascii"))
        try:
            await self._serve(scope, receive, reply)
        except GatewayError as error:
            await reply.fail(error)
        except StoreError:
            await reply.fail(store_unavailable())
        except ClientGoneError:
            return
        except Exception:
            LOGGER.exception("%s %s failed inside the gateway", scope["method"], scope["path"])
            await reply.fail(failed())

    async def _serve(self, scope: Scope, receive: Receive, reply: "_Reply") -> None:
        page = self._pages.get(scope["path"])
        if scope["path"] == ENTRY:
            page = ENTRY_PAGES[self._guard.needs_key]
        if page is not None:
            await self._show(page, scope, reply)
            return
        found = [entry for entry in self._entries if entry.pattern.match(scope["path"])]
        if not found:
            raise RouteNotFoundError("There is no such route.")
        scope[WHO] = self._guard.admit(scope)
        entry = next((entry for entry in found if scope["method"] in entry.methods), None)
        if entry is None:
            methods = sorted({method for entry in found for method in entry.methods})
            allowed = ", ".join(methods)
            reply.add((b"allow", allowed.encode("ascii")))
            raise MethodNotAllowedError(f"This route takes {allowed}.")
        _look_at_query(scope, entry.parameters)
        if scope["method"] == "GET":
            await self._app(scope, receive, reply)
            return
        headers = headers_of(scope["headers"])
        body = await _read(receive, headers.get(b"content-length"))
        key = headers.get(HEADER)
        replayed = _Replayed(body, receive)
        if key is None or scope["method"] != "POST":
            await self._app(scope, replayed, reply)
            return
        fingerprint = fingerprint_of(
            scope[WHO].encode(), scope["path"].encode(), scope["query_string"], body
        )
        async with self._once.once(key.decode("latin-1"), fingerprint) as known:
            if isinstance(known, Answer):
                reply.add((b"x-fairgate-replayed", b"true"))
                await reply.repeat(known)
                return
            scope[ATTEMPT] = known
            reply.keeps = True
            await self._app(scope, replayed, reply)
            self._note(known, reply)

    async def _show(self, page: StaticPage, scope: Scope, reply: "_Reply") -> None:
        self._guard.welcome(scope)
        if scope["method"] not in ("GET", "HEAD"):
            reply.add((b"allow", b"GET, HEAD"))
            raise MethodNotAllowedError("This route takes GET, HEAD.")
        _look_at_query(scope, frozenset())
        # A proxy that compresses makes the tag a weak one.
        seen = headers_of(scope["headers"]).get(b"if-none-match", b"").removeprefix(b"W/")
        if page.tag and seen == page.tag:
            await reply.whole(304, [*page.headers], b"", is_bodiless=True)
        else:
            is_bodiless = scope["method"] == "HEAD"
            await reply.whole(200, [*page.headers], page.body, is_bodiless=is_bodiless)

    def _note(self, attempt: Attempt, reply: "_Reply") -> None:
        """What was done without a commit is remembered; what failed may be tried again."""
        if not attempt.is_kept and 200 <= reply.status < 300:
            self._once.remember(attempt, reply.status, reply.body)


class Lobby:
    """Both sides on one listener: what operators ask goes to the door, the rest to the public.

    The door takes half a second to make, so it is made when somebody first comes to it, or before
    anybody can, by `furnish`.
    """

    def __init__(self, public: ASGIApp, make_door: Callable[[], Door]) -> None:
        self._public = public
        self._make_door = make_door
        self._door: Door | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        is_public = scope["type"] != "http" or scope["path"].startswith(PUBLIC)
        door = None if is_public else self.furnish()
        if door is not None and door.knows(scope["path"]):
            await door(scope, receive, send)
        else:
            await self._public(scope, receive, send)

    def furnish(self) -> Door:
        """The door, made now if it was not yet."""
        if self._door is None:
            self._door = self._make_door()
        return self._door


class _Reply:
    """Passes an answer on, with the headers that all answers here have."""

    def __init__(self, send: Send, request_id: bytes) -> None:
        self._send = send
        self._headers = [(b"x-request-id", request_id), *SAFE_HEADERS]
        self.status = 0
        self.keeps = False
        """Whether the body is kept."""
        self.body = b""

    def add(self, header: tuple[bytes, bytes]) -> None:
        """One more."""
        self._headers.append(header)

    async def __call__(self, message: Message) -> None:
        """ASGI's send."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name for name, _ in message["headers"]}
            more = [pair for pair in self._headers if pair[0] not in own]
            message = {**message, "headers": [*message["headers"], *more]}
        elif self.keeps:
            self.body += message.get("body", b"")
        await self._send(message)

    async def whole(
        self,
        status: int,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        *,
        is_bodiless: bool = False,
    ) -> None:
        """A complete answer; where it `is_bodiless`, its head alone."""
        if status != 304:
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        await self({"type": "http.response.start", "status": status, "headers": headers})
        sent = b"" if is_bodiless else body
        await self({"type": "http.response.body", "body": sent, "more_body": False})

    async def fail(self, error: GatewayError) -> None:
        """An error, unless an answer has begun."""
        if not self.status:
            await self.whole(error.status, [JSON_TYPE, *retry_headers(error)], error_body(error))

    async def repeat(self, answer: Answer) -> None:
        """What was answered before."""
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in answer.headers.items()
        ]
        await self.whole(answer.status, headers, answer.body)


class _Replayed:
    """`receive` for a body that was read already."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        """The body once, then whatever happens to the connection."""
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _read(receive: Receive, length: bytes | None) -> bytes:
    """The whole body. Raises BodyTooLargeError, ClientGoneError."""
    if length is not None and length.isdigit() and int(length) > BODY_BYTES_MAX:
        raise _too_large()
    parts: list[bytes] = []
    size, more_body = 0, True
    while more_body:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise _too_large()
        parts.append(part)
        more_body = message.get("more_body", False)
    return b"".join(parts)


def _too_large() -> BodyTooLargeError:
    return BodyTooLargeError(f"The body is larger than {BODY_BYTES_MAX} bytes.")


def _look_at_query(scope: Scope, known: frozenset[str]) -> None:
    """A misspelt parameter must not be passed over: it may be the one that says `dry_run`."""
    try:
        pairs = parse_qsl(
            scope["query_string"].decode("latin-1"),
            keep_blank_values=True, max_num_fields=PARAMETERS_MAX,
        )  # fmt: skip
    except ValueError:
        raise BadRequestError(f"The query has more than {PARAMETERS_MAX} parameters.") from None
    seen: set[str] = set()
    for name, _ in pairs:
        if name not in known:
            shown = name[:64]
            raise BadRequestError(f"There is no parameter `{shown}`.", param=shown)
        if name in seen:
            raise BadRequestError(f"The parameter `{name}` is given twice.", param=name)
        seen.add(name)


def _entries(routes: Iterable[BaseRoute]) -> Iterable[Entry]:
    for context in iter_route_contexts(list(routes)):
        yield Entry(
            context.path_regex, frozenset(context.methods or ()), _parameters(context.dependant)
        )


def _parameters(dependant: Dependant) -> frozenset[str]:
    """Names of the query, those of a model that stands for several included."""
    names = {name for inner in dependant.dependencies for name in _parameters(inner)}
    for each in dependant.query_params:
        model = each.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            names.update(field.alias or name for name, field in model.model_fields.items())
        else:
            names.add(each.alias)
    return frozenset(names)
