"""Why a measurement may not mean what it seems to: errors, a busy machine, a pace not kept."""

from collections.abc import Callable, Iterator

from gateway.bench.figures import Run
from gateway.bench.harness import Measurement
from gateway.bench.machine import Machine
from gateway.bench.scenarios import Plan, Scenario

SATURATED_SHARE = 0.95
"""Of a core that engine or clients have: above it, latencies are partly their own queueing."""
SHARING_CORES_MAX = 2
"""With so many cores or fewer, engine and clients have one together."""
FOREIGN_SHARE = 0.10
"""Of one core, taken by processes that are no part of the run."""
PACE_KEPT_SHARE = 0.95
"""Less work than this share of what was asked for: the target, or the load, did not keep up."""

Place = tuple[str, Scenario, Run]
"""Round and target in words, the scenario, and its run there."""


def doubts(plan: Plan, machine: Machine, measured: Measurement) -> list[str]:
    """Every reason, in words, not to trust a figure of this measurement."""
    places = list(_places(plan, measured))
    found = [f"{name} failed: {why}" for name, why in measured.failures.items()]
    if machine.is_busy:
        found.append(
            f"the machine was busy before the run: load average {machine.load_average:.1f}"
        )
    for where, _, run in places:
        if run.load.errors:
            found.append(f"{where}: {run.load.errors} errors {run.load.error_kinds}")
        if not has_work(run):
            found.append(f"{where}: nothing arrived")
    return [
        *found,
        *_summed_up(places, _foreign, "other processes took up to {:.0%} of a core", FOREIGN_SHARE),
        *_summed_up(
            places,
            _busy(machine),
            "engine and clients took up to {:.0%} of a core",
            SATURATED_SHARE,
        ),
        *_summed_up(
            places,
            missing_share,
            "up to {:.0%} of what was asked for did not arrive",
            1 - PACE_KEPT_SHARE,
        ),
    ]


def fell_short(scenario: Scenario, run: Run) -> bool:
    """Whether much less arrived than the load asked for."""
    return missing_share(scenario, run) > 1 - PACE_KEPT_SHARE


def missing_share(scenario: Scenario, run: Run) -> float:
    """How much of what was asked for is missing: events, requests of an open loop, streams.

    A single stream is a closed loop: the next one begins when the last one has ended.
    """
    spec, load = scenario.load, run.load
    asked = [
        (spec.requests_per_s * load.elapsed_s, load.requests),
        (spec.events_per_s * load.elapsed_s if spec.connections > 1 else 0.0, load.events),
    ]
    if spec.stream:
        asked.append((spec.connections, load.open_connections))
    return max(1 - arrived / due if due else 0.0 for due, arrived in asked)


def has_work(run: Run) -> bool:
    """Whether anything at all arrived in the window."""
    return run.load.requests + run.load.events > 0


def _places(plan: Plan, measured: Measurement) -> Iterator[Place]:
    for index, of_round in enumerate(measured.rounds):
        for target, runs in of_round.items():
            for scenario in plan.scenarios:
                if scenario.name in runs:
                    where = f"round {index + 1}, {scenario.name}, {target}"
                    yield where, scenario, runs[scenario.name]


def _summed_up(
    places: list[Place], share: Callable[[Scenario, Run], float], words: str, limit: float
) -> list[str]:
    """One line for all runs whose share is above the limit: a busy machine meets most of them."""
    above = [
        (value, where) for where, scenario, run in places if (value := share(scenario, run)) > limit
    ]
    if not above:
        return []
    worst, where = max(above)
    return [f"{words.format(worst)} in {len(above)} of {len(places)} runs, most in {where}"]


def _foreign(scenario: Scenario, run: Run) -> float:
    return run.load.foreign_cpu_share


def _busy(machine: Machine) -> Callable[[Scenario, Run], float]:
    """A closed loop of plain requests takes all there is, by design."""
    together = sum if machine.cores <= SHARING_CORES_MAX else max

    def share(scenario: Scenario, run: Run) -> float:
        spec = scenario.load
        is_paced = spec.stream or spec.requests_per_s > 0
        busy_s = together((run.upstream.cpu_s, run.load.own_cpu_s))
        return busy_s / run.load.elapsed_s if is_paced else 0.0

    return share
