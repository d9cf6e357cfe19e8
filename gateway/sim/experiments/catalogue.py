"""The experiments there are, by name. The one list for command line, documents and tests."""

from typing import Any

from gateway.sim.experiments.beside import (
    BesideKnobs,
    beside,
    beside_points,
    judge_beside,
)
from gateway.sim.experiments.experiment import Experiment
from gateway.sim.experiments.failover import FailoverKnobs, failover, failover_points
from gateway.sim.experiments.goodput import GoodputKnobs, goodput, goodput_points, judge_goodput
from gateway.sim.experiments.paper import PaperKnobs, judge_paper, paper_points, paper_tables
from gateway.sim.experiments.power_user import PowerKnobs, judge_power, power_points, power_user
from gateway.sim.experiments.sizing import (
    CapacityKnobs,
    ScaleKnobs,
    autoscale,
    capacity,
    capacity_points,
    scale_points,
)
from gateway.sim.experiments.tiered import (
    GateKnobs,
    HeadroomKnobs,
    HonestKnobs,
    MigrationKnobs,
    TierKnobs,
    gate_points,
    gate_sweep,
    headroom_points,
    headroom_sweep,
    honest,
    honest_points,
    judge_honest,
    migration_points,
    migration_sweep,
    tier_points,
    tier_sweep,
)

PAPER = "set-up of arXiv 2608.16336; step times fitted to Vidur's profiles (MIT, arXiv 2405.05465)"
SERVEGEN = "ServeGen (Apache-2.0), sampled; see gateway/sim/workload/data/LICENCES.md"
TRACES = "recorded traces; origins and licences in gateway/sim/workload/data/LICENCES.md"


def experiments() -> tuple[Experiment[Any], ...]:
    """All of them, in the order in which they are listed."""
    return (*_on_the_papers_load(), *_on_traces(), *_of_knobs(), *_of_fleets())


def experiment_named(name: str) -> Experiment[Any]:
    """The entry of that name.

    Raises:
        ValueError: no such experiment; the message lists those there are.
    """
    known = experiments()
    for experiment in known:
        if experiment.name == name:
            return experiment
    names = ", ".join(experiment.name for experiment in known)
    raise ValueError(f"unknown experiment {name!r}; known: {names}")


def _on_the_papers_load() -> tuple[Experiment[Any], ...]:
    """Tiers, before the fleet of the paper."""
    return (
        Experiment(
            name="paper-tables",
            about="the paper's 72 speed-ups, printed and reproduced, its model's errors included",
            knobs=PaperKnobs(),
            quick={"mixes": ("uniform",), "requests": (10_000,), "tiers": (3,)},
            points=paper_points,
            measure=paper_tables,
            judge=judge_paper,
            sources=(PAPER,),
        ),
        Experiment(
            name="paper-honest",
            about="the paper's load with correct KV: what tiers buy, and who pays",
            knobs=HonestKnobs(),
            quick={"requests": 300},
            points=honest_points,
            measure=honest,
            judge=judge_honest,
            seeds=5,
            sources=(PAPER,),
        ),
        Experiment(
            name="k-sweep",
            about="1 to 10 tiers, three mixes, two sizes",
            knobs=TierKnobs(),
            quick={"tiers": (1, 4), "shapes": ("enterprise",), "sizes": (300,)},
            points=tier_points,
            measure=tier_sweep,
            sources=(PAPER,),
        ),
    )


def _of_knobs() -> tuple[Experiment[Any], ...]:
    """One knob of the scheduler each."""
    return (
        Experiment(
            name="gate-sweep",
            about="how many may wait inside an engine, by how often it is asked",
            knobs=GateKnobs(),
            quick={"requests": 200, "thresholds": (0, 8), "scrape_intervals_s": (1.0,)},
            points=gate_points,
            measure=gate_sweep,
            sources=(PAPER,),
        ),
        Experiment(
            name="headroom-sweep",
            about="how much is kept free for higher tiers, and what it costs",
            knobs=HeadroomKnobs(),
            quick={"requests": 200, "headrooms": (0.0, 0.2), "rates_per_s": (500.0,)},
            points=headroom_points,
            measure=headroom_sweep,
            sources=(PAPER,),
        ),
        Experiment(
            name="migration-sweep",
            about="moving what waits and what runs, inside the engines and before them",
            knobs=MigrationKnobs(),
            quick={"requests": 200, "lengths": (512,)},
            points=migration_points,
            measure=migration_sweep,
            sources=(PAPER,),
        ),
    )


def _of_fleets() -> tuple[Experiment[Any], ...]:
    """Replicas that die, come, and are counted."""
    return (
        Experiment(
            name="failover",
            about="one replica of four dies under load, and comes back",
            knobs=FailoverKnobs(),
            quick={"requests": 300, "dies_at_s": 0.4, "away_s": 1.0},
            points=failover_points,
            measure=failover,
            sources=(PAPER,),
        ),
        Experiment(
            name="autoscale",
            about="the scheduler's advice followed, by how long a replica takes to start",
            knobs=ScaleKnobs(),
            quick={
                "until_s": 24.0,
                "on_s": 8.0,
                "off_s": 8.0,
                "power_rate_per_s": 30.0,
                "starts_s": (5.0,),
                "replicas_max": 3,
            },
            points=scale_points,
            measure=autoscale,
        ),
        Experiment(
            name="capacity",
            about="the smallest fleet with which every tier meets its target",
            knobs=CapacityKnobs(),
            quick={"limit": 80, "replicas_max": 4, "dispatchers": ("fairgate", "fifo")},
            points=capacity_points,
            measure=capacity,
            sources=(TRACES,),
        ),
        Experiment(
            name="batch-beside-people",
            about="TTFT and TPOT beside a batch of 50,000 lines, and what it uses of what is idle",
            knobs=BesideKnobs(),
            quick={"loads": (0.6,), "slots": 16, "warm_s": 10.0, "until_s": 40.0},
            points=beside_points,
            measure=beside,
            judge=judge_beside,
            seeds=1,
        ),
    )


def _on_traces() -> tuple[Experiment[Any], ...]:
    """Recorded requests, by every dispatcher."""
    return (
        Experiment(
            name="power-user",
            about="one client sends 77 % of all requests: what the light ones get",
            knobs=PowerKnobs(),
            quick={"limit": 150, "dispatchers": ("fairgate", "fifo")},
            points=power_points,
            measure=power_user,
            judge=judge_power,
            sources=(SERVEGEN,),
        ),
        Experiment(
            name="goodput",
            about="requests that meet their targets: all dispatchers, all traces, load .5 to 1.5",
            knobs=GoodputKnobs(),
            quick={
                "traces": ("lmsys-clients",),
                "loads": (1.25,),
                "limit": 60,
                "dispatchers": ("fairgate", "fifo", "vtc"),
            },
            points=goodput_points,
            measure=goodput,
            judge=judge_goodput,
            seeds=1,
            sources=(TRACES,),
        ),
    )
