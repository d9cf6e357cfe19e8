"""Finds a policy for a goal: a search over policy documents, each tried on a simulated fleet.

What it finds is a policy document like any other. It is found for one workload on one model of an
engine: the second seed says how much of it is more than luck.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from gateway.admin.policy_document import Difference, differences, document_of, mark_of
from gateway.core.policy import Policy
from gateway.lab.comparing import seconds, table
from gateway.lab.goals import Score, Target
from gateway.lab.knobs import knobs_of
from gateway.lab.policies import settings_with
from gateway.lab.search import Document, Order, Search
from gateway.lab.trial import Bench, Scores, scoring
from gateway.settings import Settings

OTHER_SEED = 1_000_003
"""Added to the seed for the second look at what was found."""

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What came of a search."""

    document: Mapping[str, Any]
    changes: Sequence[Difference]
    targets: Sequence[Target]
    before: Score
    after: Score
    again: tuple[Score, Score] | None
    """The same two on another seed; None for a log, which has only one."""
    trials: int

    def values(self) -> dict[str, object]:
        """For JSON."""
        return {
            "trials": self.trials,
            "kept": self.after.miss == 0,
            "before": self._score(self.before),
            "after": self._score(self.after),
            "again": None if self.again is None else [self._score(each) for each in self.again],
            "changes": [
                {"path": each.path, "before": each.before, "after": each.after}
                for each in self.changes
            ],
            "policy": dict(self.document),
        }

    def told(self) -> Iterator[str]:
        """For people, line by line."""
        runs = [self.before, self.after, *(self.again or ())]
        head = ["", "wanted", "before", "after", *("again before", "again after")[: len(runs) - 2]]
        rows = [
            [target.label, seconds(target.limit_s), *(_mark(run, place, target) for run in runs)]
            for place, target in enumerate(self.targets)
        ]
        rows.append(["tokens/s", "", *(f"{run.throughput:.0f}" for run in runs)])
        yield from table(head, rows)
        yield ""
        if not self.changes:
            yield "the present policy stays: nothing better was found"
        for each in self.changes:
            yield f"{each.path}: {each.before} -> {each.after}"
        if self.after.miss:
            yield f"not every target is kept, in {self.trials} trials"

    def _score(self, score: Score) -> dict[str, object]:
        reached = {
            target.label: None if value == inf else value
            for target, value in zip(self.targets, score.reached_s, strict=True)
        }
        return {"reached_s": reached, "miss": score.miss, "throughput": score.throughput}


def tune(
    present: Settings, bench: Bench, *, budget: int, seed: int, workers: int, say: Say
) -> Tuned:
    """The best policy that `budget` trials find; `say` hears how it goes.

    Raises:
        ValueError: the workload cannot be played; the message says why.
        OSError: its file cannot be read.
    """
    bench.recipe.source()
    document = document_of(present)
    with scoring(bench, workers) as scores:
        judging = _Judging(present, scores)
        search = Search(
            document,
            knobs_of(document),
            is_valid=judging.is_valid,
            mark_of=mark_of,
            judge=judging.judge,
            budget=budget,
            seed=seed,
        )
        for is_better in search.steps():
            if is_better:
                miss, loss, changed = search.best_order
                say(
                    f"{search.trials:4} of {budget}: miss {miss:.3f}, throughput {-loss:+.1%}, "
                    f"{changed:g} changes"
                )
        policies = [present.policy(), settings_with(present, search.best).policy()]
        before, after = judging.known(document), judging.known(search.best)
        again = _again(bench, policies)
    return Tuned(
        document=search.best,
        changes=differences(document, search.best),
        targets=bench.targets,
        before=before,
        after=after,
        again=again,
        trials=search.trials,
    )


class _Judging:
    """Documents to orders: the miss, the loss of throughput, the number of changes."""

    def __init__(self, present: Settings, scores: Scores) -> None:
        self._present = present
        self._document = document_of(present)
        self._scores = scores
        self._known: dict[str, Score] = {}
        self._policies: dict[str, Policy] = {}

    def is_valid(self, document: Document) -> bool:
        """Whether the settings' rules allow it."""
        try:
            self._policies[mark_of(document)] = settings_with(self._present, document).policy()
        except ValueError:
            return False
        return True

    def judge(self, documents: Sequence[Document]) -> list[Order]:
        """Try them all."""
        marks = [mark_of(document) for document in documents]
        policies = [
            self._policy(mark, document) for mark, document in zip(marks, documents, strict=True)
        ]
        self._known.update(zip(marks, self._scores(policies), strict=True))
        return [
            (*self.known(document).order(self.known(self._document)), self._changes(document))
            for document in documents
        ]

    def known(self, document: Document) -> Score:
        """Of one that was tried."""
        return self._known[mark_of(document)]

    def _policy(self, mark: str, document: Document) -> Policy:
        if mark in self._policies:
            return self._policies.pop(mark)
        return settings_with(self._present, document).policy()

    def _changes(self, document: Document) -> float:
        return float(len(differences(self._document, document)))


def _again(bench: Bench, policies: Sequence[Policy]) -> tuple[Score, Score] | None:
    if bench.recipe.log is not None:
        return None
    recipe = replace(bench.recipe, seed=bench.recipe.seed + OTHER_SEED)
    other = replace(bench, recipe=recipe)
    return other.score(policies[0]), other.score(policies[1])


def _mark(score: Score, place: int, target: Target) -> str:
    reached = score.reached_s[place]
    shown = "never" if reached == inf else seconds(reached)
    return shown if reached <= target.limit_s else f"{shown} !"
