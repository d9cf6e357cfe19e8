"""The trace of one request: its waits and its stays with engines, and what engines are told of it.

A trace is W3C's: it goes on from the client's `traceparent` if that one is recorded, begins anew
for a share of the other requests, and is passed on so that an engine's own spans hang below ours.
How spans are written, and where they go, is not known here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import getrandbits, random

from gateway.telemetry.record import SettledRequest

TRACEPARENT = b"traceparent"
TRACESTATE = b"tracestate"
PARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
"""Of any version; a later one may have more at its end."""
FIRST_VERSION_BYTES = 55
"""Of version 00, which has nothing more."""
SPANS_MAX = 64
"""Of one request; what is recalled again and again has no more of them."""
SAMPLED = 1


class Kind(StrEnum):
    """What a request did in the meantime."""

    QUEUE = "queue"
    """It waited for a replica."""
    ENGINE = "engine"
    """An engine had it."""


@dataclass(slots=True, kw_only=True)
class Span:
    """One of its waits or stays, instants on the gateway's clock."""

    kind: Kind
    span_id: int
    began_at: float
    ended_at: float | None = None
    replica: str = ""
    attempt_id: str = ""
    """As the engine was told."""


class Trace:
    """What is recorded of one request, from its admission to its end."""

    __slots__ = ("_finished", "_open", "parent_id", "span_id", "spans", "state", "trace_id")

    def __init__(
        self,
        finished: Callable[["Trace", SettledRequest], None],
        *,
        trace_id: int,
        parent_id: int | None,
        state: str,
    ) -> None:
        self._finished = finished
        self.trace_id = trace_id
        self.parent_id = parent_id
        """The client's own span; None where the trace begins here."""
        self.state = state
        """The client's `tracestate`, which goes on unchanged with the engine's headers."""
        self.span_id = _span_id()
        """Of the whole stay here."""
        self.spans: list[Span] = []
        self._open: Span | None = None

    @property
    def hex_id(self) -> str:
        """As traces are searched by."""
        return f"{self.trace_id:032x}"

    def waits(self, now: float) -> None:
        """It waits for a replica, for the first time or again."""
        self._begin(Span(kind=Kind.QUEUE, span_id=_span_id(), began_at=now))

    def sends(self, now: float, replica: str, attempt_id: str) -> None:
        """It goes to an engine."""
        self._begin(
            Span(
                kind=Kind.ENGINE,
                span_id=_span_id(),
                began_at=now,
                replica=replica,
                attempt_id=attempt_id,
            )
        )

    def leaves(self, now: float) -> None:
        """The engine has ended, or was left."""
        if self._open is not None:
            self._open.ended_at = now
            self._open = None

    def line(self) -> bytes:
        """The header line by which an engine's spans hang below the present one."""
        span_id = self.span_id if self._open is None else self._open.span_id
        return b"traceparent: 00-%032x-%016x-%02x\r\n" % (self.trace_id, span_id, SAMPLED)

    def finish(self, record: SettledRequest) -> None:
        """The request has ended."""
        self.leaves(record.arrived_at + record.duration_s)
        self._finished(self, record)

    def _begin(self, span: Span) -> None:
        self.leaves(span.began_at)
        self._open = span
        if len(self.spans) < SPANS_MAX:
            self.spans.append(span)


class Tracing:
    """Which requests are recorded."""

    def __init__(self, share: float, finished: Callable[[Trace, SettledRequest], None]) -> None:
        """`share`, 0..1, is of requests whose clients do not say; `finished` must not block."""
        self._share = share
        self._finished = finished

    def begin(self, headers: Mapping[bytes, bytes]) -> Trace | None:
        """The trace of a request with these headers; None: it is not recorded."""
        given = headers.get(TRACEPARENT)
        parent = None if given is None else parsed(given)
        if parent is None:
            if random() >= self._share:  # noqa: S311 - which are recorded is no secret
                return None
            return Trace(self._finished, trace_id=_trace_id(), parent_id=None, state="")
        trace_id, parent_id, is_sampled = parent
        if not is_sampled:
            return None
        state = headers.get(TRACESTATE, b"").decode("latin-1")
        return Trace(self._finished, trace_id=trace_id, parent_id=parent_id, state=state)


def parsed(traceparent: bytes) -> tuple[int, int, bool] | None:
    """(trace, span, whether it is recorded) of the header; None where it is none."""
    found = PARENT.fullmatch(traceparent)
    if found is None or (traceparent[:2] == b"00" and len(traceparent) != FIRST_VERSION_BYTES):
        return None
    return int(found[1], 16), int(found[2], 16), bool(int(found[3], 16) & SAMPLED)


def _trace_id() -> int:
    return getrandbits(128) or 1


def _span_id() -> int:
    return getrandbits(64) or 1
