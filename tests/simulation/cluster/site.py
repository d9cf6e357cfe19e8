"""Gateways, engines and clients around the machines under test, in virtual time.

Each gateway has a clock of its own; engines tell the truth about who is inside.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from gateway.cluster.follower import DECIDES, Phase
from gateway.cluster.member import Member
from gateway.cluster.messages import Message
from gateway.cluster.ports import BEAT_S, SILENCE_S, Standing
from gateway.core import invariants
from gateway.core.messages import (
    Arrived,
    Bounced,
    Cancelled,
    Decision,
    Event,
    Finished,
    FirstToken,
    Granted,
    MoveWanted,
    Outcome,
    PolicyChanged,
    Progressed,
    Reason,
    RecallDone,
    Recalled,
    RecallTooLate,
    Refused,
    ReplicaFound,
    ReplicaReported,
    Request,
    Usage,
    WakeWanted,
    Woke,
)
from gateway.core.policy import Policy
from gateway.core.report import ReplicaReport
from gateway.core.scheduler import Scheduler
from tests.simulation.cluster.engine import Engine, Job
from tests.simulation.cluster.store import Act, Heap, Network

LATENCY_S = 0.002
"""From a gateway to an engine."""
LATE_SHARE = 0.3
"""So many of the engines are found late, where any is."""
JUDGEMENTS = (Reason.WAIT_TOO_LONG, Reason.USER_QUEUE_FULL)
"""Of whoever comes, and of nobody who was let in."""


@dataclass
class World:
    """Everything there is."""

    heap: Heap
    dice: Random
    network: Network
    policy: Policy
    engines: dict[str, Engine] = field(default_factory=dict)
    gateways: list["Gateway"] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What must not have happened, one line each."""
    most_over: int = 0
    """Most requests in an engine beyond its slots and the one that may wait."""
    excess: int = 0
    """The same, less those that gateways granted that were alone."""
    member: type[Member] = Member
    checks_books: bool = True
    check_every: int = 20
    made: int = 0
    odd: Random = field(default_factory=Random)
    bounces: float = 0.0
    """How often an engine says that it is busy, 0..1."""
    late_s: tuple[float, float] | None = None
    """How long a gateway may need to find an engine; None: all are found at once."""
    moved_to: Mapping[str, str] = field(default_factory=dict)
    """Where requests of tiers go that were removed."""
    hit_at: float = 0.0
    """When a gateway last crashed, or one that led stood still."""

    def entered(self, engine: Engine) -> None:
        """Somebody came in: are there too many now, and who is to blame?"""
        alone = sum(job.was_alone for job in engine.inside)
        over = len(engine.inside) - engine.slots - 1
        self.most_over = max(self.most_over, over)
        self.excess = max(self.excess, over - alone)

    def join(self) -> None:
        """One more gateway."""
        self.made += 1
        self.gateways.append(Gateway(self, f"g{self.made}"))

    def alive(self) -> list["Gateway"]:
        """Those that have not crashed."""
        return [each for each in self.gateways if not each.is_dead]


class Gateway:
    """One process: a member, its clients, and what it sends to engines."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self._asleep: list[Act] | None = None
        self.hungry_since: float | None = None
        """Since when something waits here although there is room for it."""
        self.offset = world.dice.uniform(1.0, 1e5)
        self.jobs: dict[str, Job] = {}
        """Open ones."""
        scheduler = Scheduler(world.policy)
        self.scheduler = scheduler
        self.member = world.member(name, scheduler, self._post)
        self._wake = self._checks = 0
        self._bids = 0
        self._answered = 0
        world.network.inboxes[name] = lambda message: self.soon(lambda: self._heard(message))
        for engine in world.engines.values():
            if world.late_s is not None and world.odd.random() < LATE_SHARE:
                late_s = world.odd.uniform(*world.late_s)
                world.heap.after(late_s, partial(self.soon, partial(self._find, engine)))
            else:
                self._find(engine)
        self._beat()
        self._scrape()

    def _find(self, engine: Engine) -> None:
        self.tell(ReplicaFound(replica=engine.name, models=engine.models, slots=engine.slots))

    def reload(self) -> None:
        """The operator changed the policy."""
        self.soon(lambda: self.tell(PolicyChanged(self.world.policy, self.world.moved_to)))

    def rank(self, job: Job) -> int:
        """Of its tier, as this gateway knows it."""
        names = [tier.name for tier in self.scheduler.policy.tiers]
        name = job.tier if job.tier in names else self.world.moved_to[job.tier]
        return names.index(name)

    @property
    def now(self) -> float:
        """By its own clock."""
        return self.world.heap.now + self.offset

    def is_hungry(self) -> bool:
        """Whether something waits here although there is room for it."""
        if self.is_dead or self._asleep is not None:
            return False
        wanted = {job.model for job in self.jobs.values() if job.state == "waiting"}
        return any(
            engine.models & wanted
            and len(engine.inside) < engine.slots
            and self.has_at(engine) < self.share_of(engine)
            for engine in self.world.engines.values()
        )

    def soon(self, act: Act) -> None:
        """Do it, unless it is dead; when it wakes, if it is asleep."""
        if self.is_dead:
            return
        if self._asleep is not None:
            self._asleep.append(act)
        else:
            act()

    # What may happen to it.

    def crash(self) -> None:
        """kill -9: its clients and its engines see the connections break."""
        self.is_dead = True
        del self.world.network.inboxes[self.name]
        for job in list(self.jobs.values()):
            self._ended(job, "crashed")
            engine = self.world.engines.get(job.replica)
            if engine is not None:
                engine.leave(job)

    def stall(self, for_s: float) -> None:
        """SIGSTOP, and SIGCONT after so long."""
        if self._asleep is None and not self.is_dead:
            self._asleep = []
            self.world.heap.after(for_s, self._wakes)

    def _wakes(self) -> None:
        asleep, self._asleep = self._asleep or [], None
        self.world.dice.shuffle(asleep)
        asleep.sort(key=lambda act: self.world.dice.random() < 0.5)
        for act in asleep:
            self.soon(act)

    # Clients.

    def arrive(self, job: Job) -> None:
        """A client sends a request."""
        if self.is_dead:
            job.state, job.ends = "crashed", 1
            return
        self.jobs[job.id] = job
        request = Request(
            id=job.id,
            model=job.model,
            tier=self.rank(job),
            tenant="t",
            user=job.user,
            arrived_at=self.now,
            prompt_tokens=10,
            output_tokens_max=job.output_tokens,
            streams=True,
        )
        self.soon(lambda: self._arrived(request, job))

    def _arrived(self, request: Request, job: Job) -> None:
        if job.id in self.jobs:
            self.tell(Arrived(replace(request, tier=self.rank(job))))

    def hang_up(self, job: Job) -> None:
        """A client loses patience."""
        self.soon(lambda: self._hung_up(job))

    def _hung_up(self, job: Job) -> None:
        if job.id not in self.jobs:
            return
        was_granted = job.state == "granted"
        self._ended(job, "cancelled")
        if was_granted:
            self.world.engines[job.replica].leave(job)
            self.tell(Finished(job.id, Outcome.CANCELLED))
        else:
            self.tell(Cancelled(job.id))

    def began(self, job: Job) -> None:
        """The engine began to answer."""
        if job.id in self.jobs:
            self.tell(FirstToken(job.id))

    def done(self, job: Job) -> None:
        """The engine is done."""
        if job.id in self.jobs:
            self._ended(job, "done")
            usage = Usage(prompt_tokens=10, output_tokens=job.output_tokens)
            self.tell(Finished(job.id, Outcome.DONE, usage, 0.01))

    def _ended(self, job: Job, state: str) -> None:
        self.jobs.pop(job.id, None)
        job.state, job.ends = state, job.ends + 1

    # The scheduler's words.

    def tell(self, event: Event) -> None:
        """As the dispatcher does."""
        self._carry_out(self.member.handle(event, self.now))

    def _heard(self, message: Message) -> None:
        self._carry_out(self.member.heard([message], self.now))

    def _post(self, to: str, message: Message) -> None:
        self.world.network.post(self.name, to, message)

    def _carry_out(self, decisions: list[Decision]) -> None:
        late = []
        for decision in decisions:
            match decision:
                case Granted():
                    self._granted(decision)
                case Refused():
                    job = self.jobs.get(decision.request_id)
                    if job is None:
                        continue
                    if job.state == "granted":
                        self.world.faults.append(f"{job.id} was refused while it ran")
                    if decision.reason in JUDGEMENTS and job.was_let_in:
                        self.world.faults.append(f"{job.id} was let in, then {decision.reason}")
                    self._ended(job, "refused")
                case Recalled():
                    late.append(decision)
                case MoveWanted():
                    self.world.faults.append("nothing here can be moved")
                case WakeWanted():
                    self._wake += 1
                    number = self._wake
                    self.world.heap.at(
                        decision.at - self.offset,
                        lambda number=number: self.soon(lambda: self._woke(number)),  # type: ignore[misc]  # a default binds it
                    )
        self._checks += 1
        if self.world.checks_books and self._checks % self.world.check_every == 0:
            invariants.check(self.scheduler)
            self._check_tiers()
        for recalled in late:
            self._recalled(recalled)

    def _check_tiers(self) -> None:
        """What the others sent is in the tier that they meant."""
        by_id = {job.id: job for job in self.world.jobs}
        for id, waiting in self.scheduler.waiting.items():
            meant = by_id[id.rpartition("/")[2]].tier
            found = self.scheduler.policy.tiers[waiting.request.tier].name
            if found not in (meant, self.world.moved_to.get(meant)):
                self.world.faults.append(f"{id} is of tier {meant}, and waits in {found}")

    def _granted(self, decision: Granted) -> None:
        job = self.jobs.get(decision.request_id)
        if job is None:
            return
        if job.state == "granted":
            self.world.faults.append(f"{job.id} was granted twice")
            return
        job.state, job.replica, job.granted_at = "granted", decision.replica, self.world.heap.now
        job.grants += 1
        pool = self.member.pool_of(job.model)
        follower = self.member.followers.get(pool or "")
        job.was_alone = follower is None or follower.phase is Phase.ALONE
        engine = self.world.engines[decision.replica]
        if job.was_alone and self.has_at(engine) > self.share_of(engine):
            self.world.faults.append(f"{self.name} is alone and has more than its part")
        grants = job.grants
        self.world.heap.after(LATENCY_S, lambda: self._reaches(engine, job, grants))

    def has_at(self, engine: Engine) -> int:
        """Requests that it was granted there."""
        return sum(job.replica == engine.name for job in self.jobs.values())

    def share_of(self, engine: Engine) -> int:
        """Requests that it may have there when it decides alone."""
        return max(1, engine.slots // self.member.sharers)

    def _reaches(self, engine: Engine, job: Job, grants: int) -> None:
        if job.state != "granted" or job.grants != grants:
            return
        if self.world.odd.random() < self.world.bounces and not self.is_dead:
            job.state, job.replica = "waiting", ""
            self.soon(lambda: self.tell(Bounced(job.id)) if job.id in self.jobs else None)
        else:
            engine.enter(job)

    def _recalled(self, decision: Recalled) -> None:
        job = self.jobs.get(decision.request_id)
        if job is None:
            return
        engine = self.world.engines[job.replica]
        if job.id in engine.running:
            self.tell(RecallTooLate(job.id))
            return
        engine.leave(job)
        job.state, job.replica = "waiting", ""
        self.world.heap.after(LATENCY_S, lambda: self.soon(lambda: self._gave_back(job)))

    def _gave_back(self, job: Job) -> None:
        if job.id in self.jobs:
            self.tell(RecallDone(job.id))

    def _woke(self, number: int) -> None:
        if number == self._wake:
            self.tell(Woke())

    # What runs for ever.

    def _beat(self) -> None:
        if self.is_dead:
            return
        self.world.heap.after(self.world.dice.uniform(0.9, 1.1) * BEAT_S, self._beat)
        self.soon(self._beat_now)

    def _beat_now(self) -> None:
        for job in self.jobs.values():
            away = self.member.away.get(job.id)
            job.was_let_in |= job.id in self.scheduler.waiting or (
                away is not None and away.was_let_in
            )
        asked_at = self.now
        self._bids += 1
        number = self._bids
        bid = self.member.bid(asked_at)
        self.world.network.bid(
            bid, lambda standing: self.soon(lambda: self._stands(number, standing, asked_at))
        )
        self.world.heap.after(SILENCE_S, lambda: self.soon(lambda: self._is_silent(number)))
        self._carry_out(self.member.beat(self.now))

    def _stands(self, number: int, standing: Standing, asked_at: float) -> None:
        if number > self._answered and self.now - asked_at < SILENCE_S:
            self._answered = number
            self._carry_out(self.member.stands(standing, self.now, asked_at=asked_at))

    def _is_silent(self, number: int) -> None:
        if self._answered < number:
            self._answered = number
            self._carry_out(self.member.apart(self.now))

    def _scrape(self) -> None:
        if self.is_dead:
            return
        self.world.heap.after(self.world.dice.uniform(0.9, 1.1) * 0.5, self._scrape)
        found = [
            each for each in self.world.engines.values() if each.name in self.scheduler.replicas
        ]
        for engine in found:
            report = ReplicaReport(slots=engine.slots)
            if not engine.is_mute:
                running, waiting = len(engine.running), len(engine.line)
                report = ReplicaReport(running=running, waiting=waiting, slots=engine.slots)
            event = ReplicaReported(
                replica=engine.name, sent_at=self.now, report=report, round_trip_s=LATENCY_S
            )
            self.world.heap.after(LATENCY_S, partial(self.soon, partial(self.tell, event)))
            produced = {
                job.id: int((self.world.heap.now - job.granted_at) * 10)
                for job in engine.running.values()
                if job.gateway is self
            }
            if produced:
                progressed = Progressed(engine.name, produced, self.now)
                self.soon(partial(self.tell, progressed))

    def books(self) -> list[str]:
        """What is still open in there."""
        member, scheduler = self.member, self.scheduler
        found = {
            "waits": len(scheduler.waiting),
            "runs": len(scheduler.granted),
            "away": len(member.away),
            "owned": len(member.owners),
            "guests' ids": sum(
                len(guest.ids) for each in member.led.values() for guest in each.guests.values()
            ),
        }
        wrong = [f"{self.name}: {count} {what}" for what, count in found.items() if count]
        phases = [each.phase for each in member.followers.values()]
        if any(phase not in (Phase.FOLLOWING, *DECIDES) for phase in phases):
            wrong.append(f"{self.name}: {phases}")
        return wrong
