"""The engine model once more, by definition: every step visits its whole batch and adds up.

What `gateway.sim.replica` counts and derives is looked at here one by one. Slow, and plain.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.sim.engine_config import EngineConfig
from gateway.sim.profiles import Profile
from gateway.sim.sequence import Sequence, TokenOut


@dataclass(eq=False)
class PlainRun:
    """One sequence, with all its numbers as they are now."""

    sequence: Sequence
    rank: tuple[int, int]
    computed: int = 0
    produced: int = 0
    own: int = 0
    shared: tuple[int, ...] = ()
    scheduled: int = 0
    decodes: bool = False
    preemptions: int = 0

    @property
    def total(self) -> int:
        """Prompt and what was produced."""
        return self.sequence.prompt_tokens + self.produced


@dataclass(frozen=True)
class PlainStep:
    """What a step computes."""

    duration_s: float
    prefill_tokens: int
    decodes: int
    kv_tokens: int
    admitted: tuple[str, ...]


@dataclass
class PlainEngine:
    """See `gateway.sim.replica.Engine`."""

    profile: Profile
    config: EngineConfig
    running: list[PlainRun] = field(default_factory=list)
    waiting: list[PlainRun] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    """Blocks of prefixes that nobody holds, the oldest first."""
    step: list[PlainRun] = field(default_factory=list)
    arrivals: int = 0
    preempted: int = 0
    generated: int = 0
    cached: int = 0

    @property
    def free(self) -> int:
        """KV blocks that nobody holds."""
        held = {block for run in self.running for block in run.shared}
        own = sum(run.own for run in self.running)
        return self.config.kv_blocks - own - self.ratio * len(held)

    @property
    def ratio(self) -> int:
        """KV blocks of one block of a prefix."""
        return self.config.prefix_block_tokens // self.config.block_tokens

    def add(self, sequence: Sequence) -> None:
        """Queue it."""
        self.waiting.append(self._new(sequence))

    def adopt(self, sequence: Sequence, produced: int) -> bool:
        """Take in one that decodes."""
        run = self._new(sequence)
        run.produced = produced
        run.computed = run.total - 1
        blocks = self._blocks(run, run.computed)
        if len(self.running) >= self.config.max_num_seqs or blocks > self.free:
            return False
        run.own, run.decodes = blocks, True
        place = sum(each.decodes for each in self.running)
        self.running.insert(place, run)
        self._trim()
        return True

    def abort(self, id: str) -> bool:
        """Forget it."""
        for run in (*self.running, *self.waiting):
            if run.sequence.id == id:
                self._drop(run)
                return True
        return False

    def next_step(self) -> PlainStep | None:
        """Choose a batch."""
        if not self.running and not self.waiting:
            return None
        config, before, admitted = self.config, self.preempted, list[str]()
        budget = config.max_num_batched_tokens
        if config.mixed or config.prefill_first or not any(run.decodes for run in self.running):
            budget = self._go_on(budget, lambda run: config.mixed or not run.decodes)
            if self.preempted == before:
                admitted = self._admit(budget)
        if not config.mixed and not any(run.scheduled for run in self.running):
            self._go_on(budget, lambda run: run.decodes)
        self.step = [run for run in self.running if run.scheduled]
        decoding = [run for run in self.step if run.decodes]
        fresh = [run for run in self.step if not run.decodes]
        tokens = sum(run.scheduled for run in self.step)
        kv_tokens = sum(run.total for run in decoding)
        pairs = sum(run.scheduled * (2 * run.computed + run.scheduled) // 2 for run in fresh)
        duration_s = self.profile.step_s(
            tokens, decodes=len(decoding), kv_tokens=kv_tokens, attended=pairs
        )
        prefill = tokens - len(decoding)
        return PlainStep(duration_s, prefill, len(decoding), kv_tokens, tuple(admitted))

    def complete_step(self) -> list[TokenOut]:
        """Apply it."""
        out: list[TokenOut] = []
        for run in self.step:
            if run not in self.running:
                continue
            run.computed += run.scheduled
            run.scheduled = 0
            if run.computed < run.total:
                continue
            if not run.decodes:
                self._share(run)
            n_tokens = 1 if run.sequence.output_tokens else 0
            run.produced += n_tokens
            run.decodes = True
            self.generated += n_tokens
            finished = run.produced == run.sequence.output_tokens
            if finished:
                self._drop(run)
            out.append(TokenOut(run.sequence.id, n_tokens, finished))
        self.step = []
        return out

    def _new(self, sequence: Sequence) -> PlainRun:
        self.arrivals += 1
        priority = sequence.priority if self.config.policy == "priority" else 0
        return PlainRun(sequence, (priority, self.arrivals))

    def _blocks(self, run: PlainRun, tokens: int) -> int:
        """Blocks at that length, less those that it shares."""
        if self.config.reserved_tokens:
            longest = run.sequence.prompt_tokens + max(0, run.sequence.output_tokens - 1)
            tokens = max(self.config.reserved_tokens, longest)
        return -(-tokens // self.config.block_tokens) - self.ratio * len(run.shared)

    def _go_on(self, budget: int, partakes: Callable[[PlainRun], bool]) -> int:
        if self.config.policy == "priority":
            victims = sorted(self.running, key=lambda run: run.rank)
        else:
            victims = list(self.running)
        for run in list(self.running):
            if run not in self.running or not partakes(run):
                continue
            tokens = 1 if run.decodes else min(run.total - run.computed, budget)
            needed = self._blocks(run, run.computed + tokens) - run.own
            while needed > self.free and run in self.running:
                self._preempt(victims.pop())
            if run in self.running:
                run.own += needed
                run.scheduled = tokens
                budget -= tokens
                self._trim()
        return budget

    def _preempt(self, run: PlainRun) -> None:
        self._drop(run)
        self.waiting.append(run)
        run.computed = run.scheduled = 0
        run.decodes = False
        run.preemptions += 1
        self.preempted += 1

    def _admit(self, budget: int) -> list[str]:
        config, admitted = self.config, list[str]()
        while budget > 0 and self.waiting and len(self.running) < config.max_num_seqs:
            run = min(self.waiting, key=lambda each: each.rank)
            known = {block for each in self.running for block in each.shared} | set(self.idle)
            shared: tuple[int, ...] = ()
            for block in self._whole(run):
                if block not in known:
                    break
                shared += (block,)
            cached = min(len(shared) * config.prefix_block_tokens, run.total - 1)
            if not config.chunked and run.total - cached > budget and self._is_filling():
                break
            run.shared = shared
            woken = self.ratio * sum(block in self.idle for block in shared)
            reserve = config.watermark_blocks if self.running else 0
            if self._blocks(run, run.total) + woken + reserve > self.free:
                run.shared = ()
                break
            self.idle = [block for block in self.idle if block not in shared]
            self.waiting.remove(run)
            self.running.append(run)
            tokens = run.total - cached
            run.computed = cached
            run.scheduled = min(tokens, budget) if config.chunked else tokens
            run.own = self._blocks(run, cached + run.scheduled)
            self._trim()
            budget -= run.scheduled
            self.cached += cached
            admitted.append(run.sequence.id)
        return admitted

    def _is_filling(self) -> bool:
        return any(run.scheduled and not run.decodes for run in self.running)

    def _whole(self, run: PlainRun) -> tuple[int, ...]:
        size = self.config.prefix_block_tokens
        return run.sequence.prefix[: run.sequence.prompt_tokens // size] if size else ()

    def _share(self, run: PlainRun) -> None:
        known = {block for each in self.running for block in each.shared} | set(self.idle)
        for block in self._whole(run)[len(run.shared) :]:
            if block in known:
                break
            run.shared += (block,)
            run.own -= self.ratio

    def _drop(self, run: PlainRun) -> None:
        if run in self.waiting:
            self.waiting.remove(run)
            return
        self.running.remove(run)
        held = {block for each in self.running for block in each.shared}
        self.idle += [block for block in reversed(run.shared) if block not in held]
        run.shared = ()
        run.own = 0

    def _trim(self) -> None:
        while self.ratio and len(self.idle) * self.ratio > self.free:
            del self.idle[0]
