"""How contenders are found, told apart and set up."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from gateway.bench.contenders import (
    FAIRGATE,
    PEERS,
    Contender,
    Site,
    fairgate_config,
    peer_named,
)
from gateway.bench.machine import Machine, processor_named, this_machine
from tests.support.bench_runs import machine


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A place to run in."""
    return Site(folder=tmp_path, port=4001, upstream_port=4002, key="bench-secret")


def program(folder: Path, name: str, says: str) -> Path:
    """A program that prints a line to stderr, as nginx does with its version."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho 'Hello' >&2\necho '{says}' >&2\n")
    path.chmod(0o755)
    return path


def test_the_gateway_is_measured_with_auth_and_accounting(site: Site) -> None:
    """With keys left out it would run in open mode: faster, and not what anybody deploys."""
    config = json.loads(json.dumps(fairgate_config(site)))
    assert config["listen"] == {"host": "127.0.0.1", "port": 4001}
    assert config["keys"] == [
        {
            "tenant": "bench",
            "user": "bench",
            "tier": "standard",
            "key_sha256": hashlib.sha256(b"bench-secret").hexdigest(),
        }
    ]
    assert config["tenants"] == [{"name": "bench", "users": {"bench": {"weight": 1}}}]


def test_the_gate_is_wide_open(site: Site) -> None:
    """Requests that wait for a slot would measure the queue, not the gateway."""
    config = json.loads(json.dumps(fairgate_config(site)))
    assert config["models"][0]["replicas"] == [
        {"url": "http://127.0.0.1:4002", "max_num_seqs": 4096}
    ]


def test_the_gateway_is_started_as_its_users_start_it(site: Site) -> None:
    """Some inner entry point would leave out what the real one costs."""
    command = FAIRGATE.prepare(sys.executable, site)
    assert command[:5] == [sys.executable, "-m", "gateway", "serve", "--config"]
    assert json.loads(Path(command[5]).read_text()) == fairgate_config(site)
    assert "bench-secret" not in Path(command[5]).read_text()


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_is_told_both_ports(peer: Contender, site: Site) -> None:
    """A peer on its default port would be somebody else's server."""
    command = peer.prepare("/bin/program", site)
    written = [path.read_text() for path in site.folder.iterdir() if path.is_file()]
    told = " ".join([*command, *written])
    assert command[0] == "/bin/program"
    assert "4001" in told
    assert "4002" in told
    assert "127.0.0.1" in told


def test_peers_have_names_of_their_own() -> None:
    """Results are kept by name."""
    names = [peer.name for peer in (FAIRGATE, *PEERS)]
    assert len(set(names)) == len(names)
    assert {"nginx", "haproxy"} <= set(names)


def test_a_peer_is_found_by_name() -> None:
    """And a wrong name is answered with the right ones."""
    assert peer_named("nginx").name == "nginx"
    with pytest.raises(ValueError, match="nginx, haproxy"):
        peer_named("apache")


def test_the_environment_names_a_program_off_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two peers share the name of their command; each lives in its own virtual environment."""
    peer = peer_named("production-stack")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert peer.find() is None
    path = program(tmp_path, "my-router", "1.0")
    monkeypatch.setenv("BENCH_PRODUCTION_STACK", str(path))
    assert peer.find() == str(path)


def test_a_peer_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is where a package manager puts it."""
    path = program(tmp_path, "nginx", "nginx version: nginx/1.22.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BENCH_NGINX", raising=False)
    assert peer_named("nginx").find() == str(path)


def test_a_version_is_the_first_line_with_a_digit(tmp_path: Path) -> None:
    """A figure without its version can't be compared with next year's."""
    path = program(tmp_path, "some", "some version 1.2.3")
    assert peer_named("nginx").version(str(path)) == "some version 1.2.3"


def test_a_version_that_is_not_told_is_unknown(tmp_path: Path) -> None:
    """It must not end the benchmark."""
    silent = program(tmp_path, "silent", "nothing")
    assert peer_named("nginx").version(str(silent)) == "unknown"
    assert peer_named("nginx").version(str(tmp_path / "missing")) == "unknown"


def test_the_gateways_version_is_its_packages() -> None:
    """`python --version` is that of another program."""
    assert FAIRGATE.version(sys.executable) == this_machine().versions["fairgate"]


def test_this_machine_describes_itself() -> None:
    """Figures in microseconds mean nothing without the processor they were taken on."""
    here = this_machine()
    assert here.processor
    assert here.cores >= 1
    assert here.versions["python"].startswith("3.")
    assert here.versions["uvloop"] != "not installed"


def test_the_processor_is_named_by_cpuinfo() -> None:
    """On other architectures there is no such line, and that is no error."""
    assert processor_named("vendor_id : x\nmodel name\t: Imaginary 1: fast\n") == (
        "Imaginary 1: fast"
    )
    assert processor_named("processor : 0\n")


@pytest.mark.parametrize(
    ("there", "is_busy"), [(machine(0.9), False), (machine(1.1), True), (machine(0.0), False)]
)
def test_a_machine_is_busy_from_half_its_cores(there: Machine, is_busy: bool) -> None:
    """On two cores, one busy neighbour is already in the way of three processes."""
    assert there.is_busy is is_busy
