"""`fairgate simulate`: experiments by name, or a scenario from a file.

It decides what is printed, and where.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gateway.core.policy import Policy
    from gateway.sim.experiments.experiment import Experiment
    from gateway.sim.experiments.report import Report

SUFFIXES = (".yaml", ".yml")
PREFIX = "FAIRGATE_"
NOWHERE = "http://127.0.0.1:1"


def simulate(
    name: Annotated[
        str | None, typer.Argument(help="An experiment (--list shows them), or a scenario's YAML.")
    ] = None,
    *,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each point.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, max=64, help="Play at once; default: all cores.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything: seconds.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the report there; - is standard output.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw there: .png, .svg or .pdf (extra: plots).")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of a parameter; may be repeated.")
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="The experiments and their parameters.")
    ] = False,
) -> None:
    """Play an experiment, or your own scenario, under a virtual clock."""
    if show_list or name is None:
        _print_list()
        return
    try:
        experiment = _chosen(name)
        values = dict(_pair(text) for text in sets or ())
        if plot is not None:
            _check_plots()
        report = _run(
            experiment,
            values,
            seeds=seeds,
            processes=processes or os.cpu_count() or 1,
            quick=quick,
        )
        _write(report, json_file, plot)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(2) from None


def _print_list() -> None:
    import msgspec
    from rich.console import Console
    from rich.table import Table

    from gateway.sim.experiments.catalogue import experiments
    from gateway.sim.experiments.setting import DISPATCHERS
    from gateway.sim.workload.catalogue import workloads

    console = Console()
    table = Table("experiment", "what it shows", "parameters")
    for each in experiments():
        knobs = msgspec.to_builtins(each.knobs)
        told = ", ".join(f"{key}={_plainly(value)}" for key, value in knobs.items())
        table.add_row(each.name, each.about, told)
    console.print(table)
    known = Table("workload", "what it is", "knobs")
    for workload in workloads():
        known.add_row(workload.name, workload.about, ", ".join(workload.knobs))
    console.print(known)
    console.print(f"dispatchers: {', '.join(DISPATCHERS)}", highlight=False)


def _plainly(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _chosen(name: str) -> "Experiment[Any]":
    from gateway.sim.experiments.catalogue import experiment_named
    from gateway.sim.experiments.scenario import scenario_from

    if name.endswith(SUFFIXES):
        return scenario_from(Path(name), _policy)
    return experiment_named(name)


def _policy(path: Path) -> "Policy":
    """Of a configuration file alone: what runs here is not what this machine's environment says."""
    from gateway.settings import SettingsError, load_settings

    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    try:
        return load_settings(config=path, environ=environ, overrides={}).policy()
    except SettingsError as error:
        if not all("no replica" in each for each in error.errors):
            raise ValueError(str(error)) from None
    # A policy alone will do: the engines are the scenario's.
    nowhere = {"replicas": (NOWHERE,)}
    return load_settings(config=path, environ=environ, overrides=nowhere).policy()


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ValueError(f"--set takes key=value, got {text!r}")
    return key, value


def _check_plots() -> None:
    """A run of minutes is not thrown away for want of a package."""
    from importlib.util import find_spec

    from gateway.sim.plots import PlotsMissing

    if find_spec("matplotlib") is None:
        raise ValueError(str(PlotsMissing()))


def _run(
    experiment: "Experiment[Any]",
    values: dict[str, str],
    *,
    seeds: int | None,
    processes: int,
    quick: bool,
) -> "Report":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(experiment.name, total=None)
        return experiment.run(
            values,
            seeds=seeds,
            processes=processes,
            quick=quick,
            progress=lambda done, of: bar.update(task, completed=done, total=of),
        )


def _write(report: "Report", json_file: Path | None, plot: Path | None) -> None:
    from rich.console import Console

    from gateway.sim.experiments.report import needed_width

    if json_file is not None and str(json_file) == "-":
        sys.stdout.write(report.to_json())
    else:
        console = Console()
        table = report.table()
        # What does not fit is wrapped by the terminal, not cut: a file has no width at all.
        console.width = max(console.width, needed_width(table, console))
        console.print(table)
        for note in report.notes:
            console.print(f"- {note}", highlight=False)
        if json_file is not None:
            json_file.write_text(report.to_json())
    if plot is not None:
        from gateway.sim.plots import draw

        draw(report, plot)
