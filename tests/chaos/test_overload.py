"""Three times what the fleet can serve: the first tier keeps its targets, and memory stays flat."""

import asyncio
import statistics
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.chaos.conftest import Say
from tests.chaos.site import Site, site, slope_mb_per_min
from tests.chaos.timed import Stream, Timing, offered

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3_600)]

SLOTS, STEP_S, TOKENS = 8, 0.02, 20
CAPACITY_PER_S = SLOTS / (STEP_S * TOKENS)
OFFERED = 3.0
TTFT_MS, TPOT_MS = 500.0, 100.0
TIERS = [
    {"name": "critical", "queue_limit": 4, "ttft_target_ms": TTFT_MS, "tpot_target_ms": TPOT_MS},
    {"name": "standard", "patience_s": 10},
    {"name": "background", "patience_s": 10, "queue_limit": 0},
]
WAITING_MAX = 100
READY_S_MAX = 1.0
WARM_S = 60.0
SLOPE_MB_PER_MIN_MAX = 1.0
GROWTH_MB_MAX = 60.0
"""Of a run too short for a trend: the queue fills once."""


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Site]:
    """One engine with eight slots, and a short queue."""
    options = EmulatorOptions(profile="demo", max_num_seqs=SLOTS)
    async with (
        running_emulator(options) as engine,
        site(
            tmp_path,
            [engine.url],
            tiers=TIERS,
            service_tiers={},
            bounds={"waiting": WAITING_MAX},
        ) as running,
    ):
        yield running


async def test_the_first_tier_keeps_its_targets_beyond_capacity(
    gateway: Site, request: pytest.FixtureRequest, say: Say
) -> None:
    """On the day that matters everybody comes at once, and the paying ones must not notice."""
    seconds = request.config.getoption("--overload-s", default=20.0)
    rate = CAPACITY_PER_S * OFFERED
    streams = [
        Stream(tier="critical", per_s=rate * 0.1, users=3, tokens=TOKENS),
        Stream(tier="standard", per_s=rate * 0.45, users=8, tokens=TOKENS),
        Stream(tier="background", per_s=rate * 0.45, users=8, tokens=TOKENS),
    ]
    watching = asyncio.ensure_future(watched(gateway))
    timings = await offered(gateway.port, streams, seconds, seed=1)
    await gateway.freed(30.0)
    watching.cancel()
    samples, ready_s = await watching
    told = {tier: of_tier(timings, tier) for tier in ("critical", "standard", "background")}
    slope = slope_mb_per_min(samples, min(WARM_S, seconds / 3))
    sizes = [mb for _, mb in samples]
    say(
        f"{len(timings)} requests at {OFFERED:g} x capacity for {seconds:.0f} s\n    "
        + "\n    ".join(f"{tier}: {each}" for tier, each in told.items())
        + f"\n    gateway {sizes[0]:.0f} MB, at most {max(sizes):.0f}, slope {slope:+.2f} MB/min;"
        f" slowest /readyz {ready_s * 1e3:.0f} ms"
    )
    assert gateway.is_alive
    first = [each for each in timings if each.tier == "critical"]
    assert all(each.is_complete for each in first)
    assert quantile([each.ttft_s or 0.0 for each in first]) * 1e3 <= TTFT_MS
    assert quantile([each.tpot_s or 0.0 for each in first]) * 1e3 <= TPOT_MS
    refused = [each for each in timings if each.status != 200]
    assert {each.status for each in refused} <= {429, 503}
    assert all(each.retry_after for each in refused)
    assert share(timings, "critical") >= share(timings, "standard") >= share(timings, "background")
    assert all(each.is_complete != each.is_error for each in timings)
    assert ready_s < READY_S_MAX
    assert max(sizes) - sizes[0] < GROWTH_MB_MAX
    if seconds >= 3 * WARM_S:  # a trend of seconds says nothing about hours
        assert slope < SLOPE_MB_PER_MIN_MAX


async def watched(gateway: Site) -> tuple[list[tuple[float, float]], float]:
    """(instant, memory) until cancelled, and the longest that a look took."""
    began_at, samples, longest_s = monotonic(), list[tuple[float, float]](), 0.0
    try:
        while True:
            asked_at = monotonic()
            samples.append((asked_at - began_at, gateway.rss_mb()))
            await gateway.ready()
            longest_s = max(longest_s, monotonic() - asked_at)
            await asyncio.sleep(0.5)
    except asyncio.CancelledError:
        return samples, longest_s


def quantile(values: list[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(values, n=20)[-1]


def share(timings: list[Timing], tier: str) -> float:
    """Of a tier's requests, those that were served."""
    some = [each.is_complete for each in timings if each.tier == tier]
    return sum(some) / len(some)


def of_tier(timings: list[Timing], tier: str) -> str:
    """One line of the report."""
    some = [each for each in timings if each.tier == tier]
    statuses = Counter(each.status for each in some)
    ttft_s = [each.ttft_s for each in some if each.ttft_s is not None]
    return (
        f"{dict(statuses)}, TTFT p95 {quantile(ttft_s) * 1e3:.0f} ms" if ttft_s else f"{statuses}"
    )
