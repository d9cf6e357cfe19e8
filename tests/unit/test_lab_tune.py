"""`fairgate tune` as it is typed: from a goal to a policy that the gateway takes."""

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.lab.goals import Score, Slo, Target, Wanted, score_of, targets_of
from gateway.lab.policies import read_document
from gateway.sim.world.outcome import Outcome, Status
from tests.support.request_logs import flood, log_file

TIERS = ("critical", "high", "standard", "background")
SMALL = (
    *("--workload", "power-user", "--set", "until_s=6", "--set", "power_rate_per_s=20"),
    *("--set", "rate_per_s=2", "--set", "lengths=fixed:64,30", "--set", "tiers=1,1,2,4"),
    *("--profile", "demo"),
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own settings do not sway the result."""
    monkeypatch.delenv("FAIRGATE_CONFIG", raising=False)


def run(*words: object) -> Result:
    """The command in this process."""
    return CliRunner().invoke(app, ["tune", *map(str, words)])


def goal(folder: Path, **tiers: object) -> Path:
    """A file with targets."""
    path = folder / "slo.yaml"
    path.write_text(yaml.safe_dump({"tiers": tiers}))
    return path


def tuned(folder: Path, *words: object, budget: int = 14, workers: int = 1) -> dict[str, Any]:
    """The figures and the policy that the command writes."""
    slo = goal(folder, critical={"ttft_ms": 150}, standard={"e2e_ms": 6000, "percentile": 90})
    figures, policy = folder / "figures.json", folder / "policy.yaml"
    result = run(
        *("--slo", slo, *words, "--budget", budget, "--workers", workers),
        *("--json", figures, "--out", policy),
    )
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(figures.read_text())
    assert read_document(policy) == found["policy"]
    return {**found, "output": result.output}


def test_what_is_found_is_no_worse_and_is_a_policy(tmp_path: Path) -> None:
    """Whoever puts it in force must get what the table said, or better than before."""
    found = tuned(tmp_path, *SMALL)
    assert found["trials"] <= 14
    assert found["after"]["miss"] <= found["before"]["miss"]
    assert set(found["after"]["reached_s"]) == {"critical TTFT p95", "standard E2E p90"}
    assert "critical TTFT p95" in found["output"]
    assert found["again"] is not None
    assert bool(found["changes"]) == (found["after"] != found["before"])


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    """The answer must not depend on the machine that it was found on."""
    one, two = (tuned(tmp_path, *SMALL, budget=6, workers=workers) for workers in (1, 2))
    assert one == two


def test_a_log_is_tuned_on_as_it_is(tmp_path: Path) -> None:
    """There is no second seed of what has happened."""
    log = log_file(tmp_path, flood(power=20, light=4))
    found = tuned(tmp_path, "--log", log, "--profile", "demo", budget=3)
    assert found["again"] is None
    assert found["before"]["throughput"] > 0


@pytest.mark.parametrize(
    ("tiers", "words", "complaint"),
    [
        ({"critical": {"ttft": 5}}, ("--workload", "poisson"), "ttft"),
        ({"gold": {"ttft_ms": 5}}, ("--workload", "poisson"), "no tier 'gold'"),
        ({"critical": {"percentile": 95}}, ("--workload", "poisson"), "at least one of"),
        ({"critical": {"ttft_ms": -5}}, ("--workload", "poisson"), "ttft_ms"),
        ({"critical": {"ttft_ms": 5}}, (), "One of --log and --workload"),
        ({"critical": {"ttft_ms": 5}}, ("--workload", "no-such"), "no-such"),
        ({"critical": {"ttft_ms": 5}}, ("--workload", "poisson", "--set", "x"), "NAME=VALUE"),
        (
            {"critical": {"ttft_ms": 5}},
            ("--workload", "poisson", "--set", "tiers=uniform-6", "--set", "until_s=5"),
            "the policy ranks 0..3",
        ),
    ],
)
def test_what_cannot_be_tuned_for_is_refused(
    tmp_path: Path, tiers: dict[str, object], words: tuple[str, ...], complaint: str
) -> None:
    """A misspelt target would be kept by every policy."""
    result = run("--slo", goal(tmp_path, **tiers), *words, "--workers", 1, "--budget", 2)
    assert result.exit_code == 2
    assert complaint in result.output


def outcome_of(*ends: tuple[Status, float]) -> Outcome:
    """A run in which each request has its first token so many seconds after it came."""
    outcome = Outcome()
    for number, (status, ttft_s) in enumerate(ends):
        row = outcome.begin(number, 0.0, tier=0, who=("t", "u"), prompt_tokens=10)
        outcome.status[row] = status
        outcome.ended[row] = ttft_s + 1
        if status is Status.DONE:
            outcome.first[row], outcome.output[row] = ttft_s, 5
    outcome.lasted_s = 10.0
    return outcome


def test_whom_nobody_served_misses_the_target_and_who_left_does_not() -> None:
    """A policy must not win by refusing those whom it would serve late."""
    target = Target(tier="critical", rank=0, what="ttft", percentile=75.0, limit_s=1.0)
    done = [(Status.DONE, 0.5)] * 3
    scores = {
        status: score_of(outcome_of(*done, (status, 0.0), (status, 0.0)), [target], (1.0, 2.0))
        for status in (Status.REFUSED, Status.LEFT)
    }
    assert scores[Status.REFUSED].reached_s == (inf,)
    assert scores[Status.REFUSED].miss > 0
    assert scores[Status.LEFT].reached_s == (0.5,)
    assert scores[Status.LEFT].miss == 0
    assert scores[Status.LEFT].throughput == 3 * 20 / 10


def test_targets_count_before_throughput_and_throughput_before_nothing() -> None:
    """An operator who set a target wants it kept first."""
    slow = Score(reached_s=(1.0,), miss=0.0, throughput=90.0)
    fast = Score(reached_s=(2.0,), miss=0.7, throughput=100.0)
    same = Score(reached_s=(1.0,), miss=0.0, throughput=100.0)
    assert sorted([fast, slow, same], key=lambda score: score.order(fast)) == [same, slow, fast]


def test_targets_come_in_the_order_of_the_tiers() -> None:
    """The table reads like the list of tiers."""
    slo = Slo(tiers={"high": Wanted(tpot_ms=50), "critical": Wanted(ttft_ms=100, e2e_ms=900)})
    labels = [target.label for target in targets_of(slo, TIERS)]
    assert labels == ["critical TTFT p95", "critical E2E p95", "high TPOT p95"]
