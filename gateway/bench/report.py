"""What a measurement says: medians beside their targets, and every reason to doubt them.

It decides how figures are shown and stored, not how they are measured.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gateway.bench.contenders import FAIRGATE
from gateway.bench.doubts import doubts, has_work
from gateway.bench.figures import CPU_PER_EVENT, CPU_PER_REQUEST, FIGURES, Figure
from gateway.bench.harness import DIRECT, Measurement
from gateway.bench.machine import Machine
from gateway.bench.scenarios import Plan

YARDSTICK = "nginx"
YARDSTICK_US = ((CPU_PER_REQUEST, 17.0), (CPU_PER_EVENT, 17.5))
"""What nginx 1.22 needed on the machine on which the targets were set (AMD EPYC, pinned core)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark: where, what was planned, what came out."""

    machine: Machine
    plan: Plan
    programs: dict[str, str]
    """Version by contender, in the order of the columns."""
    measured: Measurement

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


def machine_speed(report: Report) -> str | None:
    """How much slower nginx is here than where the targets were set; None when it did not run."""
    medians = [report.median_of(figure, YARDSTICK) for figure, _ in YARDSTICK_US]
    ratios = [here / there[1] for here, there in zip(medians, YARDSTICK_US, strict=True) if here]
    if len(ratios) != len(YARDSTICK_US):
        return None
    return (
        f"this machine: {YARDSTICK} needs {ratios[0]:.2f} times the CPU per request and "
        f"{ratios[1]:.2f} times the CPU per event of the machine on which the targets were set"
    )


def comparisons(report: Report) -> list[str]:
    """How many times the gateway's CPU each peer needs, and how fast the machine is."""
    speed = machine_speed(report)
    lines = [] if speed is None else [speed]
    for name in report.programs:
        ratios = [_ratio(report, figure, name) for figure in (CPU_PER_REQUEST, CPU_PER_EVENT)]
        if name != FAIRGATE.name and None not in ratios:
            lines.append(
                f"{name} needs {ratios[0]:.2f} times the CPU per request and {ratios[1]:.2f} times"
                f" the CPU per event at 5k/s"
            )
    return lines


def rendered(report: Report) -> Group:
    """The report for a terminal."""
    parts: list[Table | Text] = [_table(report)]
    parts += [Text(line) for line in comparisons(report)]
    parts += [
        Text(f"doubt: {line}", style="yellow")
        for line in doubts(report.plan, report.machine, report.measured)
    ]
    return Group(*parts)


def number(value: float | None) -> str:
    """Three digits at most below 100, whole from there on; a dash for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_json(report: Report, *, when: str) -> dict[str, object]:
    """The report as plain values, with every round's figures and every run."""
    targets = [DIRECT, *report.programs]
    return {
        "when": when,
        "plan": asdict(report.plan),
        "machine": asdict(report.machine),
        "programs": report.programs,
        "is_sound": report.is_sound,
        "figures": [_figure_json(report, figure, targets) for figure in FIGURES],
        "comparisons": comparisons(report),
        "doubts": doubts(report.plan, report.machine, report.measured),
        "rounds": [
            {
                target: {scenario: asdict(run) for scenario, run in runs.items()}
                for target, runs in of_round.items()
            }
            for of_round in report.measured.rounds
        ],
    }


def _ratio(report: Report, figure: Figure, peer: str) -> float | None:
    own, other = report.median_of(figure, FAIRGATE.name), report.median_of(figure, peer)
    return other / own if own and other else None


def _table(report: Report) -> Table:
    machine = report.machine
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    table = Table(
        title=f"overhead, median of {report.plan.rounds} rounds ({report.plan.name})",
        caption=(
            f"{machine.processor}, {machine.cores} cores, Linux {machine.kernel}\n{versions}\n"
            "the direct column is absolute; the others are what the gateway costs or adds"
        ),
    )
    table.add_column("figure")
    for name in ("unit", "target", "stretch", DIRECT, *report.programs):
        table.add_column(name, justify="right")
    for figure in FIGURES:
        cells = [_cell(report, figure, name) for name in (DIRECT, *report.programs)]
        limits = [Text(number(limit)) for limit in (figure.target, figure.stretch)]
        table.add_row(Text(figure.title), Text(figure.unit), *limits, *cells)
    return table


def _cell(report: Report, figure: Figure, target: str) -> Text:
    value = report.median_of(figure, target)
    if value is None or target == DIRECT:
        return Text(number(value))
    styles = {True: "green", False: "red", None: ""}
    return Text(number(value), style=styles[figure.is_met(value)])


def _figure_json(report: Report, figure: Figure, targets: Sequence[str]) -> dict[str, object]:
    values = {target: report.values(figure, target) for target in targets}
    return {
        "key": figure.key,
        "title": figure.title,
        "unit": figure.unit,
        "target": figure.target,
        "stretch": figure.stretch,
        "medians": {target: report.median_of(figure, target) for target in targets},
        "rounds": values,
    }
