"""Figures of a report: TTFT and TPOT by tier, who got how much over time, or the rows themselves.

matplotlib is an extra of the package and imported here alone, when something is drawn.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gateway.sim.experiments.report import Distribution, Report, Series

EXTRA = "plots"
PANEL_INCHES = (6.0, 4.0)
LOG_FROM = 30.0
CASES_MAX = 20
"""More than that nobody tells apart; a title says how many are left out."""
COLOURS = 10
"""Of matplotlib, before they come again."""
STYLES = ("-", "--")
DRAWN = ("p99", "light p99", "goodput", "replicas", "jain")
"""Rows are drawn by figures that begin so, where there is nothing else."""


class PlotsMissing(Exception):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__(f"figures need matplotlib: pip install 'fairgate[{EXTRA}]'")


def draw(report: Report, path: Path) -> None:
    """Write all figures of a report to one file; its suffix says how (.png, .svg, .pdf).

    Raises:
        PlotsMissing: the extra is not installed.
        ValueError: matplotlib knows no such suffix.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, wanted only here
    except ImportError as error:
        raise PlotsMissing from error

    panels = _panels(report)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    figure.suptitle(f"{report.name}: {report.about}")
    for index, panel in enumerate(panels):
        panel(figure.add_subplot(rows, columns, index + 1))
    figure.savefig(path, dpi=120, metadata={})


def _panels(report: Report) -> list[Callable[[Any], None]]:
    """What to draw, each on axes of its own."""
    panels: list[Callable[[Any], None]] = []
    tiers = sorted({each.tier for each in report.distributions})
    for name in ("ttft_s", "tpot_s"):
        for tier in tiers:
            here = [each for each in report.distributions if each.tier == tier]
            panels.append(partial(_curves, here=here, name=name))
    for case in dict.fromkeys(each.case for each in report.distributions):
        here = [each for each in report.distributions if each.case == case and each.ttft_s]
        if here:
            panels.append(partial(_violins, here=here))
    for kind in dict.fromkeys(each.kind for each in report.series):
        lines = [each for each in report.series if each.kind == kind]
        panels.append(partial(_over_time, lines=lines))
    return panels or [partial(_rows, report=report)]


def _curves(axes: Any, here: Sequence[Distribution], name: str) -> None:
    """Share of the requests that had it within so long."""
    for index, each in enumerate(here[:CASES_MAX]):
        values = getattr(each, name)
        if values:
            shares = [part / max(1, len(values) - 1) for part in range(len(values))]
            axes.plot(values, shares, _style(index), label=each.case)
    axes.set_xscale(_scale([value for each in here for value in getattr(each, name)]))
    axes.set_title(f"{name.removesuffix('_s').upper()}, tier {here[0].tier}{_left_out(here)}")
    axes.set_xlabel("seconds")
    axes.set_ylabel("share of requests")
    axes.set_ylim(0, 1)
    _explain(axes)


def _style(index: int) -> str:
    """Of the line of that number: once the colours are used up they come again, dashed."""
    return STYLES[index // COLOURS % len(STYLES)]


def _explain(axes: Any) -> None:
    """The legend, beside what is drawn and not over it."""
    axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))


def _left_out(cases: Sequence[object]) -> str:
    """What a title says of those that are not drawn."""
    return f" ({CASES_MAX} of {len(cases)})" if len(cases) > CASES_MAX else ""


def _scale(values: Sequence[float]) -> str:
    """Logarithmic where that leaves ticks with numbers: over decades."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    return "log" if least > 0 and most > LOG_FROM * least else "linear"


def _violins(axes: Any, here: Sequence[Distribution]) -> None:
    """TTFT of each tier of one case."""
    axes.violinplot([each.ttft_s for each in here], showmedians=True)
    axes.set_xticks(range(1, len(here) + 1), [f"tier {each.tier}" for each in here])
    axes.set_yscale(_scale([value for each in here for value in each.ttft_s]))
    axes.set_ylabel("TTFT, seconds")
    axes.set_title(here[0].case)


def _over_time(axes: Any, lines: Sequence[Series]) -> None:
    for index, each in enumerate(lines[:CASES_MAX]):
        instants = [span * each.every_s for span in range(len(each.values))]
        axes.plot(instants, each.values, _style(index), label=f"{each.case}: {each.name}")
    is_share = lines[0].kind == "share"
    what = "share of all service" if is_share else "gap between best and worst served"
    axes.set_title(f"{what}{_left_out(lines)}")
    axes.set_xlabel("seconds")
    axes.set_ylabel("share" if is_share else "weighted tokens")
    _explain(axes)


def _rows(axes: Any, report: Report) -> None:
    """The figures that matter, row by row."""
    drawn = [name for name in report.columns() if name.startswith(DRAWN)]
    for name in drawn:
        axes.plot([row.get(name) for row in report.rows], marker="o", label=name)
    labels = [
        " ".join(str(value) for value in list(row.values())[: _words(report)])
        for row in report.rows
    ]
    axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize="xx-small")
    _explain(axes)


def _words(report: Report) -> int:
    """How many of the first columns say where, not what."""
    names = list(report.columns())
    firsts = [index for index, name in enumerate(names) if name.startswith(DRAWN)]
    return max(1, min(firsts, default=1))
