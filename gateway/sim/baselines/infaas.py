"""The replica of least cost by queue length, expected step and health, as INFaaS was compared with.

Romero et al., "INFaaS: Automated Model-less Inference Serving" (ATC'21), in the form in which the
K-tier paper (arXiv 2608.16336) has it as its baseline: cost = outstanding x s + step ms x s +
penalty, with s = max(.5, 1 - .1 (K - 1 - tier)). Health follows a moving average of completion
latencies. Requests go at once, nothing waits here, and the engines serve first come, first served.
"""

from collections.abc import Sequence
from enum import Enum

from gateway.sim.baselines.simple import Forwarding
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Decisions, Machine, Truth

LATENCY_TARGET_MS = 1000.0
LATENCY_WEIGHT = 0.6
"""Of the newest completion in the moving average."""


class State(Enum):
    """How a replica fares; each with its penalty."""

    ACTIVE = 0.0
    INTERFERED = 0.5
    OVERLOADED = 1.0


LIMITS_MS = {
    State.ACTIVE: 0.0,
    State.INTERFERED: 1.15 * LATENCY_TARGET_MS,
    State.OVERLOADED: 1.3 * LATENCY_TARGET_MS,
}
DEPTHS = {State.ACTIVE: 0, State.INTERFERED: 1, State.OVERLOADED: 2}
TICKS = {State.ACTIVE: 0, State.INTERFERED: 2, State.OVERLOADED: 3}
"""Arrivals before one that is ill may recover."""


class Health:
    """What is remembered of one replica."""

    __slots__ = ("latency_ms", "state", "ticks_left")

    def __init__(self) -> None:
        self.state = State.ACTIVE
        self.latency_ms: float | None = None
        self.ticks_left = 0

    def tick(self, outstanding: int) -> None:
        """A request has arrived somewhere: what is ill may recover."""
        self.ticks_left = max(0, self.ticks_left - 1)
        if self.ticks_left or self.state is State.ACTIVE:
            return
        is_fast = self.latency_ms is None or self.latency_ms <= LIMITS_MS[self.state]
        if is_fast or outstanding <= DEPTHS[self.state]:
            self.state = State.ACTIVE

    def ended(self, latency_ms: float, outstanding: int) -> None:
        """A request has ended there."""
        before = latency_ms if self.latency_ms is None else self.latency_ms
        mean_ms = self.latency_ms = before + LATENCY_WEIGHT * (latency_ms - before)
        if mean_ms > LIMITS_MS[State.OVERLOADED] and outstanding > DEPTHS[State.OVERLOADED]:
            self.state = State.OVERLOADED
        elif mean_ms > LIMITS_MS[State.INTERFERED] and outstanding <= DEPTHS[State.INTERFERED]:
            self.state = State.INTERFERED
        else:
            self.state = State.ACTIVE
        self.ticks_left = TICKS[self.state]


def tier_scale(tier: int, tiers: int) -> float:
    """What queue and step count for a request of that tier: less, the higher it is."""
    return max(0.5, 1.0 - 0.1 * (tiers - 1 - tier))


class Infaas(Forwarding):
    """See the module."""

    def __init__(self, tiers: int) -> None:
        """`tiers`: K, how many there are."""
        super().__init__()
        self._tiers = tiers
        self._machines: Sequence[Machine] = ()
        self._health: list[Health] = []
        self._jobs: dict[int, Job] = {}
        self._sending: Job | None = None

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """See `Dispatch.begin`."""
        self._machines = machines
        self._health = [Health() for _ in machines]
        return super().begin(machines, truth, now)

    def arrived(self, job: Job, now: float) -> Decisions:
        """See `Dispatch.arrived`."""
        self._jobs[job.number] = job
        for health, outstanding in zip(self._health, self.outstanding, strict=True):
            health.tick(outstanding)
        return super().arrived(job, now)

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.ended`."""
        replica, job = self._at[number], self._jobs.pop(number)
        out = super().ended(number, now, output_tokens=output_tokens)
        latency_ms = 1000 * (now - job.arrived_at)
        self._health[replica].ended(latency_ms, self.outstanding[replica])
        return out

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.left`."""
        del self._jobs[number]
        return super().left(number, now, output_tokens=output_tokens)

    def choose(self, usable: Sequence[int]) -> int:
        """See `Forwarding.choose`; ties to the lowest index."""
        assert self._sending is not None
        job = self._sending
        active = [each for each in usable if self._health[each].state is State.ACTIVE]
        return min(active or usable, key=lambda replica: self._cost(replica, job))

    def _send(self, number: int) -> Decisions:
        self._sending = self._jobs[number]
        return super()._send(number)

    def _cost(self, replica: int, job: Job) -> float:
        tokens = job.prompt_tokens
        step_s = self._machines[replica].profile.step_s(
            tokens, decodes=0, kv_tokens=0, attended=tokens * tokens // 2
        )
        scale = tier_scale(job.tier, self._tiers)
        queue = self.outstanding[replica]
        return scale * queue + scale * 1000 * step_s + self._health[replica].state.value
