"""Tiers left to the engines: each request goes at once, its tier as the engine's own priority.

What `--scheduling-policy priority` of vLLM gives by itself, behind a balancer by fewest
outstanding. Engines of another policy ignore the priority.
"""

from gateway.sim.baselines.simple import LeastOutstanding
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Decisions, Sent


class EnginePriority(LeastOutstanding):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._tiers: dict[int, int] = {}

    def arrived(self, job: Job, now: float) -> Decisions:
        """See `Dispatch.arrived`."""
        self._tiers[job.number] = job.tier
        return super().arrived(job, now)

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.ended`."""
        del self._tiers[number]
        return super().ended(number, now, output_tokens=output_tokens)

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.left`."""
        del self._tiers[number]
        return super().left(number, now, output_tokens=output_tokens)

    def _send(self, number: int) -> Decisions:
        return [
            Sent(decision.number, decision.replica, self._tiers[number])
            for decision in super()._send(number)
            if isinstance(decision, Sent)
        ]
