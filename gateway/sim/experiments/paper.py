"""The paper's tables as an experiment: each printed speed-up beside the one that comes out here.

How the systems are modelled, errors included, is `gateway.sim.paper`'s affair.
"""

from collections.abc import Sequence
from statistics import median
from typing import cast

import msgspec

from gateway.sim.experiments.report import Measured, Row
from gateway.sim.paper.run import SEEDS
from gateway.sim.paper.tables import MEASURES, ROWS
from gateway.sim.paper.trial import Rules, Workload, run_trial
from gateway.sim.paper.workload import Mix

CELL_OFF_MAX, MEDIAN_OFF_MAX = 0.25, 0.08
"""|reproduced / printed - 1|: of each cell, and in the median."""


class PaperKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows; all that is printed by default."""

    mixes: tuple[str, ...] = ("uniform", "gaussian", "enterprise")
    requests: tuple[int, ...] = (10_000, 15_000)
    tiers: tuple[int, ...] = (3, 4, 5)


def paper_points(knobs: PaperKnobs) -> list[Row]:
    """The rows that were asked for, in the paper's order."""
    return [
        {"mix": row.mix, "requests": row.requests, "tiers": row.tiers}
        for row in ROWS
        if row.mix in knobs.mixes and row.requests in knobs.requests and row.tiers in knobs.tiers
    ]


def paper_tables(_knobs: PaperKnobs, point: Row, seed: int) -> Measured:
    """Both systems once; seed 0 is the paper's own."""
    mix, requests, tiers = cast(Mix, point["mix"]), int(point["requests"]), int(point["tiers"])
    workload = Workload(mix=mix, tiers=tiers, requests=requests)
    slow, fast = (
        run_trial(system, workload, SEEDS[0] + seed, Rules()).all
        for system in ("baseline", "llumnix")
    )
    (printed,) = [
        row.printed for row in ROWS if (row.mix, row.requests, row.tiers) == (mix, requests, tiers)
    ]
    figures: dict[str, str | int | float] = {}
    for name, said, found in zip(MEASURES, printed, fast.speedups_over(slow), strict=True):
        figures |= {f"{name} printed": said, name: found, f"{name} ratio": found / said}
    return Measured(figures={**figures, "baseline ended": slow.finished, "ended": fast.finished})


def judge_paper(_knobs: PaperKnobs, rows: Sequence[Row]) -> list[str]:
    """How near all cells are, and whether the cut shows."""
    off = [abs(float(row[f"{name} ratio"]) - 1) for row in rows for name in MEASURES]
    words = ["met" if max(off) <= CELL_OFF_MAX else "missed"]
    words.append("met" if median(off) <= MEDIAN_OFF_MAX else "missed")
    notes = [
        f"{len(off)} cells: worst {max(off):.1%} off, target {CELL_OFF_MAX:.0%}: {words[0]}; "
        f"median {median(off):.1%} off, target {MEDIAN_OFF_MAX:.0%}: {words[1]}"
    ]
    if len({row["requests"] for row in rows}) > 1:
        ended = {row["baseline ended"] for row in rows}
        notes.append(
            "the baseline ends as many of the larger number as of the smaller: "
            + ("yes, so the cut at 60 s decides" if len(ended) == 1 else "no")
        )
    return notes
