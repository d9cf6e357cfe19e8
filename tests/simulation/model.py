"""A small fleet under a virtual clock: engines with a FIFO and late gauges, and the gateway's core.

An engine runs `slots` requests at a time; a request costs its prefill and one step a token. All
that travels between gateway and engine takes `hop_s`; scrapes come back `late_s` after they were
sent, and may show what was true `old_s` before.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

from gateway.core import invariants
from gateway.core.messages import (
    Arrived,
    Event,
    Finished,
    FirstToken,
    Granted,
    Outcome,
    Refused,
    ReplicaFound,
    ReplicaReport,
    ReplicaReported,
    Request,
    Usage,
    WakeWanted,
    Woke,
)
from gateway.core.policy import Policy
from gateway.core.scheduler import Scheduler

STEP_S = 0.02
PREFILL_TOKENS_PER_S = 10_000.0


@dataclass(slots=True)
class Job:
    """One request and what became of it, in seconds of the virtual clock."""

    request: Request
    output_tokens: int
    granted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def cost(self) -> int:
        """Tokens weighted as the default policy does."""
        return (self.request.prompt_tokens or 0) + 2 * self.output_tokens


@dataclass(slots=True)
class Engine:
    """Slots and a queue; knows nothing of users."""

    name: str
    slots: int
    tells_slots: bool = True
    tells_nothing_until_s: float = 0.0
    """Until then its gauges read zero, as after a cold start."""
    running: dict[int, Job] = field(default_factory=dict)
    queue: deque[Job] = field(default_factory=deque)
    idle_since: list[float] = field(default_factory=list)
    coming: int = 0
    """Granted and on the way."""
    history: list[tuple[float, int, int]] = field(default_factory=list)
    """(instant, running, waiting) after every change."""

    def __post_init__(self) -> None:
        self.idle_since = [0.0] * self.slots

    @property
    def beyond(self) -> int:
        """Requests that were let go and for which there is no slot."""
        return max(0, len(self.running) + len(self.queue) + self.coming - self.slots)

    def gauges(self, instant: float) -> tuple[int, int]:
        """(running, waiting) as they were."""
        if instant < self.tells_nothing_until_s:
            return 0, 0
        past = [entry for entry in self.history[-400:] if entry[0] <= instant]
        return past[-1][1:] if past else (0, 0)


class Fleet:
    """Engines, the scheduler in front of them, and a heap of what happens next."""

    def __init__(
        self,
        policy: Policy,
        engines: list[Engine],
        *,
        hop_s: float = 0.02,
        late_s: float = 0.1,
        old_s: float = 0.0,
    ) -> None:
        self.scheduler = Scheduler(policy)
        self.engines = {engine.name: engine for engine in engines}
        self.hop_s, self.late_s, self.old_s = hop_s, late_s, old_s
        self.now = 0.0
        self.jobs: dict[str, Job] = {}
        self.beyond_max = 0
        self.idle_s_max = 0.0
        """Longest time a slot stood idle while something waited at the gateway all the time."""
        self.waiting_since: float | None = None
        self._ends: list[Callable[[Job], object]] = []
        self._future: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._wake = 0
        for engine in engines:
            self._tell(
                ReplicaFound(
                    replica=engine.name,
                    models=frozenset("m"),
                    slots=engine.slots if engine.tells_slots else None,
                )
            )
            self.at(0.5, partial(self._scrape, engine))

    def at(self, instant: float, what: Callable[[], object]) -> None:
        """Let it happen then."""
        heappush(self._future, (instant, next(self._numbers), what))

    def on_end(self, what: Callable[[Job], object]) -> None:
        """Called whenever the gateway learns that a request ended."""
        self._ends.append(what)

    def run(self, until_s: float) -> None:
        """Let time pass."""
        for turn in count():
            if not self._future or self._future[0][0] > until_s:
                self.now = until_s
                invariants.check(self.scheduler)
                return
            self.now, _, what = heappop(self._future)
            what()
            if turn % 500 == 0:
                invariants.check(self.scheduler)

    def send(
        self,
        user: str,
        *,
        prompt_tokens: int = 100,
        output_tokens: int = 50,
        tier: int = 0,
        streams: bool = True,
    ) -> Job:
        """A request arrives at the gateway now."""
        request = Request(
            id=f"{user}-{next(self._numbers)}",
            model="m",
            tier=tier,
            tenant="t",
            user=user,
            arrived_at=self.now,
            prompt_tokens=prompt_tokens,
            streams=streams,
        )
        job = self.jobs[request.id] = Job(request, output_tokens)
        self._tell(Arrived(request))
        return job

    def _tell(self, event: Event) -> None:
        for decision in self.scheduler.handle(event, self.now):
            if isinstance(decision, Granted):
                self._let_go(self.jobs[decision.request_id], self.engines[decision.replica])
            elif isinstance(decision, WakeWanted):
                self._wake += 1
                self.at(decision.at, partial(self._woke, self._wake))
            else:
                assert isinstance(decision, Refused)
        waits = bool(self.scheduler.waiting)
        if not waits:
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = self.now

    def _woke(self, number: int) -> None:
        if number == self._wake:
            self._tell(Woke())

    def _let_go(self, job: Job, engine: Engine) -> None:
        job.granted_at = self.now
        engine.coming += 1
        self.beyond_max = max(self.beyond_max, engine.beyond)
        self.at(self.now + self.hop_s, partial(self._accept, engine, job))

    def _accept(self, engine: Engine, job: Job) -> None:
        engine.coming -= 1
        engine.queue.append(job)
        self._start(engine)

    def _start(self, engine: Engine) -> None:
        while engine.queue and len(engine.running) < engine.slots:
            job = engine.queue.popleft()
            slot = min(
                (number for number in range(engine.slots) if number not in engine.running),
                key=lambda number: engine.idle_since[number],
            )
            engine.running[slot] = job
            self._note_idle(engine.idle_since[slot])
            job.started_at = self.now
            prompt = job.request.prompt_tokens or 0
            first_s = prompt / PREFILL_TOKENS_PER_S + STEP_S
            if job.request.streams:
                heard_at = self.now + first_s + self.hop_s
                self.at(heard_at, partial(self._tell, FirstToken(job.request.id)))
            ends_at = self.now + first_s + job.output_tokens * STEP_S
            self.at(ends_at, partial(self._end, engine, slot, job))
        engine.history.append((self.now, len(engine.running), len(engine.queue)))

    def _note_idle(self, since: float) -> None:
        if self.waiting_since is not None:
            self.idle_s_max = max(self.idle_s_max, self.now - max(since, self.waiting_since))

    def _end(self, engine: Engine, slot: int, job: Job) -> None:
        del engine.running[slot]
        engine.idle_since[slot] = self.now
        job.ended_at = self.now
        self._start(engine)
        self.at(self.now + self.hop_s, partial(self._ended, job))

    def _ended(self, job: Job) -> None:
        usage = Usage(prompt_tokens=job.request.prompt_tokens or 0, output_tokens=job.output_tokens)
        self._tell(Finished(job.request.id, Outcome.DONE, usage, STEP_S))
        for what in self._ends:
            what(job)

    def _scrape(self, engine: Engine) -> None:
        sent_at = self.now
        running, waiting = engine.gauges(sent_at - self.old_s)
        report = ReplicaReport(running=running, waiting=waiting)
        event = ReplicaReported(
            replica=engine.name, sent_at=sent_at, report=report, round_trip_s=2 * self.hop_s
        )
        self.at(sent_at + self.late_s, partial(self._tell, event))
        self.at(sent_at + 1.0, partial(self._scrape, engine))
