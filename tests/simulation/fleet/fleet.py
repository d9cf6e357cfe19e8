"""The gateway's core in front of a fleet of engines, and everything that travels between them."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import count

from gateway.core import invariants
from gateway.core.messages import (
    Arrived,
    Cancelled,
    Decision,
    Event,
    Finished,
    FirstToken,
    Granted,
    MoveWanted,
    Outcome,
    Progressed,
    RecallDone,
    Recalled,
    RecallTooLate,
    Refused,
    ReplicaFound,
    Request,
    ScaleAdvised,
    Usage,
    WakeWanted,
    Woke,
)
from gateway.core.policy import Policy
from gateway.core.scheduler import Scheduler
from tests.simulation.fleet.clock import Clock
from tests.simulation.fleet.job import Job, Size
from tests.simulation.fleet.observers import Held
from tests.simulation.fleet.replica import Replica, ReplicaSpec
from tests.simulation.fleet.scrapes import Scraper, Wires

CHECK_EVERY_EVENTS = 5_000


class Fleet:
    """One run. All instants are seconds of `clock`; all counts are requests."""

    def __init__(
        self, policy: Policy, specs: Iterable[ReplicaSpec], wires: Wires | None = None
    ) -> None:
        self.clock = Clock()
        self.wires = wires or Wires()
        self.scheduler = Scheduler(policy)
        self.held = Held()
        self.jobs: dict[str, Job] = {}
        self.foreign: list[Job] = []
        self.running: dict[str, dict[str, Job]] = {}
        """By replica: what the gateway has let go and not seen the end of."""
        self.beyond_max = 0
        """Most never-started requests for which one replica had no slot."""
        self.excess_max = 0
        """The same, less the allowance of that instant as the specification computes it."""
        self.advice: list[tuple[float, int]] = []
        self.recalls = 0
        self.moved = 0
        """Recalls that came in time."""
        self.events = 0
        self._on_end: list[Callable[[Job], object]] = []
        self._on_grant: list[Callable[[Job], object]] = []
        self._numbers = count()
        self._wake = 0
        self.replicas = {spec.name: self._add(spec) for spec in specs}

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.clock.now

    def on_end(self, what: Callable[[Job], object]) -> None:
        """Called whenever the gateway knows that a request is over, refused ones included."""
        self._on_end.append(what)

    def on_grant(self, what: Callable[[Job], object]) -> None:
        """Called whenever the gateway lets a request go."""
        self._on_grant.append(what)

    def run(self, until_s: float) -> None:
        """Let time pass, then compare the scheduler's books."""
        self.clock.run(until_s)
        self.held.look(self.now)
        invariants.check(self.scheduler)

    def observe_from(self, instant: float) -> None:
        """What happened before does not count as worst."""
        self.clock.at(instant, self._forget_worst)

    def send(
        self,
        user: str,
        size: Size,
        *,
        tier: int = 0,
        tenant: str = "t",
        model: str = "m",
        says_max: bool = False,
        streams: bool = True,
        patience_s: float | None = None,
    ) -> Job:
        """A request arrives at the gateway now; `says_max`: its length is its `max_tokens`."""
        request = Request(
            id=f"{user}-{next(self._numbers)}",
            model=model,
            tier=tier,
            tenant=tenant,
            user=user,
            arrived_at=self.now,
            prompt_tokens=size.prompt_tokens,
            output_tokens_max=size.output_tokens if says_max else None,
            sequences=size.sequences,
            streams=streams,
            prefix=size.prefix,
            patience_s=patience_s,
        )
        job = self.jobs[request.id] = Job(request, size)
        self.tell(Arrived(request))
        return job

    def send_foreign(self, replica: str, size: Size) -> Job:
        """Somebody who does not know the gateway asks the engine directly."""
        request = Request(
            id=f"foreign-{next(self._numbers)}",
            model="m",
            tier=0,
            tenant="foreign",
            user="foreign",
            arrived_at=self.now,
        )
        job = Job(request, size, is_foreign=True, replicas=[replica])
        self.foreign.append(job)
        self.replicas[replica].accept(job)
        return job

    def cancel(self, job: Job) -> None:
        """Its client leaves now; the engine hears of it one hop later."""
        if job.ended_at is not None:
            return
        if job.first_token_at is None:
            event: Event = Cancelled(job.request.id)
        else:
            event = Finished(job.request.id, Outcome.CANCELLED, self._usage(job))
        if job.replica is not None:
            replica = self.replicas[job.replica]
            self.clock.after(self.wires.hop_s, partial(replica.abort, job))
        self._over(job, Outcome.CANCELLED, event)

    def tell(self, event: Event) -> None:
        """The gateway hands one event to its core and does what the core decides."""
        self.events += 1
        for decision in self.scheduler.handle(event, self.now):
            self._carry_out(decision)
        self.held.note(is_held=bool(self.scheduler.waiting), now=self.now)
        if self.events % CHECK_EVERY_EVENTS == 0:
            invariants.check(self.scheduler)

    def _add(self, spec: ReplicaSpec) -> Replica:
        replica = Replica(
            spec=spec,
            clock=self.clock,
            held=self.held,
            on_first=self._first_made,
            on_end=self._end_made,
        )
        self.running[spec.name] = {}
        slots = spec.slots if spec.tells_slots else None
        self.tell(ReplicaFound(replica=spec.name, models=spec.models, slots=slots))
        Scraper(replica, self.wires, self.clock, self.tell)
        self.clock.at(self.wires.progress_s, partial(self._progress, replica))
        return replica

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Granted():
                self._let_go(self.jobs[decision.request_id], self.replicas[decision.replica])
            case Refused():
                job = self.jobs[decision.request_id]
                job.reason = decision.reason
                self._over(job, None, None)
            case Recalled():
                self._recall(self.jobs[decision.request_id])
            case MoveWanted():  # no engine here goes on with what another one began
                self.tell(RecallTooLate(decision.request_id))
            case WakeWanted():
                self._wake += 1
                at = max(self.now, decision.at)
                self.clock.at(at, partial(self._woke, self._wake))
            case ScaleAdvised():
                self.advice.append((self.now, decision.replicas))

    def _woke(self, number: int) -> None:
        if number == self._wake:
            self.tell(Woke())

    def _let_go(self, job: Job, replica: Replica) -> None:
        job.granted_at = self.now
        job.replica = replica.spec.name
        job.replicas.append(job.replica)
        self.running[job.replica][job.request.id] = job
        replica.coming += 1
        beyond = replica.beyond
        self.beyond_max = max(self.beyond_max, beyond)
        if beyond > 1:
            limit = self.scheduler.policy.tiers[job.request.tier].queue_limit
            allowed = replica.allowance(limit, 2 * self.wires.hop_s)
            self.excess_max = max(self.excess_max, beyond - allowed)
        self.clock.after(self.wires.hop_s, partial(self._accept, job, replica))
        for what in self._on_grant:
            what(job)

    def _accept(self, job: Job, replica: Replica) -> None:
        replica.coming -= 1
        if job.ended_at is None:
            replica.accept(job)

    def _recall(self, job: Job) -> None:
        self.recalls += 1
        job.recalled_at.append(self.now)
        self.clock.after(self.wires.hop_s, partial(self._take_back, job))

    def _take_back(self, job: Job) -> None:
        """The engine hears of a recall: nothing happens to one that has begun, or ended."""
        assert job.replica is not None
        if job.ended_at is not None or (job.is_heard and not job.alive):
            return
        if job.is_heard:
            self.clock.after(self.wires.hop_s, partial(self.tell, RecallTooLate(job.request.id)))
            return
        self.replicas[job.replica].abort(job)
        self.clock.after(self.wires.hop_s, partial(self._taken_back, job))

    def _taken_back(self, job: Job) -> None:
        if job.ended_at is None:
            assert job.replica is not None
            self.moved += 1
            del self.running[job.replica][job.request.id]
            job.replica = None
            self.tell(RecallDone(job.request.id))

    def _first_made(self, job: Job) -> None:
        if not job.is_foreign:
            self.clock.after(self.wires.hop_s, partial(self._first_heard, job))

    def _first_heard(self, job: Job) -> None:
        if job.ended_at is None:
            job.first_token_at = self.now
            if job.request.streams:
                self.tell(FirstToken(job.request.id))

    def _end_made(self, job: Job) -> None:
        if not job.is_foreign:
            self.clock.after(self.wires.hop_s, partial(self._end_heard, job))

    def _end_heard(self, job: Job) -> None:
        if job.ended_at is None:
            tpot_s = job.tpot_s if job.request.streams else None
            event = Finished(job.request.id, Outcome.DONE, self._usage(job), tpot_s)
            self._over(job, Outcome.DONE, event)

    def _over(self, job: Job, outcome: Outcome | None, event: Event | None) -> None:
        job.ended_at = self.now
        job.outcome = outcome
        if job.replica is not None:
            del self.running[job.replica][job.request.id]
        if event is not None:
            self.tell(event)
        for what in self._on_end:
            what(job)

    def _progress(self, replica: Replica) -> None:
        self.clock.after(self.wires.progress_s, partial(self._progress, replica))
        name = replica.spec.name
        heard = {
            id: job.produced
            for id, job in self.running[name].items()
            if job.first_token_at is not None and job.request.streams
        }
        if heard:
            self.tell(Progressed(name, heard))

    @staticmethod
    def _usage(job: Job) -> Usage:
        return Usage(
            prompt_tokens=job.size.prompt_tokens,
            output_tokens=job.produced,
            cached_tokens=job.cached_tokens,
        )

    def _forget_worst(self) -> None:
        self.beyond_max = self.excess_max = 0
        self.held.forget_worst(self.now)
        for replica in self.replicas.values():
            replica.unstarted_max = 0
