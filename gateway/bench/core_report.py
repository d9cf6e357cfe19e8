"""What the core's measurement says: figures beside their targets, and reasons to doubt them."""

from dataclasses import asdict

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gateway.bench.core_figures import CORE_FIGURES, CoreFigure, Spread
from gateway.bench.core_spec import CoreResult, CoreRun
from gateway.bench.machine import Machine
from gateway.bench.tables import number

SPREAD_SHARE = 0.25
"""Repetitions do the same work; where they differ by more, the machine was not quiet."""
DEPTH_SHARE = 0.01
"""Of the requests that are to wait: a steady state keeps their number within this."""


def core_doubts(result: CoreResult) -> list[str]:
    """Every reason, in words, not to trust a figure of the core."""
    return [f"core, {name}: {why}" for name, run in result.runs.items() for why in _doubts(run)]


def core_rendered(result: CoreResult, machine: Machine) -> Group:
    """The core's section for a terminal."""
    parts: list[Table | Text] = [_table(result, machine)]
    parts += [Text(f"{name}: {_kinds_in_words(run)}") for name, run in result.runs.items()]
    parts += [Text(f"doubt: {line}", style="yellow") for line in core_doubts(result)]
    return Group(*parts)


def core_json(result: CoreResult) -> dict[str, object]:
    """The core's section as plain values, with every repetition."""
    return {
        "figures": [_figure_json(figure, result) for figure in CORE_FIGURES],
        "doubts": core_doubts(result),
        **asdict(result),
    }


def _doubts(run: CoreRun) -> list[str]:
    found = []
    if run.refused:
        found.append(f"{run.refused} requests were refused")
    if not run.is_repeatable:
        found.append("the same events left other requests waiting")
    slack = run.load.waiting * DEPTH_SHARE
    if max(run.waiting_max - run.load.waiting, run.load.waiting - run.waiting_min) > slack:
        found.append(f"between {run.waiting_min:,} and {run.waiting_max:,} waited")
    spread = max(run.event_us) / min(run.event_us) - 1
    if spread > SPREAD_SHARE:
        found.append(f"the slowest repetition took {spread:.0%} longer than the fastest")
    if len(run.event_us) == 1:
        found.append("measured only once")
    return found


def _table(result: CoreResult, machine: Machine) -> Table:
    repetitions = max((len(run.event_us) for run in result.runs.values()), default=0)
    table = Table(
        title=f"scheduler core by itself, {repetitions} repetitions",
        caption=(
            f"{machine.processor}, Linux {machine.kernel}\n"
            f"fairgate {machine.versions['fairgate']}, python {machine.versions['python']}\n"
            "an event is one call of handle(); the verdict is that of the median"
        ),
    )
    table.add_column("figure")
    for name in ("unit", "target", "stretch", "best", "median", "verdict"):
        table.add_column(name, justify="right")
    for figure in CORE_FIGURES:
        spread = figure.of(result)
        limits = [Text(number(limit)) for limit in (figure.target, figure.stretch)]
        table.add_row(Text(figure.title), Text(figure.unit), *limits, *_cells(figure, spread))
    return table


def _cells(figure: CoreFigure, spread: Spread | None) -> list[Text]:
    if spread is None:
        return [Text("-"), Text("-"), Text("-")]
    verdict = figure.verdict(spread.median)
    style = {"missed": "red", "": ""}.get(verdict, "green")
    return [
        Text(number(spread.best)),
        Text(number(spread.median), style=style),
        Text(verdict or "-", style=style),
    ]


def _kinds_in_words(run: CoreRun) -> str:
    """Where the time goes: of each kind its share of the time, and the cost of one."""
    total_us = sum(cost.count * cost.mean_us for cost in run.kinds.values())
    return ", ".join(
        f"{kind} {cost.count * cost.mean_us / total_us:.0%} ({number(cost.mean_us)} us)"
        for kind, cost in run.kinds.items()
    )


def _figure_json(figure: CoreFigure, result: CoreResult) -> dict[str, object]:
    spread = figure.of(result)
    return {
        "key": figure.key,
        "title": figure.title,
        "unit": figure.unit,
        "target": figure.target,
        "stretch": figure.stretch,
        "best": None if spread is None else spread.best,
        "median": None if spread is None else spread.median,
        "verdict": "" if spread is None else figure.verdict(spread.median),
    }
