"""ONE REQUEST'S WHOLE LIFE: read, ask the gate, send to the engine, pass its bytes on, settle.

Read it top to bottom: `__call__` is the life, `_attempt` one try on one replica. What an engine
answered may be thrown away and tried elsewhere until its first *event* is passed on, and nothing
after that: headers say little, since vLLM sends its 200 before it starts.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import getrandbits

from gateway.api.auth import Asked, Asking, Headers, authenticated, headers_of
from gateway.api.background import Backgrounds
from gateway.api.call import Call
from gateway.api.continuing import ContinueElsewhereError, Patience, explained, may_go_on
from gateway.api.disconnect import (
    DEPARTURE,
    ClientLeftError,
    ClientStalledError,
    Receive,
    Scope,
    Send,
    cancelled_when_client_leaves,
)
from gateway.api.doors import OVERLOADED_S, Doors
from gateway.api.errand import errand_in
from gateway.api.exchange import Exchange, RetryElsewhereError
from gateway.api.form import read_form
from gateway.api.isolation import Isolation
from gateway.api.life import Life
from gateway.api.limiting import Limiting
from gateway.api.media import may_fetch
from gateway.api.models import ModelTable
from gateway.api.outgoing import FORWARDED, FORWARDED_TRACED, forwarded
from gateway.api.prefix import Prefixes
from gateway.api.reply import DIRECT, Reply
from gateway.api.routes import Route
from gateway.api.rules import Rules
from gateway.api.shapes import shape_of
from gateway.api.stored import Places, no_such_response
from gateway.api.surroundings import Surroundings
from gateway.api.wire import parse, read_body
from gateway.continuation.obstacles import Obstacle
from gateway.core.messages import Fault, Reason
from gateway.core.policy import Bounds
from gateway.errors import GatewayError, OverloadedError, RefusedError
from gateway.runtime.gate import Gate, Waits
from gateway.telemetry.record import SettledRequest
from gateway.telemetry.tracing import Tracing
from gateway.tenancy.keys import Keyring
from gateway.upstream.fleet import Fleet

LOGGER = logging.getLogger("fairgate.relay")
ID_BITS = 96
"""Of a request's id: enough for all gateways together never to make one twice."""


class Relay:
    """Serves the generation routes."""

    def __init__(
        self,
        *,
        gate: Gate,
        fleet: Fleet,
        keyring: Keyring,
        asking: Asking,
        models: ModelTable,
        bounds: Bounds,
        tiers: tuple[str, ...],
        keepalive_after_s: float,
        clock: Callable[[], float],
        settled: Callable[[SettledRequest], None],
        prefixes: Prefixes | None = None,
        places: Places | None = None,
        continues: Callable[[int], bool] = lambda _: False,
        continuation_wait_s: Callable[[], float] = lambda: 0.0,
        doors: Doors | None = None,
        backgrounds: Backgrounds | None = None,
        limiting: Limiting | None = None,
        rules: Rules | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        """`prefixes` is None where nothing is decided by the beginnings of prompts.

        `places` and `backgrounds` are shared with whoever fetches stored responses. `continues`
        tells of a tier whether its broken streams go on elsewhere, for which they wait so long.
        """
        places = Places() if places is None else places
        self._gate = gate
        self._keyring = keyring
        self._asking = asking
        self._doors = doors = Doors() if doors is None else doors
        self._around = Surroundings(
            fleet,
            asking,
            len(tiers),
            clock,
            places,
            continues,
            backgrounds=Backgrounds() if backgrounds is None else backgrounds,
            is_leaving=lambda: doors.is_shut,
        )
        self._patience = Patience(continuation_wait_s, keepalive_after_s, clock)
        self._models = models
        self._bounds, self._tiers = bounds, tiers
        self._keepalive_after_s = keepalive_after_s
        self._clock, self._settled = clock, settled
        self._prefixes = prefixes
        self._limiting = limiting
        self._rules = Rules() if rules is None else rules
        self._isolation = Isolation() if isolation is None else isolation
        self.tracing: Tracing | None = None
        """Which requests are recorded as traces; None: none is."""
        self.body_bytes = 0
        """Of all bodies that are here: those that come, wait and run."""
        self.open: dict[Exchange, asyncio.Task[None] | None] = {}
        """Exchanges under way, each with the task that carries it."""
        self.lives: set[Life] = set()
        """Requests under way."""

    def configure(
        self,
        *,
        bounds: Bounds,
        tiers: tuple[str, ...],
        tier_of: Mapping[int, int],
        keepalive_after_s: float,
        prefixes: Prefixes | None,
    ) -> None:
        """Other rules from now on; `tier_of` maps old ranks to new ones, for what is under way."""
        self._bounds, self._tiers = bounds, tiers
        self._keepalive_after_s = keepalive_after_s
        self._patience = replace(self._patience, keepalive_after_s=keepalive_after_s)
        self._prefixes = prefixes
        self._around.tiers = len(tiers)
        for life in self.lives:
            if life.asked is not None:
                life.asked = replace(life.asked, tier=tier_of[life.asked.tier])

    async def __call__(self, scope: Scope, receive: Receive, send: Send, route: Route) -> None:
        """Serve one request to `route`, whatever becomes of it."""
        life = Life(request_id=_new_id(), route=route, began_at=self._clock())
        life.task = asyncio.current_task()
        reply = Reply(send, life.request_id.encode("ascii"), shape_of(route), scope.get(DIRECT))
        self.lives.add(life)
        try:
            failure = await self._served(scope, receive, life, reply)
            if failure is not None:
                life.failed(failure)
                await reply.fail(failure)
        finally:
            self._settle(life, reply)

    async def _served(
        self, scope: Scope, receive: Receive, life: Life, reply: Reply
    ) -> GatewayError | None:
        """Admit and serve it; returns what its client must be told, None where it has all."""
        try:
            await self._admit(scope, receive, life, reply)
            leaving = cancelled_when_client_leaves(receive, scope.get(DEPARTURE), life.task)
            life.departure = leaving.departure
            async with leaving:
                return await self._serve(life, reply)
        except GatewayError as error:
            return error
        except ClientLeftError:
            life.outcome = "cancelled"
        except ClientStalledError:
            life.outcome = "client_stalled"
            reply.cut()
        except asyncio.CancelledError:
            life.outcome = "cancelled"
            if life.farewell is None or _is_cancelled_again(life):
                raise
            return life.farewell
        except Exception:
            # A fault of ours: told in the client's shape, written to the log, and never swallowed.
            LOGGER.exception("request %s failed inside the gateway", life.request_id)
            return GatewayError("The gateway failed; its log says why.")
        return None

    def _settle(self, life: Life, reply: Reply) -> None:
        """It is over, whatever became of it."""
        self.lives.discard(life)
        self.body_bytes -= life.body_bytes
        if life.call is not None and life.call.upload is not None:
            life.call.upload.close()
        if life.reservation is not None and self._limiting is not None:
            self._limiting.settle(life, reply.status)
        if life.asked is not None:
            record = life.record(self._clock(), reply.status, self._tiers)
            self._settled(record)
            if life.trace is not None:
                life.trace.finish(record)

    async def _admit(self, scope: Scope, receive: Receive, life: Life, reply: Reply) -> None:
        """Who asks, and for what. Raises GatewayError; nothing was queued then."""
        headers = headers_of(scope["headers"])
        keyring = self._keyring
        generation, errand = keyring.generation, errand_in(scope)
        if errand is None:
            principal = authenticated(keyring, headers)
        else:
            principal, errand.life = errand.principal(keyring), life
        doors = self._doors
        if doors.floor is not None and self._asking.best_tier(principal, headers) >= doors.floor:
            raise doors.keep_out()
        call = life.call = await self._call(life, headers, receive)
        if keyring.generation != generation:
            # The configuration changed while the body came: with it the ranks, or the key itself.
            principal = (
                authenticated(keyring, headers) if errand is None else errand.principal(keyring)
            )
        life.model = self._models.resolve(call.model, principal)
        asked = self._asking.asked(principal, headers, call)
        if doors.floor is not None and asked.tier >= doors.floor:
            raise doors.keep_out()
        life.asked = asked
        if self.tracing is not None:
            life.trace = self.tracing.begin(headers)
        self._rules.check(call, principal)
        if call.upload is None and may_fetch(call):
            life.media_bytes = await self._rules.media_bytes(call)
        if call.upload is None and life.route.uses_gpu:
            life.salt = self._isolation.salt_of(call.fields, tenant=asked.tenant, user=asked.user)
        life.forwarded = forwarded(headers, FORWARDED if life.trace is None else FORWARDED_TRACED)
        life.is_movable = may_go_on(life, self._around)
        if call.previous_response_id is not None:
            life.pinned = self._holder_of(call.previous_response_id, asked)
        if self._limiting is not None:
            asked_of_all = self._limiting.admit(life, reply, principal.key_id)
            if asked_of_all is not None:
                await asked_of_all
        if self._prefixes is not None and call.output_tokens_max != 0:
            whose = self._isolation.sharers(asked.tenant, asked.user)
            life.prefix = self._prefixes.of(call.fields, model=life.model, tenant=whose)
        reply.streams = call.streams
        reply.add_header(b"x-fairgate-tier", self._tiers[life.asked.tier].encode("latin-1"))

    def _holder_of(self, response_id: str, asked: Asked) -> str:
        """The replica that can go on from a response. Raises ResponseNotFoundError."""
        place = self._around.places.of(response_id, tenant=asked.tenant, user=asked.user)
        if place.replica not in self._around.fleet.names():
            raise no_such_response(response_id)
        return place.replica

    async def _call(self, life: Life, headers: Headers, receive: Receive) -> Call:
        """Read and understand the body."""
        route = life.route
        length = headers.get(b"content-length")
        if route.is_form:
            content_type = headers.get(b"content-type")
            call = await read_form(
                route,
                receive,
                content_type=content_type,
                bytes_max=self._bounds.body_bytes,
                length=length,
            )
            life.call = call  # so that it is closed whatever happens
            self._took(life, call.size)
            return call
        took = partial(self._took, life)
        body = await read_body(receive, length, self._bounds.body_bytes, took)
        return await parse(route, body, self._bounds.max_sequences)

    def _took(self, life: Life, size: int) -> None:
        """So much of a body came. Raises OverloadedError where all bodies together are too much."""
        life.body_bytes += size
        self.body_bytes += size
        if self.body_bytes > self._bounds.bodies_bytes:
            text = "The bodies of all requests together are more than the gateway may hold."
            raise OverloadedError(text, retry_after_s=OVERLOADED_S)

    async def _serve(self, life: Life, reply: Reply) -> GatewayError | None:
        """Try replicas until one answers; returns what is wrong where none does.

        A retry keeps the arrival instant, and so its place.
        """
        failed: dict[str, float] = {}
        faults: dict[str, Fault | None] = {}
        left: frozenset[str] = frozenset()
        last: GatewayError | None = None
        while life.attempts - life.moves - life.refusals < self._bounds.attempts:
            try:
                refused = await self._refused(life, reply, left.union(failed))
            except RetryElsewhereError as broken:
                now = failed[broken.replica] = self._clock()
                faults[broken.replica] = broken.fault
                if life.strand is None:
                    last = broken.error
                    life.broke_at = life.broke_at or now
            except ContinueElsewhereError as goes_on:
                life.broke_at, last = self._clock(), goes_on.error
                if goes_on.is_moved:
                    left |= {goes_on.replica}
                    life.moves += 1
                else:
                    failed[goes_on.replica] = life.broke_at
            else:
                if refused is None:
                    return None
                if life.strand is None:
                    if not await self._awaits_return(
                        refused, life, reply, failed=failed, faults=faults
                    ):
                        return last or refused
                    life.refusals += 1
                    continue
                # A replica that did nothing wrong is better than none.
                if not left and not await self._patience.outlasts(refused, life, reply):
                    assert last is not None
                    return explained(last, Obstacle.NO_REPLICA)
                left = frozenset()
                failed = self._still_failed(failed)
                life.refusals += 1
        assert last is not None, "at least one attempt is made"
        return last if life.strand is None else explained(last, Obstacle.ATTEMPTS)

    async def _awaits_return(
        self,
        refused: RefusedError,
        life: Life,
        reply: Reply,
        *,
        failed: dict[str, float],
        faults: Mapping[str, Fault | None],
    ) -> bool:
        """Whether to ask again for what has not begun, and failed wherever it could run.

        A replica that went away with it, and has come back, is as good as another one: it leaves
        `failed`. One that was there all the time would fail it again.
        """
        if not failed or refused.reason is not Reason.NO_REPLICA:
            return False
        fleet, is_hopeless = self._around.fleet, True
        for name, at in list(failed.items()):
            has_returned, fault = fleet.has_returned_since(name, at), faults[name]
            if has_returned or (has_returned is False and fault is Fault.REFUSED):
                del failed[name]
                return True
            is_hopeless &= has_returned is False and fault is not Fault.DRAINING
        return not is_hopeless and await self._patience.outlasts(refused, life, reply)

    def _still_failed(self, failed: dict[str, float]) -> dict[str, float]:
        """Those of the replicas that failed a broken stream which have not answered since.

        The others may have been started anew: they are tried again before it is given up.
        """
        answered = self._around.fleet.has_answered_since
        return {name: at for name, at in failed.items() if not answered(name, at)}

    async def _refused(
        self, life: Life, reply: Reply, failed: frozenset[str]
    ) -> RefusedError | None:
        """`_attempt`, and the refusal that it ended in, if it did: what follows may take long."""
        try:
            await self._attempt(life, reply, failed)
        except RefusedError as refused:
            return refused
        return None

    async def _attempt(self, life: Life, reply: Reply, failed: frozenset[str]) -> None:
        """One stay with the scheduler and one exchange with the replica it grants."""
        assert life.call is not None
        waits = Waits(reply.queued, self._keepalive_after_s) if life.call.streams else None
        if life.strand is not None:
            fleet = self._around.fleet
            failed |= {name for name in fleet.names() if not fleet.tells_token_ids(name)}
        if life.trace is not None:
            life.trace.waits(self._clock())
        async with self._gate.admitted(life.next_request(failed), waits) as grant:
            exchange = Exchange(life, reply, grant, self._around)
            task = self.open[exchange] = life.task
            if task is not None and life.is_movable:
                grant.movable(partial(exchange.move_away, task))
            try:
                await exchange.run()
            except asyncio.CancelledError:
                exchange.abandoned()
                raise
            finally:
                del self.open[exchange]
                exchange.close()


def _is_cancelled_again(life: Life) -> bool:
    """Whether somebody else, too, cancelled the task of a request that is to be ended."""
    return life.task is not None and life.task.uncancel() > 0


def _new_id() -> str:
    """An id that no other request of any gateway has; it need not be a secret."""
    return getrandbits(ID_BITS).to_bytes(ID_BITS // 8, "big").hex()
