"""From measured step times to a profile: least squares of relative errors, without negative costs.

The model is that of `profiles.py`. For a given knee and a given ratio r of the two numbers of
`linear` it is linear in what is left:

    T = a (1 + (r n)^P)^(1/P) + c1 x decodes + kv x KV read + pair x attended

so that knee and ratio are looked for on a grid that closes in, and the four others are solved for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log, sqrt
from typing import NamedTuple

KNEES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
RATIO_MIN, RATIO_MAX = 1e-6, 1.0
RATIOS = 12
"""Points of the grid in each round; each round looks between the neighbours of the best."""
ROUNDS = 4
SINGULAR = 1e-12
OBSERVATIONS_MIN = 6


class Step(NamedTuple):
    """One engine step, as `Profile.step_s` takes it."""

    tokens: int
    decodes: int = 0
    kv_tokens: int = 0
    attended: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """A step and how long it took; `label` says how it came about."""

    step: Step
    seconds: float
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Costs in ms, and how far they are off."""

    weights_ms: float
    token_ms: float
    knee: float
    sequence_ms: float
    kv_token_ms: float
    pair_ms: float
    error: float
    """Root of the mean square of the relative errors."""


def fitted(observations: Sequence[Observation]) -> Fit:
    """The costs that are least off.

    Raises:
        ValueError: too few observations, or times that are none.
    """
    if len(observations) < OBSERVATIONS_MIN:
        raise ValueError(
            f"{len(observations)} kinds of steps were seen, at least {OBSERVATIONS_MIN} are needed"
        )
    if any(each.seconds <= 0 for each in observations):
        raise ValueError("a step that takes no time: this engine has no step times")
    best: tuple[float, float, float, tuple[float, ...]] | None = None
    for knee in KNEES:
        low, high = log(RATIO_MIN), log(RATIO_MAX)
        for _ in range(ROUNDS):
            width = (high - low) / (RATIOS - 1)
            tries = []
            for index in range(RATIOS):
                at = low + index * width
                off, costs = _solved(_rows(observations, knee, exp(at)))
                tries.append((off, at, costs))
            off, at, costs = min(tries)
            low, high = max(log(RATIO_MIN), at - width), min(log(RATIO_MAX), at + width)
            if best is None or off < best[0]:
                best = (off, knee, exp(at), costs)
    assert best is not None
    off, knee, ratio, (weights, sequence, kv_token, pair) = best
    return Fit(
        weights_ms=weights,
        token_ms=weights * ratio,
        knee=knee,
        sequence_ms=sequence,
        kv_token_ms=kv_token,
        pair_ms=pair,
        error=sqrt(off / len(observations)),
    )


def _rows(observations: Sequence[Observation], knee: float, ratio: float) -> list[list[float]]:
    """One row for each: its features over its time in ms, so that 1 is what each should sum to."""
    rows = []
    for each in observations:
        step, ms = each.step, each.seconds * 1000
        linear = (1 + (ratio * step.tokens) ** knee) ** (1 / knee)
        features = (linear, step.decodes, step.kv_tokens, step.attended)
        rows.append([feature / ms for feature in features])
    return rows


def _solved(rows: Sequence[Sequence[float]]) -> tuple[float, tuple[float, ...]]:
    """(sum of squares, costs of at least 0): of all choices of costs that are not 0, the best.

    With four of them this is exact: the optimum solves its own choice without a bound.
    """
    columns = len(rows[0])
    # Features differ by ten orders of magnitude; scaled, the equations are well behaved.
    scales = [max(row[column] for row in rows) or 1.0 for column in range(columns)]
    scaled = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    squares = [
        [sum(row[i] * row[j] for row in scaled) for j in range(columns)] for i in range(columns)
    ]
    sums = [sum(row[i] for row in scaled) for i in range(columns)]
    best = (float(len(rows)), (0.0,) * columns)
    for size in range(1, columns + 1):
        for chosen in combinations(range(columns), size):
            found = _equations(
                [[squares[i][j] for j in chosen] for i in chosen], [sums[i] for i in chosen]
            )
            if found is None or min(found) < 0:
                continue
            costs = [0.0] * columns
            for column, cost in zip(chosen, found, strict=True):
                costs[column] = cost
            off = sum((sum(map(_times, row, costs)) - 1) ** 2 for row in scaled)
            if off < best[0]:
                best = (off, tuple(map(_over, costs, scales)))
    return best


def _equations(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solve them by elimination with pivots; None where they are singular."""
    size = len(matrix)
    lines = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(lines[row][column]))
        if abs(lines[pivot][column]) < SINGULAR:
            return None
        lines[column], lines[pivot] = lines[pivot], lines[column]
        for row in range(size):
            if row != column:
                share = lines[row][column] / lines[column][column]
                lines[row] = [a - share * b for a, b in zip(lines[row], lines[column], strict=True)]
    return [lines[row][size] / lines[row][row] for row in range(size)]


def _times(left: float, right: float) -> float:
    return left * right


def _over(left: float, right: float) -> float:
    return left / right
