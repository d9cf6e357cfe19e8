"""What a benchmark is asked for, and who takes part by that."""

from pathlib import Path

import pytest

from gateway.bench.options import Options
from gateway.bench.peers import PEERS
from gateway.bench.scenarios import ONE_CLIENT
from tests.support.bench_runs import fake_program


@pytest.fixture
def said() -> list[str]:
    """What was said."""
    return []


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it yet."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for peer in PEERS:
        monkeypatch.delenv(peer.variable, raising=False)
    return folder


def names(options: Options, said: list[str]) -> list[str]:
    """Who takes part beside the gateway."""
    return [entrant.name for entrant in options.others(said.append)]


def build(folder: Path) -> Path:
    """A folder with a package of the gateway's name."""
    (folder / "gateway").mkdir(parents=True)
    (folder / "gateway" / "__init__.py").touch()
    return folder


def test_nginx_is_the_yardstick_where_it_is(path: Path, said: list[str]) -> None:
    """Without a word to it: a factor that must be asked for is missing in most reports."""
    fake_program(path, "nginx", "1.22.1")
    assert names(Options(), said) == ["nginx"]
    assert said == []


def test_a_missing_yardstick_is_told_with_what_is_lost(said: list[str]) -> None:
    """The column that is not there would be missed by nobody."""
    assert names(Options(), said) == []
    assert "nginx skipped" in said[0]
    assert "apt-get install nginx-light" in said[0]
    assert "no machine factor" in said[0]


def test_in_a_folder_everything_is_looked_for(tmp_path: Path, said: list[str]) -> None:
    """One option for all that was installed there, and a line for each that was not."""
    for name in ("smg", "vllm-router"):
        (tmp_path / name / "bin").mkdir(parents=True)
        fake_program(tmp_path / name / "bin", name, "1.0")
    found = names(Options(peers_folder=tmp_path), said)
    assert found == ["vllm-router", "vllm-router-default", "smg"]
    assert len(said) == len(PEERS) - 3


def test_named_peers_are_the_only_ones(path: Path, said: list[str]) -> None:
    """Each one more takes a minute."""
    for name in ("nginx", "smg"):
        fake_program(path, name, "1.0")
    assert names(Options(peers=("smg",)), said) == ["smg"]
    assert names(Options(peers=("none",)), said) == []
    assert names(Options(peers=("all",)), said) == ["nginx", "smg"]


def test_an_unknown_peer_is_refused_with_the_names_there_are(said: list[str]) -> None:
    """A typo must be answered at once, not after minutes without that peer."""
    with pytest.raises(ValueError, match="nginx, haproxy"):
        Options(peers=("ngnix",)).others(said.append)


def test_another_build_and_another_interpreter_are_taken(tmp_path: Path, said: list[str]) -> None:
    """The compiled gateway lies elsewhere than its sources."""
    folder = build(tmp_path / "compiled")
    gateway = Options(build=folder, python=Path("/opt/python")).gateway(said.append)
    assert gateway.name == "fairgate"
    assert gateway.contender.python_path == (str(folder.resolve()),)
    assert gateway.program == "/opt/python"


def test_a_folder_without_the_gateway_is_refused(tmp_path: Path, said: list[str]) -> None:
    """It would measure whatever is installed instead."""
    with pytest.raises(ValueError, match="no package"):
        Options(build=tmp_path).gateway(said.append)
    with pytest.raises(ValueError, match="no package"):
        Options(beside=(f"before={tmp_path}",)).others(said.append)


def test_builds_are_measured_beside_each_other(tmp_path: Path, said: list[str]) -> None:
    """Before and after a change, interleaved: the only way to see a tenth."""
    folder = build(tmp_path / "before")
    found = Options(beside=(f"before={folder}",), peers=("none",)).others(said.append)
    assert [entrant.name for entrant in found] == ["before"]
    assert found[0].contender.python_path == (str(folder.resolve()),)


@pytest.mark.parametrize("told", ["before", "=folder", "before="])
def test_a_build_needs_a_name_and_a_folder(told: str, said: list[str]) -> None:
    """A column needs a head."""
    with pytest.raises(ValueError, match="NAME=FOLDER"):
        Options(beside=(told,)).others(said.append)


def test_everything_is_measured_unless_told_otherwise() -> None:
    """And scenarios alone need no core."""
    assert Options().parts() == ("overhead", "core")
    assert Options(only=("core",)).parts() == ("core",)
    assert Options(only=(ONE_CLIENT,)).parts() == ("overhead",)
    assert Options(only=(ONE_CLIENT, "core")).parts() == ("overhead", "core")


def test_an_unknown_part_is_refused_with_the_names_there_are() -> None:
    """A slip of the pen must not start a run of minutes."""
    with pytest.raises(ValueError, match="overhead, core, cluster, 1000-streams"):
        Options(only=("cores",)).parts()


def test_the_plan_is_the_one_asked_for() -> None:
    """Rounds, windows and scenarios."""
    plan = Options(rounds=1, seconds=0.25, only=(ONE_CLIENT, "core")).plan()
    assert plan.rounds == 1
    assert [(one.name, one.load.window_s) for one in plan.scenarios] == [(ONE_CLIENT, 0.25)]
    assert Options(full=True).plan().rounds == 5
