"""Parity mode as a whole, on runs short enough for a test: what it prints, always the same."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.sim.paper.__main__ import main
from gateway.sim.paper.ablation import paper_ablation, paper_isolation
from gateway.sim.paper.run import paper_tables
from gateway.sim.paper.tables import ROWS, Row, Speedups
from gateway.sim.paper.trial import Rules, Workload, quantile, run_trial

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = Workload(mix="uniform", tiers=3, requests=800)
HONEST = Rules(keeps_kv=True, migrates=False, cut_s=None, sequences_charged_max=None)

SCRIPT = """
from gateway.sim.paper.run import paper_tables
from gateway.sim.paper.tables import ROWS, Row
row = Row(mix="enterprise", requests=600, tiers=4, printed=ROWS[0].printed, cost_share=0.5)
print(paper_tables((5,), rows=(row,)).to_json())
"""


def small_row(requests: int, tiers: int = 3) -> Row:
    """A row that the paper does not have, with figures that it does not print."""
    return Row(
        mix="uniform",
        requests=requests,
        tiers=tiers,
        printed=Speedups(2.0, 2.0, 2.0, 2.0),
        cost_share=0.5,
    )


def test_a_row_of_the_paper_is_reproduced() -> None:
    """The claim of docs/paper.md, held for one row and the paper's own seed."""
    (row,) = [row for row in ROWS if (row.mix, row.requests, row.tiers) == ("gaussian", 10_000, 4)]
    report = paper_tables((42,), rows=(row,))
    assert report.deviation_max < 0.08
    assert report.rows[0].speedups.prefill_mean == pytest.approx(8.33, rel=0.05)


def test_the_same_seed_gives_the_same_bytes_in_any_process() -> None:
    """A figure that depends on the salt of a hash can be quoted by nobody."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert len(printed) == 1
    assert json.loads(printed.pop())["rows"][0]["finished_llumnix"] == [600]


def test_processes_change_nothing() -> None:
    """Who has more cores must get the same tables, only sooner."""
    rows = (small_row(300), small_row(400))
    alone, spread = paper_tables((1, 2), rows=rows), paper_tables((1, 2), 2, rows=rows)
    assert alone.to_json() == spread.to_json()


def test_a_report_says_how_near_it_came_and_from_what() -> None:
    """A table without its seeds and versions cannot be checked by the next one."""
    report = paper_tables((1, 2, 3), rows=(small_row(300), small_row(400)))
    facts = json.loads(report.to_json())
    assert facts["seeds"] == [1, 2, 3]
    assert set(facts["versions"]) == {"fairgate", "python"}
    assert len(report.deviations) == 8
    assert report.deviation_max == report.deviations[-1] > report.deviation_median
    row = report.rows[0]
    cells = sorted(speedups.e2e_p99 for speedups in row.by_seed)
    assert row.speedups.e2e_p99 == cells[1]
    assert row.ratios.e2e_p99 == pytest.approx(cells[1] / 2.0)
    assert f"{cells[1]:.2f}" in report.text()


def test_truncation_is_seen_where_it_is_and_only_there() -> None:
    """The signature must be able to be absent: runs that end finish all they were given."""
    assert not paper_tables((1,), rows=(small_row(300), small_row(400))).is_truncated
    assert not paper_tables((1,), rows=(small_row(300), small_row(300, tiers=4))).is_truncated


def test_the_baseline_ends_the_same_number_of_however_many_requests() -> None:
    """It cannot be slower for more requests, as the paper's tables suggest: it is only cut off."""
    rules = Rules(cut_s=4.0)
    workloads = [Workload(mix="uniform", tiers=4, requests=count) for count in (2_000, 3_000)]
    ended = [run_trial("baseline", load, 42, rules).all.finished for load in workloads]
    assert ended[0] == ended[1] < 1_000
    uncut = run_trial("baseline", workloads[0], 42, Rules(cut_s=None))
    assert uncut.all.finished == 2_000


def test_tiers_isolate_with_kv_accounted_while_the_aggregate_gains_nothing() -> None:
    """The one sentence that docs/paper.md is for."""
    tiered = run_trial("llumnix", SMALL, 42, replace(HONEST, route_by="outstanding"))
    flat = run_trial("baseline", SMALL, 42, HONEST)
    assert tiered.tiers[0].prefill_mean_s < 0.6 * flat.tiers[0].prefill_mean_s
    assert tiered.tiers[2].prefill_mean_s > flat.tiers[2].prefill_mean_s
    assert tiered.all.e2e_mean_s == pytest.approx(flat.all.e2e_mean_s, rel=0.05)


def test_freeness_that_sees_only_the_head_of_the_queue_places_worse_than_going_round() -> None:
    """Why this product counts all the unstarted: the paper's signal is no shortcut to it."""
    means = {
        route: run_trial("llumnix", SMALL, 42, replace(HONEST, route_by=route)).all.e2e_mean_s
        for route in ("freeness", "turn")
    }
    assert means["freeness"] > 1.5 * means["turn"]


def test_the_ablation_lists_every_variant_under_every_workload() -> None:
    """A variant left out is a claim left unchecked."""
    variants = (("as published", Rules()), ("KV accounted", Rules(keeps_kv=True)))
    ablation = paper_ablation((42,), cases=(SMALL,), variants=variants)
    assert [row.variant for row in ablation.rows] == ["as published", "KV accounted"]
    published, accounted = (row.speedups.prefill_mean for row in ablation.rows)
    assert published > 1.5 * accounted
    assert "KV accounted" in ablation.text()
    assert json.loads(ablation.to_json())["seeds"] == [42]


def test_isolation_is_shown_for_every_load_and_system() -> None:
    """What the paper is right about has to be reproducible as well."""
    isolation = paper_isolation((42,), rates_per_s=(900.0,), requests=4_000)
    flat, _, alone = isolation.rows
    assert alone.prefill_p99_s[0] < 0.5 * flat.prefill_p99_s[0]
    assert alone.prefill_p99_s[3] > flat.prefill_p99_s[3]
    assert "tier 3 P99 s" in isolation.text()
    assert json.loads(isolation.to_json())["rows"][0]["rate_per_s"] == 900


def test_a_quantile_lies_between_the_two_nearest() -> None:
    """P99 of a few thousand moves by seconds with the convention."""
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([5.0], 0.99) == 5.0


def test_the_command_prints_the_table_and_writes_the_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every figure of docs/paper.md is quoted with a command; it has to work."""
    path = tmp_path / "facts.json"
    seen = []
    real = paper_tables

    def few(seeds: list[int], processes: int) -> object:
        seen.append((seeds, processes))
        return real(seeds, processes, rows=(small_row(300),))

    monkeypatch.setattr("gateway.sim.paper.__main__.paper_tables", few)
    assert main(["--seeds", "7", "--json", str(path)]) == 0
    assert seen == [([7], 1)]
    assert "prefill P99" in capsys.readouterr().out
    assert json.loads(path.read_text())["seeds"] == [7]
