"""Profiles from files: step times as measured, and an operator's own fit."""

import json
from pathlib import Path

import pytest
import yaml

from gateway.sim.measured import COLUMNS, measured, profile_from, profile_values, read_profile
from gateway.sim.profiles import A100_LLAMA2_7B, PROFILES, Profile, interpolated, profile_named


def linear_ms(profile: Profile, tokens: int) -> float:
    """Its matrix products alone."""
    step_s = profile.step_s(tokens, decodes=0, kv_tokens=0, attended=0)
    return step_s * 1000 - profile.layers * profile.layer_us / 1000


def test_a_measured_profile_gives_back_what_was_measured() -> None:
    """Figures would be attributed to measurements that nobody made."""
    profile = measured("a100-llama2-7b")
    assert linear_ms(profile, 256) == pytest.approx(18.24)
    assert linear_ms(profile, 288) == pytest.approx((18.24 + 22.72) / 2)
    assert linear_ms(profile, 4096) == pytest.approx(259.92)
    assert linear_ms(profile, 8192) == pytest.approx(259.92 + (259.92 - 230.352) * 8)
    assert profile.name == "a100-llama2-7b-measured"


@pytest.mark.parametrize("name", COLUMNS)
def test_every_fit_follows_its_measurement(name: str) -> None:
    """A fit would have drifted from what it was made of."""
    fit, real = profile_named(name), measured(name)
    for tokens in (1, 64, 256, 1024, 4096):
        assert linear_ms(fit, tokens) == pytest.approx(linear_ms(real, tokens), rel=0.2)


def test_points_are_joined_by_lines() -> None:
    """A step between two measured sizes would have no time of its own."""
    points = ((1, 2.0), (3, 4.0), (4, 8.0))
    assert [interpolated(points, at) for at in (0, 1, 2, 3, 4, 6)] == [2, 2, 3, 4, 8, 16]
    assert interpolated(((5, 7.0),), 9) == 7


def test_what_nobody_measured_is_said_to_be_so() -> None:
    """Whoever asks for it would get a fit in its place."""
    with pytest.raises(ValueError, match="nobody measured 'demo'; measured: a100"):
        measured("demo")


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    """What was calibrated once could not be used again."""
    for number, profile in enumerate((*PROFILES, measured("h100-llama2-70b-tp4"))):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(profile_values(profile)))
        assert read_profile(path) == profile
        path.write_text(yaml.safe_dump(profile_values(profile)))
        assert read_profile(path) == profile


def test_a_file_may_start_from_a_known_profile(tmp_path: Path) -> None:
    """Whoever measured two numbers would have to invent the others."""
    path = tmp_path / "mine.yaml"
    path.write_text("base: a100-llama2-7b\nname: mine\ncpu_ms: 1\n")
    profile = read_profile(path)
    assert (profile.name, profile.cpu_ms, profile.layers) == ("mine", 1.0, A100_LLAMA2_7B.layers)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"base": "a100-llama2-7b", "wieghts_ms": 1}, "unknown fields wieghts_ms; known: name"),
        ({"base": "b300"}, "unknown engine profile 'b300'"),
        ({"name": "x"}, "weights_ms"),
        ({"base": "demo", "cpu_ms": -1}, "cpu_ms must be a number of at least 0, got -1"),
        ({"base": "demo", "cpu_ms": True}, "cpu_ms must be a number"),
        ({"base": "demo", "layers": 1.5}, "layers must be a whole number, got 1.5"),
        ({"base": "demo", "linear_ms": 3}, "linear_ms must be a list"),
        ({"base": "demo", "linear_ms": [[2, 1.0], [1, 2.0]]}, "rising counts"),
    ],
)
def test_a_wrong_profile_says_what_is_wrong(told: dict[str, object], why: str) -> None:
    """A typing error in a calibrated file would be simulated."""
    with pytest.raises(ValueError, match=why):
        profile_from(told)


@pytest.mark.parametrize("text", ["- 1\n", "{", "a: [\n", ""])
def test_a_file_that_is_no_profile_is_named(tmp_path: Path, text: str) -> None:
    """The operator would not know which of the files is wrong."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"mine\.yaml"):
        read_profile(path)
