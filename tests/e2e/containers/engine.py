"""A container engine for the tests: the one of this machine, or one started for the occasion.

Without either the tests are skipped, aloud; with REQUIRE_CONTAINERS=1 they fail instead.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.shared import shared_path

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
BASE_IMAGE = "python:3.12-slim"
DEBIAN_IMAGE = "debian:bookworm-slim"
STAND_INS = "fairgate-test-{}:local"
ASK_S = 20
BUILD_S = 900
"""A first build fetches some forty packages over whatever line there is."""


@dataclass(frozen=True)
class Engine:
    """An engine that answers, and how to reach it."""

    environ: Mapping[str, str]
    has_registry: bool
    """False: base images are stand-ins made on this machine."""

    def docker(self, *arguments: str, timeout_s: float = ASK_S) -> str:
        """The standard output of a `docker` command that must succeed."""
        return _run(["docker", *arguments], self.environ, timeout_s)

    def tried(self, *arguments: str, timeout_s: float = ASK_S) -> subprocess.CompletedProcess[str]:
        """A `docker` command that may fail; its output streams are one."""
        return subprocess.run(
            ["docker", *arguments],
            env=dict(self.environ),
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )

    def stand_in(self, name: str) -> str | None:
        """What stands in for an image, from NAME.Dockerfile; None: the file's own can be had."""
        if self.has_registry:
            return None
        tag, dockerfile = STAND_INS.format(name), str(HERE / f"{name}.Dockerfile")
        self.docker("build", "-q", "-t", tag, "-f", dockerfile, ".", timeout_s=BUILD_S)
        return tag


@contextmanager
def running_engine() -> Iterator[Engine]:
    """An engine with compose; skips the test where there is none and none can be started."""
    present = Engine(dict(os.environ), has_registry=True)
    if _answers(present):
        yield present
        return
    script = _starting_script()
    if os.geteuid() != 0:
        _unavailable("no container engine answers, and only root can start one")
    home = Path(os.environ.get("DE", Path(tempfile.gettempdir(), "docker-engine")))
    environ = {
        **os.environ,
        "DE": str(home),
        "DOCKER_HOST": f"unix://{home}/docker.sock",
        "DOCKER_CONFIG": f"{home}/cfg",
    }
    engine = Engine(environ, has_registry=False)
    is_ours = not _answers(engine)
    if is_ours:
        _start(script, engine)
    try:
        _make_base_images(script, engine)
        yield engine
    finally:
        if is_ours:
            _sourced(script, "de_stop", environ)


def _starting_script() -> Path:
    """Shell functions that install and start an engine."""
    try:
        script = shared_path("tools", "deploy", "docker-engine.sh")
    except pytest.skip.Exception:
        script = Path()
    if not script.is_file():
        _unavailable("no container engine answers, and nothing here can start one")
    return script


def _answers(engine: Engine) -> bool:
    """Whether a daemon and the compose plugin are there."""
    if shutil.which("docker") is None:
        return False
    try:
        tries = [engine.tried("info"), engine.tried("compose", "version")]
    except subprocess.TimeoutExpired:
        return False
    return all(tried.returncode == 0 for tried in tries)


def _start(script: Path, engine: Engine) -> None:
    plugin = Path(engine.environ["DOCKER_CONFIG"], "cli-plugins", "docker-compose")
    is_installed = plugin.exists() and Path("/usr/sbin/dockerd").exists()
    try:
        _sourced(script, "de_start" if is_installed else "de_install; de_start", engine.environ)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        _unavailable(f"the container engine did not come up: {error}")
    if not _answers(engine):
        _unavailable("the container engine came up without compose")


def _make_base_images(script: Path, engine: Engine) -> None:
    """Stand-ins for the base images, made once from this machine's own Debian and Python."""
    if engine.tried("image", "inspect", BASE_IMAGE).returncode == 0:
        return
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = sorted(versions.glob("3.12.*"))
    if not found:
        _unavailable("no registry, and no Python 3.12 to make a base image of")
    command = f"de_base {found[-1].name} {BASE_IMAGE} {DEBIAN_IMAGE}"
    try:
        _sourced(script, command, engine.environ)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        _unavailable(f"no base image: {error}")


def _sourced(script: Path, command: str, environ: Mapping[str, str]) -> None:
    """Run functions of a shell script. What they leave running must not hold our pipes open."""
    with tempfile.TemporaryFile("w+") as log:
        ended = subprocess.run(
            ["bash", "-c", f'. "$0"; {command}', str(script)],
            env=dict(environ),
            cwd=tempfile.gettempdir(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=BUILD_S,
            check=False,
            start_new_session=True,
        )
        log.seek(0)
        said = log.read()[-2000:]
    assert ended.returncode == 0, f"{command}: exit status {ended.returncode}\n{said}"


def _run(command: list[str], environ: Mapping[str, str], timeout_s: float) -> str:
    ended = subprocess.run(
        command,
        env=dict(environ),
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    said = f"{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    assert ended.returncode == 0, f"{' '.join(command)}: exit status {ended.returncode}\n{said}"
    return ended.stdout


def _unavailable(reason: str) -> NoReturn:
    """Containers were not tested, and whoever reads the result must see that."""
    if os.environ.get("REQUIRE_CONTAINERS"):
        pytest.fail(f"containers are required: {reason}")
    pytest.skip(f"CONTAINERS NOT TESTED, which is no pass: {reason}")
