"""`fairgate simulate` as it is typed: what it prints, writes and refuses."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.sim.experiments.catalogue import experiments
from gateway.sim.experiments.report import Distribution, Report, Series
from gateway.sim.plots import PlotsMissing, draw

SCENARIO = """
workload: {name: poisson, rate_per_s: 20, limit: 60, tiers: enterprise-4}
engines:
  - {n: 2, profile: demo, max_num_seqs: 2}
dispatch: [fairgate, fifo, llumlet]
events:
  - {kind: failure, replica: 0, at: 1.0, until: 2.0}
"""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of the test's own, no settings of the developer's, and a wide terminal."""
    monkeypatch.delenv("FAIRGATE_CONFIG", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)


def typed(*arguments: str) -> Result:
    """What came of `fairgate simulate` with these."""
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_the_list_names_every_experiment_and_dispatcher() -> None:
    """Nobody would find what there is."""
    shown = typed("--list").stdout
    assert all(each.name in shown for each in experiments())
    assert "llumlet" in shown
    assert "servegen-large" in shown


def test_an_experiment_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    """The figures would be gone with the terminal."""
    done = typed("capacity", "--quick", "--processes", "1", "--json", "out.json",
                 "--set", "dispatchers=fifo")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "fifo" in done.stdout
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["experiment"] == "capacity"
    assert told["parameters"]["dispatchers"] == ["fifo"]


def test_json_on_standard_output_is_nothing_but_json() -> None:
    """A pipe into jq would break."""
    done = typed("capacity", "--quick", "--processes", "1", "--json", "-",
                 "--set", "dispatchers=fifo")  # fmt: skip
    assert json.loads(done.stdout)["rows"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "unknown experiment 'nothing'; known: paper-tables, paper-honest"),
        (["capacity", "--set", "load"], "--set takes key=value, got 'load'"),
        (["capacity", "--set", "lod=1"], "capacity has no lod; it takes workload, load"),
        (["absent.yaml"], "absent.yaml"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_2(arguments: list[str], message: str) -> None:
    """An operator would read a traceback."""
    done = typed(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_a_scenario_compares_its_dispatchers(tmp_path: Path) -> None:
    """An operator's own fleet could not be tried."""
    (tmp_path / "mine.yaml").write_text(SCENARIO)
    done = typed("mine.yaml", "--processes", "1", "--json", "-")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [row["dispatcher"] for row in rows] == ["fairgate", "fifo", "llumlet"]


def test_a_scenario_takes_its_policy_and_workload_from_files_beside_it(tmp_path: Path) -> None:
    """The policy tried would not be the one in use."""
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "gateway.yaml").write_text("tiers: [{name: only}]\n")
    (folder / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n")
    (folder / "mine.yaml").write_text(
        "{workload: {name: file, path: mine.csv}, engines: [{profile: demo}], policy: gateway.yaml}"
    )
    done = typed("lab/mine.yaml", "--processes", "1", "--json", "-")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["rows"][0]["done"] == 2
    assert [tier["name"] for tier in told["parameters"]["policy"]["tiers"]] == ["only"]


def test_all_faults_of_a_scenario_are_listed_at_once(tmp_path: Path) -> None:
    """Each fault would cost another run."""
    (tmp_path / "mine.yaml").write_text(
        "{workload: {name: nobody}, engines: [{profile: h900}], dispatch: [fair],"
        " events: [{kind: drain, replica: 7, at: 2, until: 1}]}"
    )
    done = typed("mine.yaml")
    assert done.exit_code == 2
    for fault in ("engines[0].profile", "dispatch:", "events[0].replica", "events[0].until",
                  "workload: unknown workload 'nobody'"):  # fmt: skip
        assert fault in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workload: {name: poisson}\nfleet: []", "fleet"),
        ("workload: {name: poisson}\nengines: []", "engines"),
        ("workload: {name: poisson, tiers: uniform-9}", "9 tiers, and the policy has 4"),
        ("workload: {}", "it needs a name"),
        ("workload: [", "mine.yaml"),
        ("workload: {name: poisson}\npolicy: other.yaml", "policy:"),
    ],
)
def test_a_scenario_that_is_none_says_why(tmp_path: Path, text: str, message: str) -> None:
    """A key with a typing error would be passed over in silence."""
    (tmp_path / "mine.yaml").write_text(text)
    done = typed("mine.yaml")
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_a_tier_that_the_policy_lacks_is_found_in_the_workload(tmp_path: Path) -> None:
    """The run would end in an index error after minutes."""
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens,tier\n0,10,5,9\n")
    (tmp_path / "mine.yaml").write_text("workload: {name: file, path: mine.csv}")
    done = typed("mine.yaml", "--processes", "1")
    assert done.exit_code == 2
    assert "request 0 is of tier 9; the policy has 4 tiers" in done.stderr


REPORT = Report(
    name="x",
    about="y",
    parameters={},
    seeds=(0,),
    rows=({"dispatcher": "a", "p99 ttft 0 s": 1.0},),
    distributions=(Distribution(case="a", tier=0, ttft_s=(0.1, 0.2), tpot_s=(0.01,)),),
    series=(Series(case="a", kind="share", name="u", every_s=1.0, values=(0.1, 0.2)),),
)


def test_without_matplotlib_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever wants a figure would not know what to install."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(PlotsMissing, match=r"pip install 'fairgate\[plots\]'"):
        draw(REPORT, tmp_path / "x.png")


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="the extra `plots` is not installed")
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_figures_are_drawn_with_the_extra(tmp_path: Path, suffix: str) -> None:
    """`--plot` would write an empty file."""
    path = tmp_path / f"figure{suffix}"
    draw(REPORT, path)
    assert path.stat().st_size > 5_000
