"""What a gateway tells its scheduler in a steady state, as a trace that can be told again.

A driver keeps so many requests waiting before simulated engines, under a virtual clock, and writes
down every event. It uses the scheduler's public surface alone and knows nothing of what it costs.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Protocol

from gateway.bench.core_fleet import SLOTS, TPOT_S, Engine, Served
from gateway.bench.core_spec import CoreLoad
from gateway.core.messages import (
    PREFIX_BLOCK_TOKENS,
    Arrived,
    Decision,
    Event,
    Finished,
    FirstToken,
    Granted,
    Outcome,
    Progressed,
    RecallDone,
    Recalled,
    RecallTooLate,
    Refused,
    ReplicaFound,
    ReplicaReported,
    Request,
    WakeWanted,
    Woke,
)
from gateway.core.policy import DEFAULT_TIERS, Bounds, Policy, Tier
from gateway.core.report import ReplicaReport
from gateway.core.scheduler import Scheduler

MODEL = "bench/model"
SEED = 20_251_129
LOWEST_TIER = len(DEFAULT_TIERS) - 1
BODY_BYTES = (100, 4_000)
BYTES_PER_TOKEN = 4
OUTPUT_TOKENS_MAX = (64, 256, None)
OUTPUT_TOKENS_MEAN = 300
"""Of those whose client sets no maximum, exponentially distributed up to `OUTPUT_TOKENS_LONGEST`;
the others take a uniform share of theirs."""
OUTPUT_TOKENS_LONGEST = 2_000
HASH_BITS = 96
SHARED_BLOCKS = 4
"""Leading blocks of every prompt of a tenant: its system prompt."""

PROGRESS_EVERY_S = 0.25
REPORT_EVERY_S = 1.0
ROUND_TRIP_S = 0.002
WARM_UP_S = 12.0
"""The fleet answers for this long before the first request: no replica is fresh any more."""
OFFERED_PER_REPLICA_S = 20.0
"""Arrivals a second, for each replica, until the replicas are full."""
QUEUE_GAP_S = 1e-5
"""Between two arrivals while the queue is filled."""
PATIENCE_S = 86_400.0
ARRIVALS_PER_PLACE = 4
"""Most that arrive to fill one place in the queue: a scheduler that refuses all leaves it empty."""
ARRIVALS_PER_STEP_MAX = 1_000
"""The same for the steady state, for all that left the queue at one instant."""

Timed = tuple[Event, float]


class Core(Protocol):
    """All that the driver uses of a scheduler."""

    def handle(self, event: Event, now: float) -> Iterable[Decision]:
        """Take in one event."""

    @property
    def waiting(self) -> Mapping[str, object]:
        """What waits, by request id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Every event of one run of the driver, in order, with its instant."""

    load: CoreLoad
    fill: list[Timed]
    """Until the steady state is reached."""
    steady: list[Timed]
    waiting: frozenset[str]
    """The ids that waited at the end: a scheduler that is told the same leaves the same."""
    waiting_min: int
    """Fewest that waited at any time of the steady state, between two steps of the driver."""
    waiting_max: int
    refused: int


def bench_policy(load: CoreLoad) -> Policy:
    """The default policy with bounds that a hundred thousand waiting requests do not meet.

    Where every tier keeps its queue the lower ones starve, by their rank; they are patient there.
    """
    bounds = Bounds(waiting=1_000_000, waiting_per_user=1_000_000, waiting_bytes=1 << 40)
    tiers: tuple[Tier, ...] = DEFAULT_TIERS
    if load.waits_in_all_tiers:
        tiers = tuple(replace(tier, patience_s=PATIENCE_S) for tier in tiers)
    return Policy(tiers=tiers, bounds=bounds)


def record(load: CoreLoad, *, warm_events: int, events: int) -> Trace:
    """Drive a scheduler into the steady state of `load`, and on for at least `events` events."""
    with collector_off():
        return _record(load, warm_events, events)


@contextmanager
def collector_off() -> Iterator[None]:
    """For what is not timed: the collector would walk a growing trace again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _record(load: CoreLoad, warm_events: int, events: int) -> Trace:
    driver = CoreDriver(load, Scheduler(bench_policy(load)))
    driver.fill_replicas()
    driver.fill_queue()
    driver.advance(warm_events)
    filled = len(driver.told)
    depths = driver.advance(events)
    return Trace(
        load=load,
        fill=driver.told[:filled],
        steady=driver.told[filled:],
        waiting=frozenset(driver.scheduler.waiting),
        waiting_min=min(depths),
        waiting_max=max(depths),
        refused=driver.refused,
    )


class CoreDriver:
    """Clients, engines and the clock of one load, around a scheduler that has heard nothing yet."""

    def __init__(self, load: CoreLoad, scheduler: Core) -> None:
        self.load = load
        self.scheduler = scheduler
        self.now = 0.0
        self.told: list[Timed] = []
        self.refused = 0
        self._random = Random(SEED)
        names = [f"replica-{index}" for index in range(load.replicas)]
        self._engines = {name: Engine(name) for name in names}
        self._asked: dict[str, Served] = {}
        self._left: list[int] = []
        """Tiers of what was granted and not yet replaced, where every tier keeps its queue."""
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._wake_at: float | None = None
        self._shared = [self._hashes(SHARED_BLOCKS) for _ in range(load.tenants)]
        self._start_fleet()

    def fill_replicas(self) -> None:
        """Requests of all tiers arrive until as many run as the load wants."""
        gap_s = 1 / (OFFERED_PER_REPLICA_S * self.load.replicas)
        wanted = self.load.running_per_replica * self.load.replicas
        while self._running < wanted and len(self.scheduler.waiting) <= self.load.waiting // 2:
            self._arrive(self._any_tier())
            self._run_until(self.now + gap_s)

    def fill_queue(self) -> None:
        """Requests of the lowest tier arrive until as many wait as the load wants."""
        self._left.clear()
        for _ in range(ARRIVALS_PER_PLACE * self.load.waiting):
            if len(self.scheduler.waiting) >= self.load.waiting:
                break
            self._arrive(self._next_tier() if self.load.waits_in_all_tiers else LOWEST_TIER)
            self._run_until(self.now + QUEUE_GAP_S)

    def advance(self, events: int) -> list[int]:
        """Go on until `events` more were told; how many waited after each step."""
        depths = []
        end = len(self.told) + events
        while len(self.told) < end:
            self.step()
            self._top_up()
            depths.append(len(self.scheduler.waiting))
        return depths

    def step(self) -> None:
        """Let the next thing happen, whenever it is due."""
        self.now, _, action = heappop(self._agenda)
        action()

    def request(self, tier: int) -> Request:
        """The next request, of whichever user; every string is its own, as if read off a socket."""
        user = self._random.randrange(self.load.users)
        tenant = user % self.load.tenants
        body_bytes = self._random.randint(*BODY_BYTES)
        prompt_blocks = body_bytes // BYTES_PER_TOKEN // PREFIX_BLOCK_TOKENS
        return Request(
            id=f"{self._random.getrandbits(96):024x}-1",
            model=MODEL,
            tier=tier,
            tenant=f"tenant-{tenant}",
            user=f"user-{user}",
            arrived_at=self.now,
            output_tokens_max=self._random.choice(OUTPUT_TOKENS_MAX),
            streams=True,
            body_bytes=body_bytes,
            prefix=self._prefix(tenant, prompt_blocks) if self.load.has_prefixes else (),
        )

    @property
    def _running(self) -> int:
        return sum(len(engine.running) for engine in self._engines.values())

    def _start_fleet(self) -> None:
        for index, engine in enumerate(self._engines.values()):
            self._tell(ReplicaFound(replica=engine.name, models=frozenset((MODEL,)), slots=SLOTS))
            # Spread over the interval, as the scrapes of a fleet are.
            self._at(REPORT_EVERY_S * index / self.load.replicas, partial(self._scrape, engine))
        self._at(PROGRESS_EVERY_S, self._progress)
        self._run_until(WARM_UP_S)

    # The clock.

    def _at(self, instant: float, action: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._agenda, (instant, self._order, action))

    def _run_until(self, instant: float) -> None:
        while self._agenda[0][0] <= instant:
            self.step()
        self.now = instant

    # Towards the scheduler.

    def _top_up(self) -> None:
        for _ in range(ARRIVALS_PER_STEP_MAX):
            if len(self.scheduler.waiting) >= self.load.waiting:
                break
            self._arrive(self._next_tier())

    def _tell(self, event: Event) -> None:
        self.told.append((event, self.now))
        for decision in self.scheduler.handle(event, self.now):
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Granted():
                engine, served = self._engines[decision.replica], self._asked[decision.request_id]
                if self.load.waits_in_all_tiers:
                    self._left.append(served.tier)
                if engine.join(served):
                    self._begin(engine, served)
            case Recalled():
                was_waiting = self._engines[decision.replica].take_back(decision.request_id)
                answer = RecallDone if was_waiting else RecallTooLate
                self._tell(answer(decision.request_id))
            case Refused():
                self.refused += 1
                del self._asked[decision.request_id]
            case WakeWanted():
                self._wake_at = decision.at
                self._at(max(self.now, decision.at), partial(self._wake, decision.at))

    def _arrive(self, tier: int) -> None:
        request = self.request(tier)
        most = request.output_tokens_max
        if most is None:
            drawn = int(self._random.expovariate(1 / OUTPUT_TOKENS_MEAN))
            output_tokens = min(OUTPUT_TOKENS_LONGEST, 1 + drawn)
        else:
            output_tokens = self._random.randint(most // 8, most)
        self._asked[request.id] = Served(
            id=request.id,
            tier=tier,
            prompt_tokens=request.body_bytes // BYTES_PER_TOKEN,
            output_tokens=output_tokens,
        )
        self._tell(Arrived(request))

    def _begin(self, engine: Engine, served: Served) -> None:
        self._at(self.now + served.prefill_s, partial(self._show_first_token, engine, served))

    def _show_first_token(self, engine: Engine, served: Served) -> None:
        served.first_at = self.now
        self._at(self.now + served.decode_s, partial(self._finish, engine, served))
        self._tell(FirstToken(served.id))

    def _finish(self, engine: Engine, served: Served) -> None:
        del self._asked[served.id]
        successor = engine.end(served.id)
        if successor is not None:
            self._begin(engine, successor)
        self._tell(Finished(served.id, Outcome.DONE, served.usage, TPOT_S))
        if not self.load.waiting:
            self._arrive(self._any_tier())

    def _wake(self, wanted: float) -> None:
        if self._wake_at == wanted:
            self._wake_at = None
            self._tell(Woke())

    def _progress(self) -> None:
        for engine in self._engines.values():
            output_tokens = engine.progress(self.now)
            if output_tokens:
                self._tell(Progressed(engine.name, output_tokens))
        self._at(self.now + PROGRESS_EVERY_S, self._progress)

    def _scrape(self, engine: Engine) -> None:
        report = engine.report(self.now)
        self._at(self.now + ROUND_TRIP_S, partial(self._report, engine.name, self.now, report))
        self._at(self.now + REPORT_EVERY_S, partial(self._scrape, engine))

    def _report(self, name: str, sent_at: float, report: ReplicaReport) -> None:
        self._tell(
            ReplicaReported(replica=name, sent_at=sent_at, report=report, round_trip_s=ROUND_TRIP_S)
        )

    # What requests are like.

    def _next_tier(self) -> int:
        return self._left.pop() if self._left else self._any_tier()

    def _any_tier(self) -> int:
        return self._random.randrange(len(DEFAULT_TIERS))

    def _prefix(self, tenant: int, blocks: int) -> tuple[int, ...]:
        shared = self._shared[tenant][:blocks]
        return shared + self._hashes(blocks - len(shared))

    def _hashes(self, blocks: int) -> tuple[int, ...]:
        return tuple(self._random.getrandbits(HASH_BITS) for _ in range(blocks))
