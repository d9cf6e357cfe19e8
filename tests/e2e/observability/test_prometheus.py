"""What operators see: every query of rules and dashboards, against a Prometheus that scraped us."""

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest

from gateway.dashboards.__main__ import BOARDS
from gateway.dashboards.board import text_of
from tests.e2e.observability.site import ADMIN_KEY, DEPLOY, EVERY_S, Site, load, need, site
from tests.unit.test_observability_files import panels, rules

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LOAD_S = 25.0
SELECTOR = re.compile(r"\b(?:fairgate\w*(?::\w+)*|job_tier:[\w:]+|up)\b(?:\{[^}]*\})?")
STRING = re.compile(r'"[^"]*"')
PASSING = '{phase=~"looking|gathering"}'
"""Phases in which no gateway stays while all is well: what else they are asked of must be told."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Asked as of the end of the load."""
    with site(tmp_path_factory.mktemp("observed")) as found:
        asyncio.run(load(found.gateway, LOAD_S))
        time.sleep(2 * EVERY_S)
        found.at = time.time()
        yield found


def filled(query: str) -> str:
    """As Grafana would send it, all gateways chosen."""
    return query.replace("$__rate_interval", "40s").replace("$job", ".*").replace("$instance", ".*")


def lookback(query: str) -> str:
    """What the query found last: some series are there only while there is load."""
    return f"last_over_time(({query})[20s:1s])"


def test_every_panel_shows_something(watched: Site) -> None:
    """An empty panel is found by the one who needs it."""
    empty = [
        f"{board.uid} / {panel['title']}: {target['expr']}"
        for board in BOARDS
        for panel in panels(json.loads(text_of(board)))
        for target in panel["targets"]
        if not watched.values(lookback(filled(target["expr"])))
    ]
    assert empty == []


def test_every_variable_finds_the_gateway(watched: Site) -> None:
    """Without it no panel asks for anything."""
    for name in ("job", "instance"):
        assert watched.ask(f"label/{name}/values", **{"match[]": "fairgate_build_info"})


def test_every_recording_rule_records(watched: Site) -> None:
    """What reads it would see nothing, and call that well."""
    empty = [
        rule["record"]
        for rule in rules()
        if "record" in rule and not watched.values(rule["record"])
    ]
    assert empty == []


def test_every_part_of_every_alert_finds_its_series(watched: Site) -> None:
    """An alert is silent while all is well: only its parts show that it looks at anything."""
    empty = [
        f"{rule['alert']}: {part}"
        for rule in rules()
        if "alert" in rule
        for part in SELECTOR.findall(rule["expr"].replace(PASSING, ""))
        if not watched.values(lookback(part))
    ]
    assert empty == []


def test_rules_are_evaluated_without_a_fault(watched: Site) -> None:
    """A rule that joins many with many fails only when there are many."""
    groups = watched.ask("rules")["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
    assert sum(len(group["rules"]) for group in groups) == len(rules())


def test_exemplars_lead_to_requests_of_the_log(watched: Site) -> None:
    """From the slowest bucket of a panel to the request that was slow."""
    found = watched.ask(
        "query_exemplars",
        query="fairgate_request_ttft_seconds_bucket",
        start=str(watched.at - LOAD_S),
        end=str(watched.at),
    )
    ids = {each["labels"]["request_id"] for series in found for each in series["exemplars"]}
    logged = {json.loads(line)["request_id"] for line in watched.log.read_text().splitlines()}
    assert ids
    assert ids <= logged


def test_what_is_told_is_as_prometheus_wants_it(watched: Site) -> None:
    """promtool knows the rules that nobody remembers."""
    need("promtool")
    key = {"authorization": f"Bearer {ADMIN_KEY}"}
    text = httpx.get(f"{watched.gateway}/metrics", headers=key).content
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_nobody_is_told_while_all_is_well_and_all_are_when_the_engines_die(watched: Site) -> None:
    """The way from a dead engine to whoever is woken, as it really is."""
    assert not {"FairgateNoReplica", "FairgateReplicaDown", "FairgateDown"} & watched.listener.names
    for engine in watched.engines:
        engine.kill()
    end = time.monotonic() + 60.0
    while "FairgateNoReplica" not in watched.listener.names:
        assert time.monotonic() < end, watched.listener.names
        time.sleep(0.5)
    told = next(
        each
        for each in watched.listener.alerts
        if each["labels"]["alertname"] == "FairgateNoReplica"
    )
    assert told["labels"]["severity"] == "page"
    assert told["annotations"]["docs"] == "docs/observability.md#fairgatenoreplica"


def test_alerts_fire_when_they_should_and_not_else() -> None:
    """Weeks of a fleet's life, in a second: see the file for the stories."""
    need("promtool")
    for command in (
        ["check", "config", "--syntax-only", "prometheus.yml"],
        ["check", "rules", "rules/recording.yml", "rules/alerts.yml"],
        ["test", "rules", "tests/alerts.yml"],
    ):
        done = subprocess.run(
            ["promtool", *command], cwd=DEPLOY, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
