"""What a measurement says: medians over its rounds, ratios to peers, and what is stored of it.

It decides what the figures are, not how they are measured or shown.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from gateway.bench.contenders import FAIRGATE
from gateway.bench.doubts import doubts, fell_short, has_work
from gateway.bench.figures import FIGURES, Figure
from gateway.bench.harness import Measurement
from gateway.bench.machine import Machine
from gateway.bench.scenarios import Plan
from gateway.bench.speed import YARDSTICK, Speed, machine_speed
from gateway.bench.targets import DIRECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark: where, what was planned, what came out."""

    machine: Machine
    plan: Plan
    log_level: str
    programs: dict[str, str]
    """Version by contender, in the order of the columns."""
    measured: Measurement

    @property
    def figures(self) -> list[Figure]:
        """Those whose scenario was planned."""
        planned = {scenario.name for scenario in self.plan.scenarios}
        return [figure for figure in FIGURES if figure.scenario in planned]

    @property
    def peers(self) -> list[str]:
        """Who was measured beside the gateway."""
        return [name for name in self.programs if name != FAIRGATE.name]

    @property
    def speed(self) -> Speed:
        """How fast this machine is."""
        return machine_speed(lambda figure: self.median_of(figure, YARDSTICK))

    def values(self, figure: Figure, target: str) -> list[float]:
        """The figure of each round in which it could be taken; absolute for the direct target."""
        found = []
        for index in range(len(self.measured.rounds)):
            direct = self.measured.runs(index, DIRECT)
            value = (
                figure.of(direct)
                if target == DIRECT
                else figure.through(self.measured.runs(index, target), direct)
            )
            if value is not None:
                found.append(value)
        return found

    def median_of(self, figure: Figure, target: str) -> float | None:
        """The median over the rounds; None when no round has the figure."""
        values = self.values(figure, target)
        return median(values) if values else None

    def ratio(self, figure: Figure, peer: str) -> float | None:
        """How many times the gateway's figure a peer has; None where one is missing or not above 0.

        A difference of two latencies may be below 0 on a noisy machine, and has no ratio then.
        """
        own, other = self.median_of(figure, FAIRGATE.name), self.median_of(figure, peer)
        if own is None or other is None or min(own, other) <= 0:
            return None
        return other / own

    def is_short(self, figure: Figure, target: str) -> bool:
        """Whether less work than was asked for arrived in any of the figure's runs."""
        scenario = next(one for one in self.plan.scenarios if one.name == figure.scenario)
        rounds = (self.measured.runs(index, target) for index in range(len(self.measured.rounds)))
        return any(
            scenario.name in runs and fell_short(scenario, runs[scenario.name]) for runs in rounds
        )

    @property
    def is_sound(self) -> bool:
        """Whether the gateway itself was measured in every scenario without an error."""
        rounds = len(self.measured.rounds)
        runs = [self.measured.runs(index, FAIRGATE.name) for index in range(rounds)]
        return rounds == self.plan.rounds and all(
            scenario.name in of_round
            and not of_round[scenario.name].load.errors
            and has_work(of_round[scenario.name])
            for of_round in runs
            for scenario in self.plan.scenarios
        )


def as_json(report: Report, *, when: str) -> dict[str, object]:
    """The report as plain values, with every round's figures and every run."""
    targets = [DIRECT, *report.programs]
    return {
        "when": when,
        "plan": asdict(report.plan),
        "machine": asdict(report.machine),
        "log_level": report.log_level,
        "programs": report.programs,
        "is_sound": report.is_sound,
        "machine_factors": report.speed.factors,
        "figures": [_figure_json(report, figure, targets) for figure in report.figures],
        "doubts": doubts(report.plan, report.machine, report.measured),
        "rounds": [
            {
                target: {scenario: asdict(run) for scenario, run in runs.items()}
                for target, runs in of_round.items()
            }
            for of_round in report.measured.rounds
        ],
    }


def _figure_json(report: Report, figure: Figure, targets: Sequence[str]) -> dict[str, object]:
    own = report.median_of(figure, FAIRGATE.name)
    at_reference = report.speed.scaled(figure, own)
    return {
        "key": figure.key,
        "title": figure.title,
        "unit": figure.unit,
        "target": figure.target,
        "stretch": figure.stretch,
        "medians": {target: report.median_of(figure, target) for target in targets},
        "verdict": figure.verdict(own),
        "scaled_to_reference": at_reference,
        "scaled_verdict": figure.verdict(at_reference),
        "ratios": {peer: report.ratio(figure, peer) for peer in report.peers},
        "fell_short": [target for target in targets if report.is_short(figure, target)],
        "rounds": {target: report.values(figure, target) for target in targets},
    }
