"""The image and the compose file, built and run by a real container engine.

The tests share one stack; the last one stops it.
"""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.containers.engine import Engine, running_engine
from tests.e2e.containers.stack import (
    COLLECTOR,
    COLLECTOR_PORT,
    ENGINES,
    GATEWAY,
    UP_S,
    Stack,
    chat,
    running_stack,
    wait_until,
)

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

SERVICES = (GATEWAY, *ENGINES)
IMAGE_MB_MAX = 450
UP_S_MAX = 60
FROZEN_S_MAX = 25
"""Three silent probes in a row, each of two questions of 2 s, and the pauses between them."""
BYTECODE = """
import os, sys
import gateway.app
cached = [m.__cached__ for m in list(sys.modules.values()) if getattr(m, "__cached__", None)]
print(len(cached), *(path for path in cached if not os.path.exists(path)))
"""

COLLECT = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        print(self.path, *(name for name in ("chat", "queue", "engine") if name.encode() in body))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.end_headers()

HTTPServer(("", int(sys.argv[1])), Collector).serve_forever()
"""
"""Prints what came where, and which of our spans are in it."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A container engine."""
    with running_engine() as running:
        yield running


@pytest.fixture(scope="module")
def stack(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The containers of the profile cpu, all healthy."""
    with running_stack(engine, tmp_path_factory.mktemp("compose"), profiles=("cpu",)) as running:
        yield running


def test_everything_comes_up_healthy(stack: Stack) -> None:
    """`docker compose up --wait` is the first thing that an operator types."""
    states = {name: stack.health(name) for name in SERVICES}
    assert states == dict.fromkeys(SERVICES, "healthy")
    assert stack.up_s < UP_S_MAX


def test_a_chat_is_answered_to_whoever_has_the_key(stack: Stack) -> None:
    """The key in .env must be the one whose hash the gateway was given."""
    answer = stack.ask()
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4
    url = f"{stack.url}/v1/chat/completions"
    assert httpx.post(url, json=chat(4), timeout=20).status_code == 401


def test_metrics_are_for_the_admin_key(stack: Stack) -> None:
    """Who runs Prometheus needs them; users' traffic is nobody else's business."""
    admin = {"authorization": f"Bearer {stack.secrets['GATEWAY_ADMIN_KEY']}"}
    url = f"{stack.url}/metrics"
    assert httpx.get(url, headers=stack.headers(), timeout=5).status_code == 403
    assert "fairgate_" in httpx.get(url, headers=admin, timeout=5).text


def test_a_stream_arrives_token_by_token(stack: Stack) -> None:
    """A proxy on the way that collects a stream first would make a chat feel dead."""
    arrivals: list[float] = []
    with httpx.stream(
        "POST",
        f"{stack.url}/v1/chat/completions",
        headers=stack.headers(),
        json=chat(50, streams=True),
        timeout=20,
    ) as answer:
        lines = []
        for line in answer.iter_lines():
            if line.startswith("data:"):
                lines.append(line)
                arrivals.append(time.monotonic())
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 40
    # 50 steps of 20 ms: a second in all, and no pause that holds half of it.
    assert arrivals[-1] - arrivals[0] > 0.5
    assert max(later - sooner for sooner, later in itertools.pairwise(arrivals)) < 0.5


@pytest.mark.parametrize("service", SERVICES)
def test_no_process_is_root_or_can_become_it(stack: Stack, service: str) -> None:
    """A hole in a parser must not be a hole in the machine."""
    status = stack.inside(service, "cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in fields["Uid"].split()
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {0}
    assert fields["NoNewPrivs"].strip() == "1"


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_can_be_written_but_scratch(stack: Stack, service: str) -> None:
    """What cannot be changed cannot be made to persist."""
    tried = "touch /tmp/a && echo scratch; for d in / /etc /opt /usr/local/bin; do touch $d/a; done"
    said = stack.inside(service, "sh", "-c", tried)
    assert "scratch" in said
    assert said.count("Read-only file system") == 4


def test_the_image_is_small_and_has_no_tools_to_build_with(stack: Stack) -> None:
    """Every program that is not there is one that no intruder finds."""
    mb = int(stack.engine.docker("image", "inspect", "-f", "{{.Size}}", stack.image)) / 1e6
    assert mb < IMAGE_MB_MAX
    look = "for tool in gcc cc make pip pip3 git curl wget; do command -v $tool; done"
    assert stack.inside(GATEWAY, "sh", "-c", look).strip() == ""
    for python in ("python", "/usr/local/bin/python"):
        assert "No module named pip" in stack.inside(GATEWAY, python, "-m", "pip", "--version")


def test_bytecode_is_there_from_the_start(stack: Stack) -> None:
    """On a read-only disk a missing .pyc is compiled anew by every start and health check."""
    said = stack.inside(GATEWAY, "python", "-c", BYTECODE).split()
    imported, missing = int(said[0]), said[1:]
    assert imported > 300
    assert missing == []


def test_containers_see_no_key_only_hashes(stack: Stack) -> None:
    """Whoever may look at containers, or reads a crash report, must not be able to call."""
    seen = "".join(stack.inspected(name, "{{json .}}") for name in SERVICES)
    assert stack.secrets["GATEWAY_ADMIN_KEY_SHA256"] in seen
    for name in ("GATEWAY_API_KEY", "GATEWAY_ADMIN_KEY"):
        assert stack.secrets[name] not in seen


def test_only_the_gateway_reaches_the_engines(stack: Stack) -> None:
    """Engines ask for no key on many routes: their network is what protects them."""
    by_name = {f"{service}:8000" for service in ENGINES}
    by_address = {f"{stack.address(service, 'engines')}:8000" for service in ENGINES}
    everything = by_name | by_address
    assert stack.reached_from(stack.network("engines"), *everything) == everything
    for outside in ("bridge", stack.network("front")):
        assert stack.reached_from(outside, *everything) == set()
    for service in ENGINES:
        assert "HostPort" not in stack.inspected(service, "{{json .NetworkSettings.Ports}}")


def test_engines_reach_nobody_outside(stack: Stack) -> None:
    """What an engine is told stays there, whatever a model's code may try."""
    gateway = f"{stack.address(GATEWAY, 'front')}:8080"
    assert stack.reached_from(stack.network("front"), gateway) == {gateway}
    assert stack.reached_from(stack.network("engines"), gateway) == set()
    joined = {stack.inspected(name, "{{json .NetworkSettings.Networks}}") for name in ENGINES}
    assert all(stack.network("front") not in networks for networks in joined)
    network = ("network", "inspect", "-f", "{{.Internal}}", stack.network("engines"))
    assert stack.engine.docker(*network).strip() == "true"


def test_a_frozen_engine_is_left_out_until_it_answers_again(stack: Stack) -> None:
    """One hung GPU must cost its own share of the fleet, and nothing else."""
    frozen, other = ENGINES
    stack.compose("pause", frozen)
    try:
        wait_until(
            lambda: not stack.up_by_replica()[frozen], "frozen one lost", timeout_s=FROZEN_S_MAX
        )
        answers = [stack.ask() for _ in range(6)]
    finally:
        stack.compose("unpause", frozen)
    assert {answer.status_code for answer in answers} == {200}
    assert {a.headers["x-fairgate-replica"].rpartition("-")[0] for a in answers} == {other}
    wait_until(lambda: all(stack.up_by_replica().values()), "both up again", timeout_s=10)
    # The container engine asks now and then, and `up --wait` gives up on what it calls ill.
    wait_until(lambda: stack.health(frozen) == "healthy", f"{frozen} healthy", timeout_s=30)


def test_what_operators_change_outlives_the_container(stack: Stack) -> None:
    """A key that is gone after an update locks out whoever was given it."""
    admin = {"authorization": f"Bearer {stack.secrets['GATEWAY_ADMIN_KEY']}"}
    body = {"name": "kept"}
    made = httpx.post(f"{stack.url}/admin/v1/tenants", headers=admin, json=body, timeout=5)
    assert made.status_code == 201, made.text
    # Not --no-deps: compose forgets then what depends on what, and stops engines first.
    again = ("--force-recreate", "--timeout", "0")
    stack.compose("up", "--detach", "--wait", *again, GATEWAY, timeout_s=UP_S)
    found = httpx.get(f"{stack.url}/admin/v1/tenants/kept", headers=admin, timeout=5)
    assert found.status_code == 200, found.text
    wait_until(lambda: all(stack.up_by_replica().values()), "both up again", timeout_s=10)


def test_the_image_says_what_it_is_made_of(stack: Stack) -> None:
    """Who hears of a hole in a library looks here whether we have it."""
    label = stack.engine.docker(
        "image", "inspect", "-f", '{{index .Config.Labels "org.fairgate.sbom"}}', stack.image
    )
    bill = json.loads(stack.inside(GATEWAY, "cat", label.strip()))
    names = {each["name"] for each in bill["components"]}
    assert {"uvicorn", "uvloop", "libc6", "cpython"} <= names
    assert len(names) > 80
    assert bill["metadata"]["component"]["name"] == "fairgate"


def test_whoever_names_a_collector_gets_traces(stack: Stack) -> None:
    """The image has what that needs, and nobody can add it later."""
    network = ("--network", stack.network("front"), "--network-alias", COLLECTOR)
    run = ("run", "--rm", "--detach", *network, "--entrypoint", "python", stack.image)
    collector = stack.engine.docker(*run, "-uc", COLLECT, str(COLLECTOR_PORT)).strip()
    try:

        def told() -> str:
            assert stack.ask().status_code == 200
            return stack.engine.docker("logs", collector)

        wait_until(lambda: "/v1/traces chat queue engine" in told(), "a trace", timeout_s=20)
    finally:
        stack.engine.docker("kill", collector)
    assert "s3fs" in stack.inside(GATEWAY, "python", "-c", "import s3fs; print(s3fs.__name__)")


def test_an_order_to_stop_is_heard_while_it_starts(stack: Stack) -> None:
    """Who changes his mind at once would wait for the whole grace period, ten minutes."""
    first = ENGINES[0]
    stack.compose("kill", first)
    stack.compose("start", first)
    began = time.monotonic()
    stack.compose("stop", "--timeout", "50", first)
    assert time.monotonic() - began < 40
    stack.compose("start", first)
    wait_until(lambda: all(stack.up_by_replica().values()), "both up again", timeout_s=UP_S)


def test_without_keys_the_image_refuses_to_serve(stack: Stack) -> None:
    """A container listens on all its interfaces: open mode there would be open to everybody."""
    tried = stack.engine.tried("run", "--rm", stack.image, "serve", "--replica", "http://gpu:8000")
    assert tried.returncode == 2
    assert "not allowed without keys" in tried.stdout


def test_a_stream_outlives_the_order_to_stop(stack: Stack, tmp_path: Path) -> None:
    """An update in working hours must not cut off whoever is reading an answer."""
    received = tmp_path / "stream"

    def read() -> None:
        with (
            received.open("wb") as file,
            httpx.stream(
                "POST",
                f"{stack.url}/v1/chat/completions",
                headers=stack.headers(),
                json=chat(200, streams=True),
                timeout=30,
            ) as answer,
        ):
            for part in answer.iter_raw():
                file.write(part)
                file.flush()

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: received.exists() and received.stat().st_size > 0, "start", timeout_s=10)
    stack.compose("stop")
    reader.join(timeout=30)
    text = received.read_text()
    assert text.count('"delta"') >= 200
    assert text.endswith("data: [DONE]\n\n")
    stopped = {name: stack.inspected(name, "{{.State.ExitCode}}") for name in SERVICES}
    assert stopped == dict.fromkeys(SERVICES, "0")
