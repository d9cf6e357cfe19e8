"""What an operator wants of a policy: times at a percentile for each tier, then throughput.

Knows how far a run is from a goal, and nothing of how policies are found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, log
from pathlib import Path
from typing import Annotated

import msgspec

from gateway.sim.world.outcome import Outcome, Status, percentile

MISS_MAX = 10.0
"""What a value counts that never came: as one that is e^10 times too large."""
STEP = 1e-3
"""Differences of misses, and of throughput, below this are none."""

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one tier; times are those that `percentile` percent of its requests stay within."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    e2e_ms: Positive | None = None
    percentile: Annotated[float, msgspec.Meta(gt=0, lt=100)] = 95.0


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: targets by the name of a tier."""

    tiers: dict[str, Wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One number that is to be kept."""

    tier: str
    rank: int
    what: str
    """`ttft`, `tpot` or `e2e`."""
    percentile: float
    limit_s: float

    @property
    def label(self) -> str:
        """`critical TTFT p95`."""
        return f"{self.tier} {self.what.upper()} p{self.percentile:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How one run stands to the goal. The smaller tuple of `order` is the better run."""

    reached_s: tuple[float, ...]
    """By target; infinite where too many of its requests never got there."""
    miss: float
    """Sum over the targets of log(reached/limit) where that is positive; 0: all are kept."""
    throughput: float
    """Weighted tokens a second of those that were answered whole."""

    def order(self, present: "Score | None" = None) -> tuple[float, float]:
        """For comparing: the miss, then the loss of throughput against `present`."""
        base = self if present is None else present
        loss = 1 - self.throughput / base.throughput if base.throughput else 0.0
        return (_stepped(self.miss), _stepped(loss))


def read_slo(path: Path) -> Slo:
    """The goal of a YAML file.

    Raises:
        ValueError: it holds no goal; the message says what is wrong.
        OSError: it cannot be read.
    """
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=Slo)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error


def targets_of(slo: Slo, tiers: Sequence[str]) -> list[Target]:
    """All targets, in the order of the tiers' ranks.

    Raises:
        ValueError: a tier that there is not, or no target at all.
    """
    unknown = [name for name in slo.tiers if name not in tiers]
    if unknown:
        raise ValueError(f"there is no tier {unknown[0]!r}; there are {', '.join(tiers)}")
    found = [
        Target(tier=name, rank=rank, what=what, percentile=wanted.percentile, limit_s=limit / 1000)
        for rank, name in enumerate(tiers)
        if (wanted := slo.tiers.get(name)) is not None
        for what, limit in _limits(wanted).items()
        if limit is not None
    ]
    if not found:
        raise ValueError("a goal has at least one of ttft_ms, tpot_ms and e2e_ms")
    return found


def score_of(outcome: Outcome, targets: Sequence[Target], weights: tuple[float, float]) -> Score:
    """How a run stands.

    Who was refused or never answered misses TTFT and E2E; who left does not count.
    """
    rows = {rank: outcome.rows(tier=rank) for rank in {target.rank for target in targets}}
    reached = tuple(_reached(outcome, target, rows[target.rank]) for target in targets)
    miss = sum(_miss(value, target.limit_s) for value, target in zip(reached, targets, strict=True))
    done = (row for row in range(outcome.n) if outcome.status[row] == Status.DONE)
    service = sum(
        weights[0] * outcome.prompt[row] + weights[1] * outcome.output[row] for row in done
    )
    return Score(
        reached_s=reached,
        miss=miss,
        throughput=service / outcome.lasted_s if outcome.lasted_s else 0.0,
    )


def _limits(wanted: Wanted) -> Mapping[str, float | None]:
    return {"ttft": wanted.ttft_ms, "tpot": wanted.tpot_ms, "e2e": wanted.e2e_ms}


def _reached(outcome: Outcome, target: Target, rows: Sequence[int]) -> float:
    of = {"ttft": outcome.ttft_s, "tpot": outcome.tpot_s, "e2e": outcome.e2e_s}[target.what]
    values = [
        value for row in rows if outcome.status[row] != Status.LEFT and not isnan(value := of(row))
    ]
    return percentile(values, target.percentile / 100)


def _miss(reached_s: float, limit_s: float) -> float:
    if reached_s <= limit_s:
        return 0.0
    return MISS_MAX if reached_s == inf else min(MISS_MAX, log(reached_s / limit_s))


def _stepped(value: float) -> float:
    return round(value / STEP) * STEP
