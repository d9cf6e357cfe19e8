"""The one model of an engine: which sequences a step runs, how long it takes, who gets a token.

Refuses to know clocks, randomness and networks. Under a heap of events it is the simulator's
replica; under asyncio, with HTTP in front, it is the emulator's.

It is vLLM's V1 scheduler reduced to what is visible from outside. Each step has a token budget.
Running sequences come first, in the order they were admitted: one token for each that decodes, a
chunk of the prompt for each that does not. KV is paged: when a running sequence needs a block and
none is free, the last one admitted (fcfs) or the one with the largest (priority, arrival) loses all
its blocks, returns to the head of its queue and is computed again from the start, produced tokens
included. What is left of the budget admits waiting sequences in rank order, each only when all
its tokens fit into the free blocks; a step that preempted admits nobody. A running sequence is
never stopped for a waiting one.
"""

import heapq
from dataclasses import dataclass
from typing import Literal

from gateway.sim.profiles import Profile
from gateway.sim.sequence import Run, Sequence, State, TokenOut

SchedulingPolicy = Literal["fcfs", "priority"]

DEAD_ENTRIES_KEPT = 64
"""Aborted entries the waiting heap may hold beyond the number of live ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The limits of one engine."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_blocks: int = 7_600
    block_tokens: int = 16
    watermark_blocks: int = 0
    """Blocks an admission must leave free while others run."""
    policy: SchedulingPolicy = "fcfs"

    def __post_init__(self) -> None:
        assert self.max_num_seqs >= 1
        assert self.max_num_batched_tokens >= 1
        assert self.kv_blocks >= 1
        assert self.block_tokens >= 1

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold `tokens`."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What the step in flight computes."""

    duration_s: float
    prefill_tokens: int
    decodes: int
    kv_tokens: int
    """KV tokens that the decodes read."""
    admitted: tuple[str, ...]
    """Sequences that left the waiting queue for this step, preempted ones included."""


@dataclass(slots=True)
class Counters:
    """Totals since the engine began. A prompt counts once, when its first token comes."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    resumptions: int = 0
    """Preempted sequences taken up again; vLLM's metric rises only here."""
    finished: int = 0
    aborted: int = 0


class Engine:
    """Continuous batching over paged KV. `next_step`, then `complete_step`, and so on.

    Every step costs time proportional to its batch, and an admission to the logarithm of the queue.
    """

    def __init__(self, profile: Profile, config: EngineConfig) -> None:
        self.profile = profile
        self.config = config
        self.counters = Counters()
        self._runs: dict[str, Run] = {}
        self._running: list[Run] = []
        self._waiting: list[tuple[tuple[int, int], Run]] = []
        self._waiting_count = 0
        self._blocks_free = config.kv_blocks
        self._arrivals = 0
        self._step: list[Run] | None = None

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences without a slot, preempted ones included."""
        return self._waiting_count

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks in use, 0..1."""
        return 1 - self._blocks_free / self.config.kv_blocks

    @property
    def is_stepping(self) -> bool:
        """Whether a step was begun and not completed."""
        return self._step is not None

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens, prompt and output, can ever be completed."""
        # The last token produced is never computed, so that it needs no KV.
        return self.config.blocks_for(max(1, tokens - 1)) <= self.config.kv_blocks

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; it may be part of the next step, not of the one in flight.

        Raises:
            ValueError: it could never be completed, however empty the engine.
        """
        assert sequence.id not in self._runs
        if not self.fits(sequence.prompt_tokens + sequence.output_tokens):
            raise ValueError(f"sequence {sequence.id} needs more KV than the engine has")
        self._arrivals += 1
        priority = sequence.priority if self.config.policy == "priority" else 0
        run = Run(sequence, (priority, self._arrivals))
        self._runs[sequence.id] = run
        self._enqueue(run)

    def abort(self, sequence_id: str) -> bool:
        """End a sequence now: its slot and blocks are free for the next step.

        Returns False when it is not here any more, which is no error.
        """
        run = self._runs.pop(sequence_id, None)
        if run is None:
            return False
        self.counters.aborted += 1
        if run.state is State.RUNNING:
            self._running.remove(run)
            self._release(run)
        else:
            self._waiting_count -= 1
        run.state = State.GONE
        run.scheduled = 0
        if len(self._waiting) > 2 * self._waiting_count + DEAD_ENTRIES_KEPT:
            self._waiting = [entry for entry in self._waiting if entry[1].state is State.WAITING]
            heapq.heapify(self._waiting)
        return True

    def next_step(self) -> StepPlan | None:
        """Choose the next batch and hold it until `complete_step`. None: nothing to do."""
        assert self._step is None, "the step in flight was not completed"
        if not self._running and not self._waiting_count:
            return None
        budget, preempted = self._schedule_running(self.config.max_num_batched_tokens)
        admitted = [] if preempted else self._admit(budget)
        self._step = [run for run in self._running if run.scheduled]
        assert self._step, "an engine with work makes progress"
        return self._plan(self._step, admitted)

    def complete_step(self) -> list[TokenOut]:
        """Apply the step in flight. Those aborted meanwhile get nothing."""
        assert self._step is not None, "no step in flight"
        out: list[TokenOut] = []
        finished_before = self.counters.finished
        for run in self._step:
            scheduled, run.scheduled = run.scheduled, 0
            run.computed += scheduled
            if scheduled and run.computed == run.total:
                out.append(self._produce(run))
        if self.counters.finished > finished_before:
            self._running = [run for run in self._running if run.state is State.RUNNING]
        self.counters.steps += 1
        self._step = None
        return out

    def check_invariants(self) -> None:
        """Derive every aggregate anew; an `AssertionError` is a bug of this model."""
        held = sum(run.blocks for run in self._running)
        assert held + self._blocks_free == self.config.kv_blocks
        assert self._blocks_free >= 0
        assert len(self._running) <= self.config.max_num_seqs
        waiting = {id(run) for _, run in self._waiting if run.state is State.WAITING}
        assert len(waiting) == self._waiting_count
        assert len(self._runs) == self._waiting_count + len(self._running)
        for run in self._running:
            assert run.state is State.RUNNING
            assert run.computed + run.scheduled <= run.blocks * self.config.block_tokens
            assert run.total == run.sequence.prompt_tokens + run.produced

    def _schedule_running(self, budget: int) -> tuple[int, bool]:
        """Give the running their tokens; returns the budget left, and whether any was preempted."""
        victims: list[Run] | None = None
        for run in self._running:
            if run.state is not State.RUNNING:
                continue
            tokens = min(run.total - run.computed, budget)
            needed = self.config.blocks_for(run.computed + tokens) - run.blocks
            while needed > self._blocks_free and run.state is State.RUNNING:
                victims = self._by_precedence() if victims is None else victims
                self._preempt(victims.pop())
            if run.state is State.RUNNING:
                self._take(run, tokens, needed)
                budget -= tokens
        if victims is not None:
            self._running = [run for run in self._running if run.state is State.RUNNING]
        return budget, victims is not None

    def _by_precedence(self) -> list[Run]:
        """The running ones, the first to be preempted last."""
        if self.config.policy == "priority":
            return sorted(self._running, key=lambda run: run.rank)
        return list(self._running)

    def _preempt(self, run: Run) -> None:
        """Back to the queue, with nothing computed and no part in this step."""
        # Its share of the step's tokens stays unused: whoever comes after it decodes, and the
        # budget has room for all who do.
        run.scheduled = 0
        run.computed = 0
        run.preemptions += 1
        run.state = State.WAITING
        self._release(run)
        self._enqueue(run)
        self.counters.preemptions += 1

    def _admit(self, budget: int) -> list[str]:
        admitted: list[str] = []
        while budget > 0 and self._waiting_count and len(self._running) < self.config.max_num_seqs:
            run = self._head()
            reserve = self.config.watermark_blocks if self._running else 0
            if self.config.blocks_for(run.total) + reserve > self._blocks_free:
                break
            heapq.heappop(self._waiting)
            self._waiting_count -= 1
            run.state = State.RUNNING
            self._running.append(run)
            tokens = min(run.total, budget)
            self._take(run, tokens, self.config.blocks_for(tokens))
            budget -= tokens
            self.counters.resumptions += run.preemptions > 0
            admitted.append(run.sequence.id)
        return admitted

    def _head(self) -> Run:
        while self._waiting[0][1].state is not State.WAITING:
            heapq.heappop(self._waiting)
        return self._waiting[0][1]

    def _plan(self, step: list[Run], admitted: list[str]) -> StepPlan:
        tokens = decodes = kv_tokens = attended = 0
        for run in step:
            tokens += run.scheduled
            if run.decodes:
                decodes += 1
                kv_tokens += run.total
            else:
                attended += run.scheduled * (2 * run.computed + run.scheduled) // 2
        duration_s = self.profile.step_s(
            tokens, decodes=decodes, kv_tokens=kv_tokens, attended=attended
        )
        return StepPlan(
            duration_s=duration_s,
            prefill_tokens=tokens - decodes,
            decodes=decodes,
            kv_tokens=kv_tokens,
            admitted=tuple(admitted),
        )

    def _enqueue(self, run: Run) -> None:
        heapq.heappush(self._waiting, (run.rank, run))
        self._waiting_count += 1

    def _take(self, run: Run, tokens: int, blocks: int) -> None:
        run.scheduled = tokens
        run.blocks += blocks
        self._blocks_free -= blocks

    def _release(self, run: Run) -> None:
        self._blocks_free += run.blocks
        run.blocks = 0

    def _produce(self, run: Run) -> TokenOut:
        """All its tokens are computed: the next one exists, or the end is reached."""
        sequence = run.sequence
        if not run.produced:
            self.counters.prompt_tokens += sequence.prompt_tokens
        n_tokens = 1 if sequence.output_tokens else 0
        run.produced += n_tokens
        run.total += n_tokens
        self.counters.generation_tokens += n_tokens
        finished = run.produced == sequence.output_tokens
        if finished:
            run.state = State.GONE
            del self._runs[sequence.id]
            self._release(run)
            self.counters.finished += 1
        return TokenOut(sequence.id, n_tokens, finished)
