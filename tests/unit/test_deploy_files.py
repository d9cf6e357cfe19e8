"""The unit, the proxies' recipes and the chart, held against what the gateway itself says."""

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import gateway
from gateway.api.routes import ROUTES
from gateway.runtime.shutdown import END_S
from gateway.server import CLIENT_KEEPALIVE_S, FLUSH_S, HURRY_S, LIFESPAN_S, TASKS_S
from gateway.settings_document import BoundsSection, ShutdownSection
from gateway.settings_words import parsed_size

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "fairgate"
UNIT = DEPLOY / "systemd" / "fairgate.service"
ENDING_S = END_S + FLUSH_S + TASKS_S + LIFESPAN_S + HURRY_S
"""What the gateway may take after shutdown.lag_s and shutdown.limit_s."""


def service() -> dict[str, str]:
    """The section [Service] of the unit; of a repeated key the last value."""
    _, _, rest = UNIT.read_text().partition("[Service]\n")
    lines = rest.partition("[Install]")[0].splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_systemd_waits_for_as_long_as_the_gateway_needs() -> None:
    """Killed before, it would leave streams in the middle of a word."""
    shutdown = ShutdownSection()
    said = service()
    assert float(said["TimeoutStopSec"]) > shutdown.lag_s + shutdown.limit_s + ENDING_S
    assert said["KillSignal"] == "SIGTERM"


def test_reloading_is_the_signal_that_the_gateway_hears() -> None:
    """`systemctl reload` that restarted would drop everybody."""
    assert service()["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_the_unit_promises_no_watchdog_that_nobody_feeds() -> None:
    """systemd would kill a healthy gateway every time."""
    text = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    speaks = "NOTIFY_SOCKET" in text
    said = service()
    assert ("WatchdogSec" in said) <= speaks
    assert (said["Type"] == "notify") == speaks


def test_the_gateway_turns_away_before_systemd_kills() -> None:
    """It does not see the limit of its unit, so it has to be told."""
    said = service()
    name, _, told = said["Environment"].partition("=")
    assert name == "FAIRGATE_BOUNDS__MEMORY"
    assert told.endswith("MiB")
    assert said["MemoryMax"].endswith("G")
    assert int(told[:-3]) < 0.9 * 1024 * int(said["MemoryMax"][:-1])


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_itself_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    """A misspelt option is ignored at run time, with one line in a log that nobody reads."""
    text = UNIT.read_text().replace("/opt/fairgate/bin/fairgate", sys.executable)
    file = tmp_path / UNIT.name
    file.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    about = [line for line in said.stderr.splitlines() if UNIT.name in line]
    assert (said.returncode, about) == (0, []), said.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_calls_the_unit_safe(tmp_path: Path) -> None:
    """0 is nothing to do harm with, 10 is everything; most services have more than 9."""
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(UNIT)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout[-1000:] + said.stderr


def test_proxies_close_idle_connections_before_the_gateway_does() -> None:
    """Else now and then a request meets a connection that is just being closed."""
    (nginx_s,) = re.findall(r"keepalive_timeout (\d+)s", _recipe("proxy/nginx.conf"))
    (caddy_s,) = re.findall(r"keepalive (\d+)s", _recipe("proxy/Caddyfile"))
    assert 0 < int(nginx_s) < CLIENT_KEEPALIVE_S
    assert 0 < int(caddy_s) < CLIENT_KEEPALIVE_S


def test_proxies_let_through_what_the_gateway_would() -> None:
    """A proxy that refuses a body answers with a page that no client library reads."""
    body = parsed_size(str(BoundsSection().body))
    (nginx,) = re.findall(r"client_max_body_size (\d+)m", _recipe("proxy/nginx.conf"))
    (caddy,) = re.findall(r"max_size (\w+)", _recipe("proxy/Caddyfile"))
    assert int(nginx) * 1024**2 == parsed_size(caddy) == body


def test_no_proxy_reads_on_for_a_client_that_left() -> None:
    """HAProxy does, unless told otherwise, and nginx, if it is told so."""
    assert "option abortonclose" in _recipe("compose/haproxy.cfg")
    assert "proxy_ignore_client_abort" not in _recipe("proxy/nginx.conf")


def test_no_proxy_gathers_an_answer() -> None:
    """Compression waits for a block of text, and a chat feels dead meanwhile."""
    lines = [line.strip() for line in _recipe("proxy/Caddyfile").splitlines()]
    assert not [line for line in lines if line.startswith("encode")]
    assert {"gzip off;", "proxy_buffering off;"} <= {
        line.strip() for line in _recipe("proxy/nginx.conf").splitlines()
    }


def test_no_proxy_is_less_patient_than_a_tier() -> None:
    """A request of the last tier may rightly wait for an hour in silence."""
    patience_s = 3600
    for name, pattern in (
        ("proxy/nginx.conf", r"proxy_read_timeout (\d+)h"),
        ("proxy/Caddyfile", r"response_header_timeout (\d+)h"),
        ("compose/haproxy.cfg", r"timeout server (\d+)h"),
    ):
        (hours,) = re.findall(pattern, _recipe(name))
        assert int(hours) * 3600 > patience_s, name


def test_the_chart_is_of_this_version() -> None:
    """The image it asks for is named by it."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == gateway.__version__


def test_the_schema_of_values_knows_every_value_and_no_other() -> None:
    """A misspelt value is otherwise silently the default."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert _differences(values, schema, "") == []


def test_the_ingress_serves_what_clients_may_ask_and_nothing_of_operators() -> None:
    """A route that is forgotten is missed; /metrics that is not tells everybody of everybody."""
    text = (CHART / "templates" / "service.yaml").read_text()
    (listed,) = re.findall(r"range list ([^}]+)}}", text)
    prefixes = tuple(ast.literal_eval(word) for word in listed.split())
    missing = [route for route in ROUTES if not str(route).startswith(prefixes)]
    assert missing == []
    assert not [each for each in prefixes if each in {"/", "/admin", "/metrics", "/console"}]


def test_alerts_are_logged_one_a_line_whatever_is_posted() -> None:
    """Who reads the log of alerts must see each, and what to do."""
    lines = runpy.run_path(str(DEPLOY / "alert_log.py"))["lines"]
    alert = {
        "status": "firing",
        "labels": {"alertname": "FairgateDown", "severity": "page"},
        "annotations": {"summary": "Gateway a\ndoes not answer", "runbook": "Ask /healthz."},
    }
    said = lines(json.dumps({"alerts": [alert, alert | {"annotations": {}}]}).encode())
    assert said == [
        "firing page FairgateDown: Gateway a does not answer | Ask /healthz.",
        "firing page FairgateDown: - | -",
    ]
    for junk in (b"", b"{}", b'{"alerts": 1}', b'{"alerts": [1]}', b"\xff"):
        (line,) = lines(junk)
        assert line.startswith("not a webhook")


def test_the_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    """Who hears of a hole in a library looks here whether we have it."""
    status = tmp_path / "status"
    status.write_text(
        "Package: zlib1g\nStatus: install ok installed\nVersion: 1:1.2+3\nArchitecture: amd64\n"
        "Description: a\n b: c\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
        "Architecture: amd64\n"
    )
    command = [sys.executable, "-I", str(DEPLOY / "sbom.py"), str(status)]
    bills = [subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)]
    assert bills[0] == bills[1]
    bill = json.loads(bills[0])
    by_name = {each["name"].lower(): each for each in bill["components"]}
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert by_name["uvicorn"]["purl"] == f"pkg:pypi/uvicorn@{by_name['uvicorn']['version']}"
    assert by_name["zlib1g"]["purl"] == "pkg:deb/debian/zlib1g@1%3A1.2%2B3?arch=amd64"
    assert "gone" not in by_name
    refs = [each["bom-ref"] for each in bill["components"]]
    assert refs == sorted(set(refs))


def test_the_site_has_every_page_once() -> None:
    """A page that no menu leads to is read by nobody."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = list(_leaves(nav))
    written = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(pages) == sorted(written)


def _recipe(name: str) -> str:
    return (DEPLOY / name).read_text()


def _leaves(nav: Any) -> Any:
    """The pages of a menu."""
    if isinstance(nav, str):
        yield nav
    for each in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from _leaves(each)


def _differences(values: Any, schema: dict[str, Any], path: str) -> list[str]:
    """Where values.yaml and its schema disagree about which keys there are."""
    if not isinstance(values, dict) or "properties" not in schema or path == ".config":
        return []  # `config` is fairgate.yaml, which the gateway itself checks
    known = schema["properties"]
    found = [f"{path}: {key}" for key in values.keys() ^ known.keys()]
    if schema.get("additionalProperties") is not False:
        found.append(f"{path}: other keys are allowed")
    for key in values.keys() & known.keys():
        found += _differences(values[key], known[key], f"{path}.{key}")
    return found
