"""Runs a plan: starts engine and contenders, sends them the loads in turn, keeps every run.

It decides the order (interleaved, so that a drift of the machine meets all alike) and draws no
conclusions.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from gateway.bench.figures import Run, Runs
from gateway.bench.launch import Cores, StartFailed
from gateway.bench.load_spec import LoadSpec
from gateway.bench.scenarios import Plan, Scenario
from gateway.bench.targets import Entrant, Target, send_load, start_contender, start_engine


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
        self,
        plan: Plan,
        entrants: Sequence[Entrant],
        cores: Cores,
        say: Callable[[str], None],
        *,
        log_level: str = "warning",
    ) -> None:
        self._plan = plan
        self._entrants = list(entrants)
        self._cores = cores
        self._say = say
        self._log_level = log_level
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
        engine = start_engine(stack, folder, core=self._cores.upstream)
        targets = [engine, *self._start_contenders(stack, folder, engine)]
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

    def _start_contenders(self, stack: ExitStack, folder: Path, engine: Target) -> list[Target]:
        targets = []
        for entrant in list(self._entrants):
            try:
                target = start_contender(
                    stack,
                    folder,
                    entrant,
                    engine=engine,
                    core=self._cores.gateway,
                    log_level=self._log_level,
                )
            except (StartFailed, OSError) as error:
                self._drop(entrant.name, f"did not start: {error}")
            else:
                targets.append(target)
        return targets

    def _run_scenario(self, scenario: Scenario, target: Target, engine: Target) -> None:
        if target.name in self._measured.failures:
            return
        run = self._load(scenario.load, target, engine)
        if run is not None:
            self._measured.rounds[-1].setdefault(target.name, {})[scenario.name] = run
            self._say(f"  {scenario.name:<16} {target.name:<16} {_in_words(run)}")

    def _load(self, load: LoadSpec, target: Target, engine: Target) -> Run | None:
        try:
            return send_load(load, target, engine=engine, cores=self._cores)
        except StartFailed as error:
            self._drop(target.name, str(error))
            return None

    def _drop(self, name: str, why: str) -> None:
        self._measured.failures[name] = why
        self._entrants = [entrant for entrant in self._entrants if entrant.name != name]
        self._say(f"  {name}: {why}")


def _in_words(run: Run) -> str:
    load = run.load
    return f"{load.requests} requests, {load.events} events, {load.errors} errors"
