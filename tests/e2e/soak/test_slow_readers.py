"""A thousand clients on a thin line for minutes: no memory grows, no slot is lost, none is cut."""

import asyncio
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import pytest

from tests.e2e.soak.conftest import Say
from tests.e2e.soak.readers import GIANT_EVERY
from tests.e2e.soak.site import Watched, watched
from tests.e2e.soak.small import Connections, steady

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600)]

WARM_S_MAX = 60.0
SAMPLE_S = 1.0
SLOPE_MB_PER_MIN_MAX = 1.0
GONE_S_MAX = 5.0
LEAVING_S = 3.0
"""Before the end, when clients leave, nobody can tell who left whom."""
BUFFER_BYTES = 1 << 20
WRITE_EVENTS, WRITE_US = "50", "100000"
"""The engine sends a hundred times as fast as anybody reads."""


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A gateway before a quick engine."""
    engine = (
        "-m", "gateway.bench.upstream", "--interval-us", WRITE_US, "--events-per-write",
        WRITE_EVENTS,
    )  # fmt: skip
    bounds = {"stream_buffer": BUFFER_BYTES, "users_per_tenant": 100_000}
    with watched(tmp_path_factory.mktemp("slow"), engine, bounds=bounds) as running:
        yield running


@dataclass(slots=True)
class Noted:
    """What was seen of the gateway, once a second."""

    rss_mb: list[tuple[float, float]]
    cut: list[tuple[float, float]] = field(default_factory=list)
    """Streams that ended before their clients did, so far."""
    granted_max: int = 0
    small_s_max: float = 0.0


async def test_slow_readers_cost_no_more_after_minutes_than_at_first(
    site: Watched, seconds: float, readers: int, say: Say
) -> None:
    """Gateways of this kind have grown for hours until somebody restarted them."""
    cpu_s = site.cpu_s()
    noted, seen = await read_and_watch(site, seconds=seconds, readers=readers)
    cpu_s = site.cpu_s() - cpu_s
    gone_s = await until_nothing_is_held(site)
    rss_mb = noted.rss_mb
    slope = slope_mb_per_min(rss_mb, after_s=min(WARM_S_MAX, seconds / 5))
    cut = max(count for at, count in noted.cut if at < seconds - LEAVING_S)
    say(
        f"{readers} readers, {seconds:.0f} s: {seen['ends']}, {seen['read_bytes'] / 1e6:.0f} MB;"
        f" {cut:.0f} cut by the gateway\n"
        f"    gateway {rss_mb[0][1]:.0f} MB at rest, {max(mb for _, mb in rss_mb):.0f} at most,"
        f" {rss_mb[-1][1]:.0f} at the end, slope {slope:+.2f} MB/min after the first minute;"
        f" CPU {cpu_s / seconds * 100:.0f} %\n"
        f"    at most {noted.granted_max} slots held;"
        f" slowest small request {noted.small_s_max * 1000:.0f} ms, loop held by itself"
        f" {site.held().cpu_ms:.0f} ms;"
        f" nothing held {gone_s * 1000:.0f} ms after the last client left"
    )
    if seconds >= 3 * WARM_S_MAX:  # a trend of seconds says nothing about hours
        assert slope < SLOPE_MB_PER_MIN_MAX
    assert set(seen["ends"]) <= {"complete", "left", "giant left"}
    assert seen["ends"]["complete"] > 0
    assert cut <= -(-readers // GIANT_EVERY), "only who lags far behind is ever cut"
    assert gone_s < GONE_S_MAX


async def read_and_watch(
    site: Watched, *, seconds: float, readers: int
) -> tuple[Noted, dict[str, Any]]:
    """Let them read, and look once a second."""
    noted, began_at = Noted([(0.0, site.rss_mb())]), monotonic()
    reading = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.soak.readers", "--port", str(site.port),
        "--readers", str(readers), "--seconds", str(seconds), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    told = asyncio.ensure_future(reading.communicate())
    connections = Connections(site.port)
    while not told.done():
        noted.small_s_max = max(noted.small_s_max, *await steady(connections, SAMPLE_S))
        now = monotonic() - began_at
        noted.rss_mb.append((now, site.rss_mb()))
        noted.cut.append((now, await asyncio.to_thread(site.cut)))
        granted = await asyncio.to_thread(lambda: site.ready()["granted"])
        noted.granted_max = max(noted.granted_max, granted)
    connections.close()
    return noted, json.loads((await told)[0])


def slope_mb_per_min(samples: list[tuple[float, float]], *, after_s: float) -> float:
    """The trend of the samples since `after_s`."""
    times, sizes = zip(*(each for each in samples if each[0] >= after_s), strict=True)
    return statistics.linear_regression(times, sizes).slope * 60


async def until_nothing_is_held(site: Watched) -> float:
    """Seconds until all slots are free. Raises AssertionError where they do not become so."""
    began_at = monotonic()
    while (held := site.ready())["granted"] or held["waiting"]:
        assert monotonic() < began_at + 10 * GONE_S_MAX, held
        await asyncio.sleep(0.02)
    return monotonic() - began_at
