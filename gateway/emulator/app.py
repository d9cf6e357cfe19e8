"""The routes of the emulated server: which exist, what each answers, which faults strike first.

A bare ASGI application: the routes are few, one has a parameter, and a framework's wrappers would
stand between a request and the connection it may have to break off. Not emulated: tools that the
model chooses itself, `echo`, reasoning, background streams, prefix caching.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.emulator import audio_request, bodies, parsing
from gateway.emulator.audio_request import Upload
from gateway.emulator.calls import Call, Card
from gateway.emulator.driver import Driver
from gateway.emulator.exchange import Exchange
from gateway.emulator.faults import FaultKind, Faults
from gateway.emulator.generation import Generations
from gateway.emulator.mailbox import ClientGone
from gateway.emulator.messages_answer import count_body
from gateway.emulator.messages_request import parse_count, parse_message
from gateway.emulator.meters import Meters
from gateway.emulator.ops import Operations, Route, Routes
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.pooling_routes import POOLING_ROUTES, PoolingRoute
from gateway.emulator.refusals import (
    Refusal,
    busy,
    crashed,
    draining,
    method_not_allowed,
    not_found,
    unauthorized,
)
from gateway.emulator.responses_request import parse_response

REQUESTS_REMEMBERED = 256
BODY_BYTES_REMEMBERED = 1 << 20
"""Of each; the rest of a longer body is only counted."""

RESPONSES = "/v1/responses/"
CANCEL = "/cancel"

Serve = Callable[[Exchange, bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came in, for tests of what is forwarded; header names are lower case."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    body_bytes: int


class Application:
    """The ASGI entry of one emulator."""

    def __init__(
        self,
        options: EmulatorOptions,
        card: Card,
        *,
        driver: Driver,
        meters: Meters,
        faults: Faults,
    ) -> None:
        self.received: deque[Received] = deque(maxlen=REQUESTS_REMEMBERED)
        self.uploads: deque[Upload] = deque(maxlen=REQUESTS_REMEMBERED)
        self._options = options
        self._card = card
        self._driver = driver
        self._meters = meters
        self._faults = faults
        self._generations = Generations(options, card, driver=driver, faults=faults)
        self._operations = Operations(
            card, driver=driver, meters=meters, faults=faults, can_sleep=options.sleep_mode
        )
        self._routes = self._operations.routes() | self._inference_routes()

    @property
    def in_flight(self) -> int:
        """Requests for inference that are not yet answered."""
        return self._operations.in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        assert scope["type"] == "http"
        exchange = Exchange(scope, receive, send, self._faults)
        try:
            await self._route(exchange)(exchange)
        except Refusal as refusal:
            await exchange.answer(refusal.status, refusal.body, headers=refusal.headers)
        except ClientGone:
            return

    def _inference_routes(self) -> Routes:
        pasts = self._generations.archive.turns_of
        served: dict[str, Serve] = {
            "/v1/chat/completions": partial(self._generate, parsing.parse_chat),
            "/v1/completions": partial(self._generate, parsing.parse_completion),
            "/v1/responses": partial(self._generate, partial(parse_response, past=pasts)),
            "/v1/messages": partial(self._as_anthropic, partial(self._generate, parse_message)),
            "/v1/messages/count_tokens": partial(self._as_anthropic, self._count),
            "/v1/audio/transcriptions": partial(self._hear, "transcription"),
            "/v1/audio/translations": partial(self._hear, "translation"),
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        if self._options.embeddings:
            pooling = {path: partial(self._pool, how) for path, how in POOLING_ROUTES.items()}
            served |= pooling
        return {path: {"POST": partial(self._serve, serve)} for path, serve in served.items()}

    def _route(self, exchange: Exchange) -> Route:
        path, method = exchange.scope["path"], exchange.scope["method"]
        methods = self._routes.get(path)
        if methods is None:
            methods = self._stored_routes(path)
        if method not in methods:
            raise method_not_allowed(", ".join(methods))
        if path.startswith("/v1/") and not self._is_authorized(exchange):
            raise unauthorized()
        return methods[method]

    def _stored_routes(self, path: str) -> dict[str, Route]:
        """The methods of a path that holds the id of a stored response."""
        rest = path.removeprefix(RESPONSES)
        id = rest.removesuffix(CANCEL)
        if rest == path or not id or "/" in id:
            raise not_found()
        if rest.endswith(CANCEL):
            return {"POST": partial(self._serve, partial(self._cancel, id))}
        return {"GET": partial(self._serve, partial(self._retrieve, id))}

    def _is_authorized(self, exchange: Exchange) -> bool:
        key = self._options.api_key
        return key is None or exchange.header(b"authorization") == f"Bearer {key}"

    async def _serve(self, serve: Serve, exchange: Exchange) -> None:
        """Read the body and answer."""
        self._operations.in_flight += 1
        try:
            body = await exchange.body()
            self._remember(exchange.scope, body)
            await serve(exchange, body)
        finally:
            self._operations.in_flight -= 1

    def _remember(self, scope: Scope, body: bytes) -> None:
        headers = tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"])
        kept = body[:BODY_BYTES_REMEMBERED]
        self.received.append(Received(scope["method"], scope["path"], headers, kept, len(body)))

    async def _fail_first(self, exchange: Exchange) -> None:
        """The faults that strike before anything is understood strike here."""
        strike = self._faults.strike
        if strike(FaultKind.DIE_BEFORE):
            await exchange.reset()
        slow = self._faults.get(FaultKind.SLOW)
        if slow is not None and strike(FaultKind.SLOW):
            await exchange.mailbox.wait_gone(slow.value)
        if self._faults.is_active(FaultKind.CORE_DEAD) or strike(FaultKind.ERROR_500):
            raise crashed()
        if self._faults.is_active(FaultKind.TERMINATE) or strike(FaultKind.DRAINING):
            raise draining()
        if strike(FaultKind.BUSY):
            raise busy()

    async def _as_anthropic(self, serve: Serve, exchange: Exchange, body: bytes) -> None:
        try:
            await serve(exchange, body)
        except Refusal as refusal:
            raise refusal.for_messages() from None

    async def _generate(self, parse: parsing.Parse, exchange: Exchange, body: bytes) -> None:
        await self._fail_first(exchange)
        await self._run(exchange, parse(body, self._card))

    async def _run(self, exchange: Exchange, call: Call) -> None:
        if self._is_full():
            if call.streams and self._faults.strike(FaultKind.BUSY_RACE):
                await self._generations.refuse_in_stream(exchange, call, busy())
                return
            self._meters.rejected += 1
            raise busy()
        if call.request.get("background") and not call.streams:
            await self._generations.run_unwatched(exchange, call)
        else:
            await self._generations.run(exchange, call)

    def _is_full(self) -> bool:
        limit, engine = self._options.max_num_queued_reqs, self._driver.engine
        if limit is None:
            return self._faults.is_active(FaultKind.BUSY_RACE)
        return engine.running + engine.waiting >= limit

    async def _hear(self, task: audio_request.Task, exchange: Exchange, body: bytes) -> None:
        await self._fail_first(exchange)
        headers = Headers(scope=exchange.scope)
        fields, content, upload = await audio_request.read_form(headers, body)
        if upload is not None:
            self.uploads.append(upload)
        heard = None if upload is None else content
        await self._run(exchange, audio_request.parse_audio(task, fields, heard, self._card))

    async def _pool(self, how: PoolingRoute, exchange: Exchange, body: bytes) -> None:
        await self._fail_first(exchange)
        pooled = how.parse(body, self._card)
        if self._is_full():
            self._meters.rejected += 1
            raise busy()
        await self._generations.compute(exchange, pooled.call)
        envelope = self._generations.envelope(exchange, pooled.call, how.id_prefix)
        await self._generations.cuts.answer(exchange, how.answer(envelope, pooled))

    async def _retrieve(self, id: str, exchange: Exchange, body: bytes) -> None:
        await self._fail_first(exchange)
        stored = self._generations.archive.body_of(id)
        await self._generations.cuts.answer(exchange, stored)

    async def _cancel(self, id: str, exchange: Exchange, body: bytes) -> None:
        await self._fail_first(exchange)
        await self._generations.cuts.answer(exchange, self._generations.cancel(id))

    async def _count(self, exchange: Exchange, body: bytes) -> None:
        await self._fail_first(exchange)
        tokens = parse_count(body, self._card).prompt_tokens
        await self._generations.cuts.answer(exchange, count_body(tokens))

    async def _tokenize(self, exchange: Exchange, body: bytes) -> None:
        await self._fail_first(exchange)
        ids, shows_text = parsing.parse_tokenize(body, self._card)
        answer = bodies.tokenize_body(ids, self._card, shows_text=shows_text)
        await self._generations.cuts.answer(exchange, answer)

    async def _detokenize(self, exchange: Exchange, body: bytes) -> None:
        await self._fail_first(exchange)
        text = parsing.parse_detokenize(body, self._card)
        await self._generations.cuts.answer(exchange, bodies.detokenize_body(text))
