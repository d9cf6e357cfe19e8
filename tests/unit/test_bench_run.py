"""From the command line to the stored file, with a fake engine in the gateway's part."""

import json
import sys
from pathlib import Path

import pytest

from gateway.bench import __main__ as command_line
from gateway.bench.options import Options
from gateway.bench.peers import PEERS
from gateway.bench.run import install_peers, run_bench, run_profile

ENGINE = """
import json, sys
from gateway.bench import upstream
get = upstream.Engine.get
upstream.Engine.get = lambda engine, path: get(engine, path.replace(b"/readyz", b"/health"))
path = sys.argv[sys.argv.index("--config") + 1]
sys.argv = ["upstream", "--port", str(json.load(open(path))["listen"]["port"])]
upstream.main()
"""


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A package in the gateway's place whose `serve` is the fake engine."""
    own = Path(command_line.__file__).parents[1]
    folder = tmp_path / "build" / "gateway"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("__version__ = '9.9'\n")
    (folder / "__main__.py").write_text(ENGINE)
    (folder / "app.py").touch()
    for part in ("bench", "core"):
        (folder / part).symlink_to(own / part)
    return folder.parent


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No peer is found, and results go to a folder of the test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for peer in PEERS:
        monkeypatch.delenv(peer.variable, raising=False)


def test_a_whole_run_prints_stores_and_skips_what_is_missing(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command to the file: what `make bench` does."""
    path = tmp_path / "results" / "one.json"
    words = f"--build {build} --rounds 1 --seconds 0.1 --only one-client --json {path}"
    status = command_line.main(words.split())
    printed = capsys.readouterr()
    assert "nginx skipped" in printed.err
    assert "CPU per plain request, 1 client" in printed.out
    assert "9.9 (not compiled)" in printed.out
    stored = json.loads(path.read_text())
    assert list(stored["programs"]) == ["fairgate"]
    assert len(stored["rounds"]) == 1
    assert stored["is_sound"] is True
    assert status == 0


def test_a_profile_is_printed_and_stored(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the time goes is asked of a gateway that runs as it is measured."""
    words = f"--build {build} --profile before --scenario plain --seconds 0.2"
    assert command_line.main(words.split()) == 0
    printed = capsys.readouterr().out
    assert "40 most expensive functions" in printed
    assert "EngineConnection" in printed
    stored = json.loads((tmp_path / "bench-results" / "before.json").read_text())
    assert stored["kind"] == "samples"
    assert stored["seen"]["costs"]


@pytest.mark.parametrize(
    "options",
    [
        Options(peers=("ngnix",)),
        Options(only=("cores",)),
        Options(rounds=0),
        Options(beside=("x",)),
    ],
)
def test_a_wrong_argument_is_told_at_once(options: Options, tmp_path: Path) -> None:
    """Not after minutes of measuring something else."""
    assert run_bench(options) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_profile_of_nothing_is_a_wrong_argument(tmp_path: Path) -> None:
    """A folder without a gateway has no profile."""
    assert run_profile(Options(build=tmp_path), name="x", load="plain", kind="samples") == 2


def test_a_gateway_that_does_not_start_is_an_error(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CI must not call it a measurement."""
    (build / "gateway" / "__main__.py").write_text("raise SystemExit('no such setting')")
    options = Options(build=build, rounds=1, only=("one-client",), json_path=tmp_path / "x.json")
    assert run_bench(options) == 1
    assert run_profile(options, name="x", load="plain", kind="samples") == 1
    assert "no such setting" in capsys.readouterr().err


def test_what_pip_cannot_install_is_named_with_its_own_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hint costs nothing; running a system's package manager unasked does."""
    assert install_peers(tmp_path, ["nginx"]) == 0
    assert "apt-get install nginx-light" in capsys.readouterr().err
    assert install_peers(tmp_path, ["ngnix"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_offers_every_peer(capsys: pytest.CaptureFixture[str]) -> None:
    """A contender that was added but can't be asked for was not added."""
    with pytest.raises(SystemExit):
        command_line.main(["--help"])
    shown = capsys.readouterr().out
    assert all(peer.name in shown for peer in PEERS)


def test_the_command_line_passes_its_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """--full that is not full would be quoted as if it were."""
    asked: list[Options] = []

    def remember(options: Options) -> int:
        asked.append(options)
        return 7

    monkeypatch.setattr(command_line, "run_bench", remember)
    words = (
        "--full --rounds 2 --seconds 1.5 --only core --only one-client --peer nginx --peer smg "
        "--peers there --log-level error --python py --build b --beside old=o --json a.json"
    )
    assert command_line.main(words.split()) == 7
    assert asked == [
        Options(
            full=True,
            rounds=2,
            seconds=1.5,
            only=("core", "one-client"),
            peers=("nginx", "smg"),
            peers_folder=Path("there"),
            log_level="error",
            python=Path("py"),
            build=Path("b"),
            beside=("old=o",),
            json_path=Path("a.json"),
        )
    ]


def test_peers_are_installed_instead_of_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing takes minutes of a busy machine: no moment to measure."""
    asked: list[object] = []

    def remember(folder: Path, names: list[str]) -> int:
        asked.append((folder, names))
        return 0

    monkeypatch.setattr(command_line, "install_peers", remember)
    monkeypatch.setattr(sys, "argv", ["bench", "--install-peers", "there", "--peer", "smg"])
    assert command_line.main() == 0
    assert asked == [(Path("there"), ["smg"])]
