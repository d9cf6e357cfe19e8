"""Rules, dashboards and their document, against what a gateway tells and against one another."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.dashboards.__main__ import BOARDS, main
from gateway.dashboards.board import WIDTH, text_of
from tests.support.offered import (
    OF_A_CLUSTER,
    OF_WORKERS,
    names_in,
    samples_offered,
    types_offered,
)
from tests.test_docs import anchors

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DOCUMENT = ROOT / "docs" / "observability.md"
ROW = re.compile(r"^\| `(fairgate_\w+)` \|", re.MULTILINE)


def rules() -> list[dict[str, Any]]:
    """All rules of both files."""
    files = sorted((PROMETHEUS / "rules").glob("*.yml"))
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """By name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def recorded() -> set[str]:
    """Names of the series that rules make."""
    return {rule["record"] for rule in rules() if "record" in rule}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All that draw."""
    return (panel for panel in board["panels"] if panel["type"] != "row")


def queries() -> Iterator[str]:
    """Of all rules, panels and variables."""
    yield from (rule["expr"] for rule in rules())
    for board in map(json.loads, map(text_of, BOARDS)):
        yield from (target["expr"] for panel in panels(board) for target in panel["targets"])
        yield from (
            each["definition"] for each in board["templating"]["list"] if "definition" in each
        )


def test_dashboards_are_what_the_code_makes(tmp_path: Path) -> None:
    """An edit of the file is lost with the next version; one of the code never reached anybody."""
    assert main([str(tmp_path)]) == 0
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    kept = {file.name: file.read_text() for file in (GRAFANA / "dashboards").iterdir()}
    assert made == kept, "python -m gateway.dashboards deploy/grafana/dashboards"


def test_the_command_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is misspelt must not become a silent nothing."""
    assert main([]) == main(["/nowhere/at/all"]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_panels_lie_side_by_side_and_can_be_told_apart(board: Any) -> None:
    """Grafana draws overlapping panels over one another, and mixes up those with one id."""
    made = json.loads(text_of(board))
    everything = made["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    assert len({panel["title"] for panel in everything}) == len(everything)
    for panel in everything:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= WIDTH
    for one, other in combinations((panel["gridPos"] for panel in everything), 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y
    for panel in panels(made):
        assert panel["description"].endswith("."), panel["title"]


def test_every_query_asks_for_what_a_gateway_tells_or_a_rule_records(tmp_path: Path) -> None:
    """A misspelt metric is an empty panel at best, and an alert that never fires at worst."""
    known = samples_offered(tmp_path) | recorded()
    unknown = {name for query in queries() for name in names_in(query)} - known
    assert unknown == set()


def test_every_recorded_series_is_used() -> None:
    """Each costs Prometheus work for ever."""
    asked = {name for query in queries() for name in names_in(query)}
    kept_for_users = {
        name
        for name in recorded()
        if re.search(r":(rate5m|p95_5m)$", name) and "missed" not in name
    }
    assert recorded() - asked - kept_for_users == set()


def test_metrics_of_a_cluster_are_called_as_the_cluster_calls_them() -> None:
    """They are told by another part: an alert must not wait for a name that nobody says."""
    files = sorted((ROOT / "gateway" / "cluster").glob("*.py"))
    source = "".join(file.read_text() for file in files)
    said = set(re.findall(r'"(fairgate_cluster_\w+)"', source))
    assert said == {name.removesuffix("_total") for name in OF_A_CLUSTER}


def test_every_alert_says_what_to_do_and_where_to_read_on() -> None:
    """Whoever is woken at three has no time to search."""
    sections = anchors(DOCUMENT)
    for name, alert in alerts().items():
        notes = alert["annotations"]
        assert set(notes) == {"summary", "description", "runbook", "docs"}, name
        assert notes["docs"] == f"docs/observability.md#{name.lower()}"
        assert name.lower() in sections, name
        assert alert["labels"]["severity"] in {"page", "ticket"}
        assert "for" in alert


def test_every_alert_is_tested_to_fire_and_nothing_is_tested_that_is_no_alert() -> None:
    """A rule that cannot fire looks like a fleet that is well."""
    text = (PROMETHEUS / "tests" / "alerts.yml").read_text()
    assert set(re.findall(r'alertname="(\w+)"', text)) == set(alerts())
    assert text.count("exp_samples: []") >= len(alerts())


def test_the_objective_is_set_in_one_place() -> None:
    """Who changes it must not have to find seven more numbers."""
    text = "".join(file.read_text() for file in (PROMETHEUS / "rules").glob("*.yml"))
    assert text.count("0.99") == 1


def test_the_document_lists_all_metrics_and_no_others(tmp_path: Path) -> None:
    """What is told and not explained is guessed at; what is explained and not told is searched."""
    rows = ROW.findall(DOCUMENT.read_text())
    assert len(rows) == len(set(rows))
    assert set(rows) == set(types_offered(tmp_path)) | OF_A_CLUSTER | OF_WORKERS


def test_grafana_and_compose_agree_on_places() -> None:
    """A dashboard that points at another data source shows nothing and says so nowhere."""
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/fairgate.yml").read_text())
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/fairgate.yml").read_text())
    scrape = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    interval = source["datasources"][0]["jsonData"]["timeInterval"]
    assert interval == scrape["global"]["scrape_interval"]
    # Grafana knows no `${NAME:-default}`: it would ask an empty address.
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    assert provider["providers"][0]["allowUiUpdates"] is False
    assert [job["job_name"] for job in scrape["scrape_configs"]] == ["fairgate"]
    assert 'up{job="fairgate"}' in alerts()["FairgateDown"]["expr"]
