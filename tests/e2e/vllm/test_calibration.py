"""A real engine, measured for a minute, and then foretold: the next load's times before it runs."""

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from time import monotonic

import pytest

from gateway.lab.calibrate import Calibrated, calibrate
from gateway.lab.loading import LiveEngine
from gateway.sim.baselines.simple import LeastOutstanding
from gateway.sim.engine_config import EngineConfig
from gateway.sim.workload.job import Job
from gateway.sim.world.outcome import Outcome, percentile
from gateway.sim.world.plan import Engines, Plan
from gateway.sim.world.play import play
from tests.e2e.vllm.conftest import FLAGS, Say
from tests.e2e.vllm.engines import SLOTS, running_vllm
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800)]

CALIBRATION_S = 60.0
REQUESTS = 120
LOAD = 0.7
"""Of what the engine can do: queues come and go."""
PROMPTS, OUTPUTS = (20, 600), (16, 96)
OFF_MAX = 0.20
SHARES = (0.5, 0.95)


class Sent:
    """What was sent, as a workload: when it truly was, and as long as it truly was."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs

    def jobs(self) -> Iterator[Job]:
        return iter(self._jobs)

    def ended(self, job: Job, at: float) -> Job | None:
        return None


async def load(engine: LiveEngine, found: Calibrated) -> tuple[list[Job], list[float], list[float]]:
    """Poisson arrivals at a share of the capacity; the jobs, and their TTFT and E2E seconds."""
    dice = Random(11)
    step_s = found.profile.step_s(SLOTS, decodes=SLOTS, kv_tokens=SLOTS * 350, attended=0)
    prefill_s = found.profile.step_s(310, decodes=0, kv_tokens=0, attended=310 * 155)
    rate_per_s = LOAD / (sum(OUTPUTS) / 2 * step_s / SLOTS + prefill_s)
    began_at, at_s = monotonic(), 0.0
    heard = []
    async with asyncio.TaskGroup() as tasks:
        for _ in range(REQUESTS):
            at_s += dice.expovariate(rate_per_s)
            prompt = engine.prompt(dice.randint(*PROMPTS), dice)
            await asyncio.sleep(max(0.0, began_at + at_s - monotonic()))
            heard.append(tasks.create_task(engine.ask(prompt, tokens=dice.randint(*OUTPUTS))))
    answers = [task.result() for task in heard]
    jobs = [
        Job(
            number=number,
            arrived_at=each.sent_at - began_at,
            prompt_tokens=each.prompt_tokens,
            output_tokens=each.output_tokens,
        )
        for number, each in enumerate(answers)
    ]
    ttft_s = [each.first_at - each.sent_at for each in answers]
    return jobs, ttft_s, [each.last_at - each.sent_at for each in answers]


def foretold(found: Calibrated, jobs: Sequence[Job]) -> Outcome:
    """The same requests in the model of the engine."""
    profile = found.profile
    config = EngineConfig(
        max_num_seqs=profile.max_num_seqs,
        kv_blocks=profile.kv_blocks,
        block_tokens=profile.block_tokens,
    )
    engines = Engines(n=1, profile=profile, config=config)
    return play(Plan(engines=(engines,), hop_s=found.hop_s), Sent(jobs), LeastOutstanding())


async def test_a_calibrated_model_foretells_a_real_engine(say: Say) -> None:
    """An operator sizes a fleet, and chooses a policy, by what the model says."""
    with running_vllm(free_port(), flags=FLAGS) as (url,):
        engine = LiveEngine(url)
        try:
            found = await calibrate(engine, seconds=CALIBRATION_S, seed=1, batch_max=4, say=say)
            say("\n  ".join(found.told()))
            assert found.profile.max_num_seqs == SLOTS
            jobs, ttft_s, e2e_s = await load(engine, found)
        finally:
            await engine.aclose()
    outcome = foretold(found, jobs)
    off = {}
    for name, seen, said in (("TTFT", ttft_s, outcome.ttft_s), ("E2E", e2e_s, outcome.e2e_s)):
        for share in SHARES:
            measured, predicted = percentile(seen, share), outcome.percentile(said, share)
            off[f"{name} p{share * 100:g}"] = predicted / measured - 1
            say(f"{name} p{share * 100:g}: measured {measured:.3f} s, foretold {predicted:.3f} s, "
                f"{predicted / measured - 1:+.1%}")  # fmt: skip
    assert max(map(abs, off.values())) <= OFF_MAX, off
