"""One trial of a policy: a workload on a fleet, judged by a goal; here or in another process.

All that it needs travels, so that a trial is the same wherever it runs.
"""

import copyreg
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

from gateway.core import policy
from gateway.core.policy import Policy
from gateway.lab.fleet import Fleet, Ranked
from gateway.lab.goals import Score, Target, score_of
from gateway.sim.workload.catalogue import workload_named
from gateway.sim.workload.job import Source
from gateway.sim.workload.logged import RequestLogFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Where the requests come from: a log, or a workload of the catalogue with its knobs."""

    tiers: tuple[str, ...]
    log: Path | None = None
    model: str | None = None
    limit: int | None = None
    load: float = 1.0
    workload: str | None = None
    knobs: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.log is None) == (self.workload is None):
            raise ValueError("where do the requests come from? One of --log and --workload")

    def source(self) -> Source:
        """The workload, from its beginning.

        Raises:
            ValueError: there is none; the message says why.
            OSError: its file cannot be read.
        """
        if self.workload is not None:
            workload = workload_named(self.workload)
            seeded = {"seed": self.seed} if "seed" in workload.knobs else {}
            return workload.source({**self.knobs, **seeded})
        assert self.log is not None
        return RequestLogFile(
            self.log,
            tiers=self.tiers,
            model=self.model,
            load=self.load,
            limit=self.limit,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What every trial of a search has in common."""

    recipe: Recipe
    fleet: Fleet
    targets: tuple[Target, ...]
    weights: tuple[float, float]

    def score(self, tried: Policy) -> Score:
        """Play it under `tried`."""
        source = Ranked(self.recipe.source(), range(len(tried.tiers)))
        return score_of(self.fleet.play(source, tried), self.targets, self.weights)


class Scores(Protocol):
    """Tries several policies."""

    def __call__(self, policies: Sequence[Policy], /) -> list[Score]:
        """Their scores, in their order."""
        ...


def _parted(value: Any) -> tuple[Callable[..., Any], tuple[type, dict[str, object]]]:
    """How a frozen value travels, compiled or not: pickle would set what cannot be set."""
    parts = {each.name: getattr(value, each.name) for each in fields(value)}
    return _put_together, (type(value), parts)


def _put_together(kind: type, parts: dict[str, object]) -> object:
    return kind(**parts)


def _let_policies_travel() -> None:
    for kind in vars(policy).values():
        if isinstance(kind, type) and kind.__module__ == policy.__name__ and is_dataclass(kind):
            copyreg.pickle(kind, _parted)


@contextmanager
def scoring(bench: Bench, workers: int) -> Iterator[Scores]:
    """Trials in so many processes; 1: in this one."""
    if workers == 1:
        yield partial(_all_here, bench)
        return
    _let_policies_travel()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:

        def everywhere(policies: Sequence[Policy], /) -> list[Score]:
            return list(pool.map(bench.score, policies))

        yield everywhere


def _all_here(bench: Bench, policies: Sequence[Policy], /) -> list[Score]:
    return [bench.score(each) for each in policies]
