"""The gateway's own scheduler, unchanged, told what the gateway would tell it.

What the gateway's dispatcher, admissions, relay, watch and probes say, in their order. No true
length is ever told before the answer is over.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import assert_never

from gateway.core.messages import (
    PREFIX_BLOCK_TOKENS,
    Arrived,
    DrainAsked,
    Event,
    Fault,
    Finished,
    FirstToken,
    Granted,
    MoveWanted,
    Outcome,
    Progressed,
    Reason,
    RecallDone,
    Recalled,
    RecallTooLate,
    ReplicaFound,
    ReplicaLost,
    ReplicaRefused,
    ReplicaReported,
    Request,
    ScaleAdvised,
    Usage,
    WakeWanted,
    Woke,
)
from gateway.core.messages import Refused as CoreRefused
from gateway.core.policy import Policy
from gateway.core.scheduler import Scheduler
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import (
    Decision,
    Decisions,
    Machine,
    Refused,
    Report,
    Sent,
    TakeBack,
    Truth,
    Wake,
)

MODEL = "m"
BYTES_PER_TOKEN = 4
"""Of the bodies that clients send; the scheduler learns it."""
TRACE_BLOCK_TOKENS = 512
"""Tokens that one id of `Job.prefix` stands for, unless the engines cache smaller blocks."""
ASK_AGAIN_S = 0.25
"""Between two looks for a replica that could take what has failed, while there is none."""
TPOT_TOKENS_MIN = 2


class Held:
    """One request in the gateway's hands."""

    __slots__ = ("attempts", "base", "broke_at", "failed", "first_at", "id", "job", "replica")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.attempts = 0
        """Moves are none."""
        self.base = 0
        """Tokens of the answer that came in earlier attempts."""
        self.broke_at: float | None = None
        self.failed: frozenset[str] = frozenset()
        """Replicas that failed it, or that it was moved off."""
        self.first_at: float | None = None
        self.id = ""
        """Of the present attempt."""
        self.replica = ""

    def usage(self, output_tokens: int) -> Usage:
        """What the engine reports of the present attempt."""
        return Usage(
            prompt_tokens=self.job.prompt_tokens + self.base,
            output_tokens=output_tokens - self.base,
        )

    def tpot_s(self, output_tokens: int, now: float) -> float | None:
        """Mean time between its tokens, of the present attempt."""
        tokens = output_tokens - self.base
        if self.first_at is None or tokens < TPOT_TOKENS_MIN:
            return None
        return (now - self.first_at) / (tokens - 1)


class Fairgate:
    """See `Dispatch`."""

    hears_progress = True

    def __init__(self, policy: Policy, *, tells_slots: bool = True) -> None:
        """`tells_slots`: whether the operator configured `max_num_seqs`; else it is learnt."""
        self.scheduler = Scheduler(policy)
        self.advice: list[tuple[float, int]] = []
        """(instant, replicas) of each change of the advice on scaling."""
        self._tells_slots = tells_slots
        self._names: list[str] = []
        self._machines: Sequence[Machine] = ()
        self._index: dict[str, int] = {}
        self._held: dict[int, Held] = {}
        self._number: dict[str, int] = {}
        """By the id of the attempt."""
        self._looking: dict[int, float] = {}
        """What has failed and found no replica, and until when it looks for one."""
        self._look_at = inf
        self._wake_at = inf
        self._block_tokens = TRACE_BLOCK_TOKENS
        self._serial = 0

    # --- what the world says --------------------------------------------------------------------

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """See `Dispatch.begin`; the truth is not looked at."""
        self._machines = machines
        self._names = [machine.name for machine in machines]
        self._index = {name: index for index, name in enumerate(self._names)}
        cached = [machine.config.prefix_block_tokens for machine in machines]
        self._block_tokens = max(cached) or TRACE_BLOCK_TOKENS
        return [each for index in range(len(machines)) for each in self.back(index, now)]

    def arrived(self, job: Job, now: float) -> Decisions:
        """See `Dispatch.arrived`."""
        held = self._held[job.number] = Held(job)
        return self._attempt(held, now)

    def first_token(self, number: int, now: float) -> Decisions:
        """See `Dispatch.first_token`."""
        held = self._held[number]
        held.first_at = now
        return self._tell(FirstToken(held.id), now)

    def progressed(self, replica: int, tokens: Mapping[int, int], now: float) -> Decisions:
        """See `Dispatch.progressed`."""
        heard: dict[str, int] = {}
        for number, count in tokens.items():
            held = self._held[number]
            heard[held.id] = count - held.base
        return self._tell(Progressed(self._names[replica], heard, now), now)

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.ended`."""
        return self._over(number, Outcome.DONE, output_tokens, now=now)

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.left`."""
        return self._over(number, Outcome.CANCELLED, output_tokens, now=now)

    def broke(
        self,
        number: int,
        now: float,
        *,
        replica: int,
        output_tokens: int,
        was_sent: bool,
        goes_on: bool,
    ) -> Decisions:
        """See `Dispatch.broke`."""
        held = self._held[number]
        has_come = output_tokens > held.base
        may_try = held.attempts < self.scheduler.policy.bounds.attempts
        ended = Finished(
            held.id,
            Outcome.FAILED,
            held.usage(output_tokens) if has_come else None,
            held.tpot_s(output_tokens, now),
            fault=Fault.BROKE_OFF if was_sent else Fault.REFUSED,
            goes_on=has_come and goes_on and may_try,
        )
        if not goes_on:
            self._forget(held)
            return self._tell(ended, now)
        held.failed |= {held.replica}
        out = self._tell(ended, now)
        return [*out, *self._go_on(held, output_tokens, now=now, may_try=may_try)]

    def taken_back(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.taken_back`."""
        held = self._held[number]
        if output_tokens == held.base:
            return self._tell(RecallDone(held.id), now)
        ended = Finished(
            held.id,
            Outcome.CANCELLED,
            held.usage(output_tokens),
            held.tpot_s(output_tokens, now),
        )
        held.failed |= {held.replica}
        held.attempts -= 1
        out = self._tell(ended, now)
        return [*out, *self._go_on(held, output_tokens, now=now, may_try=True)]

    def too_late(self, number: int, now: float) -> Decisions:
        """See `Dispatch.too_late`."""
        return self._tell(RecallTooLate(self._held[number].id), now)

    def moved(self, number: int, now: float, *, replica: int, is_done: bool) -> Decisions:
        """See `Dispatch.moved`; it never asks for one."""
        raise AssertionError("nothing was to be moved")

    def reported(self, replica: int, report: Report, now: float) -> Decisions:
        """See `Dispatch.reported`."""
        event = ReplicaReported(
            replica=self._names[replica],
            sent_at=report.sent_at,
            report=report.told,
            round_trip_s=report.round_trip_s,
        )
        return self._tell(event, now)

    def lost(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.lost`."""
        name = self._names[replica]
        return [*self._tell(ReplicaRefused(name), now), *self._tell(ReplicaLost(name), now)]

    def back(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.back`."""
        machine = self._machines[replica]
        for held in self._held.values():
            # It was away and is another one now.
            if machine.name in held.failed:
                held.failed -= {machine.name}
        slots = machine.config.max_num_seqs if self._tells_slots else None
        found = ReplicaFound(
            replica=machine.name,
            models=frozenset({MODEL}),
            slots=slots,
            orders_by_tier=machine.config.policy == "priority",
        )
        return self._tell(found, now)

    def drained(self, replica: int, now: float, *, is_draining: bool) -> Decisions:
        """See `Dispatch.drained`."""
        return self._tell(DrainAsked(self._names[replica], is_draining), now)

    def tick(self, now: float) -> Decisions:
        """See `Dispatch.tick`."""
        out: list[Decision] = []
        if now >= self._wake_at:
            self._wake_at = inf
            out += self._tell(Woke(), now)
        if now >= self._look_at:
            self._look_at = inf
            for number in list(self._looking):
                held = self._held[number]
                held.attempts -= 1
                out += self._attempt(held, now)
        self._wish(out)
        return out

    # --- what the scheduler is told, and says ---------------------------------------------------

    def _attempt(self, held: Held, now: float) -> list[Decision]:
        """Ask the scheduler, each time under another id."""
        held.attempts += 1
        self._serial += 1
        held.id = f"{held.job.number}-{self._serial}"
        held.first_at = None
        self._number[held.id] = held.job.number
        return self._tell(Arrived(self._request(held)), now)

    def _request(self, held: Held) -> Request:
        job, base = held.job, held.base
        most = job.output_tokens_max
        return Request(
            id=held.id,
            model=MODEL,
            tier=job.tier,
            tenant=job.tenant,
            user=job.user,
            arrived_at=job.arrived_at if held.broke_at is None or not base else held.broke_at,
            # What goes on is sent as token ids, which the gateway has counted.
            prompt_tokens=job.prompt_tokens + base if base else None,
            output_tokens_max=None if most is None else most - base,
            streams=job.streams,
            body_bytes=BYTES_PER_TOKEN * job.prompt_tokens,
            excluded=held.failed,
            prefix=_hashes(job, self._block_tokens) if job.prefix else (),
            session=job.session,
            is_continuation=base > 0,
            is_continuable=self.scheduler.policy.tiers[job.tier].continuation,
        )

    def _tell(self, event: Event, now: float) -> list[Decision]:
        """Hand one event to the scheduler; its decisions in the words of the world."""
        out: list[Decision] = []
        for decision in self.scheduler.handle(event, now):
            match decision:
                case Granted():
                    number = self._number[decision.request_id]
                    self._held[number].replica = decision.replica
                    self._looking.pop(number, None)
                    # An engine that has no policy for it ignores the priority.
                    index = self._index[decision.replica]
                    out.append(Sent(number, index, self._held[number].job.tier))
                case CoreRefused():
                    self._refuse(self._held[self._number[decision.request_id]], decision, now, out)
                case Recalled():
                    out.append(TakeBack(self._number[decision.request_id]))
                case MoveWanted():
                    out.append(TakeBack(self._number[decision.request_id], even_begun=True))
                case WakeWanted():
                    self._wake_at = decision.at
                    self._wish(out)
                case ScaleAdvised():
                    self.advice.append((now, decision.replicas))
                case _:
                    assert_never(decision)
        return out

    def _wish(self, out: list[Decision]) -> None:
        at = min(self._wake_at, self._look_at)
        if at < inf:
            out.append(Wake(at))

    def _over(
        self, number: int, outcome: Outcome, output_tokens: int, *, now: float
    ) -> list[Decision]:
        held = self._held[number]
        self._forget(held)
        if number in self._looking:
            del self._looking[number]
            return []
        if output_tokens > held.base or outcome is Outcome.DONE:
            usage, tpot_s = held.usage(output_tokens), held.tpot_s(output_tokens, now)
            return self._tell(Finished(held.id, outcome, usage, tpot_s), now)
        return self._tell(Finished(held.id, outcome), now)

    def _go_on(
        self, held: Held, output_tokens: int, *, now: float, may_try: bool
    ) -> list[Decision]:
        """What broke off or was moved asks again, as what is left of it."""
        del self._number[held.id]
        held.base, held.broke_at = output_tokens, now
        if not may_try:
            del self._held[held.job.number]
            return [Refused(held.job.number, reason="attempts")]
        return self._attempt(held, now)

    def _refuse(self, held: Held, refused: CoreRefused, now: float, out: list[Decision]) -> None:
        number = held.job.number
        if refused.reason is Reason.NO_REPLICA and held.broke_at is not None:
            wait_s = self.scheduler.policy.continuation_wait_s
            until = self._looking.setdefault(number, held.broke_at + wait_s)
            if now < until:
                self._number.pop(held.id, None)
                if self._look_at == inf:
                    self._look_at = now + ASK_AGAIN_S
                    self._wish(out)
                return
        self._looking.pop(number, None)
        self._forget(held)
        out.append(Refused(number, refused.retry_after_s, refused.reason.value))

    def _forget(self, held: Held) -> None:
        self._number.pop(held.id, None)
        del self._held[held.job.number]


def _hashes(job: Job, block_tokens: int) -> tuple[int, ...]:
    """The prompt's blocks as the gateway hashes them: equal where the trace's are."""
    if block_tokens >= PREFIX_BLOCK_TOKENS:
        parts = block_tokens // PREFIX_BLOCK_TOKENS
        hashes = tuple(block * parts + part for block in job.prefix for part in range(parts))
    else:
        every = PREFIX_BLOCK_TOKENS // block_tokens
        hashes = job.prefix[every - 1 :: every]
    return hashes[: job.prompt_tokens // PREFIX_BLOCK_TOKENS]
