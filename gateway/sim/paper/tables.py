"""The speed-ups that the paper prints, as data: its Tables 2 to 4.

Knows nothing of how they may be reached. Source: Vestrum, Raeesi and Roed, "Beyond Binary
Priorities", arXiv 2608.16336; every figure is the INFaaS + vLLM baseline's divided by K-tier
Llumnix's.
"""

from dataclasses import dataclass
from typing import NamedTuple

from gateway.sim.paper.workload import Mix


class Speedups(NamedTuple):
    """How many times faster than the baseline, by four measures."""

    prefill_p99: float
    prefill_mean: float
    e2e_p99: float
    e2e_mean: float


MEASURES = ("prefill P99", "prefill mean", "E2E P99", "E2E mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table."""

    mix: Mix
    requests: int
    tiers: int
    printed: Speedups
    cost_share: float
    """The "cost per latency" improvement: 1 - 1/(E2E P99 speed-up), up to rounding."""


def _rows(mix: Mix, requests: int, *lines: tuple[float, float, float, float, float]) -> list[Row]:
    return [
        Row(
            mix=mix,
            requests=requests,
            tiers=tiers,
            printed=Speedups(*line[:4]),
            cost_share=line[4],
        )
        for tiers, line in zip((3, 4, 5), lines, strict=True)
    ]


ROWS: tuple[Row, ...] = (
    *_rows(
        "uniform",
        10_000,
        (4.79, 8.23, 2.87, 2.80, 0.65),
        (4.87, 8.23, 3.13, 2.88, 0.68),
        (4.16, 8.11, 3.04, 2.92, 0.67),
    ),
    *_rows(
        "uniform",
        15_000,
        (2.98, 5.00, 1.87, 1.97, 0.46),
        (3.16, 5.16, 2.12, 2.08, 0.53),
        (2.72, 5.07, 2.04, 2.12, 0.51),
    ),
    *_rows(
        "gaussian",
        10_000,
        (3.24, 7.47, 2.26, 2.45, 0.56),
        (4.25, 8.33, 3.07, 2.79, 0.67),
        (3.49, 7.51, 2.43, 2.74, 0.59),
    ),
    *_rows(
        "gaussian",
        15_000,
        (2.00, 4.68, 1.49, 1.71, 0.33),
        (2.70, 5.24, 2.02, 1.96, 0.51),
        (2.25, 4.88, 1.97, 1.67, 0.41),
    ),
    *_rows(
        "enterprise",
        10_000,
        (3.10, 8.06, 2.18, 2.27, 0.54),
        (4.41, 8.28, 3.02, 2.79, 0.67),
        (4.12, 8.14, 2.96, 2.89, 0.66),
    ),
    *_rows(
        "enterprise",
        15_000,
        (1.77, 4.51, 1.31, 1.44, 0.24),
        (2.76, 5.04, 1.94, 1.95, 0.48),
        (2.61, 5.06, 1.97, 2.08, 0.49),
    ),
)
