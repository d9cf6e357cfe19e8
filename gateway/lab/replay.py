"""A gateway's own log under another policy: what each got, and what each would have got.

Present and new policy are both simulated, so that what the model gets wrong falls out of their
difference; how far the model is from the log is told beside it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.core.policy import Policy
from gateway.lab.comparing import Figures, Group, figures_of, groups_of, seconds, table
from gateway.lab.fleet import Fleet, Ranked
from gateway.lab.sides import Log, Side, side_of
from gateway.sim.workload.log_survey import Survey
from gateway.sim.workload.logged import RequestLogFile
from gateway.sim.world.outcome import Outcome

LOG, PRESENT, NEW = "log", "present", "new"
SIDES = (LOG, PRESENT, NEW)
TITLES = {"all": "all", "tier": "tiers", "tenant": "tenants", "user": "users"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a log."""

    log: Path
    tiers: tuple[str, ...]
    """Names by rank, as the log has them."""
    present: Policy
    new: Policy
    ranks: Sequence[int]
    """The rank of each of `tiers` under `new`."""
    model: str | None = None
    replicas: int | None = None
    """None: as many as the log names."""
    limit: int | None = None
    seed: int = 0
    top: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One group in all tellings, by the names in `SIDES`."""

    group: Group
    figures: dict[str, Figures]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a question."""

    survey: Survey
    fleet: Fleet
    compared: list[Compared]

    def values(self) -> dict[str, object]:
        """For JSON: the same for the same question."""
        survey = self.survey
        return {
            "lines": survey.lines,
            "played": survey.played,
            "bad": survey.bad,
            "bad_lines": survey.named,
            "left_out": dict(sorted(survey.left_out.items())),
            "guessed": survey.guessed,
            "profile": self.fleet.profile.name,
            "replicas": self.fleet.replicas,
            "groups": [
                {
                    "kind": each.group.kind,
                    "name": each.group.name,
                    **{side: each.figures[side].values() for side in SIDES},
                }
                for each in self.compared
            ],
        }

    def told(self) -> Iterator[str]:
        """For people, line by line."""
        survey, fleet = self.survey, self.fleet
        yield (
            f"{survey.played} of {survey.lines} lines played on {fleet.replicas} x "
            f"{fleet.profile.name}; {survey.guessed} with a guessed length"
        )
        yield from survey.told()
        yield from self._doubt()
        yield "each cell: in the log > under the present policy > under the new one, both simulated"
        for kind, title in TITLES.items():
            rows = [_row(each) for each in self.compared if each.group.kind == kind]
            yield ""
            yield from table(_head(title), rows)

    def _doubt(self) -> Iterator[str]:
        """How far the model is from the log under the policy that wrote it."""
        whole = self.compared[0].figures
        parts = []
        for name in ("ttft_s", "e2e_s"):
            logged: float | None = getattr(whole[LOG], name)["p50"]
            played: float | None = getattr(whole[PRESENT], name)["p50"]
            if logged and played is not None:
                label = name.removesuffix("_s").upper()
                parts.append(f"{label} p50 {played / logged:.2f} x")
        if parts:
            yield f"the model under the present policy against the log: {', '.join(parts)}"


def answer(question: Question, fleet: Fleet) -> Answer:
    """Play the log under both policies.

    Raises:
        ValueError: nothing in the log can be played, or not so; the message says why.
        OSError: it cannot be read.
    """
    asked = RequestLogFile(
        question.log,
        tiers=question.tiers,
        model=question.model,
        limit=question.limit,
        seed=question.seed,
    )
    if question.model is None and len(asked.survey.models) > 1:
        known = ", ".join(sorted(asked.survey.models))
        raise ValueError(f"several models, which have engines of their own: --model {known}")
    weights = (question.present.weights.prompt, question.present.weights.output)
    log = Log(question.log, tiers=question.tiers, model=question.model, weights=weights)
    if len(log.side) != asked.survey.played:
        raise ValueError(f"{question.log}: {asked.survey.played - len(log.side)} lines do not say "
                         "what their requests got, or it was changed meanwhile")  # fmt: skip
    fleet = fleet.sized(question.replicas or len(log.replicas) or 1)
    same = range(len(question.tiers))
    present = fleet.play(Ranked(asked, same), question.present)
    new = fleet.play(Ranked(asked, question.ranks), question.new)
    sides = {LOG: log.side, PRESENT: side_of(present, weights), NEW: side_of(new, weights)}
    return Answer(
        survey=asked.survey, fleet=fleet, compared=list(_compared(question, present, sides))
    )


def _compared(question: Question, outcome: Outcome, sides: dict[str, Side]) -> Iterator[Compared]:
    size = outcome.n
    totals = {name: sum(side.service[:size]) for name, side in sides.items()}
    for group in groups_of(outcome, question.tiers, top=question.top):
        yield Compared(
            group=group,
            figures={name: figures_of(side, group, totals[name]) for name, side in sides.items()},
        )


def _head(title: str) -> list[str]:
    columns = ("TTFT p50 s", "TTFT p95 s", "E2E p95 s", "wait p95 s", "not served", "share")
    return [title, "requests", *columns]


def _row(each: Compared) -> list[str]:
    def three(cells: Sequence[str]) -> str:
        return " > ".join(cells)

    found = [each.figures[side] for side in SIDES]
    timed = (("ttft_s", "p50"), ("ttft_s", "p95"), ("e2e_s", "p95"), ("wait_s", "p95"))
    return [
        each.group.name,
        str(found[0].requests),
        *(three([seconds(getattr(one, name)[share]) for one in found]) for name, share in timed),
        three([str(_unserved(one)) for one in found]),
        three([f"{one.service:.0%}" for one in found]),
    ]


def _unserved(figures: Figures) -> int:
    return figures.requests - figures.ended.get("done", 0)
