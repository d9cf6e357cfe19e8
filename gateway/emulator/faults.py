"""What goes wrong on demand: the kinds, their text form, and which are active.

Decides nothing about how a fault looks on the wire; the routes, the engine loop and the listener
ask here whether theirs is on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum


class FaultKind(StrEnum):
    """Every way to fail. VALUE is what `kind:VALUE` means; its default is in `DEFAULT_VALUES`."""

    REFUSE = "refuse"
    """Connections are refused, idle ones closed. VALUE: seconds, 0 until cleared."""
    FREEZE = "freeze"
    """Engine steps stop while /health stays 200. VALUE: seconds, 0 until cleared."""
    ASLEEP = "asleep"
    """Its memory is given back: engine steps stop while all else answers, until it is woken.
    /sleep and /wake_up switch it too."""
    UNHEALTHY = "unhealthy"
    """/health answers 503."""
    TERMINATE = "terminate"
    """Told to stop. For VALUE seconds, or until all have finished, requests run on and new ones get
    the error of `draining`; then connections are refused and what is left hangs without a word.
    Cleared, it is an engine that was started again: what hung is reset."""
    CORE_DEAD = "core-dead"
    """The engine core dies: requests get its error, /health 503, and soon nobody listens. Cleared
    as `terminate`."""
    DIE_BEFORE = "die-before"
    """The connection is reset before any header."""
    ERROR_500 = "error-500"
    """500 with vLLM's EngineCore error."""
    DRAINING = "draining"
    """500 "cannot schedule new futures after shutdown": vLLM told to stop, finishing its work."""
    BUSY = "busy"
    """503, the engine is full."""
    BUSY_RACE = "busy-race"
    """Streams get their 200 and then the busy error in place of tokens; plain requests the 503.
    With a queue limit set, only when it is exceeded: vLLM's race between check and queue."""
    DIE_MIDSTREAM = "die-midstream"
    """Reset after VALUE events; a plain answer is cut in half."""
    CLOSE_MIDSTREAM = "close-midstream"
    """An orderly FIN after VALUE events, without the last chunk."""
    ERROR_MIDSTREAM = "error-midstream"
    """An error event in the route's own shape after VALUE events; a plain request gets the 500."""
    HALF_CHUNK = "half-chunk"
    """Half an event after VALUE others, then a reset; a plain answer is cut in half."""
    SLOW = "slow"
    """Inference takes VALUE seconds before anything is sent, headers included."""
    STALL = "stall"
    """Silence after VALUE events; a plain request gets no answer."""
    STALL_KEEPALIVE = "stall-keepalive"
    """The same, with `: keep-alive` comments, or pings where the route has those."""
    DRIBBLE = "dribble"
    """Bodies are sent byte by byte. VALUE: milliseconds between bytes."""
    GZIP = "gzip"
    """Bodies are compressed whether asked for or not."""
    STALE_GAUGES = "stale-gauges"
    """/metrics repeats what it said at the first scrape under this fault."""
    ZERO_GAUGES = "zero-gauges"
    """The gauges of /metrics read 0. VALUE: seconds, 0 until cleared."""
    SLOW_METRICS = "slow-metrics"
    """/metrics takes VALUE seconds."""
    NO_METRICS = "no-metrics"
    """/metrics answers 500."""


CUTS = frozenset(
    {
        FaultKind.DIE_MIDSTREAM,
        FaultKind.CLOSE_MIDSTREAM,
        FaultKind.ERROR_MIDSTREAM,
        FaultKind.HALF_CHUNK,
        FaultKind.STALL,
        FaultKind.STALL_KEEPALIVE,
    }
)
"""Those that strike after a number of events."""

TIMED = frozenset({FaultKind.REFUSE, FaultKind.FREEZE, FaultKind.ZERO_GAUGES})
"""Those whose value is a duration, after which they are over."""

ENDINGS = frozenset({FaultKind.TERMINATE, FaultKind.CORE_DEAD})
"""Those that a real engine does not come back from; only another one in its place does."""

DEATH_REFUSES_S = 0.23
"""From the death of a core to the first connection that is refused, as measured."""

DEFAULT_VALUES = dict.fromkeys(CUTS, 3.0) | {FaultKind.SLOW_METRICS: 2.0, FaultKind.SLOW: 1.0}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `times` counts the requests it still strikes; None: all of them."""

    kind: FaultKind
    value: float = 0.0
    times: int | None = None

    def __str__(self) -> str:
        times = "" if self.times is None else f"*{self.times}"
        return f"{self.kind}:{self.value:g}{times}"


def parse_fault(text: str) -> Fault:
    """`KIND[:VALUE][*TIMES]`, for example `die-midstream:5` or `error-500*1`.

    Raises:
        ValueError: unknown kind, or a value or count that is no number >= 0.
    """
    head, star, times = text.strip().partition("*")
    name, colon, value = head.partition(":")
    if name not in set(FaultKind):
        raise ValueError(f"unknown fault {name!r}; known: {', '.join(FaultKind)}")
    kind = FaultKind(name)
    try:
        fault = Fault(
            kind,
            float(value) if colon else DEFAULT_VALUES.get(kind, 0.0),
            int(times) if star else None,
        )
    except ValueError:
        raise ValueError(f"fault {text!r}: expected KIND[:VALUE][*TIMES]") from None
    if not fault.value >= 0 or (fault.times is not None and fault.times < 1):
        raise ValueError(f"fault {text!r}: VALUE must be >= 0 and TIMES >= 1")
    return fault


class Faults:
    """The active faults of one emulator; at most one of each kind, and one cut."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._active: dict[FaultKind, Fault] = {}
        self._until: dict[FaultKind, float] = {}
        self._since: dict[FaultKind, float] = {}
        self.cut: Fault | None = None
        """The active one of `CUTS`; a plain attribute, since it is looked at for each event."""
        self.on_change: Callable[[], None] = lambda: None

    def inject(self, *faults: Fault | str) -> None:
        """Make these active, in place of others of their kind.

        Raises:
            ValueError: a text that is no fault; then none is made active.
        """
        parsed = [parse_fault(fault) if isinstance(fault, str) else fault for fault in faults]
        for fault in parsed:
            if fault.kind in CUTS:
                self._forget(*CUTS)
                self.cut = fault
            self._active[fault.kind] = fault
            self._since[fault.kind] = self._clock()
            self._until.pop(fault.kind, None)
            if fault.kind in TIMED and fault.value:
                self._until[fault.kind] = self._clock() + fault.value
        self.on_change()

    def clear(self, *kinds: FaultKind | str) -> None:
        """End these faults, or all when none is named."""
        self._forget(*(FaultKind(kind) for kind in kinds or tuple(self._active)))
        self.on_change()

    def is_active(self, kind: FaultKind) -> bool:
        """Whether it strikes now; a duration that is over ends it."""
        if kind not in self._active:
            return False
        if self._clock() >= self._until.get(kind, float("inf")):
            self._forget(kind)
        return kind in self._active

    def left_s(self, kind: FaultKind) -> float | None:
        """Seconds until it ends by itself; None when it does not, or is not active."""
        until = self._until.get(kind)
        return None if until is None else max(0.0, until - self._clock())

    @property
    def is_halted(self) -> bool:
        """Whether the engine core makes no step."""
        if not self._active:
            return False
        dead = FaultKind.CORE_DEAD in self._active
        rests = FaultKind.ASLEEP in self._active or self.is_active(FaultKind.FREEZE)
        return dead or rests or self._has_lapsed(FaultKind.TERMINATE)

    @property
    def is_refusing(self) -> bool:
        """Whether nobody listens."""
        return (
            self.is_active(FaultKind.REFUSE)
            or self._has_lapsed(FaultKind.TERMINATE)
            or self._has_lapsed(FaultKind.CORE_DEAD, DEATH_REFUSES_S)
        )

    @property
    def is_ending(self) -> bool:
        """Whether one of `ENDINGS` is active."""
        return not ENDINGS.isdisjoint(self._active)

    def change_s(self) -> float | None:
        """Seconds until one of the above may change by itself; None: not by itself.

        Ask before you look at them: what changes in between is then seen by the look, while after
        it a fault that has just ended would be past, and nobody would wake who waits for its end.
        """
        if not self._active:
            return None
        lefts = [self.left_s(kind) for kind in (FaultKind.REFUSE, FaultKind.FREEZE)]
        terminate = self._active.get(FaultKind.TERMINATE)
        if terminate is not None:
            lefts.append(terminate.value - self._age_s(FaultKind.TERMINATE))
        if FaultKind.CORE_DEAD in self._active:
            lefts.append(DEATH_REFUSES_S - self._age_s(FaultKind.CORE_DEAD))
        return min((left for left in lefts if left is not None and left > 0), default=None)

    def _age_s(self, kind: FaultKind) -> float:
        return self._clock() - self._since[kind]

    def _has_lapsed(self, kind: FaultKind, after_s: float = 0.0) -> bool:
        """Whether it is active for longer than its value and so many seconds."""
        fault = self._active.get(kind)
        return fault is not None and self._age_s(kind) >= fault.value + after_s

    def get(self, kind: FaultKind) -> Fault | None:
        """The active fault of that kind."""
        return self._active.get(kind) if self.is_active(kind) else None

    def strike(self, kind: FaultKind) -> bool:
        """Whether it strikes this request, which counts as one of its times."""
        fault = self.get(kind)
        if fault is None:
            return False
        if fault.times == 1:
            self._forget(kind)
        elif fault.times is not None:
            self._active[kind] = replace(fault, times=fault.times - 1)
            if kind in CUTS:
                self.cut = self._active[kind]
        return True

    def active(self) -> tuple[Fault, ...]:
        """All that are on."""
        return tuple(fault for kind, fault in tuple(self._active.items()) if self.is_active(kind))

    def _forget(self, *kinds: FaultKind) -> None:
        for kind in kinds:
            self._until.pop(kind, None)
            if self._active.pop(kind, None) is not None and kind in CUTS:
                self.cut = None
