"""`fairgate bench`: finds the contenders, runs the plan, prints the reports and stores them."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group

from gateway.bench.contenders import FAIRGATE, Contender, peer_named
from gateway.bench.core_report import core_json, core_rendered
from gateway.bench.core_spec import CoreResult
from gateway.bench.harness import Entrant, Harness
from gateway.bench.launch import StartFailed, choose_cores, run_core, usable_cores
from gateway.bench.machine import Machine, this_machine
from gateway.bench.process import PROC
from gateway.bench.report import Report, as_json, rendered
from gateway.bench.scenarios import Plan, full_plan, quick_plan

RESULTS = Path("bench-results")
OVERHEAD, CORE = PARTS = ("overhead", "core")
"""What can be measured by itself: what the gateway costs, and what its scheduler does."""


def bench(*, full: bool, peers: list[str], json_path: Path | None, only: str | None = None) -> int:
    """Measure the gateway's own overhead, beside `peers`, and its scheduler core, or `only` one.

    Returns the exit status. 0: measured without an error, whether or not the targets are met;
    1: something did not start or made errors; 2: wrong arguments, or a system without /proc. The
    JSON goes to `json_path`, by default to a new file in `bench-results/`.
    """
    console = Console(stderr=True)
    parts = PARTS if only is None else (only,)
    try:
        entrants = _entrants(_contenders(parts, peers), console)
    except ValueError as error:
        _say(console, str(error))
        return 2
    when, machine = datetime.now(UTC), this_machine()
    stored: dict[str, object] = {"when": when.isoformat(), "machine": asdict(machine)}
    is_sound = True
    if OVERHEAD in parts:
        report = _overhead(full_plan() if full else quick_plan(), machine, entrants, console)
        _show(rendered(report))
        stored |= as_json(report, when=when.isoformat())
        is_sound = report.is_sound
    if CORE in parts:
        result = _core(console)
        is_sound = is_sound and result is not None
        if result is not None:
            _show(core_rendered(result, machine))
            stored["core"] = core_json(result)
    _store(stored, json_path or RESULTS / f"bench-{when:%Y%m%d-%H%M%S}.json", console)
    return 0 if is_sound else 1


def _contenders(parts: Sequence[str], peers: Sequence[str]) -> list[Contender]:
    """Who takes part; raises ValueError when that cannot be."""
    if not (PROC / "self" / "stat").exists():
        raise ValueError("fairgate bench reads CPU time from /proc: it needs Linux")
    if not set(parts) <= set(PARTS):
        raise ValueError(f"no part {parts[0]!r}; there are: {', '.join(PARTS)}")
    return [FAIRGATE, *map(peer_named, peers)] if OVERHEAD in parts else []


def _overhead(
    plan: Plan, machine: Machine, entrants: Sequence[Entrant], console: Console
) -> Report:
    harness = Harness(
        plan, entrants, choose_cores(usable_cores()), lambda line: _say(console, line)
    )
    return Report(
        machine=machine,
        plan=plan,
        programs={entrant.name: entrant.contender.version(entrant.program) for entrant in entrants},
        measured=harness.measure(),
    )


def _core(console: Console) -> CoreResult | None:
    """The core, measured on the gateway's own processor core; None when that failed."""
    _say(console, "scheduler core")
    try:
        return run_core(core=choose_cores(usable_cores()).gateway)
    except StartFailed as error:
        _say(console, str(error))
        return None


def _entrants(contenders: Sequence[Contender], console: Console) -> list[Entrant]:
    found = []
    for contender in contenders:
        program = contender.find()
        if program is None:
            _say(
                console,
                f"{contender.name} skipped: no {contender.binary!r} on the PATH and no program in "
                f"{contender.variable} ({contender.install})",
            )
        else:
            found.append(Entrant(contender=contender, program=program))
    return found


def _show(part: Group) -> None:
    Console(width=None if sys.stdout.isatty() else 140).print(part)


def _store(stored: dict[str, object], path: Path, console: Console) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored, indent=1) + "\n")
    _say(console, f"every round's figures and runs: {path}")


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
