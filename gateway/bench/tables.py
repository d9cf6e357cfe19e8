"""How a report looks in a terminal: figures beside targets, ratios to peers, versions, doubts."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gateway.bench.contenders import FAIRGATE
from gateway.bench.doubts import doubts
from gateway.bench.figures import Figure
from gateway.bench.report import Report
from gateway.bench.speed import YARDSTICK
from gateway.bench.targets import DIRECT

STYLES = {"not met": "red", "met": "green", "stretch": "green", "": ""}
SCALED = f"scaled by {YARDSTICK}"
SHORT = "*"


def rendered(report: Report) -> Group:
    """The report for a terminal."""
    parts: list[Table | Text] = [_figures(report)]
    ratios = _ratios(report)
    if ratios.row_count:
        parts.append(ratios)
    parts.append(_versions(report))
    if report.speed.factors:
        parts.append(Text(report.speed.in_words()))
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


def _figures(report: Report) -> Table:
    is_scaled = bool(report.speed.factors)
    table = Table(title=_title(report), caption=_caption(is_scaled))
    table.add_column("figure")
    for name in ("unit", "target", "stretch", DIRECT, FAIRGATE.name, "verdict"):
        table.add_column(name, justify="right")
    if is_scaled:
        table.add_column(SCALED, justify="right")
        table.add_column("verdict", justify="right")
    for name in report.peers:
        table.add_column(name, justify="right")
    for figure in report.figures:
        table.add_row(*_row(report, figure, is_scaled=is_scaled))
    return table


def _row(report: Report, figure: Figure, *, is_scaled: bool) -> list[Text]:
    own = report.median_of(figure, FAIRGATE.name)
    limits = [Text(number(limit)) for limit in (figure.target, figure.stretch)]
    cells = [Text(figure.title), Text(figure.unit), *limits, _cell(report, figure, DIRECT)]
    cells += [_cell(report, figure, FAIRGATE.name), _verdict(figure, own)]
    if is_scaled:
        at_reference = report.speed.scaled(figure, own)
        cells += [Text(number(at_reference)), _verdict(figure, at_reference)]
    return cells + [_cell(report, figure, name) for name in report.peers]


def _cell(report: Report, figure: Figure, target: str) -> Text:
    value = number(report.median_of(figure, target))
    return Text(f"{value}{SHORT}" if report.is_short(figure, target) else value)


def _verdict(figure: Figure, value: float | None) -> Text:
    verdict = figure.verdict(value)
    return Text(verdict, style=STYLES[verdict])


def _title(report: Report) -> str:
    rounds = report.plan.rounds
    return (
        f"overhead, median of {rounds} interleaved round{'s' if rounds > 1 else ''} "
        f"({report.plan.name}), log level {report.log_level}"
    )


def _caption(is_scaled: bool) -> str:
    lines = [
        f"{DIRECT} is absolute; the others are what a gateway costs or adds",
        f"{SHORT} less arrived than the load asked for: see the doubts",
    ]
    if is_scaled:
        lines.insert(
            0,
            f"{SCALED}: not measured, but the figure divided by the machine factor below: "
            "an estimate at the reference machine's speed",
        )
    return "\n".join(lines)


def _ratios(report: Report) -> Table:
    table = Table(
        title=f"how many times {FAIRGATE.name}'s figure each peer has",
        caption=f"above 1: {FAIRGATE.name} needs less",
    )
    table.add_column("figure")
    for name in report.peers:
        table.add_column(name, justify="right")
    for figure in report.figures:
        ratios = [report.ratio(figure, name) for name in report.peers]
        # More per second, or more open streams, is no cost.
        if (figure.target is not None or figure.scaled_by is not None) and any(ratios):
            cells = [Text("-" if ratio is None else f"{ratio:.2f}") for ratio in ratios]
            table.add_row(Text(figure.title), *cells)
    return table


def _versions(report: Report) -> Table:
    machine = report.machine
    table = Table(
        title="versions",
        caption=f"{machine.processor}, {machine.cores} cores, Linux {machine.kernel}",
    )
    table.add_column("program")
    table.add_column("version")
    for name, version in report.programs.items():
        table.add_row(Text(name), Text(version))
    libraries = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    table.add_row(Text("libraries"), Text(libraries))
    return table
