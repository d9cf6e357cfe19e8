"""The one model of an engine: which sequences a step runs, how long it takes, who gets a token.

Refuses to know clocks, randomness and networks. Under a heap of events it is the simulator's
replica; under asyncio, with HTTP in front, it is the emulator's.

As configured by default it is vLLM's V1 scheduler reduced to what is visible from outside. Each
step has a token budget. Running sequences come first: one token for each that decodes, then a chunk
of the prompt of the one that is not through with it. KV is paged: when a running sequence needs a
block and none is free, the last one admitted (fcfs) or the one with the largest (priority, arrival)
loses all its blocks, returns to the head of its queue and is computed again from the start,
produced tokens included. What is left of the budget admits waiting sequences in rank order, each
only when all its tokens fit into the free blocks; a step that preempted admits nobody. A running
sequence is never stopped for a waiting one. `EngineConfig` has the flags that make it the engine of
others, see `styles.py`.

What decodes is counted, not visited (`decoding.py`), so that a step costs what changes in it: who
begins, who ends, who is preempted. `complete_step` names each token and costs the batch; who wants
beginnings and ends alone takes `complete_quietly`. Both are one engine and leave the same state.
"""

import heapq

from gateway.sim.decoding import Decoding
from gateway.sim.engine_config import EngineConfig
from gateway.sim.paging import Paging
from gateway.sim.profiles import Profile
from gateway.sim.sequence import Run, Sequence, State, TokenOut, computed_tokens
from gateway.sim.step import Changed, Counters, StepPlan

DEAD_ENTRIES_KEPT = 64
"""Aborted entries the waiting heap may hold beyond the number of live ones."""


class Engine:
    """Continuous batching over paged KV. `next_step`, then `complete_step`, and so on.

    A step costs what it admits and ends, an admission the logarithm of the queue; only a step that
    runs out of KV visits its batch.
    """

    def __init__(self, profile: Profile, config: EngineConfig) -> None:
        self.profile = profile
        self.config = config
        self.counters = Counters()
        self._runs: dict[str, Run] = {}
        self._running: dict[str, Run] = {}
        """In the order of their admission."""
        self._waiting: list[tuple[tuple[int, int], Run]] = []
        self._waiting_count = 0
        self._decoding = Decoding(config.block_tokens)
        self._kv = Paging(config)
        self._arrivals = 0
        self._partial: Run | None = None
        """The one that runs and is not through with its prefill; it was admitted last."""
        self._is_stepping = False
        self._is_round = False
        """Whether those that decode are part of the step in flight, and have their blocks."""
        self._prefilling: list[Run] = []
        """Those whose prompts are part of it."""

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
        return 1 - self._kv.free / self.config.kv_blocks

    @property
    def blocks_free(self) -> int:
        """KV blocks that an admission could take."""
        return self._kv.free

    @property
    def is_stepping(self) -> bool:
        """Whether a step was begun and not completed."""
        return self._is_stepping

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether a sequence of so many tokens can ever be completed."""
        tokens = max(computed_tokens(prompt_tokens, output_tokens), self.config.reserved_tokens)
        return self.config.blocks_for(tokens) <= self.config.kv_blocks

    def ids(self) -> list[str]:
        """All sequences that are here, in the order of their arrival."""
        return list(self._runs)

    def produced(self, sequence_id: str) -> int:
        """Tokens that a sequence has produced so far; 0 for one that is not here."""
        run = self._runs.get(sequence_id)
        if run is None:
            return 0
        return self._decoding.produced(run) if run.decodes else run.produced

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; it may be part of the next step, not of the one in flight.

        Raises:
            ValueError: it could never be completed, however empty the engine.
        """
        if not self.fits(sequence.prompt_tokens, sequence.output_tokens):
            raise ValueError(f"sequence {sequence.id} needs more KV than the engine has")
        self._enqueue(self._arrive(sequence))

    def adopt(self, sequence: Sequence, produced: int) -> bool:
        """Go on with a sequence whose KV comes from another engine, `produced` tokens into it.

        Not within a step. False: there is no slot or not enough KV for it, and nothing happened.
        """
        assert not self._is_stepping
        assert 0 < produced < sequence.output_tokens
        computed = sequence.prompt_tokens + produced - 1
        blocks = self._kv.at(sequence, computed)
        if len(self._running) >= self.config.max_num_seqs or blocks > self._kv.free:
            return False
        run = self._arrive(sequence)
        run.produced, run.computed = produced, computed
        run.state = State.RUNNING
        partial = self._partial
        if partial is not None:
            # What is not through with its prefill comes last.
            del self._running[partial.sequence.id]
        self._running[sequence.id] = run
        if partial is not None:
            self._running[partial.sequence.id] = partial
        self._kv.give(run, blocks)
        self._kv.trim()
        self._decoding.join(run)
        return True

    def abort(self, sequence_id: str) -> bool:
        """End a sequence now: its slot and blocks are free for the next step.

        Returns False when it is not here any more, which is no error.
        """
        run = self._runs.pop(sequence_id, None)
        if run is None:
            return False
        self.counters.aborted += 1
        if run.state is State.RUNNING:
            self._stop(run)
        else:
            self._waiting_count -= 1
        run.state = State.GONE
        if len(self._waiting) > 2 * self._waiting_count + DEAD_ENTRIES_KEPT:
            self._waiting = [entry for entry in self._waiting if entry[1].state is State.WAITING]
            heapq.heapify(self._waiting)
        return True

    def next_step(self) -> StepPlan | None:
        """Choose the next batch and hold it until it is completed. None: nothing to do."""
        assert not self._is_stepping, "the step in flight was not completed"
        if not self._running and not self._waiting_count:
            return None
        config, before = self.config, self.counters.preemptions
        budget = config.max_num_batched_tokens
        admitted: list[str] = []
        if config.mixed or config.prefill_first or not self._decoding.count:
            budget = self._go_on(budget, decodes=config.mixed, prefills=True)
            if self.counters.preemptions == before:
                admitted = self._admit(budget)
        if not (config.mixed or self._prefilling):
            self._go_on(budget, decodes=True, prefills=False)
        assert self._is_round or self._prefilling, "an engine with work makes progress"
        self._is_stepping = True
        return self._plan(admitted)

    def complete_step(self) -> list[TokenOut]:
        """Apply the step in flight; each token. Those aborted meanwhile get nothing."""
        assert self._is_stepping, "no step in flight"
        out: list[TokenOut] = []
        if self._is_round:
            decoding = self._decoding
            out = [
                TokenOut(id, 1, decoding.ends_next(run))
                for id, run in self._running.items()
                if run.decodes
            ]
        _, through = self._complete()
        for run in through:
            n_tokens = 1 if run.sequence.output_tokens else 0
            out.append(TokenOut(run.sequence.id, n_tokens, run.state is State.GONE))
        return out

    def complete_quietly(self) -> Changed:
        """Apply the step in flight; who began and who ended. The batch is not visited."""
        assert self._is_stepping, "no step in flight"
        ended, through = self._complete()
        begun = [run.sequence.id for run in through if run.produced <= 1]
        finished = [run.sequence.id for run in ended]
        finished += [run.sequence.id for run in through if run.state is State.GONE]
        return Changed(begun, finished)

    def check_invariants(self) -> None:
        """Derive every aggregate anew; an `AssertionError` is a bug of this model."""
        config, running, decoding = self.config, self._running.values(), self._decoding
        kv = self._kv
        held = sum(self._held(run) for run in running)
        held += kv.prefix_blocks * kv.prefixes.held
        assert held + kv.free == config.kv_blocks
        assert 0 <= kv.prefixes.idle * kv.prefix_blocks <= kv.free
        assert len(running) <= config.max_num_seqs
        waiting = {id(run) for _, run in self._waiting if run.state is State.WAITING}
        assert len(waiting) == self._waiting_count
        assert len(self._runs) == self._waiting_count + len(running)
        decodes = [run for run in running if run.decodes]
        lengths = [decoding.computed(run) + 1 for run in decodes]
        assert decoding.count == len(decodes)
        assert decoding.kv_tokens == sum(lengths)
        assert decoding.blocks_needed == sum(n % config.block_tokens == 1 for n in lengths) or (
            config.block_tokens == 1
        )
        for run in running:
            assert run.state is State.RUNNING
            if not run.decodes:
                shared = len(run.shared) * config.prefix_block_tokens
                room = run.blocks * config.block_tokens + shared
                assert run.computed + run.scheduled <= room
                assert run is self._partial or run in self._prefilling

    # --- forming a step -------------------------------------------------------------------------

    def _go_on(self, budget: int, *, decodes: bool, prefills: bool) -> int:
        """Give the running their tokens; returns the budget left."""
        decoding, partial = self._decoding, self._partial if prefills else None
        count = decoding.count if decodes else 0
        needed = decoding.blocks_needed if count and not self.config.reserved_tokens else 0
        tokens = more = 0
        if partial is not None:
            tokens = min(partial.total - partial.computed, budget - count)
            more = self._kv.own_at(partial, partial.computed + tokens) - partial.blocks
        if needed + more > self._kv.free:
            return self._squeeze(budget, decodes=decodes, prefills=prefills)
        self._kv.free -= needed
        self._is_round = self._is_round or count > 0
        if partial is not None:
            self._take(partial, tokens, more)
        self._kv.trim()
        return budget - count - tokens

    def _squeeze(self, budget: int, *, decodes: bool, prefills: bool) -> int:
        """The same one by one in the order of admission, where KV is short and some must go."""
        kv, victims = self._kv, self._by_precedence()
        for run in list(self._running.values()):
            if not self._is_running(run) or not (decodes if run.decodes else prefills):
                continue
            computed = self._decoding.computed(run) if run.decodes else run.computed
            tokens = 1 if run.decodes else min(run.total - computed, budget)
            needed = kv.own_at(run, computed + tokens) - self._held(run)
            while needed > kv.free and self._is_running(run):
                self._preempt(victims.pop())
            if not self._is_running(run):
                continue
            budget -= tokens
            if run.decodes:
                run.scheduled = 1
                kv.free -= needed
            else:
                self._take(run, tokens, needed)
            kv.trim()
        if decodes:
            for run in self._running.values():
                if run.decodes:
                    run.scheduled = 0
            self._is_round = self._decoding.count > 0
        return budget

    def _is_running(self, run: Run) -> bool:
        return run.sequence.id in self._running

    def _by_precedence(self) -> list[Run]:
        """The running ones, the first to be preempted last."""
        if self.config.policy == "priority":
            return sorted(self._running.values(), key=lambda run: run.rank)
        return list(self._running.values())

    def _preempt(self, run: Run) -> None:
        """Back to the queue, with nothing computed and no part in this step."""
        # Its share of the step's tokens stays unused: whoever comes after it decodes, and the
        # budget has room for all who do.
        self._stop(run)
        run.computed = 0
        run.preemptions += 1
        run.state = State.WAITING
        self._enqueue(run)
        self.counters.preemptions += 1

    def _admit(self, budget: int) -> list[str]:
        config, kv, admitted = self.config, self._kv, list[str]()
        while budget > 0 and self._waiting_count and len(self._running) < config.max_num_seqs:
            run = self._head()
            shared = kv.cached(run.sequence)
            cached = min(len(shared) * config.prefix_block_tokens, run.total - 1)
            tokens = run.total - cached
            if tokens > budget and not config.chunked and self._prefilling:
                break
            reserve = config.watermark_blocks if self._running else 0
            if kv.needed(run, shared) + reserve > kv.free:
                break
            heapq.heappop(self._waiting)
            self._waiting_count -= 1
            run.state = State.RUNNING
            self._running[run.sequence.id] = run
            run.computed = cached
            kv.hold(run, shared)
            tokens = min(tokens, budget) if config.chunked else tokens
            self._take(run, tokens, kv.own_at(run, cached + tokens))
            kv.trim()
            budget -= tokens
            self.counters.resumptions += run.preemptions > 0
            self.counters.cached_tokens += cached
            admitted.append(run.sequence.id)
        return admitted

    def _head(self) -> Run:
        while self._waiting[0][1].state is not State.WAITING:
            heapq.heappop(self._waiting)
        return self._waiting[0][1]

    def _plan(self, admitted: list[str]) -> StepPlan:
        decodes = self._decoding.count if self._is_round else 0
        kv_tokens = self._decoding.kv_tokens if self._is_round else 0
        prefill_tokens = attended = 0
        for run in self._prefilling:
            prefill_tokens += run.scheduled
            attended += run.scheduled * (2 * run.computed + run.scheduled) // 2
        duration_s = self.profile.step_s(
            prefill_tokens + decodes, decodes=decodes, kv_tokens=kv_tokens, attended=attended
        )
        return StepPlan(
            duration_s=duration_s,
            prefill_tokens=prefill_tokens,
            decodes=decodes,
            kv_tokens=kv_tokens,
            admitted=tuple(admitted),
        )

    # --- completing it --------------------------------------------------------------------------

    def _complete(self) -> tuple[list[Run], list[Run]]:
        """(those that decoded their last token, those that are through with their prefill)."""
        ended: list[Run] = []
        counters = self.counters
        if self._is_round:
            self._is_round = False
            counters.generation_tokens += self._decoding.count
            ended = self._decoding.advance()
            for run in ended:
                self._finish(run)
        through: list[Run] = []
        if self._prefilling:
            # The one that was not through is among them, or was preempted.
            self._partial = None
        for run in self._prefilling:
            if run.state is not State.RUNNING:
                continue
            run.computed += run.scheduled
            run.scheduled = 0
            if run.computed == run.total:
                through.append(run)
                self._produce(run)
            else:
                self._partial = run
        self._prefilling = []
        counters.steps += 1
        self._is_stepping = False
        return ended, through

    def _produce(self, run: Run) -> None:
        """All its tokens are computed: the next one exists, or the end is reached."""
        sequence = run.sequence
        if sequence.prefix:
            self._kv.share(run)
        if not run.produced:
            self.counters.prompt_tokens += sequence.prompt_tokens
        if sequence.output_tokens:
            run.produced += 1
            self.counters.generation_tokens += 1
        if run.produced == sequence.output_tokens:
            self._finish(run)
        else:
            self._decoding.join(run)

    def _finish(self, run: Run) -> None:
        run.state = State.GONE
        del self._runs[run.sequence.id]
        del self._running[run.sequence.id]
        self._kv.release(run, self._kv.own_at(run, run.computed))
        self.counters.finished += 1

    # --- queue, slots and blocks ----------------------------------------------------------------

    def _arrive(self, sequence: Sequence) -> Run:
        assert sequence.id not in self._runs
        self._arrivals += 1
        priority = sequence.priority if self.config.policy == "priority" else 0
        run = self._runs[sequence.id] = Run(sequence, (priority, self._arrivals))
        return run

    def _enqueue(self, run: Run) -> None:
        heapq.heappush(self._waiting, (run.rank, run))
        self._waiting_count += 1

    def _stop(self, run: Run) -> None:
        """A running one runs no more: its slot and blocks are free."""
        held = self._held(run)
        if run.decodes:
            self._decoding.leave(run)
        elif run is self._partial:
            self._partial = None
        run.scheduled = 0
        del self._running[run.sequence.id]
        self._kv.release(run, held)

    def _held(self, run: Run) -> int:
        """KV blocks of its own. What decodes takes them as it goes, without being looked at."""
        if not run.decodes or self.config.reserved_tokens:
            return run.blocks
        taken = 1 if self._is_round or run.scheduled else 0
        return self._kv.own_at(run, self._decoding.computed(run) + taken)

    def _take(self, run: Run, tokens: int, blocks: int) -> None:
        run.scheduled = tokens
        self._prefilling.append(run)
        self._kv.give(run, blocks)
