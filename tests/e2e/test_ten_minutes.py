"""A new user's first ten minutes: the commands of docs/how-to/deploy.md, literally, in a new clone.

Only ports are replaced, and of the two blocks for proxies one is left out.
"""

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.dashboards.__main__ import BOARDS
from gateway.dashboards.board import text_of
from tests.e2e.proxy.site import adapted
from tests.support.ports import free_port
from tests.unit.test_observability_files import panels

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "how-to" / "deploy.md"
PORTS = ("8101", "8102", "8080", "8443", "9090")
TIER_BY_KEY = {"alice": "standard", "oncall": "critical", "bob": "high", "nightly": "background"}
FILE = {"nginx": "nginx.conf", "caddy": "Caddyfile"}
TEN_MINUTES_S = 600
SCRAPED_S_MAX = 90
"""Two scrapes of 15 s and what a loaded machine adds."""
SHOWN_MIN = 55
"""Panels that a small site without Redis, limits and deaths fills; measured, less a few."""


@dataclass(frozen=True)
class Deployed:
    """What the commands made."""

    folder: Path
    ports: dict[str, str]
    took_s: float
    said: str

    def client(self) -> httpx.Client:
        """A client that trusts the certificate of the guide and nothing else."""
        trusted = ssl.create_default_context(cafile=str(self.folder / "fullchain.pem"))
        return httpx.Client(base_url=f"https://localhost:{self.ports['8443']}", verify=trusted)

    def key(self, name: str) -> str:
        """The key that the guide left in a file of this name."""
        return (self.folder / name).read_text().splitlines()[0]

    def found(self, query: str) -> list[Any]:
        """What Prometheus says."""
        path = f"api/v1/query?{urllib.parse.urlencode({'query': query})}"
        answer = httpx.get(f"http://127.0.0.1:{self.ports['9090']}/{path}", timeout=10).json()
        assert answer["status"] == "success", (query, answer)
        result: list[Any] = answer["data"]["result"]
        return result


def commands(proxy: str) -> str:
    """The guide's, one after another, but for the block that starts the other proxy."""
    blocks = re.findall(r"^```bash\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    proxies = [
        block for block in blocks if any(f"deploy/proxy/{name}" in block for name in FILE.values())
    ]
    assert len(proxies) == len(FILE)
    return "\n".join(
        block for block in blocks if block not in proxies or f"deploy/proxy/{FILE[proxy]}" in block
    )


@contextmanager
def deployed(folder: Path, proxy: str) -> Iterator[Deployed]:
    """All of it, from the clone on; ended with its whole process group."""
    ports = {port: str(free_port()) for port in PORTS}
    script = commands(proxy)
    for port, other in ports.items():
        # Not where the shipped files are told: those of the containers' own network.
        script, count = re.subn(rf"(?<!gateway:)(?<!prometheus:)\b{port}\b", other, script)
        assert count
    clone = folder / "fairgate"
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("VIRTUAL", "PY"))
    }
    began = time.monotonic()
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    for name in FILE.values():
        recipe = clone / "deploy" / "proxy" / name
        recipe.write_text(adapted(recipe, {"127.0.0.1:8080": f"127.0.0.1:{ports['8080']}"}))
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=clone, env=environ, stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(timeout=TEN_MINUTES_S)
            took_s = time.monotonic() - began
            said.seek(0)
            text = said.read()
            assert status == 0, text[-4000:]
            yield Deployed(clone / "site", ports, took_s, text)
        finally:
            os.killpg(process.pid, signal.SIGTERM)


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    """The guide's deployment behind one of the two proxies."""
    proxy: str = request.param
    for program in (proxy, "prometheus", "openssl"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"{program.upper()} NOT TESTED, which is no pass: it is not installed")
    with deployed(tmp_path_factory.mktemp(proxy), proxy) as found:
        yield found


def test_it_takes_less_than_ten_minutes(site: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    """From the clone to an answer through TLS, with the packages fetched."""
    with capsys.disabled():
        print(f"\n  from the clone to the last answer: {site.took_s:.0f} s")  # noqa: T201 - a figure
    assert site.said.count("data: [DONE]") == len(TIER_BY_KEY)
    assert site.took_s < TEN_MINUTES_S


@pytest.mark.parametrize(("who", "tier"), TIER_BY_KEY.items())
def test_each_key_streams_through_tls_in_its_tier(site: Deployed, who: str, tier: str) -> None:
    """Two tenants, four tiers, and events one by one."""
    body = {
        "model": "emulated", "max_tokens": 50, "stream": True,
        "messages": [{"role": "user", "content": "Hello"}],
    }  # fmt: skip
    headers = {"authorization": f"Bearer {site.key(who)}"}
    with (
        site.client() as client,
        client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        parts = list(answer.iter_raw())
    assert answer.status_code == 200
    assert answer.headers["x-fairgate-tier"] == tier
    assert b"".join(parts).endswith(b"data: [DONE]\n\n")
    assert len(parts) > 25


def test_strangers_are_kept_out(site: Deployed) -> None:
    """A deployment that lets anybody in would pass all the other tests."""
    with site.client() as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/metrics").status_code in {401, 403}


def test_the_dashboards_show_something(site: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    """This Prometheus can answer every query, and most find data at so small a site."""
    end = time.monotonic() + SCRAPED_S_MAX
    while not site.found('increase(fairgate_tokens_total{kind="output"}[2m]) > 0'):
        assert time.monotonic() < end, "nothing was scraped"
        with site.client() as client:
            headers = {"authorization": f"Bearer {site.key('alice')}"}
            body = {
                "model": "emulated",
                "max_tokens": 5,
                "messages": [{"role": "user", "content": "Hi"}],
            }
            assert (
                client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
            )
        time.sleep(1)
    shown = [
        bool(site.found(_as_grafana_sends(target["expr"])))
        for board in BOARDS
        for panel in panels(json.loads(text_of(board)))
        for target in panel["targets"]
    ]
    with capsys.disabled():
        print(f"\n  {sum(shown)} of {len(shown)} queries find data")  # noqa: T201 - a figure
    assert sum(shown) >= SHOWN_MIN


def test_grafana_would_find_what_it_needs(site: Deployed) -> None:
    """Its two files point at the folder of the dashboards and at this Prometheus."""
    grafana = site.folder / "grafana"
    source = (grafana / "provisioning" / "datasources" / "fairgate.yml").read_text()
    assert f"127.0.0.1:{site.ports['9090']}" in source
    provider = (grafana / "provisioning" / "dashboards" / "fairgate.yml").read_text()
    assert f"path: {grafana / 'dashboards'}\n" in provider
    assert len(list((grafana / "dashboards").glob("*.json"))) == len(BOARDS)


def _as_grafana_sends(query: str) -> str:
    return query.replace("$__rate_interval", "60s").replace("$job", ".*").replace("$instance", ".*")
