"""The main job on real engines: a power user floods two replicas, a light user does not notice.

Each test says its figures, shown also when it passes.
"""

import asyncio
from pathlib import Path
from time import monotonic

import pytest

from tests.e2e.processes import serving
from tests.e2e.vllm.conftest import Say
from tests.e2e.vllm.engines import SLOTS
from tests.e2e.vllm.load import Measured, QueueWatch, Target, during, every, keep_outstanding

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

GATEWAY_PORT = 18180
FLOOD = 200
SETTLE_S = 8.0
MEASURE_S = 60.0
LIGHT_EVERY_S = 2.0
LIGHT_TOKENS = 16
QUEUE_LIMIT = 2
"""Of tier `standard`; the allowance never exceeds it."""


async def alone(url: str) -> Measured:
    """The light user with nobody else, after one request that warms the engine."""
    seen = Measured()
    await Target(url).stream(LIGHT_TOKENS, Measured())
    await every(0.5, Target(url), tokens=LIGHT_TOKENS, duration_s=5.0, into=seen)
    return seen


async def flooded(
    light: Target, power: list[Target], urls: list[str], *, outstanding: int = FLOOD
) -> tuple[Measured, Measured, QueueWatch, float]:
    """(light user's, power user's, the engines' queues, tokens/s of the fleet) for a minute."""
    flood, seen, watch = Measured(), Measured(), QueueWatch(urls)
    rate = 0.0

    async def work() -> None:
        nonlocal rate
        watch.waiting_max, before, began_at = 0, watch.generated, monotonic()
        await every(LIGHT_EVERY_S, light, tokens=LIGHT_TOKENS, duration_s=MEASURE_S, into=seen)
        rate = (watch.generated - before) / (monotonic() - began_at)

    await during(
        [keep_outstanding(power, outstanding, flood), watch.run()], work, settle_s=SETTLE_S
    )
    return seen, flood, watch, rate


async def test_sent_directly_the_light_user_waits_behind_everybody(
    engines: list[str], say: Say
) -> None:
    """The problem: a burst of 100 on one replica, and what it does to one more request."""
    light, flood = Measured(), Measured()
    target = Target(engines[0])

    async def work() -> None:
        await asyncio.gather(*(target.stream(LIGHT_TOKENS, light) for _ in range(3)))

    undisturbed = await alone(engines[0])
    await during([keep_outstanding([target], 100, flood)], work, settle_s=3.0)
    say(f"direct: alone {undisturbed.median_s:.3f} s, behind 100 {light.median_s:.1f} s")
    assert light.median_s > 50 * undisturbed.median_s


@pytest.mark.parametrize("interval_s", [1.0, 5.0])
async def test_through_the_gateway_the_light_user_does_not_notice(
    engines: list[str], tmp_path: Path, say: Say, interval_s: float
) -> None:
    """p95 within alone + one service time of the others, median within half of that."""
    scheduling = {"scrape_interval_s": interval_s}
    with serving(tmp_path, GATEWAY_PORT, engines, scheduling=scheduling) as url:
        undisturbed = await alone(url)
        seen, flood, watch, rate = await flooded(
            Target(url, user="light"), [Target(url, user="power")], engines
        )
    service_s = sum(flood.service_s) / len(flood.service_s)
    say(
        f"fair, scrape {interval_s:g} s: alone {undisturbed.median_s:.3f} s; light p50 "
        f"{seen.median_s:.3f} p95 {seen.quantile_s(0.95):.3f} s; service {service_s:.3f} s; "
        f"longest engine queue {watch.waiting_max}; {rate:.0f} tokens/s; failed {flood.failed}"
    )
    assert flood.failed == seen.failed == 0
    assert seen.quantile_s(0.95) <= undisturbed.median_s + service_s
    assert seen.median_s <= undisturbed.median_s + service_s / 2
    assert watch.waiting_max <= QUEUE_LIMIT + 1


async def test_a_critical_user_is_served_within_a_step(
    engines: list[str], tmp_path: Path, say: Say
) -> None:
    """With `lend: false` the headroom of tier 0 is never given away: nothing has to end first."""
    with serving(tmp_path, GATEWAY_PORT, engines, scheduling={"lend": False}) as url:
        critical = Target(url, user="light", tier="critical")
        seen, flood, watch, _ = await flooded(critical, [Target(url, user="power")], engines)
        running = round(sum(flood.service_s) / MEASURE_S / len(engines))
    step_s = sum(flood.service_s) / (flood.tokens - len(flood.service_s))
    direct, held = Measured(), Measured()
    running = min(max(1, running), SLOTS - 1)

    async def work() -> None:
        await every(
            LIGHT_EVERY_S, Target(engines[0]), tokens=LIGHT_TOKENS, duration_s=MEASURE_S,
            into=direct,
        )  # fmt: skip

    background = keep_outstanding([Target(each) for each in engines], running * 2, held)
    await during([background], work, settle_s=2.0)
    say(
        f"critical, lend false: {running} running; step {step_s:.4f} s; direct p50 "
        f"{direct.median_s:.4f} p95 {direct.quantile_s(0.95):.4f} s, through p50 "
        f"{seen.median_s:.4f} p95 {seen.quantile_s(0.95):.4f} s; "
        f"longest engine queue {watch.waiting_max}"
    )
    assert seen.quantile_s(0.95) <= direct.quantile_s(0.95) + step_s + 0.010


async def test_lending_costs_no_throughput(engines: list[str], tmp_path: Path, say: Say) -> None:
    """At least 98 % of the tokens that sending everything directly gives."""
    direct = [Target(each) for each in engines]
    _, _, _, before = await flooded(Target(engines[0]), direct, engines)
    with serving(tmp_path, GATEWAY_PORT, engines) as url:
        _, _, _, through = await flooded(
            Target(url, user="light"), [Target(url, user="power")], engines
        )
    _, _, _, after = await flooded(Target(engines[0]), direct, engines)
    share = through / ((before + after) / 2)
    say(
        f"throughput: direct {before:.0f} and {after:.0f}, through {through:.0f} tokens/s: "
        f"{share:.3f}"
    )
    assert share >= 0.98


async def test_a_cold_burst_does_not_pile_up(engines: list[str], tmp_path: Path, say: Say) -> None:
    """The first 200 requests meet gauges that still read 0 and slots that nobody knows."""
    watch, seen = QueueWatch(engines), Measured()
    with serving(tmp_path, GATEWAY_PORT, engines) as url:
        target = Target(url, user="burst")

        async def work() -> None:
            await asyncio.gather(*(target.stream(24, seen) for _ in range(200)))

        await during([watch.run()], work, settle_s=0.2)
    say(f"cold burst of 200: longest engine queue {watch.waiting_max}, failed {seen.failed}")
    assert seen.failed == 0
    assert watch.waiting_max <= QUEUE_LIMIT + 1
