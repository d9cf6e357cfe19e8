"""How the gateway is set up and started to be measured, and what says its version."""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.bench.contenders import (
    FAIRGATE,
    LOG_LEVELS,
    WITHIN,
    Contender,
    Site,
    fairgate_build,
    fairgate_config,
    stale_copies,
)
from gateway.bench.machine import Machine, processor_named, this_machine
from tests.support.bench_runs import bench_site, fake_program, machine

PROGRAM = Contender(
    name="some",
    binary="some",
    prepare=lambda program, site: [program],
    install="",
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A place to run in."""
    return bench_site(tmp_path)


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
    command = FAIRGATE.prepare(sys.executable, replace(site, log_level="warning"))
    assert command[:5] == [sys.executable, "-m", "gateway", "serve", "--config"]
    assert json.loads(Path(command[5]).read_text()) == fairgate_config(site)
    assert "bench-secret" not in Path(command[5]).read_text()


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_a_log_level_reaches_the_gateway(site: Site, level: str) -> None:
    """Silent beside peers that write a line a request, it would look faster than it is."""
    command = FAIRGATE.prepare(sys.executable, replace(site, log_level=level))
    assert (WITHIN in command) is (level != "warning")
    if level != "warning":
        assert command[1:4] == [WITHIN, "--log-level", level.upper()]
    assert "serve" in command


def test_another_build_is_where_python_looks_first(tmp_path: Path) -> None:
    """Measured twice and compared with itself, no change would ever show."""
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").touch()
    build = fairgate_build(tmp_path, name="before")
    assert build.python_path == (str(tmp_path.resolve()),)
    assert build.name == "before"
    with pytest.raises(ValueError, match="no package"):
        fairgate_build(tmp_path / "gateway")


def test_copies_that_differ_from_their_source_are_stale(tmp_path: Path) -> None:
    """A compiled core of last week would be measured as this week's."""
    sources, compiled = tmp_path / "sources", tmp_path / "compiled"
    for folder in (sources, compiled):
        (folder / "gateway" / "core").mkdir(parents=True)
        (folder / "gateway" / "core" / "one.py").write_text("ONE = 1\n")
    assert stale_copies(compiled, sources) == []
    (sources / "gateway" / "core" / "one.py").write_text("ONE = 2\n")
    assert stale_copies(compiled, sources) == ["gateway/core/one.py"]
    (sources / "gateway" / "core" / "one.py").unlink()
    assert stale_copies(compiled, sources) == ["gateway/core/one.py"]


def test_a_version_is_the_first_line_with_a_digit(tmp_path: Path) -> None:
    """A figure without its version can't be compared with next year's."""
    path = fake_program(tmp_path, "some", "some version 1.2.3")
    assert PROGRAM.version(str(path)) == "some version 1.2.3"


def test_a_version_that_is_not_told_is_unknown(tmp_path: Path) -> None:
    """It must not end the benchmark."""
    silent = fake_program(tmp_path, "silent", "nothing")
    assert PROGRAM.version(str(silent)) == "unknown"
    assert PROGRAM.version(str(tmp_path / "missing")) == "unknown"


def test_a_package_says_the_version_of_its_program(tmp_path: Path) -> None:
    """Half of the routers do not know theirs."""
    (tmp_path / "bin").mkdir()
    path = fake_program(tmp_path / "bin", "some", "nothing")
    (tmp_path / "lib" / "python3.11" / "site-packages" / "some_router-0.3.2.dist-info").mkdir(
        parents=True
    )
    packaged = replace(PROGRAM, packages=("some-router[all]",))
    assert packaged.version(str(path)) == "0.3.2"


def test_the_gateway_says_which_version_it_is_and_whether_it_is_compiled() -> None:
    """A figure of the compiled core that is quoted for the other one is three times too good."""
    told = FAIRGATE.version(sys.executable)
    assert told.startswith(this_machine().versions["fairgate"])
    assert "compiled" in told
    assert "Python 3." in told


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
