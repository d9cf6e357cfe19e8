"""How peers are set up, found and installed."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.bench.contenders import FAIRGATE, LOG_LEVELS, Contender, Site
from gateway.bench.peers import PEERS, find, install, peer_named
from tests.support.bench_runs import bench_site, fake_program


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A place to run in."""
    return bench_site(tmp_path)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No peer of the machine that runs the tests is found."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    for peer in PEERS:
        monkeypatch.delenv(peer.variable, raising=False)


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


def test_routers_log_at_the_level_of_the_gateway(site: Site) -> None:
    """At another level one side pays for lines that the other does not write."""
    for peer in PEERS:
        for level in LOG_LEVELS:
            command = peer.prepare("/bin/program", replace(site, log_level=level))
            if "--log-level" in command:
                told = command[command.index("--log-level") + 1]
                assert told[:4] == level[:4]


def test_a_peer_that_insists_on_a_key_gets_the_one_that_clients_send(site: Site) -> None:
    """It does not start without one, and refuses every request that has another."""
    peer_named("litellm").prepare("/bin/program", site)
    config = json.loads((site.folder / "litellm.yaml").read_text())
    assert config["general_settings"]["master_key"] == site.key


def test_the_environment_names_a_program_off_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone may keep a program anywhere."""
    peer = peer_named("production-stack")
    assert find(peer) is None
    path = fake_program(tmp_path, "my-router", "1.0")
    monkeypatch.setenv("BENCH_PRODUCTION_STACK", str(path))
    assert find(peer) == str(path)


def test_a_peer_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is where a package manager puts it."""
    path = fake_program(tmp_path, "nginx", "nginx version: nginx/1.22.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find(peer_named("nginx")) == str(path)


@pytest.mark.parametrize("place", ["bin", "v-smg/bin", "smg/bin", "anything/bin"])
def test_a_peer_in_the_folder_is_found(tmp_path: Path, place: str) -> None:
    """Programs side by side, or each in a virtual environment of its own."""
    (tmp_path / place).mkdir(parents=True)
    path = fake_program(tmp_path / place, "smg", "1.0")
    assert find(peer_named("smg"), tmp_path) == str(path)


def test_a_folder_that_names_the_peer_comes_first(tmp_path: Path) -> None:
    """One router installs another's name too: its figures would stand in the wrong column."""
    for place in ("v-sglang-router/bin", "v-smg/bin"):
        (tmp_path / place).mkdir(parents=True)
        fake_program(tmp_path / place, "smg", "1.0")
    assert find(peer_named("smg"), tmp_path) == str(tmp_path / "v-smg/bin/smg")


def test_a_folder_that_names_another_peer_is_passed_over(tmp_path: Path) -> None:
    """Two peers share the name of their command; each is in its own environment, or missing."""
    (tmp_path / "production-stack" / "bin").mkdir(parents=True)
    path = fake_program(tmp_path / "production-stack" / "bin", "vllm-router", "1.0")
    assert find(peer_named("vllm-router"), tmp_path) is None
    assert find(peer_named("production-stack"), tmp_path) == str(path)


def test_a_shared_name_is_not_taken_from_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it is most probably the other one."""
    fake_program(tmp_path, "vllm-router", "1.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find(peer_named("vllm-router")) is not None
    assert find(peer_named("production-stack")) is None


def test_a_peer_is_installed_into_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requirements of two routers do not go together."""
    commands: list[list[str]] = []

    def remember(command: list[str], **_: Any) -> None:
        commands.append(command)

    monkeypatch.setattr(subprocess, "run", remember)
    assert install(peer_named("litellm"), tmp_path) is None
    assert commands[0] == [sys.executable, "-m", "venv", str(tmp_path / "litellm")]
    assert commands[1][0] == str(tmp_path / "litellm" / "bin" / "python")
    assert commands[1][-1] == "litellm[proxy]"


def test_an_installation_that_fails_says_why(tmp_path: Path) -> None:
    """No network, no package: the reason is in what pip said."""
    blocked = tmp_path / "file"
    blocked.touch()
    why = install(peer_named("smg"), blocked)
    assert why is not None
    assert "smg" in why


def test_what_pip_does_not_have_is_not_installed_by_it(tmp_path: Path) -> None:
    """A package of the same name may be anybody's."""
    with pytest.raises(AssertionError, match="nginx"):
        install(peer_named("nginx"), tmp_path)
