"""Freest first with live migration: Llumnix with two priorities, and its extension to K tiers.

Llumnix (Sun et al., OSDI'24, arXiv 2406.03243) sends each request at once to the freest instance
and moves running ones, with their KV, from those that are full to those that are free. Freeness is
F = (M - sum V) / B over virtual usage V: the KV of what runs, the demand of the head of the
engine's queue, and a headroom for the high priority. The K-tier paper (arXiv 2608.16336) gives each
tier p that is present a headroom of its own, H_p = M h e^(-lambda p), serves tiers in strict order
inside the engine, and looks every 50 ms whether a move narrows a gap of 0.3. Both live inside the
engines and see them as they are, which no gateway can.
"""

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from gateway.sim.baselines.simple import Forwarding
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Decision, Decisions, Machine, Move, Sent, Truth, Wake

HEADROOM_MAX = 0.20
HEADROOM_DECAY_SPAN = 2.5
CHECK_EVERY_S = 0.05
GAP_MIN = 0.3
"""Of normalised freeness F B_ref / M, B_ref being the slots of the replica."""


class Change(NamedTuple):
    """What a move would change at one replica."""

    requests: int
    level: int
    """Of the requests that come or go."""
    blocks: int
    """Of KV, in use."""
    running: int


NO_CHANGE = Change(0, 0, 0, 0)


def headrooms(tiers: int) -> tuple[float, ...]:
    """Share of M that each of K tiers sets aside where it is present; nothing for one tier."""
    if tiers == 1:
        return (0.0,)
    decay = HEADROOM_DECAY_SPAN / (tiers - 1)
    return tuple(HEADROOM_MAX * exp(-decay * tier) for tier in range(tiers))


class Llumlet(Forwarding):
    """K tiers; with `levels` = 2 it is Llumnix itself: tier 0 is high, all others are normal."""

    def __init__(self, levels: int, *, migrates: bool = True) -> None:
        """`levels`: priorities that are told apart; lower tiers are of the last one."""
        super().__init__()
        self._headrooms = headrooms(levels)
        self._migrates = migrates
        self._machines: Sequence[Machine] = ()
        self._truth: Truth | None = None
        self._jobs: dict[int, Job] = {}
        self._unstarted: list[dict[int, Job]] = []
        self._present: list[list[int]] = []
        """By replica and level: requests there."""
        self._moving: dict[int, int] = {}
        """Where what is being moved is going."""

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """See `Dispatch.begin`."""
        self._machines, self._truth = machines, truth
        self._unstarted = [{} for _ in machines]
        self._present = [[0] * len(self._headrooms) for _ in machines]
        super().begin(machines, truth, now)
        return (Wake(now + CHECK_EVERY_S),) if self._migrates else ()

    def arrived(self, job: Job, now: float) -> Decisions:
        """See `Dispatch.arrived`."""
        self._jobs[job.number] = job
        return super().arrived(job, now)

    def first_token(self, number: int, now: float) -> Decisions:
        """See `Dispatch.first_token`."""
        self._unstarted[self._at[number]].pop(number, None)
        return ()

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.ended`."""
        out = super().ended(number, now, output_tokens=output_tokens)
        del self._jobs[number]
        return out

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.left`."""
        return self.ended(number, now, output_tokens=output_tokens)

    def moved(self, number: int, now: float, *, replica: int, is_done: bool) -> Decisions:
        """See `Dispatch.moved`."""
        self._moving.pop(number, None)
        if is_done and number in self._at:
            was_unstarted = number in self._unstarted[self._at[number]]
            self._leave(number)
            self._enter(number, replica)
            if not was_unstarted:
                self._unstarted[replica].pop(number, None)
        return ()

    def tick(self, now: float) -> Decisions:
        """See `Dispatch.tick`: from the least free to the freest, if that is worth it."""
        out: list[Decision] = [Wake(now + CHECK_EVERY_S)]
        usable = self.usable()
        if len(usable) < 2:
            return out
        source = min(usable, key=self.freeness)
        target = max(usable, key=self.freeness)
        gap = self.freeness(target) - self.freeness(source)
        number = self._candidate(source) if gap > GAP_MIN else None
        if number is not None and self._narrows(number, source, target):
            self._moving[number] = target
            out.append(Move(number, target))
        return out

    def choose(self, usable: Sequence[int]) -> int:
        """See `Forwarding.choose`; ties to the lowest index."""
        return max(usable, key=self.freeness)

    def freeness(self, replica: int) -> float:
        """F B_ref / M, as the replica is now."""
        return self._freeness_after(replica, NO_CHANGE)

    def _freeness_after(self, replica: int, change: Change) -> float:
        assert self._truth is not None
        engine, config = self._truth.engine(replica), self._machines[replica].config
        capacity = config.kv_blocks
        used = float(capacity - engine.blocks_free + self._head_blocks(replica) + change.blocks)
        for level, (share, present) in enumerate(
            zip(self._headrooms, self._present[replica], strict=True)
        ):
            there = present + (change.requests if level == change.level else 0)
            used += share * capacity if there else 0.0
        free = (capacity - used) / capacity
        running = max(1, engine.running + change.running)
        return free * config.max_num_seqs / running if free > 0 else free

    def _narrows(self, number: int, source: int, target: int) -> bool:
        """Whether the target would still be the freer one: else the next look moves it back."""
        assert self._truth is not None
        job, produced = self._jobs[number], self._truth.produced(number)
        blocks = self._machines[target].config.blocks_for(job.prompt_tokens + produced)
        level = self._level(job)
        # What has produced nothing waits, or has computed little: it leaves no room behind.
        gone = Change(-1, level, -blocks, -1) if produced else Change(-1, level, 0, 0)
        come = Change(1, level, blocks, 1)
        return self._freeness_after(target, come) > self._freeness_after(source, gone)

    def _head_blocks(self, replica: int) -> int:
        assert self._truth is not None
        waiting = self._unstarted[replica]
        if not waiting or not self._truth.engine(replica).waiting:
            return 0
        head = next(iter(waiting.values()))
        return self._machines[replica].config.blocks_for(head.prompt_tokens)

    def _candidate(self, replica: int) -> int | None:
        """The lowest level first, the smallest of it; what is being moved stays out."""
        assert self._truth is not None
        truth = self._truth
        here = [
            number
            for number in truth.inside(replica)
            if number not in self._moving and self._at.get(number) == replica
        ]
        lowest = max((self._level(self._jobs[number]) for number in here), default=0)
        ranked = [
            (self._jobs[number].prompt_tokens + truth.produced(number), number)
            for number in here
            if self._level(self._jobs[number]) == lowest
        ]
        return min(ranked)[1] if ranked else None

    def _level(self, job: Job) -> int:
        return min(job.tier, len(self._headrooms) - 1)

    def _send(self, number: int) -> Decisions:
        sent = [each for each in super()._send(number) if isinstance(each, Sent)]
        level = self._level(self._jobs[number])
        for each in sent:
            self._note(number, each.replica)
        return [Sent(each.number, each.replica, level) for each in sent]

    def _gone(self, number: int) -> Decisions:
        if number in self._at:
            self._forget(number)
        return super()._gone(number)

    def _note(self, number: int, replica: int) -> None:
        job = self._jobs[number]
        self._unstarted[replica][number] = job
        self._present[replica][self._level(job)] += 1

    def _forget(self, number: int) -> None:
        replica, job = self._at[number], self._jobs[number]
        self._unstarted[replica].pop(number, None)
        self._present[replica][self._level(job)] -= 1

    def _leave(self, number: int) -> None:
        self._forget(number)
        self.outstanding[self._at.pop(number)] -= 1

    def _enter(self, number: int, replica: int) -> None:
        self._at[number] = replica
        self.outstanding[replica] += 1
        self._note(number, replica)
