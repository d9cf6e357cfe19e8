"""What is watched inside an engine: slots that stand idle, and work done by the second."""

from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field


class Held:
    """Since when the gateway has held something back without a break."""

    def __init__(self) -> None:
        self.since: float | None = None
        """None: it holds nothing."""
        self.observed_from = 0.0
        self.engines: list[IdleSlots] = []

    def note(self, *, is_held: bool, now: float) -> None:
        """Whether something waits at the gateway from now on."""
        if is_held:
            self.since = now if self.since is None else self.since
        elif self.since is not None:
            self.look(now)
            self.since = None

    def look(self, now: float) -> None:
        """Slots that are idle now have been so at least until now."""
        for engine in self.engines:
            engine.look(now)

    def forget_worst(self, now: float) -> None:
        """What happened before does not count."""
        self.observed_from = now
        for engine in self.engines:
            engine.longest_s = 0.0


class IdleSlots:
    """The longest time any slot of one engine stood idle while the gateway held work.

    Slots have no names in the engine; the one that was freed first is taken to be filled first,
    which is the assignment with the smallest maximum.
    """

    def __init__(self, slots: int, held: Held) -> None:
        self._slots = slots
        self._held = held
        self._since: deque[float] = deque([0.0] * slots)
        self.longest_s = 0.0
        held.engines.append(self)

    def update(self, running: int, now: float) -> None:
        """So many slots are taken from now on."""
        since, idle = self._since, self._slots - running
        while len(since) > idle:
            self._note(since.popleft(), now)
        while len(since) < idle:
            since.append(now)

    def look(self, now: float) -> None:
        """Count what is idle until now, without an end to it."""
        for start in self._since:
            self._note(start, now)

    def _note(self, start: float, now: float) -> None:
        held = self._held
        if held.since is not None:
            idle_s = now - max(start, held.since, held.observed_from)
            self.longest_s = max(self.longest_s, idle_s)


@dataclass(slots=True)
class Work:
    """What one engine did in each second, foreign work included."""

    decoded: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    prefilled: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Prompt tokens computed, less those that a preemption made the engine compute again."""
    finished: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    itl_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    itls: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def tokens(self, from_s: int, until_s: int) -> int:
        """Prompt and output tokens done in that time."""
        seconds = range(from_s, until_s)
        return sum(self.decoded[s] + self.prefilled[s] for s in seconds)

    def tpot_means_s(self, from_s: int, until_s: int, *, window_s: int = 10) -> list[float]:
        """Mean time between two tokens of a stream, in each whole window that has any."""
        means = []
        for start in range(from_s, until_s - window_s + 1, window_s):
            window = range(start, start + window_s)
            if count := sum(self.itls[s] for s in window):
                means.append(sum(self.itl_s[s] for s in window) / count)
        return means


class Ends:
    """How often requests ended lately, the most generous reading: the largest over many windows."""

    WINDOWS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)

    def __init__(self) -> None:
        self._at: list[float] = []

    def add(self, now: float) -> None:
        """One ended."""
        self._at.append(now)

    def per_s(self, now: float) -> float:
        """Ends per second."""
        at = self._at
        most = 0.0
        for window_s in self.WINDOWS_S:
            most = max(most, (len(at) - bisect_right(at, now - window_s)) / window_s)
        return most
