"""Whether anything new should be put on an engine that failed: a circuit breaker for each.

Closed it lets everything pass. What shows that the engine is at fault opens it for a while, longer
each time; then one request at a time is let through until one succeeds. Only faults of the engine
or of the way to it are counted, never a client's error, never "busy". It knows no requests but the
one that it let through.
"""

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from gateway.core.messages import Fault
from gateway.core.plain import instant_of

TRIP_FAILURES: Final = 5
"""Failures in a row, by weight, that open it: as many as Envoy's outlier detection waits for."""
WINDOW: Final = 20
"""Ends that are remembered."""
TRIP_SHARE: Final = 0.5
"""So many failures among the last `WINDOW` open it too, in a row or not (as in Hystrix)."""
BACKOFF_S: Final = 2.0
"""First rest. Short, since a trial that fails is tried elsewhere, unseen by its client."""
BACKOFF_MAX_S: Final = 30.0
"""Longest rest: the patience of the most impatient tier by default."""
STALL_BACKOFF_S: Final = 10.0
"""First rest of an engine that stands still: there a trial costs its request some seconds."""
STALL_BACKOFF_MAX_S: Final = 300.0
STUCK_TO_TRIP: Final = 3
"""Requests that an engine forgot while it went on with others: one may be an accident."""
STUCK_WITHIN_S: Final = 120.0
"""Seconds within which they must have been found; what went well between does not excuse them."""
DRAIN_REST_S: Final = 30.0
"""Rest of an engine that says it shuts down: Kubernetes kills it after as long by default."""
STEADY_S: Final = 60.0
"""After so long without a fault the next rest is the first again."""
TRIALS_LEFT: Final = 1
"""Failures, by weight, that open it again until the first request has ended well."""

WEIGHTS: Mapping[Fault, int] = MappingProxyType(
    {
        Fault.REFUSED: TRIP_FAILURES,  # nobody listens: the next one would fail as well
        Fault.STALLED: TRIP_FAILURES,  # each costs a client the stall bound
        Fault.CONNECT: 2,  # each costs the time to connect
        Fault.SERVER_ERROR: 1,
        Fault.BROKE_OFF: 1,
    }
)
FLAPPING = "flapping"
SILENT = "silent"
STANDSTILL = frozenset({SILENT, Fault.STALLED.value})
"""Reasons that the first output of anybody there ends."""


class Breaker(StrEnum):
    """What a circuit does with the next request."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Circuit:
    """The breaker of one replica; instants are seconds of the scheduler's clock."""

    __slots__ = (
        "_failures", "_flaps", "_recent", "_steady_from", "_stuck", "_trips", "lost_at", "reason",
        "trial", "until",
    )  # fmt: skip

    def __init__(self) -> None:
        self.reason: str | None = None
        """A `Fault`, "flapping" or "silent"; None: it is closed."""
        self.until = 0.0
        """When it is open no longer, and one request may try."""
        self.trial: str | None = None
        """Id of the one request that was let through."""
        self._failures = 0
        """In a row, by weight."""
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        """Whether each of the last ends was a failure."""
        self._trips = 0
        """Openings, one after another, without a steady while between."""
        self._steady_from = float("-inf")
        self._flaps = 0
        self._stuck: deque[float] = deque(maxlen=STUCK_TO_TRIP)
        """When the last requests were found to be stuck."""
        self.lost_at = float("-inf")
        """When it last stopped to answer."""

    def state(self, now: float) -> Breaker:
        """As of `now`."""
        if self.reason is None:
            return Breaker.CLOSED
        return Breaker.OPEN if now < self.until else Breaker.HALF_OPEN

    def lets(self, now: float) -> bool:
        """Whether the next request may pass."""
        return self.reason is None or (now >= self.until and self.trial is None)

    def sent(self, request_id: str, now: float) -> None:
        """A request was put on the engine: the only one, where it is half open."""
        if self.reason is not None and now >= self.until and self.trial is None:
            self.trial = request_id

    def left(self, request_id: str) -> None:
        """A request went without having shown anything of the engine."""
        if self.trial == request_id:
            self.trial = None

    def began(self, request_id: str, now: float) -> bool:
        """The engine answered a request; returns whether that closed the circuit.

        A trial need not run to its end, which may be minutes away; but until some request has
        ended well the next failure opens the circuit again.
        """
        if self.reason is None or (self.trial != request_id and self.reason not in STANDSTILL):
            return False
        is_lenient = self.reason == Fault.DRAINING
        self._close(now)
        if not is_lenient:
            self._failures = TRIP_FAILURES - TRIALS_LEFT
        return True

    def succeeded(self, request_id: str, now: float) -> bool:
        """A request ended well; returns whether that closed the circuit."""
        if self.reason is None:
            self._failures = 0
            self._recent.append(False)
            return False
        if not self.began(request_id, now):
            return False
        self._failures = 0
        return True

    def failed(self, request_id: str, fault: Fault, now: float) -> bool:
        """A request failed by the engine's fault; returns whether that opened the circuit."""
        if fault is Fault.DRAINING:
            if self.reason != fault or self.trial == request_id:
                self._open(fault, now, DRAIN_REST_S)
            return True
        if self.reason is not None:
            # What was there before it opened says nothing new.
            if self.trial != request_id:
                return False
            self._trip(fault, now)
            return True
        if fault is Fault.STUCK:
            return self._was_stuck(now)
        self._failures += WEIGHTS[fault]
        self._recent.append(True)
        if self._failures < TRIP_FAILURES and sum(self._recent) < TRIP_SHARE * WINDOW:
            return False
        self._trip(fault, now)
        return True

    def fell_silent(self, now: float) -> bool:
        """The engine works at something and makes nothing; returns whether that opened it."""
        if self.reason is not None:
            return False
        self._trip(SILENT, now)
        return True

    def spoke(self, now: float) -> bool:
        """The engine made something, for anybody; returns whether that closed the circuit."""
        if self.reason not in STANDSTILL:
            return False
        self._close(now)
        return True

    def answered(self, now: float, *, is_new: bool) -> bool:
        """It can be reached; `is_new`: it was started anew. Returns whether something may pass."""
        if is_new and self.reason is not None and self.reason != FLAPPING:
            self._close(now)
            return True
        if self.reason == Fault.REFUSED:
            self.until = min(self.until, now)
            return True
        return False

    def rest_briefly(self, now: float) -> bool:
        """Nobody else could serve: rest as at the first time; returns whether that is shorter."""
        if self.reason is None or self.until <= now + BACKOFF_S:
            return False
        self.until = now + BACKOFF_S
        return True

    def lost(self, now: float) -> None:
        """Nothing answers any more: what comes back is another one, or this one that flaps."""
        self._flaps = self._flaps + 1 if now - self.lost_at < STEADY_S else 1
        self.lost_at = now
        if self.reason is not None:
            self._close(now)

    def found(self, now: float) -> bool:
        """It answers again; returns whether it must rest first, having come and gone before."""
        if self._flaps < 2 or now - self.lost_at >= STEADY_S:
            return False
        self._open(FLAPPING, now, _backoff_s(BACKOFF_S, BACKOFF_MAX_S, self._flaps - 1))
        return True

    def snapshot(self, now: float) -> dict[str, Any]:
        """What was counted, as plain values."""
        return {
            "reason": self.reason,
            "until_age_s": now - self.until,
            "trial": self.trial,
            "failures": self._failures,
            "recent": list(self._recent),
            "trips": self._trips,
            "steady_age_s": _age_s(self._steady_from, now),
            "flaps": self._flaps,
            "stuck_age_s": [now - instant for instant in self._stuck],
            "lost_age_s": _age_s(self.lost_at, now),
        }

    def restore(self, data: Mapping[str, Any], now: float) -> None:
        """Go on at `now` from what `snapshot` gave, perhaps under another clock."""
        self.reason = data["reason"]
        self.until = now - data["until_age_s"]
        self.trial = data["trial"]
        self._failures = data["failures"]
        self._recent.extend(data["recent"])
        self._trips = data["trips"]
        self._steady_from = instant_of(data["steady_age_s"], now)
        self._flaps = data["flaps"]
        self._stuck.extend(now - age for age in data["stuck_age_s"])
        self.lost_at = instant_of(data["lost_age_s"], now)

    def _was_stuck(self, now: float) -> bool:
        """One more was found; returns whether that opened the circuit.

        It closes when the next one is served, and the first that is stuck opens it again: half of
        a data-parallel engine may stand still, and the other half hide that.
        """
        self._stuck.append(now)
        if len(self._stuck) < STUCK_TO_TRIP or now - self._stuck[0] > STUCK_WITHIN_S:
            return False
        self._trip(Fault.STUCK, now)
        return True

    def _trip(self, reason: str, now: float) -> None:
        is_steady = self.reason is None and now - self._steady_from >= STEADY_S
        self._trips = 1 if is_steady else self._trips + 1
        if reason in STANDSTILL or reason == Fault.STUCK:
            rest_s = _backoff_s(STALL_BACKOFF_S, STALL_BACKOFF_MAX_S, self._trips)
        else:
            rest_s = _backoff_s(BACKOFF_S, BACKOFF_MAX_S, self._trips)
        self._open(reason, now, rest_s)

    def _open(self, reason: str, now: float, rest_s: float) -> None:
        self.reason = str(reason)
        self.until = now + rest_s
        self.trial = None
        self._failures = 0
        self._recent.clear()

    def _close(self, now: float) -> None:
        self.reason = self.trial = None
        self._steady_from = now
        self._failures = 0


def _backoff_s(first_s: float, longest_s: float, times: int) -> float:
    """Doubled each time; bounded before it overflows."""
    return min(longest_s, first_s * 2.0 ** min(times - 1, WINDOW))


def _age_s(instant: float, now: float) -> float | None:
    return None if instant == float("-inf") else now - instant
