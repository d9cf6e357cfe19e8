"""Step times back to the costs they were made of."""

from itertools import product
from random import Random

import pytest

from gateway.lab.fitting import Fit, Observation, Step, fitted
from gateway.sim.profiles import (
    A100_LLAMA2_7B,
    A100_LLAMA3_8B,
    DEMO,
    H100_LLAMA2_7B,
    INSTANT,
    Profile,
)

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (50, 1_000)


def measured(profile: Profile, *, noise: float = 0.0) -> list[Observation]:
    """What a calibration would see of an engine with this profile."""
    dice = Random(3)
    steps = [Step(length, attended=length * length // 2) for length in LENGTHS]
    steps += [
        Step(batch, decodes=batch, kv_tokens=batch * context)
        for batch, context in product(BATCHES, CONTEXTS)
    ]
    return [
        Observation(step, seconds_of(profile, step) * (1 + dice.uniform(-noise, noise)))
        for step in steps
    ]


def seconds_of(profile: Profile, step: Step) -> float:
    """What the profile says of a step."""
    return profile.step_s(
        step.tokens, decodes=step.decodes, kv_tokens=step.kv_tokens, attended=step.attended
    )


def told_ms(fit: Fit, step: Step) -> float:
    """What the fit says of a step."""
    linear: float = (fit.weights_ms**fit.knee + (fit.token_ms * step.tokens) ** fit.knee) ** (
        1 / fit.knee
    )
    return (
        linear
        + fit.sequence_ms * step.decodes
        + fit.kv_token_ms * step.kv_tokens
        + fit.pair_ms * step.attended
    )


def worst(profile: Profile, fit: Fit) -> float:
    """The largest relative error over steps of all kinds, mixed ones included."""
    steps = [
        Step(
            prompt + batch, decodes=batch, kv_tokens=batch * context, attended=prompt * prompt // 2
        )
        for prompt, batch, context in product((0, 100, 700, 1_900), (1, 6, 48), (100, 800))
    ]
    return max(abs(told_ms(fit, step) / 1000 / seconds_of(profile, step) - 1) for step in steps)


@pytest.mark.parametrize(
    "profile",
    [A100_LLAMA2_7B, H100_LLAMA2_7B, A100_LLAMA3_8B, DEMO],
    ids=lambda profile: str(profile.name),
)
def test_known_engines_are_recovered(profile: Profile) -> None:
    """A fit that is off where nothing is noisy is off everywhere."""
    fit = fitted(measured(profile))
    assert fit.error < 0.01
    assert worst(profile, fit) < 0.04


def test_noise_is_averaged_out() -> None:
    """Machines that others use are never quiet."""
    fit = fitted(measured(A100_LLAMA2_7B, noise=0.05))
    assert 0.005 < fit.error < 0.05
    assert worst(A100_LLAMA2_7B, fit) < 0.08


def test_no_cost_is_ever_negative() -> None:
    """An engine on which a longer context costs less would be exploited by every scheduler."""
    dice = Random(5)
    for _ in range(2):
        wild = [
            Observation(each.step, dice.uniform(0.001, 0.1)) for each in measured(A100_LLAMA2_7B)
        ]
        fit = fitted(wild)
        assert min(fit.weights_ms, fit.token_ms, fit.sequence_ms, fit.kv_token_ms, fit.pair_ms) >= 0


def test_too_little_and_no_time_at_all_are_refused() -> None:
    """A profile made of nothing looks like any other once it is written."""
    with pytest.raises(ValueError, match="at least 6"):
        fitted(measured(DEMO)[:5])
    with pytest.raises(ValueError, match="no time"):
        fitted(measured(INSTANT))
