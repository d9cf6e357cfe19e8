"""One engine under the virtual clock: the engine model of the product, one event for each step.

It adds what the model leaves out and a gateway can see: a prefix cache, histograms, and the
difference between a request that never began and one that was preempted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from gateway.core.report import ReplicaReport
from gateway.sim.clock import Clock
from gateway.sim.engine_config import EngineConfig
from gateway.sim.profiles import A100_LLAMA2_7B, Profile
from gateway.sim.replica import Engine
from gateway.sim.sequence import Sequence
from gateway.sim.step import StepPlan
from tests.simulation.fleet.job import Job
from tests.simulation.fleet.observers import Ends, Held, IdleSlots, Work
from tests.simulation.fleet.prefixes import PrefixCache

FULL_BATCH = 8
CONTEXT_TOKENS = 300
"""Sequences and their context, for the price of a token."""
SHARED_TAIL_TOKENS = 1
"""Of a prompt that is wholly cached, one token is computed all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """One engine of a fleet, and what it tells about itself."""

    name: str
    slots: int
    profile: Profile = A100_LLAMA2_7B
    models: frozenset[str] = frozenset({"m"})
    tells_slots: bool = True
    is_silent_until_s: float = 0.0
    """Until then its gauges read zero, as after a cold start."""
    prefix_tokens: int = 0
    """KV set aside for shared prefixes."""


@dataclass(slots=True)
class Histograms:
    """Sums and counts of the engine's own histograms."""

    itl_s: float = 0.0
    itls: int = 0
    ttft_s: float = 0.0
    ttfts: int = 0


@dataclass(slots=True, kw_only=True)
class Replica:
    """An engine, what is in it and what is on the way to it."""

    spec: ReplicaSpec
    clock: Clock
    held: Held
    on_first: Callable[[Job], object]
    on_end: Callable[[Job], object]
    jobs: dict[str, Job] = field(default_factory=dict)
    """By sequence id."""
    coming: int = 0
    """Requests granted and on the way."""
    unstarted: int = 0
    """Requests of ours in its queue that were never part of a step."""
    unstarted_max: int = 0
    """The most of them that a step left behind."""
    step_s: float = 0.0
    """Duration of the last step."""
    step_s_max: float = 0.0
    ends: Ends = field(default_factory=Ends)
    work: Work = field(default_factory=Work)
    histograms: Histograms = field(default_factory=Histograms)
    engine: Engine = field(init=False)
    prefixes: PrefixCache = field(init=False)
    idle: IdleSlots = field(init=False)

    def __post_init__(self) -> None:
        profile, spec = self.spec.profile, self.spec
        self.prefixes = PrefixCache(spec.prefix_tokens)
        self.idle = IdleSlots(spec.slots, self.held)
        blocks = profile.kv_blocks - spec.prefix_tokens // profile.block_tokens
        self.engine = Engine(profile, EngineConfig(max_num_seqs=spec.slots, kv_blocks=blocks))

    @property
    def kv_capacity_tokens(self) -> int:
        """All KV, the part set aside for prefixes included."""
        return self.spec.profile.kv_blocks * self.spec.profile.block_tokens

    @property
    def beyond(self) -> int:
        """Never-started requests of ours for which there is no slot, in its queue or coming."""
        free = max(0, self.spec.slots - self.engine.running)
        return max(0, self.unstarted + self.coming - free)

    def allowance(self, queue_limit: int, round_trip_s: float) -> int:
        """`min(queue_limit, max(1, ceil(release rate x (round trip + step))))`, from the truth."""
        bridged = self.ends.per_s(self.clock.now) * (round_trip_s + self.step_s)
        return min(queue_limit, max(1, ceil(bridged)))

    def accept(self, job: Job) -> None:
        """A request arrives."""
        size, now = job.size, self.clock.now
        job.accepted_at = now
        job.is_admitted = False
        if not job.is_foreign:
            self.unstarted += 1
        cached = min(self.prefixes.cached_tokens(size.prefix), size.prompt_tokens)
        job.cached_tokens = cached
        self.prefixes.use(size.prefix, cached)
        rest = max(SHARED_TAIL_TOKENS, size.prompt_tokens - cached)
        for number in range(size.sequences):
            id = job.request.id if not number else f"{job.request.id}#{number}"
            # The other choices of one prompt find it in the cache.
            prompt_tokens = rest if not number else SHARED_TAIL_TOKENS
            job.alive.add(id)
            self.jobs[id] = job
            self.engine.add(
                Sequence(id=id, prompt_tokens=prompt_tokens, output_tokens=size.output_tokens)
            )
        self._begin()

    def prefilling_tokens(self, job: Job) -> int:
        """Prompt tokens computed so far of one that has not produced its first token."""
        run = None if job.is_heard else self.engine._runs.get(job.request.id)
        return run.computed if run is not None else 0

    def gpu_s(self, job: Job) -> float:
        """What its progress is worth: prompt at the slope, output at the price in a full batch.

        The same on all replicas of one model, however fast they are.
        """
        profile = self.spec.profile
        computed = job.computed_tokens + self.prefilling_tokens(job)
        pairs = computed * computed / 2
        kv_tokens = FULL_BATCH * CONTEXT_TOKENS
        full_s = profile.step_s(FULL_BATCH, decodes=FULL_BATCH, kv_tokens=kv_tokens, attended=0)
        prompt_s = computed * profile.token_ms / 1e3 + pairs * profile.attended_pair_ns / 1e9
        return prompt_s + job.produced * full_s * profile.speed / FULL_BATCH

    def abort(self, job: Job) -> None:
        """Its client left, or it is taken back: slots and KV are free for the next step."""
        if not job.alive:
            return
        job.computed_tokens += self.prefilling_tokens(job)
        for id in job.alive:
            self.engine.abort(id)
            del self.jobs[id]
        job.alive.clear()
        self._left(job)
        if not self.engine.is_stepping:
            self.idle.update(self.engine.running, self.clock.now)

    def report(self) -> ReplicaReport:
        """What its metrics say now."""
        engine, told = self.engine, self.histograms
        is_silent = self.clock.now < self.spec.is_silent_until_s
        capacity = self.kv_capacity_tokens
        used = engine.kv_use * (capacity - self.spec.prefix_tokens) + self.prefixes.used_tokens
        counters = engine.counters
        return ReplicaReport(
            running=0 if is_silent else engine.running,
            waiting=0 if is_silent else engine.waiting,
            kv_use=0.0 if is_silent else min(1.0, used / capacity),
            kv_capacity_tokens=capacity,
            slots=self.spec.slots if self.spec.tells_slots else None,
            itl_sum_s=told.itl_s,
            itl_count=float(told.itls),
            ttft_sum_s=told.ttft_s,
            ttft_count=float(told.ttfts),
            prompt_tokens=float(counters.prompt_tokens),
            generation_tokens=float(counters.generation_tokens),
            iterations=float(counters.steps),
            preemptions=float(counters.preemptions),
        )

    def _begin(self) -> None:
        if self.engine.is_stepping:
            return
        plan = self.engine.next_step()
        self.idle.update(self.engine.running, self.clock.now)
        if plan is None:
            return
        for id in plan.admitted:
            self._admitted(self.jobs[id])
        self.unstarted_max = max(self.unstarted_max, self.unstarted)
        self.step_s = plan.duration_s
        self.step_s_max = max(self.step_s_max, plan.duration_s)
        self.clock.after(plan.duration_s, lambda: self._complete(plan))

    def _admitted(self, job: Job) -> None:
        if not job.is_admitted:
            job.is_admitted = True
            self.unstarted -= not job.is_foreign
        elif job.produced and job.size.sequences == 1:
            # Preempted: what was computed before is computed again, and nobody gains by it.
            again = job.size.prompt_tokens - job.cached_tokens + job.produced
            self.work.prefilled[int(self.clock.now)] -= again

    def _complete(self, plan: StepPlan) -> None:
        now = self.clock.now
        itl_s, itls, decoded = 0.0, 0, 0
        for id, n_tokens, finished in self.engine.complete_step():
            job = self.jobs[id]
            decoded += n_tokens
            job.produced += n_tokens
            if job.is_heard:
                if job.size.sequences == 1:
                    itl_s += now - job.last_made_at
                    itls += 1
            else:
                self._first(job)
            job.last_made_at = now
            if finished:
                self._finished(id, job)
        self._count(plan, decoded=decoded, itl_s=itl_s, itls=itls)
        self._begin()

    def _count(self, plan: StepPlan, *, decoded: int, itl_s: float, itls: int) -> None:
        second, work, told = int(self.clock.now), self.work, self.histograms
        work.decoded[second] += decoded
        work.prefilled[second] += plan.prefill_tokens
        work.itl_s[second] += itl_s
        work.itls[second] += itls
        told.itl_s += itl_s
        told.itls += itls

    def _first(self, job: Job) -> None:
        now = self.clock.now
        job.is_heard = True
        job.first_made_at = now
        job.computed_tokens += job.size.prompt_tokens - job.cached_tokens
        assert job.accepted_at is not None
        self.histograms.ttft_s += now - job.accepted_at
        self.histograms.ttfts += 1
        self.prefixes.hold(job.size.prefix)
        self.on_first(job)

    def _finished(self, id: str, job: Job) -> None:
        del self.jobs[id]
        job.alive.discard(id)
        if not job.alive:
            self.work.finished[int(self.clock.now)] += 1
            self._left(job)
            self.on_end(job)

    def _left(self, job: Job) -> None:
        self.prefixes.leave(job.size.prefix, job.cached_tokens)
        if not job.is_foreign:
            self.ends.add(self.clock.now)
            self.unstarted -= not job.is_admitted
