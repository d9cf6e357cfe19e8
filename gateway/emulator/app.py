"""The routes of the emulated server: which exist, what each answers, which faults strike first.

A bare ASGI application: the routes are few, none has a parameter, and a framework's wrappers would
stand between a request and the connection it may have to break off. Not emulated: logprobs, tools,
`echo`, /v1/messages, /v1/responses, prefix caching.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson
from starlette.types import Receive, Scope, Send

from gateway.emulator import bodies, parsing
from gateway.emulator.calls import Card
from gateway.emulator.driver import Driver
from gateway.emulator.exchange import Exchange
from gateway.emulator.exposition import CONTENT_TYPE
from gateway.emulator.faults import FaultKind, Faults
from gateway.emulator.generation import Generations
from gateway.emulator.mailbox import ClientGone
from gateway.emulator.meters import Meters
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.refusals import (
    Refusal,
    bad_request,
    busy,
    crashed,
    draining,
    method_not_allowed,
    not_found,
    unauthorized,
)

REQUESTS_REMEMBERED = 256

Route = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came in, for tests of what is forwarded; header names are lower case."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


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
        self._options = options
        self._card = card
        self._driver = driver
        self._meters = meters
        self._faults = faults
        self._generations = Generations(options, card, driver=driver, faults=faults)
        self._in_flight = 0
        self._created = time.time()
        self._stale_metrics: bytes | None = None
        self._routes: dict[str, dict[str, Route]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._metrics},
            "/_fault": {"GET": self._list_faults, "POST": self._set_faults},
        }
        if options.embeddings:
            self._routes["/v1/embeddings"] = {"POST": self._embeddings}

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

    def _route(self, exchange: Exchange) -> Route:
        path, method = exchange.scope["path"], exchange.scope["method"]
        methods = self._routes.get(path)
        if methods is None:
            raise not_found()
        if method not in methods:
            raise method_not_allowed(", ".join(methods))
        if path.startswith("/v1/") and not self._is_authorized(exchange):
            raise unauthorized()
        return methods[method]

    def _is_authorized(self, exchange: Exchange) -> bool:
        key = self._options.api_key
        return key is None or exchange.header(b"authorization") == f"Bearer {key}"

    async def _chat(self, exchange: Exchange) -> None:
        await self._generate(exchange, parsing.parse_chat)

    async def _completion(self, exchange: Exchange) -> None:
        await self._generate(exchange, parsing.parse_completion)

    async def _generate(self, exchange: Exchange, parse: parsing.Parse) -> None:
        self._in_flight += 1
        try:
            body = await self._begin(exchange)
            call = parse(body, self._card)
            if self._is_full():
                if call.streams and self._faults.strike(FaultKind.BUSY_RACE):
                    await self._generations.refuse_in_stream(exchange, busy())
                    return
                self._meters.rejected += 1
                raise busy()
            await self._generations.run(exchange, call)
        finally:
            self._in_flight -= 1

    async def _begin(self, exchange: Exchange) -> bytes:
        """Read the body; the faults that strike before anything is understood strike here."""
        body = await exchange.body()
        scope = exchange.scope
        headers = tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"])
        self.received.append(Received(scope["method"], scope["path"], headers, body))
        strike = self._faults.strike
        if strike(FaultKind.DIE_BEFORE):
            await exchange.reset()
        if strike(FaultKind.ERROR_500):
            raise crashed()
        if strike(FaultKind.DRAINING):
            raise draining()
        if strike(FaultKind.BUSY):
            raise busy()
        return body

    def _is_full(self) -> bool:
        limit, engine = self._options.max_num_queued_reqs, self._driver.engine
        if limit is None:
            return self._faults.is_active(FaultKind.BUSY_RACE)
        return engine.running + engine.waiting >= limit

    async def _embeddings(self, exchange: Exchange) -> None:
        body = await self._begin(exchange)
        call, as_base64 = parsing.parse_embedding(body, self._card)
        await self._generations.compute(exchange, call)
        envelope = self._generations.envelope(exchange, call, "embd")
        await exchange.answer(200, bodies.embeddings_body(envelope, as_base64=as_base64))

    async def _models(self, exchange: Exchange) -> None:
        await exchange.answer(200, bodies.models_body(self._card, int(self._created)))

    async def _tokenize(self, exchange: Exchange) -> None:
        ids, shows_text = parsing.parse_tokenize(await exchange.body(), self._card)
        await exchange.answer(200, bodies.tokenize_body(ids, self._card, shows_text=shows_text))

    async def _detokenize(self, exchange: Exchange) -> None:
        text = parsing.parse_detokenize(await exchange.body(), self._card)
        await exchange.answer(200, bodies.detokenize_body(text))

    async def _health(self, exchange: Exchange) -> None:
        is_well = not self._faults.is_active(FaultKind.UNHEALTHY)
        await exchange.answer(200 if is_well else 503, b"")

    async def _version(self, exchange: Exchange) -> None:
        await exchange.answer(200, b'{"version":"0.32.0"}')

    async def _load(self, exchange: Exchange) -> None:
        await exchange.answer(200, b'{"server_load":%d}' % self._in_flight)

    async def _metrics(self, exchange: Exchange) -> None:
        slow = self._faults.get(FaultKind.SLOW_METRICS)
        if slow is not None:
            await exchange.mailbox.wait_gone(slow.value)
        await exchange.answer(200, self._metrics_text(), content_type=CONTENT_TYPE.encode())

    def _metrics_text(self) -> bytes:
        if not self._faults.is_active(FaultKind.STALE_GAUGES):
            self._stale_metrics = None
        if self._stale_metrics is not None:
            return self._stale_metrics
        text = self._meters.text(
            self._driver.engine,
            self._card.models[0],
            self._created,
            zero_gauges=self._faults.is_active(FaultKind.ZERO_GAUGES),
        )
        if self._faults.is_active(FaultKind.STALE_GAUGES):
            self._stale_metrics = text
        return text

    async def _list_faults(self, exchange: Exchange) -> None:
        active = [str(fault) for fault in self._faults.active()]
        await exchange.answer(200, orjson.dumps({"active": active}))

    async def _set_faults(self, exchange: Exchange) -> None:
        """`{"clear": ["freeze"] or true, "inject": ["die-midstream:5"]}`, both optional."""
        try:
            asked = orjson.loads(await exchange.body())
            clear = asked.get("clear", [])
            inject = asked.get("inject", [])
            if clear:
                self._faults.clear(*([] if clear is True else clear))
            self._faults.inject(*inject)
        except (ValueError, AttributeError, TypeError) as error:
            raise bad_request(str(error)) from None
        await self._list_faults(exchange)
