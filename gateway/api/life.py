"""What is known of one request from its first byte to its last: the notebook of the relay."""

import asyncio
from typing import Any

from gateway.api.auth import Asked
from gateway.api.call import Call
from gateway.api.disconnect import Departure
from gateway.api.isolation import Salt
from gateway.api.routes import Route
from gateway.continuation.eligible import Verdict
from gateway.continuation.obstacles import Obstacle
from gateway.continuation.strand import Strand
from gateway.core.messages import Request, Usage
from gateway.errors import GatewayError
from gateway.telemetry.record import SettledRequest
from gateway.telemetry.tracing import Trace
from gateway.tenancy.limits import Reservation


class Life:
    """One request; filled in as it goes on, instants on the gateway's clock."""

    __slots__ = (
        "asked", "attempts", "began_at", "body_bytes", "broke_at", "call", "continuations",
        "caps", "departure", "farewell", "first_at", "forwarded", "is_movable", "media_bytes",
        "model", "moves", "obstacle", "outcome", "pinned", "position", "prefix", "prompt_tokens",
        "refusals", "replica", "request_id", "reservation", "route", "salt", "sent_at",
        "strand", "task", "told_at", "tpot_s", "trace", "usage", "verdict", "waited_s",
    )  # fmt: skip

    def __init__(self, *, request_id: str, route: Route, began_at: float) -> None:
        self.request_id = request_id
        self.route = route
        self.began_at = began_at
        self.task: asyncio.Task[Any] | None = None
        """What carries it."""
        self.departure: Departure | None = None
        """What ends it when its client leaves."""
        self.call: Call | None = None
        self.body_bytes = 0
        """Of its body, so far as it has come."""
        self.asked: Asked | None = None
        self.model = ""
        self.forwarded = b""
        """Header lines of the client that go to the engine."""
        self.trace: Trace | None = None
        """Where it is recorded."""
        self.pinned: str | None = None
        """The replica that holds what it goes on from, and so the only one that can serve it."""
        self.prefix: tuple[int, ...] = ()
        """Hashes of the prompt's leading blocks, where anything is decided by them."""
        self.salt: Salt | None = None
        """What keeps its prompt apart in an engine's cache."""
        self.media_bytes = 0
        """Of its body, what is no text."""
        self.reservation: Reservation | None = None
        """What it holds of limits."""
        self.prompt_tokens = 0
        """As estimated for them."""
        self.caps: tuple[tuple[str, int], ...] = ()
        """Who may have how many of its kind running at once."""
        self.attempts = 0
        self.replica = ""
        self.position = 0
        self.waited_s = 0.0
        self.sent_at: float | None = None
        """When the request was first sent to an engine."""
        self.first_at: float | None = None
        self.tpot_s: float | None = None
        self.usage: Usage | None = None
        self.outcome = "done"
        self.farewell: GatewayError | None = None
        """What its client is told, where it is ended for no fault of anybody."""
        self.strand: Strand | None = None
        """A broken stream that is to go on on another replica."""
        self.verdict: Verdict | None = None
        """Of its body on that, once it was asked for."""
        self.obstacle: Obstacle | None = None
        """What stands against that, where its tier wants it."""
        self.broke_at = self.told_at = 0.0
        """When it broke, or first failed before it began; and when its client was last told that it
        waits for no replica at all."""
        self.continuations = 0
        self.is_movable = False
        """Whether its tier and route allow it to go on elsewhere, once it streams."""
        self.moves = 0
        """How many of the attempts were made because we left a replica that did nothing wrong."""
        self.refusals = 0
        """How many of them came to nothing, since there was no replica at all."""

    @property
    def attempt_id(self) -> str:
        """The id of this attempt: engines have broken on ids that they saw twice."""
        return f"{self.request_id}-{self.attempts}"

    @property
    def alias(self) -> str | None:
        """The model name that the client used, where it is not the engine's own."""
        assert self.call is not None
        name = self.call.model
        return None if name == self.model else name

    def next_request(self, excluded: frozenset[str]) -> Request:
        """The scheduler's view of the next attempt."""
        assert self.call is not None
        assert self.asked is not None
        self.attempts += 1
        call, asked = self.call, self.asked
        if self.strand is not None:
            return self._rest(self.strand, excluded)
        return Request(
            id=self.attempt_id,
            model=self.model,
            tier=asked.tier,
            tenant=asked.tenant,
            user=asked.user,
            arrived_at=self.began_at,
            prompt_tokens=call.prompt_tokens,
            output_tokens_max=call.output_tokens_max,
            sequences=call.sequences,
            streams=call.streams,
            body_bytes=call.size,
            patience_s=asked.patience_s,
            route=self.route.name,
            excluded=excluded,
            only=self.pinned,
            prefix=self.prefix,
            session=asked.session,
            read_timeout_s=asked.read_timeout_s,
            is_continuable=self.is_movable,
            caps=self.caps,
        )

    def _rest(self, strand: Strand, excluded: frozenset[str]) -> Request:
        """What is left of a broken stream."""
        call, asked = self.call, self.asked
        assert call is not None
        assert asked is not None
        limit, kept = call.output_tokens_max, strand.kept_tokens
        return Request(
            id=self.attempt_id,
            model=self.model,
            tier=asked.tier,
            tenant=asked.tenant,
            user=asked.user,
            arrived_at=self.broke_at,
            prompt_tokens=strand.prompt_tokens + kept,
            output_tokens_max=None if limit is None else max(1, limit - kept),
            streams=True,
            body_bytes=call.size,
            route=self.route.name,
            excluded=excluded,
            prefix=self.prefix,
            session=asked.session,
            is_continuation=True,
            is_continuable=True,
            caps=self.caps,
        )

    def end(self, farewell: GatewayError) -> None:
        """It must not go on, wherever it is: end it, and tell its client."""
        if self.farewell is None and self.task is not None:
            self.farewell = farewell
            self.task.cancel()

    def failed(self, error: GatewayError) -> None:
        """The client got an error."""
        self.outcome = error.code

    def record(self, now: float, status: int, tiers: tuple[str, ...]) -> SettledRequest:
        """The settled request. Must not be asked before it is known who asked."""
        assert self.asked is not None
        assert self.call is not None
        sent_at = now if self.sent_at is None else self.sent_at
        return SettledRequest(
            request_id=self.request_id,
            route=self.route.name,
            model=self.model,
            tenant=self.asked.tenant,
            user=self.asked.user,
            tier=tiers[self.asked.tier],
            replica=self.replica,
            outcome=self.outcome,
            status=status,
            attempts=self.attempts - self.refusals,
            continuations=self.continuations,
            waited_s=self.waited_s,
            ttft_s=None if self.first_at is None else self.first_at - self.began_at,
            tpot_s=self.tpot_s,
            duration_s=now - self.began_at,
            overhead_s=max(0.0, sent_at - self.began_at - self.waited_s),
            usage=self.usage,
            arrived_at=self.began_at,
            streams=self.call.streams,
            sequences=self.call.sequences,
            output_tokens_max=self.call.output_tokens_max,
            body_bytes=self.call.size,
            session=self.asked.session,
            prefix=self.prefix,
            trace_id=None if self.trace is None else self.trace.hex_id,
        )
