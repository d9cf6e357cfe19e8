"""`fairgate bench`: runs what was asked for, prints the reports and stores them."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, RenderableType

from gateway.bench.cluster import measure_cluster
from gateway.bench.cluster_report import cluster_json, cluster_rendered
from gateway.bench.cluster_report import is_sound as is_cluster_sound
from gateway.bench.cluster_spec import ClusterResult
from gateway.bench.core_report import core_json, core_rendered
from gateway.bench.core_spec import CoreResult
from gateway.bench.harness import Harness
from gateway.bench.launch import StartFailed, choose_cores, run_core, usable_cores
from gateway.bench.machine import Machine, this_machine
from gateway.bench.options import CLUSTER, CORE, NONE, OVERHEAD, Options, Say
from gateway.bench.peers import PEERS, install, peer_named
from gateway.bench.process import PROC
from gateway.bench.profile import WINDOW_S, profile, profile_table
from gateway.bench.report import Report, as_json
from gateway.bench.scenarios import Plan
from gateway.bench.tables import rendered
from gateway.bench.targets import Entrant

RESULTS = Path("bench-results")
PLAIN_COLUMNS = 200
"""Of a table that goes into a file or a pipe."""


def run_bench(options: Options) -> int:
    """Measure the gateway's own overhead, beside peers, its scheduler core, several gateways.

    Returns the exit status. 0: measured without an error, whether or not the targets are met;
    1: something did not start or made errors; 2: wrong arguments, or a system without /proc. The
    JSON goes to the file that is asked for, by default to a new one in `bench-results/`.
    """
    say = _speaker()
    try:
        _require_proc()
        parts, plan = options.parts(), options.plan()
        options.cluster_plan()
        gateway = options.gateway(say)
        others = options.others(say) if OVERHEAD in parts else []
    except ValueError as error:
        say(str(error))
        return 2
    when, machine = datetime.now(UTC), this_machine()
    stored: dict[str, object] = {"when": when.isoformat(), "machine": asdict(machine)}
    is_sound = True
    if OVERHEAD in parts:
        report = _overhead(plan, machine, [gateway, *others], log_level=options.log_level)
        _show(rendered(report))
        stored |= as_json(report, when=when.isoformat())
        is_sound = report.is_sound
    if CORE in parts:
        result = _core(gateway, say)
        is_sound = is_sound and result is not None
        if result is not None:
            _show(core_rendered(result, machine))
            stored["core"] = core_json(result)
    if CLUSTER in parts:
        several = _cluster(gateway, options, say)
        is_sound = is_sound and several is not None and is_cluster_sound(several)
        if several is not None:
            _show(cluster_rendered(several, machine))
            stored["cluster"] = cluster_json(several)
    _store(stored, options.json_path or RESULTS / f"bench-{when:%Y%m%d-%H%M%S}.json", say)
    return 0 if is_sound else 1


def run_profile(options: Options, *, name: str, load: str, kind: str) -> int:
    """Show where the gateway's time goes under `load`, and keep it as `name` in `bench-results/`.

    Returns the exit status, as `run_bench` does.
    """
    say = _speaker()
    try:
        _require_proc()
        plan = replace(options, only=(), seconds=options.seconds or WINDOW_S).plan()
        gateway = options.gateway(say)
    except ValueError as error:
        say(str(error))
        return 2
    cores = choose_cores(usable_cores())
    try:
        found = profile(
            plan,
            gateway,
            load=load,
            kind=kind,
            cores=cores,
            log_level=options.log_level,
            say=say,
        )
    except (StartFailed, OSError) as error:
        say(str(error))
        return 1
    _show(profile_table(found))
    _store(asdict(found), options.json_path or RESULTS / f"{name}.json", say)
    return 1 if found.run.load.errors or not found.work else 0


def install_peers(folder: Path, names: Sequence[str]) -> int:
    """Install what pip can install of `names` (all when empty) below `folder`; the exit status."""
    say = _speaker()
    try:
        chosen = [peer_named(name) for name in names if name != NONE] or list(PEERS)
    except ValueError as error:
        say(str(error))
        return 2
    failed = 0
    for peer in chosen:
        if not peer.packages:
            say(f"{peer.name} not installed: {peer.install}")
            continue
        say(f"{peer.name}: {' '.join(peer.packages)}")
        why = install(peer, folder)
        if why is not None:
            failed += 1
            say(f"{peer.name} failed: {why}")
    say(f"measure them with --peers {folder}")
    return 1 if failed else 0


def _require_proc() -> None:
    if not (PROC / "self" / "stat").exists():
        raise ValueError("fairgate bench reads CPU time from /proc: it needs Linux")


def _overhead(
    plan: Plan, machine: Machine, entrants: Sequence[Entrant], *, log_level: str
) -> Report:
    say = _speaker()
    harness = Harness(plan, entrants, choose_cores(usable_cores()), say, log_level=log_level)
    return Report(
        machine=machine,
        plan=plan,
        log_level=log_level,
        programs={entrant.name: entrant.contender.version(entrant.program) for entrant in entrants},
        measured=harness.measure(),
    )


def _core(gateway: Entrant, say: Say) -> CoreResult | None:
    """The core, measured on the gateway's own processor core; None when that failed."""
    say("scheduler core")
    try:
        core = choose_cores(usable_cores()).gateway
        return run_core(core=core, python_path=gateway.contender.python_path)
    except StartFailed as error:
        say(str(error))
        return None


def _cluster(gateway: Entrant, options: Options, say: Say) -> ClusterResult | None:
    """Several gateways as one; None when that failed."""
    try:
        return measure_cluster(gateway, options.cluster_plan(), say, log_level=options.log_level)
    except (StartFailed, OSError, ValueError) as error:
        say(str(error))
        return None


def _show(part: RenderableType) -> None:
    Console(width=None if sys.stdout.isatty() else PLAIN_COLUMNS).print(part)


def _store(stored: dict[str, object], path: Path, say: Say) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored, indent=1) + "\n")
    say(f"every round's figures and runs: {path}")


def _speaker() -> Say:
    console = Console(stderr=True)
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
