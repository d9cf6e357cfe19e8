"""`fairgate bench --profile`: where the gateway spends its CPU time under one of two loads.

The harness starts everything as it does to measure; the gateway looks at itself from within.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from gateway.bench import scenarios
from gateway.bench.contenders import WITHIN, Site, fairgate_arguments
from gateway.bench.figures import Run
from gateway.bench.launch import Cores, StartFailed
from gateway.bench.scenarios import Plan, Scenario
from gateway.bench.targets import Entrant, send_load, start_contender, start_engine
from gateway.bench.within import START, STOP, Cost, Seen

ROWS = 40
OUT_WAIT_S = 30.0
OUT_POLL_S = 0.05
SCENARIOS = {"plain": scenarios.MANY_CLIENTS, "sse": scenarios.STREAMS_5K}
WINDOW_S = 10.0
SAMPLES_CAPTION = (
    "samples; a function's own time includes the C that it calls; that of the event loop's runner "
    "is uvloop and the kernel"
)
CALLS_CAPTION = "counting calls makes small functions look dearer than they are"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was seen under one load."""

    scenario: Scenario
    kind: str
    run: Run
    seen: Seen

    @property
    def work(self) -> int:
        """Requests, or events of streams, in the load's window."""
        load = self.run.load
        return load.events if self.scenario.load.stream else load.requests

    @property
    def work_in_all(self) -> float:
        """About as much as was looked at: before the window as well."""
        spec = self.scenario.load
        return self.work * (spec.ramp_s / 2 + spec.warm_s + spec.window_s) / spec.window_s

    @property
    def us_per_work(self) -> float:
        """CPU time of the gateway for each piece of work, the profiler's own included."""
        assert self.run.contender is not None, "a gateway was profiled"
        return self.run.contender.cpu_s * 1e6 / self.work if self.work else 0.0


def profile(
    plan: Plan,
    entrant: Entrant,
    *,
    load: str,
    kind: str,
    cores: Cores,
    log_level: str,
    say: Callable[[str], None],
) -> Profile:
    """Profile the gateway under `load` ("plain" or "sse"); raises StartFailed.

    It looks from before the load's first request to its last one.
    """
    scenario = next(one for one in plan.scenarios if one.name == SCENARIOS[load])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        out = folder / "profile.json"
        engine = start_engine(stack, folder, core=cores.upstream)
        target = start_contender(
            stack,
            folder,
            looked_at(entrant, kind=kind, out=out),
            engine=engine,
            core=cores.gateway,
            log_level=log_level,
        )
        send_load(plan.warm_up, target, engine=engine, cores=cores)
        say(f"{scenario.name}, {scenario.load.window_s:g} s, {kind}")
        os.kill(target.pid, START)
        run = send_load(scenario.load, target, engine=engine, cores=cores)
        os.kill(target.pid, STOP)
        return Profile(scenario=scenario, kind=kind, run=run, seen=_awaited(out))


def looked_at(entrant: Entrant, *, kind: str, out: Path) -> Entrant:
    """The gateway with a profiler within."""

    def prepare(program: str, site: Site) -> list[str]:
        within = [WITHIN, "--log-level", site.log_level.upper()]
        options = ["--profile", kind, "--out", str(out), "--"]
        return [program, *within, *options, *fairgate_arguments(site)]

    return Entrant(contender=replace(entrant.contender, prepare=prepare), program=entrant.program)


def profile_table(found: Profile) -> Table:
    """The dearest functions."""
    unit = "event" if found.scenario.load.stream else "request"
    counts_calls = found.seen.samples is None
    how = CALLS_CAPTION if counts_calls else f"{found.seen.samples:,} {SAMPLES_CAPTION}"
    table = Table(
        title=f"{ROWS} most expensive functions, {found.scenario.name}, {found.kind}",
        caption=f"{found.us_per_work:,.1f} us CPU per {unit}, the profiler's own included; {how}",
    )
    calls = [f"calls/{unit}"] if counts_calls else []
    for name in ("own", f"own us/{unit}", "with callees", *calls):
        table.add_column(name, justify="right")
    table.add_column("function")
    table.add_column("defined" if counts_calls else "dearest line")
    for cost in found.seen.costs[:ROWS]:
        table.add_row(*_row(found, cost, counts_calls=counts_calls))
    return table


def _row(found: Profile, cost: Cost, *, counts_calls: bool) -> list[Text]:
    numbers = [
        f"{cost.own_share:.1%}",
        f"{cost.own_share * found.us_per_work:.2f}",
        f"{cost.total_share:.1%}",
    ]
    if counts_calls:
        numbers.append(f"{(cost.calls or 0) / (found.work_in_all or 1):.2f}")
    return [Text(each) for each in (*numbers, cost.name, short_place(cost.place))]


def short_place(place: str) -> str:
    """The end of a path that tells which package a file is in."""
    parts = Path(place).parts
    for anchor in ("site-packages", "gateway", "python3"):
        found = [i for i, part in enumerate(parts) if part.startswith(anchor)]
        if found:
            start = found[-1] if anchor == "gateway" else found[-1] + 1
            return "/".join(parts[start:]) if start < len(parts) else place
    return "/".join(parts[-2:])


def _awaited(out: Path) -> Seen:
    deadline_s = time.monotonic() + OUT_WAIT_S
    while not out.exists():
        if time.monotonic() > deadline_s:
            raise StartFailed("the profiler did not answer")
        time.sleep(OUT_POLL_S)
    told = json.loads(out.read_text())
    return Seen(costs=[Cost(**cost) for cost in told["costs"]], samples=told["samples"])
