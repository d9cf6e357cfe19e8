"""Minutes of churn: clients of every manner, engines that come and go, and memory that stays."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from time import monotonic

import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.chaos.clients import Seen, ask
from tests.chaos.conftest import Say
from tests.chaos.fleet import Replica, running_fleet
from tests.chaos.judge import Oracle, faults_of, is_served
from tests.chaos.schedule import ENGINE_FAULTS, Engine, drawn_client
from tests.chaos.site import Site, site, slope_mb_per_min

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(7_200)]

ENGINES = (Engine(is_process=False, has_line=True, slots=8, speed=4.0),) * 3
CLIENTS = 24
STALL_S = 10.0
WARM_SHARE = 0.2
SLOPE_MB_PER_MIN_MAX = 0.5
TREND_S_MIN = 300.0
PAUSE_S_MAX = 3.0
CLIENT_S_MAX = 90.0
"""A patient client that has no end by then hangs: longer than any bound of the gateway."""


async def test_churn_leaves_nothing_behind(
    request: pytest.FixtureRequest, tmp_path: Path, say: Say
) -> None:
    """What leaks a little with every failure is found after a week, by its users."""
    seconds = request.config.getoption("--soak", default=None)
    if not seconds:
        pytest.skip("--soak runs it for 15 minutes, --soak 60 for one")
    seed = request.config.getoption("--seed", default=None) or 0
    async with (
        running_emulator(EmulatorOptions(profile="instant")) as alone,
        running_fleet(ENGINES) as fleet,
        site(tmp_path, [each.url for each in fleet], bounds={"client_stall_s": STALL_S}) as gateway,
    ):
        oracle = Oracle(alone.url)
        wrong, ends = list[str](), Counter[str]()
        samples, until = list[tuple[float, float]](), monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(
                    keep_asking(
                        gateway, oracle, random.Random(seed * 1000 + number), until, wrong, ends
                    )
                )
            for number, replica in enumerate(fleet):
                chance = random.Random(f"{seed} engine {number}")
                tasks.create_task(keep_breaking(replica, chance, until))
            tasks.create_task(keep_looking(gateway, samples, until))
        for replica in fleet:
            await replica.heal()
        await gateway.freed(90.0)
        for replica in fleet:
            await replica.idle(10.0)
        await oracle.aclose()
        slope = slope_mb_per_min(samples, seconds * WARM_SHARE)
        sizes = [mb for _, mb in samples]
        say(
            f"{seconds:.0f} s of churn: {dict(ends)}\n    gateway {sizes[0]:.0f} MB, at most"
            f" {max(sizes):.0f}, at the end {sizes[-1]:.0f}, slope {slope:+.2f} MB/min"
        )
        assert gateway.is_alive
    assert not wrong, "\n".join(("", *wrong[:20]))
    assert ends["served"] > 0
    if seconds >= TREND_S_MIN:
        assert slope < SLOPE_MB_PER_MIN_MAX


async def keep_asking(
    gateway: Site,
    oracle: Oracle,
    chance: random.Random,
    until: float,
    wrong: list[str],
    ends: Counter[str],
) -> None:
    """One client after the other."""
    while monotonic() < until:
        client = drawn_client(chance)
        await oracle.learn([client])
        over = asyncio.Event()
        patience_s = CLIENT_S_MAX if client.manner in ("reads", "slow") else PAUSE_S_MAX
        timer = asyncio.get_running_loop().call_later(patience_s, over.set)
        seen = await ask(gateway.port, client, over)
        timer.cancel()
        wrong.extend(f"{fault}; {client}" for fault in faults_of(seen, oracle))
        if has_hung(seen):
            wrong.append(f"no end came to {client}, only {seen.raw[-200:]!r}")
        ends["served" if is_served(seen) else f"{seen.end} {seen.status or ''}".strip()] += 1
        await asyncio.sleep(chance.random() * 0.2)


def has_hung(seen: Seen) -> bool:
    """Whether a client that wanted its answer got no end."""
    return seen.end == "left" and seen.client.manner in ("reads", "slow")


async def keep_breaking(replica: Replica, chance: random.Random, until: float) -> None:
    """One fault after the other, with pauses."""
    while monotonic() < until:
        await asyncio.sleep(chance.random() * PAUSE_S_MAX)
        if chance.random() < 0.2:
            await replica.engine.kill()
        else:
            await replica.engine.inject(chance.choice(ENGINE_FAULTS))
        if replica.line is not None and chance.random() < 0.1:
            replica.line.reset_all()
        await asyncio.sleep(chance.random())
        await replica.heal()


async def keep_looking(gateway: Site, samples: list[tuple[float, float]], until: float) -> None:
    """How much memory it has, once a second."""
    began_at = monotonic()
    while monotonic() < until:
        samples.append((monotonic() - began_at, gateway.rss_mb()))
        await asyncio.sleep(1.0)
