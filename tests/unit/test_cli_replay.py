"""`fairgate replay` as it is typed: a log under another policy, user by user."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.support.request_logs import flood, line, log_file

TIERS = [
    {"name": "critical", "queue_limit": 4, "patience_s": 30, "ttft_target_ms": 500,
     "tpot_target_ms": 100},
    {"name": "high", "queue_limit": 3, "patience_s": 60, "ttft_target_ms": 1000,
     "tpot_target_ms": 100},
    {"name": "standard", "queue_limit": 2, "patience_s": 300, "ttft_target_ms": 5000,
     "tpot_target_ms": 150},
    {"name": "background", "queue_limit": 0, "tpot_limit_ms": 75, "patience_s": 3600},
]  # fmt: skip
"""The default ones: a policy document has to have some."""
ENGINE = ("--profile", "demo", "--replicas", "1")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own settings do not sway the result."""
    monkeypatch.delenv("FAIRGATE_CONFIG", raising=False)


def run(*words: object) -> Result:
    """The command in this process."""
    return CliRunner().invoke(app, ["replay", *map(str, words)])


def document(folder: Path, **sections: object) -> Path:
    """A policy file."""
    path = folder / "new.yaml"
    path.write_text(yaml.safe_dump({"tiers": TIERS, **sections}))
    return path


def replayed(folder: Path, log: Path, *words: object) -> dict[str, Any]:
    """The figures that the command writes."""
    figures = folder / "figures.json"
    result = run(log, *ENGINE, *words, "--json", figures)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(figures.read_text())
    return found


def group(figures: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    """One group of them."""
    (found,) = [each for each in figures["groups"] if (each["kind"], each["name"]) == (kind, name)]
    return dict(found)


def test_a_light_user_waits_behind_a_flood_where_nothing_is_fair(tmp_path: Path) -> None:
    """An operator who asks what fairness is worth must see whom it helps and whom it costs."""
    figures = replayed(tmp_path, log_file(tmp_path, flood()), "--policy", "fifo")
    light, power = group(figures, "user", "acme/light"), group(figures, "user", "acme/power")
    assert light["new"]["ttft_s"]["p95"] > 5 * light["present"]["ttft_s"]["p95"]
    assert power["new"]["ttft_s"]["p50"] <= power["present"]["ttft_s"]["p50"]
    everybody = group(figures, "all", "all")
    assert everybody["new"]["ended"] == everybody["present"]["ended"] == {"done": 70}
    shares = [light[side]["service"] + power[side]["service"] for side in ("present", "new")]
    assert shares == pytest.approx([1.0, 1.0])


def test_the_same_policy_changes_nothing_and_the_same_question_has_the_same_answer(
    tmp_path: Path,
) -> None:
    """A difference that the model makes by itself would be taken for the policy's."""
    log, same = log_file(tmp_path, flood(power=20)), document(tmp_path)
    figures = replayed(tmp_path, log, "--policy", same)
    assert all(each["present"] == each["new"] for each in figures["groups"])
    assert replayed(tmp_path, log, "--policy", same) == figures


def test_what_the_log_says_stands_beside_what_is_simulated(tmp_path: Path) -> None:
    """Who does not see how far the model is from the log cannot tell what to believe of it."""
    lines = [line(number, ttft_s=0.1 * (number + 1), duration_s=2.0) for number in range(4)]
    lines.append(line(4, outcome="over_capacity", status=429, ttft_s=None, usage=None))
    lines.append(line(5, streams=False, ttft_s=9.0))
    logged = group(
        replayed(tmp_path, log_file(tmp_path, lines), "--policy", document(tmp_path)),
        "tier", "standard",
    )["log"]  # fmt: skip
    assert logged["requests"] == 6
    assert logged["ended"] == {"done": 5, "refused": 1}
    # The first byte of an answer that does not stream is its end.
    assert logged["ttft_s"] == pytest.approx({"p50": 0.2, "p95": 0.4, "p99": 0.4})
    assert logged["e2e_s"]["p50"] == 2.0


def test_lines_that_cannot_be_read_are_counted_and_named(tmp_path: Path) -> None:
    """A log that was cut, or copied badly, must not be half read in silence."""
    lines = [*flood(power=3, light=2), b'{"arrived_at": 1', line(3, tier="gone"), line(4)]
    log = log_file(tmp_path, lines)
    result = run(log, *ENGINE, "--policy", document(tmp_path))
    assert result.exit_code == 0, result.output
    assert "6 of 8 lines played on 1 x demo" in result.output
    assert "line 6: " in result.output
    assert "line 7: there is no tier 'gone'" in result.output
    figures = replayed(tmp_path, log, "--policy", document(tmp_path))
    assert (figures["bad"], len(figures["bad_lines"])) == (2, 2)


def test_only_so_many_users_are_named(tmp_path: Path) -> None:
    """A log of ten thousand users must stay a page."""
    lines = [line(number, user=f"u{number % 5}") for number in range(9)]
    figures = replayed(tmp_path, log_file(tmp_path, lines), "--policy", "fifo", "--top", 2)
    users = [each for each in figures["groups"] if each["kind"] == "user"]
    assert [each["name"] for each in users] == ["acme/u0", "acme/u1", "(the rest)"]
    assert [each["log"]["requests"] for each in users] == [2, 2, 5]


def test_requests_of_a_tier_that_goes_are_played_where_they_are_sent(tmp_path: Path) -> None:
    """A policy that removes a tier is refused by the gateway unless it says where to."""
    log = log_file(tmp_path, [line(0, tier="critical"), line(1)])
    tiers = [{"name": "gold"}, {"name": "standard", "queue_limit": 1}]
    lost = run(log, *ENGINE, "--policy", document(tmp_path, tiers=tiers))
    assert lost.exit_code == 2
    moved = dict.fromkeys(("critical", "high", "background"), "gold")
    figures = replayed(tmp_path, log, "--policy", document(tmp_path, tiers=tiers, moved_to=moved))
    names = [each["name"] for each in figures["groups"] if each["kind"] == "tier"]
    assert names == ["critical", "standard"], "groups are those of the log"


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"tiers": []}, "tiers: must have at least one item"),
        ({"scheduling": {"headroom": 0.1}}, "scheduling.headroom"),
        ({"scheduling": {"headroom_max": 3}}, "scheduling.headroom_max"),
        ({"listen": {"port": 1}}, "listen: is no part of a policy"),
        ({"tiers": [{"name": "a", "queue_limit": 1}, {"name": "b", "queue_limit": 2}]}, "tiers"),
    ],
)
def test_a_policy_that_the_gateway_would_refuse_is_refused(
    tmp_path: Path, sections: dict[str, object], complaint: str
) -> None:
    """Figures for a policy that can never be put in force would be worth nothing."""
    result = run(log_file(tmp_path, [line(0)]), *ENGINE, "--policy", document(tmp_path, **sections))
    assert result.exit_code == 2
    assert complaint in result.output


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "nothing to play"),
        ([line(0), line(1, model="other")], "--model m, other"),
    ],
)
def test_a_log_that_cannot_be_played_as_it_is_is_refused(
    tmp_path: Path, lines: list[bytes], complaint: str
) -> None:
    """Two models have engines of their own: together on one fleet they are nobody's traffic."""
    result = run(log_file(tmp_path, lines), *ENGINE, "--policy", "fifo")
    assert result.exit_code == 2
    assert complaint in result.output


def test_engines_are_counted_from_the_log(tmp_path: Path) -> None:
    """Who does not say how many there were gets as many as were used."""
    lines = [line(number, replica=f"engine-{number % 3}") for number in range(6)]
    result = run(log_file(tmp_path, lines), "--profile", "demo", "--policy", "fifo")
    assert "played on 3 x demo" in result.output


@pytest.mark.parametrize("profile", ["no-such", "missing.yaml"])
def test_an_unknown_profile_is_said_so(tmp_path: Path, profile: str) -> None:
    """A wrong engine would give figures that look like right ones."""
    log = log_file(tmp_path, [line(0)])
    assert run(log, "--policy", "fifo", "--profile", profile).exit_code == 2
