"""What the paper's figures rest on: its model's liberties taken away one by one, and what remains.

Decides which corrections are tried, and on which engines isolation is shown.
"""

import json
import math
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from gateway import __version__
from gateway.sim.paper.engine import Size
from gateway.sim.paper.pool import Task, trials
from gateway.sim.paper.report import seconds, table
from gateway.sim.paper.run import SEEDS
from gateway.sim.paper.tables import MEASURES, Speedups
from gateway.sim.paper.trial import Figures, Rules, System, Trial, Workload

VARIANTS: tuple[tuple[str, Rules], ...] = (
    ("as published", Rules()),
    ("migration off", Rules(migrates=False)),
    ("round robin instead of freeness", Rules(route_by="turn")),
    ("round robin, migration off", Rules(route_by="turn", migrates=False)),
    ("attention of every decode charged", Rules(sequences_charged_max=None)),
    ("no cut after 60 s", Rules(cut_s=None)),
    ("KV accounted", Rules(keeps_kv=True)),
    ("KV accounted, no cut", Rules(keeps_kv=True, cut_s=None)),
)

CASES: tuple[Workload, ...] = (
    *(Workload(mix="uniform", tiers=tiers, requests=10_000) for tiers in (1, 3, 4, 5)),
    *(Workload(mix="uniform", tiers=tiers, requests=15_000) for tiers in (1, 4)),
)

REAL_SIZE = Size(blocks=7_300, sequences_max=256, watermark_blocks=73)
"""A 7B model's KV on 80 GB, and vLLM's default batch."""
REAL = Rules(keeps_kv=True, sequences_charged_max=None, cut_s=None, size=REAL_SIZE)
REAL_SYSTEMS: tuple[tuple[str, System, Rules], ...] = (
    ("INFaaS + vLLM: one queue each, no tiers", "baseline", REAL),
    ("K-tier Llumnix, KV accounted", "llumnix", REAL),
    (
        "tiers alone, to the fewest outstanding",
        "llumnix",
        replace(REAL, route_by="outstanding", migrates=False),
    ),
)
REAL_TIERS = 4
REAL_RATES_PER_S = (425.0, 480.0)
REAL_REQUESTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """One variant under one workload; medians over the seeds."""

    variant: str
    workload: Workload
    speedups: Speedups
    finished_baseline: int
    finished_llumnix: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """All variants under all workloads."""

    seeds: tuple[int, ...]
    rows: tuple[Corrected, ...]

    def to_json(self) -> str:
        """Everything, with the seeds and the versions it came from."""
        rows = [asdict(row) | {"speedups": row.speedups._asdict()} for row in self.rows]
        return _json(self.seeds, rows)

    def text(self) -> str:
        """One table, a line for each variant and workload."""
        lines = [
            [
                row.variant,
                f"{row.workload.requests // 1000}K",
                str(row.workload.tiers),
                *(f"{speedup:.2f}" for speedup in row.speedups),
                str(row.finished_baseline),
                str(row.finished_llumnix),
            ]
            for row in self.rows
        ]
        heads = ["variant", "N", "K", *MEASURES, "baseline ended", "Llumnix ended"]
        return f"speed-ups, uniform tiers, {_medians(self.seeds)}\n{table(heads, lines)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    """One system under one load, and what each tier gets; medians over the seeds."""

    system: str
    rate_per_s: float
    prefill_mean_s: float
    e2e_mean_s: float
    prefill_p99_s: tuple[float, ...]
    """Tier 0 first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The same requests with and without tiers, on engines that account for their KV."""

    seeds: tuple[int, ...]
    rows: tuple[Isolated, ...]

    def to_json(self) -> str:
        """Everything, with the seeds and the versions it came from."""
        return _json(self.seeds, [asdict(row) for row in self.rows])

    def text(self) -> str:
        """One table, a line for each load and system."""
        lines = [
            [
                f"{row.rate_per_s:.0f}",
                row.system,
                seconds(row.prefill_mean_s),
                seconds(row.e2e_mean_s),
                *(seconds(value) for value in row.prefill_p99_s),
            ]
            for row in self.rows
        ]
        heads = ["requests/s", "system", "mean s", "E2E mean s"]
        heads += [f"tier {tier} P99 s" for tier in range(REAL_TIERS)]
        title = f"time to the first token, enterprise tiers, {_medians(self.seeds)}"
        return f"{title}\n{table(heads, lines)}"


def paper_ablation(
    seeds: Sequence[int] = SEEDS,
    processes: int = 1,
    *,
    cases: Sequence[Workload] = CASES,
    variants: Sequence[tuple[str, Rules]] = VARIANTS,
) -> Ablation:
    """Every variant under every workload; both systems follow its rules, as far as they apply.

    Args:
        seeds: at least one.
        processes: how many to spread the trials over; the figures do not depend on it.
        cases: the workloads.
        variants: names and rules.
    """
    pairs = [(name, rules, case) for name, rules in variants for case in cases]
    tasks = [
        Task(system=system, workload=case, seed=seed, rules=rules)
        for _, rules, case in pairs
        for seed in seeds
        for system in ("baseline", "llumnix")
    ]
    done = list(trials(tasks, processes))
    width = 2 * len(seeds)
    rows = [
        _corrected(name, case, done[place * width : (place + 1) * width])
        for place, (name, _, case) in enumerate(pairs)
    ]
    return Ablation(seeds=tuple(seeds), rows=tuple(rows))


def paper_isolation(
    seeds: Sequence[int] = SEEDS,
    processes: int = 1,
    *,
    rates_per_s: Sequence[float] = REAL_RATES_PER_S,
    requests: int = REAL_REQUESTS,
) -> Isolation:
    """With and without tiers, at and above the capacity of four real engines.

    Args:
        seeds: at least one.
        processes: how many to spread the trials over; the figures do not depend on it.
        rates_per_s: arrivals; four such engines serve about 425 requests/s of these lengths.
        requests: of each run; all of them end.
    """
    pairs = [(rate, *each) for rate in rates_per_s for each in REAL_SYSTEMS]
    tasks = [
        Task(
            system=system,
            workload=Workload(
                mix="enterprise",
                tiers=REAL_TIERS,
                requests=requests,
                rate_per_s=rate,
                gap_max_means=math.inf,
            ),
            seed=seed,
            rules=rules,
        )
        for rate, _, system, rules in pairs
        for seed in seeds
    ]
    done = list(trials(tasks, processes))
    width = len(seeds)
    rows = [
        _isolated(name, rate, done[place * width : (place + 1) * width])
        for place, (rate, name, _, _) in enumerate(pairs)
    ]
    return Isolation(seeds=tuple(seeds), rows=tuple(rows))


def _corrected(name: str, workload: Workload, done: Sequence[Trial]) -> Corrected:
    baseline, llumnix = done[::2], done[1::2]
    speedups = [
        fast.all.speedups_over(slow.all) for slow, fast in zip(baseline, llumnix, strict=True)
    ]
    return Corrected(
        variant=name,
        workload=workload,
        speedups=Speedups(*(statistics.median(cell) for cell in zip(*speedups, strict=True))),
        finished_baseline=_median_count([trial.all for trial in baseline]),
        finished_llumnix=_median_count([trial.all for trial in llumnix]),
    )


def _isolated(system: str, rate_per_s: float, done: Sequence[Trial]) -> Isolated:
    return Isolated(
        system=system,
        rate_per_s=rate_per_s,
        prefill_mean_s=statistics.median(trial.all.prefill_mean_s for trial in done),
        e2e_mean_s=statistics.median(trial.all.e2e_mean_s for trial in done),
        prefill_p99_s=tuple(
            statistics.median(trial.tiers[tier].prefill_p99_s for trial in done)
            for tier in range(REAL_TIERS)
        ),
    )


def _median_count(figures: Sequence[Figures]) -> int:
    return int(statistics.median(each.finished for each in figures))


def _medians(seeds: Sequence[int]) -> str:
    return f"medians of seeds {', '.join(map(str, seeds))}"


def _json(seeds: Sequence[int], rows: list[dict[str, object]]) -> str:
    versions = {"fairgate": __version__, "python": platform.python_version()}
    return json.dumps({"versions": versions, "seeds": seeds, "rows": rows}, indent=2)
