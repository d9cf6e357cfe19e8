"""Responses that an engine keeps: whose they are, where they lie, and how they are fetched.

A Responses id lives in the memory of one engine. It belongs to the tenant and user who made it;
for anybody else it does not exist. What an engine forgets is not noticed here: it says so itself.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qsl, urlencode

from gateway.api.auth import Asking, authenticated, headers_of
from gateway.api.disconnect import (
    DEPARTURE,
    ClientLeftError,
    Receive,
    Scope,
    Send,
    cancelled_when_client_leaves,
)
from gateway.api.openai import engine_error
from gateway.api.passing import beginning_of, error_body_of
from gateway.api.reply import EVENT_STREAM, JSON_TYPE, Reply
from gateway.api.rewrite import Rewrite
from gateway.api.routes import RESPONSES_PREFIX
from gateway.api.shapes import RESPONSE
from gateway.errors import (
    GatewayError,
    MethodNotAllowedError,
    ResponseNotFoundError,
    UpstreamFailedError,
    UpstreamTimeoutError,
)
from gateway.tenancy.keys import Keyring
from gateway.upstream.connection import Answer, UpstreamBrokenError
from gateway.upstream.fleet import Fleet
from gateway.upstream.sse import Events, StreamMeter

RESPONSES_MAX = 65_536
"""Responses whose place is remembered; the one made longest ago is forgotten first."""
STORED_BYTES_MAX = 64 << 20
"""A larger one is not passed on."""
ANSWER_S_MAX = 60.0
"""It is in an engine's memory: one that takes longer has stalled."""
QUERY_ALLOWED = frozenset({"stream", "starting_after", "include", "include[]"})
"""What a client may say in a query; nothing else reaches an engine."""
QUERY_BYTES_MAX = 1_024

_ID = re.compile(r"[A-Za-z0-9_\-]{1,128}")
_CANCEL = "/cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one response lies, and for whom."""

    replica: str
    tenant: str
    user: str
    alias: str | None
    """The model name its client used, where it is not the engine's."""
    service_tier: str | None
    """The tier it was served at, in the words of its client; None where none was asked for."""


class Places:
    """Where responses lie, by id."""

    def __init__(self, places_max: int = RESPONSES_MAX) -> None:
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._places_max = places_max

    def note(self, response_id: str, place: Place) -> None:
        """A response was made."""
        if response_id in self._places:
            return  # an engine that repeats an id must not hand one user's response to another
        self._places[response_id] = place
        if len(self._places) > self._places_max:
            self._places.popitem(last=False)

    def of(self, response_id: str, *, tenant: str, user: str) -> Place:
        """Raises ResponseNotFoundError, the same for an unknown id and for somebody else's."""
        place = self._places.get(response_id)
        if place is None or (place.tenant, place.user) != (tenant, user):
            raise no_such_response(response_id)
        return place


def no_such_response(response_id: str) -> ResponseNotFoundError:
    """The one answer for what is unknown, somebody else's, or gone with its replica."""
    return ResponseNotFoundError(f"The response `{response_id[:128]}` does not exist.")


class StoredResponses:
    """Serves GET of a stored response, and POST to its `/cancel`."""

    def __init__(
        self,
        *,
        places: Places,
        fleet: Fleet,
        keyring: Keyring,
        asking: Asking,
        cancelled: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`cancelled` hears of each response that its engine was made to give up."""
        self._cancelled = cancelled
        self._places = places
        self._fleet = fleet
        self._keyring = keyring
        self._asking = asking
        self._open: dict[asyncio.Task[Any], GatewayError | None] = {}
        """What is under way, and what its client is told where it is ended from here."""

    def end(self, farewell: GatewayError) -> None:
        """End all that is under way; each client is told."""
        for task in self._open:
            self._open[task] = farewell
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, whatever becomes of it."""
        reply = Reply(send, token_hex(12).encode("ascii"), RESPONSE)
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = None
        try:
            async with cancelled_when_client_leaves(receive, scope.get(DEPARTURE)):
                await self._serve(scope, reply)
        except GatewayError as error:
            await reply.fail(error)
        except UpstreamBrokenError as broken:
            await reply.fail(UpstreamFailedError(f"The engine's answer broke off: {broken}."))
        except ClientLeftError:
            return
        except asyncio.CancelledError:
            farewell = self._open[task]
            if farewell is None or task.uncancel():
                raise
            await reply.fail(farewell)
        finally:
            del self._open[task]

    async def _serve(self, scope: Scope, reply: Reply) -> None:
        headers = headers_of(scope["headers"])
        principal = authenticated(self._keyring, headers)
        user = self._asking.user(principal, headers, None)
        response_id, is_cancel = _asked_for(scope)
        method = "POST" if is_cancel else "GET"
        if scope["method"] != method:
            reply.add_header(b"allow", method.encode("ascii"))
            raise MethodNotAllowedError("A response is fetched by GET, and cancelled by POST.")
        place = self._places.of(response_id, tenant=principal.tenant, user=user)
        if place.replica not in self._fleet.names():
            raise no_such_response(response_id)
        path = f"{RESPONSES_PREFIX}{response_id}{_CANCEL if is_cancel else ''}{_query(scope)}"
        try:
            async with asyncio.timeout(ANSWER_S_MAX) as limit:
                meter = StreamMeter(lambda: 0.0, lambda: None, Events.RESPONSE)
                answer = await self._fleet.client(place.replica).send(
                    path.encode("ascii"), b"", method=method.encode("ascii"), meter=meter
                )
                try:
                    if is_cancel and answer.status < 300:
                        self._cancelled(response_id)
                    if not await _is_told(answer, reply, place):
                        limit.reschedule(None)  # a stream may last
                        await _pass_stream(answer, reply, place, meter)
                finally:
                    answer.close()
        except TimeoutError:
            raise UpstreamTimeoutError("The engine did not answer.") from None


async def _is_told(answer: Answer, reply: Reply, place: Place) -> bool:
    """Pass a plain answer on; False: it is a stream. Raises GatewayError for the client."""
    if answer.status >= 400:
        raise engine_error(answer.status, await error_body_of(answer)).as_error()
    content_type = answer.header(b"content-type") or JSON_TYPE
    is_stream = content_type.startswith(b"text/event-stream")
    reply.streams = is_stream
    if is_stream:
        return False
    body = await beginning_of(answer, STORED_BYTES_MAX)
    if len(body) > STORED_BYTES_MAX:
        raise UpstreamFailedError("The stored response is too large to be passed on.")
    headers = [(b"content-type", content_type)]
    await reply.whole(answer.status, headers, _rewrite(place).plain(body))
    return True


async def _pass_stream(answer: Answer, reply: Reply, place: Place, meter: StreamMeter) -> None:
    """Pass on the events of a response; those to come are waited for as long as it takes."""
    rewrite = _rewrite(place)
    await reply.begin_stream(answer.header(b"content-type") or EVENT_STREAM)
    try:
        while data := await answer.read():
            await reply.write(rewrite.chunk(data))
    except UpstreamBrokenError:
        if not meter.is_done:
            raise
    if meter.is_done:
        await reply.finish(rewrite.rest())
    elif meter.error_event is not None:
        await reply.finish()
    else:
        raise UpstreamFailedError("The engine ended the stream without finishing it.")


def _rewrite(place: Place) -> Rewrite:
    return Rewrite(model=place.alias, service_tier=place.service_tier, events=Events.RESPONSE)


def _asked_for(scope: Scope) -> tuple[str, bool]:
    """(the id, whether it is to be cancelled). Raises ResponseNotFoundError for no such path."""
    path: str = scope["path"].removeprefix(RESPONSES_PREFIX)
    name = path.removesuffix(_CANCEL)
    is_cancel = name != path
    if not _ID.fullmatch(name):
        raise ResponseNotFoundError("There is no such response.")
    return name, is_cancel


def _query(scope: Scope) -> str:
    """The part of the query that an engine may see, written anew."""
    text = scope.get("query_string", b"")[:QUERY_BYTES_MAX].decode("latin-1")
    pairs = [(name, value) for name, value in parse_qsl(text) if name in QUERY_ALLOWED]
    return f"?{urlencode(pairs)}" if pairs else ""
