"""A profile fitted to a live engine: the emulated one, whose true profile is known."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest
import yaml

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from gateway.lab.calibrate import Calibrated, calibrate
from gateway.lab.loading import EngineFault, LiveEngine
from gateway.sim.measured import profile_from, profile_values
from gateway.sim.profiles import profile_named
from tests.support.jumping import run_jumping

OFF_MAX = 0.04
"""Of a step time. Time is virtual: what is off is off in the fit."""
GRACE_S = 0.001


@asynccontextmanager
async def live(url: str, model: str | None = None) -> AsyncIterator[LiveEngine]:
    """The engine behind a URL."""
    engine = LiveEngine(url, model=model)
    try:
        yield engine
    finally:
        await engine.aclose()


async def calibrated(options: EmulatorOptions, batch_max: int) -> Calibrated:
    """The fewest rounds of everything."""
    async with running_emulator(options) as emulator, live(emulator.url) as engine:
        return await calibrate(engine, seconds=0, seed=1, batch_max=batch_max, say=lambda _: None)


def test_an_emulated_engines_step_times_are_recovered() -> None:
    """What is predicted for an engine is as wrong as its profile is."""
    true = profile_named("h100-llama2-7b")
    options = EmulatorOptions(profile=true.name, max_num_seqs=4)
    found = run_jumping(calibrated(options, batch_max=4), grace_s=GRACE_S)
    for prompt, batch, context in product((0, 200, 1_500), (1, 4), (50, 800)):
        step = {
            "decodes": batch,
            "kv_tokens": batch * context,
            "attended": prompt * prompt // 2,
        }
        said_s = found.profile.step_s(prompt + batch, **step)
        assert said_s == pytest.approx(true.step_s(prompt + batch, **step), rel=OFF_MAX)
    assert found.fit.error < OFF_MAX / 2
    assert 0 <= found.hop_s < 0.02
    sizes = found.profile
    assert (sizes.kv_blocks, sizes.block_tokens) == (true.kv_blocks, true.block_tokens)
    assert (sizes.max_num_seqs, sizes.max_model_len) == (4, true.max_model_len)
    assert profile_from(yaml.safe_load(yaml.safe_dump(profile_values(sizes)))) == sizes
    assert found.doubts == []
    lines = list(found.told())
    assert lines[0].split()[:2] == ["step", "measured"]
    assert any("root mean square" in line for line in lines)


async def test_an_engine_that_others_use_is_not_calibrated() -> None:
    """Their tokens would be taken for slowness of the engine."""
    async with running_emulator() as emulator, live(emulator.url, "emulated") as other:
        work = asyncio.ensure_future(other.ask("x", tokens=60))
        await asyncio.sleep(0.1)
        async with live(emulator.url) as engine:
            with pytest.raises(EngineFault, match="others use"):
                await calibrate(engine, seconds=0, seed=1, say=lambda _: None)
        await work


async def test_what_is_no_engine_is_said_so() -> None:
    """A typing error in the URL must not end in a stack trace."""
    async with live("http://127.0.0.1:9") as engine:
        with pytest.raises(EngineFault, match="/v1/models"):
            await calibrate(engine, seconds=0, seed=1, say=lambda _: None)
    async with running_emulator() as emulator, live(emulator.url, "no-such") as engine:
        with pytest.raises(EngineFault, match="no model 'no-such'"):
            await calibrate(engine, seconds=0, seed=1, say=lambda _: None)


def test_the_command_says_what_failed_and_writes_nothing(tmp_path: Path) -> None:
    """A script that goes on with an old profile predicts another engine."""
    from typer.testing import CliRunner

    from gateway.cli import app

    out = tmp_path / "profile.yaml"
    result = CliRunner().invoke(
        app, ["calibrate", "--url", "http://127.0.0.1:9", "--out", str(out)]
    )
    assert result.exit_code == 1
    assert "/v1/models" in result.output
    assert not out.exists()
