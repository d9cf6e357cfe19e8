"""The dispatchers that fairgate is compared with, by name: where each comes from, how it is made.

Whether one needs engines that serve by priority is said here; no plan is known.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.sim.baselines.engine_priority import EnginePriority
from gateway.sim.baselines.fifo import Fifo
from gateway.sim.baselines.infaas import Infaas
from gateway.sim.baselines.llumlet import Llumlet
from gateway.sim.baselines.simple import LeastOutstanding, RoundRobin
from gateway.sim.baselines.tng import Tng
from gateway.sim.baselines.vtc import Vtc
from gateway.sim.world.dispatch import Dispatch

LLUMNIX_LEVELS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """One entry of the catalogue."""

    name: str
    about: str
    """One line, its source included."""
    make: Callable[[int], Dispatch] = field(repr=False)
    """From the number of tiers."""
    needs_priority: bool = False
    """Whether the engines serve by the priority that comes with a request."""


BASELINES = (
    Baseline(name="round-robin", about="one replica after the other", make=lambda _: RoundRobin()),
    Baseline(
        name="least-outstanding",
        about="at once, to the replica with the fewest requests",
        make=lambda _: LeastOutstanding(),
    ),
    Baseline(
        name="fifo",
        about="one queue before all replicas, first come, first served, into free slots",
        make=lambda _: Fifo(),
    ),
    Baseline(
        name="infaas",
        about="least cost by queue, step and health (ATC'21, as in arXiv 2608.16336)",
        make=Infaas,
    ),
    Baseline(
        name="vtc",
        about="token counters of users alone (OSDI'24, arXiv 2401.00588)",
        make=lambda _: Vtc(),
    ),
    Baseline(
        name="llumnix",
        about="freest first, two priorities, live migration (OSDI'24, arXiv 2406.03243)",
        make=lambda _: Llumlet(LLUMNIX_LEVELS),
        needs_priority=True,
    ),
    Baseline(
        name="llumlet",
        about="the same with K tiers (arXiv 2608.16336)",
        make=Llumlet,
        needs_priority=True,
    ),
    Baseline(
        name="tng",
        about="turns between users, before engines whose queue is short (TNG, 2025)",
        make=lambda _: Tng(),
    ),
    Baseline(
        name="engine-priority",
        about="at once, with the tier as the engine's own priority (vLLM)",
        make=lambda _: EnginePriority(),
        needs_priority=True,
    ),
)


def baseline_named(name: str) -> Baseline:
    """The entry of that name.

    Raises:
        ValueError: no such baseline; the message lists those there are.
    """
    for baseline in BASELINES:
        if baseline.name == name:
            return baseline
    names = ", ".join(baseline.name for baseline in BASELINES)
    raise ValueError(f"unknown dispatcher {name!r}; known: {names}")
