"""The paper's three tables, run again: 18 rows of four speed-ups, each beside the printed one.

Decides what is compared with what; how it is said is `report.py`.
"""

import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gateway import __version__
from gateway.sim.paper.pool import Task, trials
from gateway.sim.paper.report import percent, table
from gateway.sim.paper.tables import MEASURES, ROWS, Row, Speedups
from gateway.sim.paper.trial import Rules, Trial, Workload
from gateway.sim.paper.workload import Mix

SEEDS = (42, 43, 44)
"""The paper's own, and two more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """One row: what is printed and what came out, over all seeds."""

    row: Row
    by_seed: tuple[Speedups, ...]
    finished_baseline: tuple[int, ...]
    finished_llumnix: tuple[int, ...]

    @property
    def speedups(self) -> Speedups:
        """The median over the seeds of each of the four."""
        return Speedups(*(statistics.median(cell) for cell in zip(*self.by_seed, strict=True)))

    @property
    def ratios(self) -> Speedups:
        """Reproduced over printed."""
        pairs = zip(self.speedups, self.row.printed, strict=True)
        return Speedups(*(reproduced / printed for reproduced, printed in pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All rows, and how near they are."""

    seeds: tuple[int, ...]
    rows: tuple[Reproduced, ...]

    @property
    def deviations(self) -> list[float]:
        """Of every cell, |reproduced / printed - 1|, sorted."""
        return sorted(abs(ratio - 1) for row in self.rows for ratio in row.ratios)

    @property
    def deviation_median(self) -> float:
        """Of all cells."""
        return statistics.median(self.deviations)

    @property
    def deviation_max(self) -> float:
        """The worst cell."""
        return self.deviations[-1]

    @property
    def is_truncated(self) -> bool:
        """The signature of the cut: a seed's baseline ends so many, however many there are."""
        counts = {row.row.requests for row in self.rows}
        finished = {
            seed: {row.finished_baseline[place] for row in self.rows}
            for place, seed in enumerate(self.seeds)
        }
        return len(counts) > 1 and all(len(numbers) == 1 for numbers in finished.values())

    def best_tiers(self) -> dict[tuple[Mix, int], tuple[int, ...]]:
        """(mix, requests) -> the number of tiers with the best E2E P99, for each seed."""
        rows: dict[tuple[Mix, int], list[Reproduced]] = {}
        for row in self.rows:
            rows.setdefault((row.row.mix, row.row.requests), []).append(row)
        return {
            key: tuple(_best_tiers(group, place) for place in range(len(self.seeds)))
            for key, group in rows.items()
        }

    def to_json(self) -> str:
        """Everything, with the seeds and the versions it came from."""
        return json.dumps(
            {
                "versions": {"fairgate": __version__, "python": platform.python_version()},
                "seeds": self.seeds,
                "deviation_median": self.deviation_median,
                "deviation_max": self.deviation_max,
                "is_truncated": self.is_truncated,
                "rows": [
                    {
                        "row": asdict(row.row) | {"printed": row.row.printed._asdict()},
                        "reproduced": row.speedups._asdict(),
                        "by_seed": [speedups._asdict() for speedups in row.by_seed],
                        "finished_baseline": row.finished_baseline,
                        "finished_llumnix": row.finished_llumnix,
                    }
                    for row in self.rows
                ],
            },
            indent=2,
        )

    def text(self) -> str:
        """The table, and the figures that sum it up."""
        lines = [
            [
                row.row.mix,
                f"{row.row.requests // 1000}K",
                str(row.row.tiers),
                *(
                    f"{printed:.2f} / {reproduced:.2f} / {ratio:.2f}"
                    for printed, reproduced, ratio in zip(
                        row.row.printed, row.speedups, row.ratios, strict=True
                    )
                ),
                f"{percent(row.row.cost_share)} / {percent(1 - 1 / row.speedups.e2e_p99)}",
                _span(row.finished_baseline),
                _span(row.finished_llumnix),
            ]
            for row in self.rows
        ]
        heads = ["mix", "N", "K", *MEASURES, "cost/latency", "baseline ended", "Llumnix ended"]
        seeds = ", ".join(map(str, self.seeds))
        return "\n".join(
            [
                f"printed / reproduced (median of seeds {seeds}) / ratio",
                table(heads, lines),
                f"deviation of the {len(self.deviations)} cells: median "
                f"{percent(self.deviation_median, 1)}, worst {percent(self.deviation_max, 1)}",
                "the baseline ends the same number of requests in every row of a seed: "
                + ("yes" if self.is_truncated else "no"),
                "best K by E2E P99, seed by seed: "
                + "; ".join(
                    f"{mix} {requests // 1000}K {' '.join(map(str, tiers))}"
                    for (mix, requests), tiers in self.best_tiers().items()
                ),
            ]
        )


def paper_tables(
    seeds: Sequence[int] = SEEDS, processes: int = 1, *, rows: Sequence[Row] = ROWS
) -> Report:
    """Both systems for every row and seed: about two seconds a pair and process.

    Args:
        seeds: at least one.
        processes: how many to spread them over; the figures do not depend on it.
        rows: all of the paper's, or some.
    """
    tasks = [
        Task(system=system, workload=_workload(row), seed=seed, rules=Rules())
        for row in rows
        for seed in seeds
        for system in ("baseline", "llumnix")
    ]
    done = list(trials(tasks, processes))
    width = 2 * len(seeds)
    return Report(
        seeds=tuple(seeds),
        rows=tuple(
            _reproduced(row, done[place * width : (place + 1) * width])
            for place, row in enumerate(rows)
        ),
    )


def _reproduced(row: Row, done: Sequence[Trial]) -> Reproduced:
    baseline, llumnix = done[::2], done[1::2]
    return Reproduced(
        row=row,
        by_seed=tuple(
            fast.all.speedups_over(slow.all) for slow, fast in zip(baseline, llumnix, strict=True)
        ),
        finished_baseline=tuple(trial.all.finished for trial in baseline),
        finished_llumnix=tuple(trial.all.finished for trial in llumnix),
    )


def _best_tiers(rows: Sequence[Reproduced], place: int) -> int:
    return max((row.by_seed[place].e2e_p99, row.row.tiers) for row in rows)[1]


def _workload(row: Row) -> Workload:
    return Workload(mix=row.mix, tiers=row.tiers, requests=row.requests)


def _span(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least}" if least == most else f"{least}-{most}"
