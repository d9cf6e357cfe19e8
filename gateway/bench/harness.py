"""Runs a plan: starts engine and contenders, sends them the loads in turn, keeps every run.

It decides the order (interleaved, so that a drift of the machine meets all alike) and draws no
conclusions.
"""

import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.bench.contenders import Contender, Site
from gateway.bench.figures import Run, Runs
from gateway.bench.launch import (
    Cores,
    StartFailed,
    free_port,
    launched,
    run_load,
    wait_ready,
)
from gateway.bench.load_spec import LoadSpec
from gateway.bench.scenarios import Plan, Scenario

DIRECT = "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A contender whose program was found."""

    contender: Contender
    program: str

    @property
    def name(self) -> str:
        """The contender's name."""
        return self.contender.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something that answers now: a started contender, or the engine itself."""

    name: str
    port: int
    pid: int
    key: str = ""


@dataclass(slots=True)
class Measurement:
    """Every run: for each round, by target and scenario; and what went wrong, by target."""

    rounds: list[dict[str, dict[str, Run]]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def runs(self, round_index: int, target: str) -> Runs:
        """The runs of one round against one target; empty when there were none."""
        return self.rounds[round_index].get(target, {})


class Harness:
    """One plan over some entrants on given cores; `say` gets a line for each step."""

    def __init__(
        self, plan: Plan, entrants: Sequence[Entrant], cores: Cores, say: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._entrants = list(entrants)
        self._cores = cores
        self._say = say
        self._measured = Measurement()

    def measure(self) -> Measurement:
        """Run the plan; a contender that fails is left out, and without any left it ends."""
        for index in range(self._plan.rounds):
            if not self._entrants:
                break
            self._measured.rounds.append({})
            self._say(f"round {index + 1} of {self._plan.rounds}")
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
                self._run_round(index, stack, folder)
        return self._measured

    def _run_round(self, index: int, stack: ExitStack, folder: Path) -> None:
        engine = self._start_engine(stack, folder)
        targets = [engine, *self._start_contenders(stack, folder, engine.port)]
        if len(targets) == 1:
            return
        for target in targets[1:]:
            self._load(self._plan.warm_up, target, engine)
        for position, scenario in enumerate(self._plan.scenarios):
            # Each goes first equally often, so that none always meets the warmer machine.
            first = (index + position) % len(targets)
            for target in targets[first:] + targets[:first]:
                if target is not engine or scenario.is_paired:
                    self._run_scenario(scenario, target, engine)

    def _start_engine(self, stack: ExitStack, folder: Path) -> Target:
        port = free_port()
        command = [sys.executable, "-m", "gateway.bench.upstream", "--port", str(port)]
        process = stack.enter_context(
            launched(command, folder=folder, name="engine", core=self._cores.upstream)
        )
        wait_ready(process, port=port, path="/health", key="", log=folder / "engine.log")
        return Target(name=DIRECT, port=port, pid=process.pid)

    def _start_contenders(self, stack: ExitStack, folder: Path, upstream_port: int) -> list[Target]:
        targets = []
        for entrant in list(self._entrants):
            try:
                targets.append(self._start_contender(stack, folder, entrant, upstream_port))
            except (StartFailed, OSError) as error:
                self._drop(entrant.name, f"did not start: {error}")
        return targets

    def _start_contender(
        self, stack: ExitStack, folder: Path, entrant: Entrant, upstream_port: int
    ) -> Target:
        own = folder / entrant.name
        own.mkdir()
        key = f"bench-{secrets.token_urlsafe(24)}"
        site = Site(folder=own, port=free_port(), upstream_port=upstream_port, key=key)
        command = entrant.contender.prepare(entrant.program, site)
        process = stack.enter_context(
            launched(command, folder=own, name="output", core=self._cores.gateway)
        )
        path = entrant.contender.ready_path
        wait_ready(process, port=site.port, path=path, key=key, log=own / "output.log")
        return Target(name=entrant.name, port=site.port, key=key, pid=process.pid)

    def _run_scenario(self, scenario: Scenario, target: Target, engine: Target) -> None:
        if target.name in self._measured.failures:
            return
        run = self._load(scenario.load, target, engine)
        if run is not None:
            self._measured.rounds[-1].setdefault(target.name, {})[scenario.name] = run
            self._say(f"  {scenario.name:<16} {target.name:<16} {_in_words(run)}")

    def _load(self, load: LoadSpec, target: Target, engine: Target) -> Run | None:
        spec = replace(
            load,
            port=target.port,
            upstream_port=engine.port,
            key=target.key,
            watch=f"{engine.pid},{target.pid}",
        )
        try:
            result = run_load(spec, core=self._cores.load)
        except StartFailed as error:
            self._drop(target.name, str(error))
            return None
        watched = result.watched
        return Run(
            load=result,
            upstream=watched[str(engine.pid)],
            contender=None if target is engine else watched[str(target.pid)],
        )

    def _drop(self, name: str, why: str) -> None:
        self._measured.failures[name] = why
        self._entrants = [entrant for entrant in self._entrants if entrant.name != name]
        self._say(f"  {name}: {why}")


def _in_words(run: Run) -> str:
    load = run.load
    return f"{load.requests} requests, {load.events} events, {load.errors} errors"
