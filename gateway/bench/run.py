"""`fairgate bench`: finds the contenders, runs the plan, prints the report and stores it."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from gateway.bench.contenders import FAIRGATE, Contender, peer_named
from gateway.bench.harness import Entrant, Harness
from gateway.bench.launch import choose_cores, usable_cores
from gateway.bench.machine import this_machine
from gateway.bench.process import PROC
from gateway.bench.report import Report, as_json, rendered
from gateway.bench.scenarios import full_plan, quick_plan

RESULTS = Path("bench-results")


def bench(*, full: bool, peers: list[str], json_path: Path | None) -> int:
    """Measure the gateway's own overhead, beside `peers`; return the exit status.

    0: measured without an error, whether or not the targets are met; 1: the gateway did not start
    or made errors; 2: wrong arguments, or a system without /proc. The JSON goes to `json_path`, by
    default to a new file in `bench-results/`.
    """
    console = Console(stderr=True)
    if not (PROC / "self" / "stat").exists():
        _say(console, "fairgate bench reads CPU time from /proc: it needs Linux")
        return 2
    try:
        entrants = _entrants([FAIRGATE, *map(peer_named, peers)], console)
    except ValueError as error:
        _say(console, str(error))
        return 2
    plan = full_plan() if full else quick_plan()
    machine = this_machine()
    harness = Harness(
        plan, entrants, choose_cores(usable_cores()), lambda line: _say(console, line)
    )
    report = Report(
        machine=machine,
        plan=plan,
        programs={entrant.name: entrant.contender.version(entrant.program) for entrant in entrants},
        measured=harness.measure(),
    )
    Console(width=None if sys.stdout.isatty() else 140).print(rendered(report))
    _store(report, json_path, console)
    return 0 if report.is_sound else 1


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


def _store(report: Report, json_path: Path | None, console: Console) -> None:
    now = datetime.now(UTC)
    path = json_path or RESULTS / f"bench-{now:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(report, when=now.isoformat()), indent=1) + "\n")
    _say(console, f"every round's figures and runs: {path}")


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
