"""How figures of several gateways look in a terminal and in a file, and what to doubt of them."""

from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gateway.bench.cluster_figures import CLUSTER_FIGURES, part_of
from gateway.bench.cluster_spec import GATEWAYS, REPLICAS, SLOTS, USERS, ClusterResult, CostRun
from gateway.bench.machine import Machine
from gateway.bench.tables import number

CROWDED_CORES_MAX = 4
"""With so many or fewer the processes of a cluster make each other late."""


def cluster_rendered(result: ClusterResult, machine: Machine) -> Group:
    """The section of the report for a terminal."""
    doubted = [Text(f"doubt: {line}", style="yellow") for line in cluster_doubts(result, machine)]
    return Group(_figures(result, machine), _users(result), *doubted)


def cluster_json(result: ClusterResult) -> dict[str, object]:
    """All figures, and every window."""
    figures = [
        {
            "key": figure.key,
            "title": figure.title,
            "unit": figure.unit,
            "target": figure.target,
            "value": figure.of(result),
            "verdict": figure.verdict(figure.of(result)),
        }
        for figure in CLUSTER_FIGURES
    ]
    return {"figures": figures, **asdict(result)}


def cluster_doubts(result: ClusterResult, machine: Machine) -> list[str]:
    """Every reason, in words, not to trust a figure."""
    found = []
    if machine.is_busy:
        found.append(
            f"the machine was busy before the run: load average {machine.load_average:.1f}"
        )
    if machine.cores <= CROWDED_CORES_MAX:
        found.append(
            f"all processes share {machine.cores} cores: latencies are partly their waiting for one"
        )
    if result.unlimited_because:
        found.append(f"workers were not measured at their limit: {result.unlimited_because}")
    found += [
        f"{run.errors} errors of users, {run.gateways} gateways"
        for run in result.power
        if run.errors
    ]
    found += [
        f"round {index + 1}, {name}: {run.errors} errors"
        for index, name, run in _runs(result)
        if run.errors
    ]
    return found


def is_sound(result: ClusterResult) -> bool:
    """Whether everything was measured without an error."""
    errors = sum(run.errors for run in result.power)
    errors += sum(run.errors for _, _, run in _runs(result))
    needed = [
        each for each in CLUSTER_FIGURES if not (each.is_limited and result.unlimited_because)
    ]
    return not errors and all(figure.of(result) is not None for figure in needed)


def _runs(result: ClusterResult) -> Iterator[tuple[int, str, CostRun]]:
    for index, each in enumerate(result.cost):
        yield index, "a follower", each.follower
        ways = {"one alone": each.local, "workers": each.workers, "workers apart": each.apart}
        for way, loads in ways.items():
            yield from ((index, f"{way}, {load}", run) for load, run in loads.runs())


def _figures(result: ClusterResult, machine: Machine) -> Table:
    table = Table(
        title=f"several gateways, median of {len(result.cost)} interleaved rounds",
        caption=(
            f"{machine.processor}, {machine.cores} cores, Linux {machine.kernel}, "
            f"Redis {result.redis_version}\n"
            f"latency and CPU at {result.requests_per_s:,.0f} requests/s, "
            "a quarter of what one gateway does here"
        ),
    )
    table.add_column("figure")
    for name in ("unit", "target", "value", "verdict"):
        table.add_column(name, justify="right")
    for figure in CLUSTER_FIGURES:
        value = figure.of(result)
        verdict = figure.verdict(value)
        style = {"missed": "red", "met": "green"}.get(verdict, "")
        cells = (figure.unit, number(figure.target), number(value))
        table.add_row(figure.title, *cells, Text(verdict, style=style))
    return table


def _users(result: ClusterResult) -> Table:
    table = Table(
        title=f"who got what of {REPLICAS} emulated replicas with {SLOTS} slots each",
        caption="share of all requests; seconds in the queue, and to the whole answer",
    )
    table.add_column("user")
    for gateways in (GATEWAYS, 1):
        through = "one" if gateways == 1 else str(gateways)
        for name in ("share", "wait", "time"):
            table.add_column(f"{name}, {through}", justify="right")
    for user, clients in USERS.items():
        cells = []
        for gateways in (GATEWAYS, 1):
            part = part_of(result, user, gateways)
            if part is None:
                cells += ["-", "-", "-"]
            else:
                cells += [f"{part.share:.1%}", f"{part.wait_s:.3f}", f"{part.time_s:.3f}"]
        table.add_row(f"{user}, {clients} clients", *cells)
    return table
