"""One replica of a world: an engine that makes its steps under the virtual clock, and dies.

Knows its own requests as stays; who sent them, and what becomes of them, it does not know.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

from gateway.core.report import ReplicaReport
from gateway.sim.clock import Clock
from gateway.sim.replica import Engine
from gateway.sim.sequence import Sequence
from gateway.sim.step import Changed, Counters, StepPlan
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Machine


class Stay:
    """One request at one replica, from its sending to its end there. Each attempt is one."""

    __slots__ = ("accepted_at", "base", "has_begun", "job", "priority", "station", "tokens")

    def __init__(self, job: Job, station: "Station", *, priority: int, base: int) -> None:
        self.job = job
        self.station = station
        self.priority = priority
        self.base = base
        """Tokens of the answer that came from elsewhere before."""
        self.tokens = base
        """Tokens that there were when it ended; see `produced`."""
        self.accepted_at = 0.0
        self.has_begun = False
        """Whether its engine's first token for it has reached the gateway."""

    @property
    def id(self) -> str:
        """The engine's name for it."""
        return str(self.job.number)

    @property
    def produced(self) -> int:
        """Tokens of the answer so far, those from elsewhere included."""
        if self.station.stays.get(self.id) is self:
            return self.base + self.station.engine.produced(self.id)
        return self.tokens


Told = Callable[[list[Stay], list[Stay]], object]
Broke = Callable[[Stay], object]


@dataclass(slots=True)
class Histograms:
    """Sums and counts of an engine's own histograms, and what they are made from."""

    itl_s: float = 0.0
    itls: int = 0
    ttft_s: float = 0.0
    ttfts: int = 0
    pause_s: float = 0.0
    """How long those that decode have been kept waiting by steps without them."""
    early_s: float = 0.0
    """Of that, what lies before the first tokens of those that began meanwhile."""

    def stepped(self, plan: StepPlan, begun: int, decoded: int) -> None:
        """A step is over in which so many got a first token, and so many another one."""
        if decoded:
            self.itl_s += decoded * (plan.duration_s + self.pause_s) - self.early_s
            self.itls += decoded
            self.pause_s = self.early_s = 0.0
        else:
            self.pause_s += plan.duration_s
            self.early_s += begun * self.pause_s


class Station:
    """An engine, what is in it, and its clock."""

    def __init__(self, index: int, machine: Machine, clock: Clock, told: Told) -> None:
        """`told` hears, at the end of a step, who began and who ended."""
        self.index = index
        self.machine = machine
        self.is_down = False
        self.stays: dict[str, Stay] = {}
        self.engine = Engine(machine.profile, machine.config)
        self.histograms = Histograms()
        self._clock = clock
        self._told = told
        self._plan: StepPlan | None = None
        self._coming: list[tuple[Stay, int]] = []
        """Those whose KV has come from elsewhere during a step, and the tokens they have."""
        self._before: list[Counters] = []
        """Of the engines that died here."""

    @property
    def counters(self) -> dict[str, int]:
        """Of all its engines together."""
        lives = (*self._before, self.engine.counters)
        return {each.name: sum(getattr(life, each.name) for life in lives)
                for each in fields(Counters)}  # fmt: skip

    def accept(self, stay: Stay) -> None:
        """A request arrives; the engine must be able to hold it."""
        job, base = stay.job, stay.base
        stay.accepted_at = self._clock.now
        self.stays[stay.id] = stay
        self.engine.add(
            Sequence(
                id=stay.id,
                prompt_tokens=job.prompt_tokens + base,
                output_tokens=job.output_tokens - base,
                priority=stay.priority,
                prefix=job.prefix,
            )
        )
        self._begin()

    def fits(self, job: Job) -> bool:
        """Whether the engine could ever complete it."""
        return self.engine.fits(job.prompt_tokens, job.output_tokens)

    def release(self, stay: Stay) -> int | None:
        """It is wanted here no more; its tokens so far, or None when it is not here."""
        if self.stays.get(stay.id) is not stay:
            return None
        stay.tokens = stay.base + self.engine.produced(stay.id)
        del self.stays[stay.id]
        self.engine.abort(stay.id)
        return stay.tokens

    def has_room_for(self, stay: Stay) -> bool:
        """Whether a sequence with the KV of that one could be taken in now."""
        engine, config = self.engine, self.machine.config
        blocks = config.blocks_for(stay.job.prompt_tokens + stay.produced)
        return not self.is_down and (
            engine.running < config.max_num_seqs and blocks <= engine.blocks_free
        )

    def adopt(self, stay: Stay, produced: int) -> None:
        """Its KV is here; it goes on with the next step."""
        self.stays[stay.id] = stay
        self._coming.append((stay, produced))
        self._begin()

    def die(self) -> list[Stay]:
        """All that it holds is lost; whom it held, in the order of their arrival."""
        lost = list(self.stays.values())
        for stay in lost:
            stay.tokens = stay.base + self.engine.produced(stay.id)
        self.stays.clear()
        self._coming.clear()
        self._before.append(self.engine.counters)
        self.engine = Engine(self.machine.profile, self.machine.config)
        self.histograms = Histograms()
        self._plan = None
        self.is_down = True
        return lost

    def revive(self) -> None:
        """A new engine, with nothing in it."""
        self.is_down = False

    def report(self) -> ReplicaReport:
        """What its metrics truly say."""
        engine, told = self.engine, self.histograms
        config, counters = engine.config, engine.counters
        return ReplicaReport(
            running=engine.running,
            waiting=engine.waiting,
            kv_use=engine.kv_use,
            kv_capacity_tokens=config.kv_blocks * config.block_tokens,
            itl_sum_s=told.itl_s,
            itl_count=float(told.itls),
            ttft_sum_s=told.ttft_s,
            ttft_count=float(told.ttfts),
            prompt_tokens=float(counters.prompt_tokens),
            generation_tokens=float(counters.generation_tokens),
            iterations=float(counters.steps),
            preemptions=float(counters.resumptions),
        )

    def _begin(self) -> None:
        engine = self.engine
        if engine.is_stepping:
            return
        if self._coming:
            self._take_in()
        plan = self._plan = engine.next_step()
        if plan is not None:
            self._clock.after(plan.duration_s, partial(self._complete, engine))

    def _complete(self, engine: Engine) -> None:
        if engine is not self.engine:
            return  # it died during the step
        assert self._plan is not None
        generated = engine.counters.generation_tokens
        changed = engine.complete_quietly()
        made = engine.counters.generation_tokens - generated
        self.histograms.stepped(self._plan, len(changed.begun), made - len(changed.begun))
        if changed.begun or changed.finished:
            self._tell(changed)
        self._begin()

    def _tell(self, changed: Changed) -> None:
        stays, now, told = self.stays, self._clock.now, self.histograms
        begun = [stays[id] for id in changed.begun]
        for stay in begun:
            told.ttft_s += now - stay.accepted_at
        told.ttfts += len(begun)
        finished = [stays.pop(id) for id in changed.finished]
        for stay in finished:
            stay.tokens = stay.job.output_tokens
        self._told(begun, finished)

    def _take_in(self) -> None:
        coming, self._coming = self._coming, []
        for stay, produced in coming:
            if self.stays.get(stay.id) is not stay:
                continue  # it left meanwhile
            job = stay.job
            # The whole request, as its first engine had it: it goes on where that one was.
            stay.base = 0
            sequence = Sequence(
                id=stay.id,
                prompt_tokens=job.prompt_tokens,
                output_tokens=job.output_tokens,
                priority=stay.priority,
                prefix=job.prefix,
            )
            if not self.engine.adopt(sequence, produced):
                stay.base = produced
                self.engine.add(
                    Sequence(
                        id=stay.id,
                        prompt_tokens=job.prompt_tokens + produced,
                        output_tokens=job.output_tokens - produced,
                        priority=stay.priority,
                    )
                )
