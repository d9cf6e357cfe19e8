"""The command line as it is typed: what it prints, and its exit status."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.settings import load_settings

BAD = """
listen: {port: 80808}
tiers: [{name: UPPER}]
keys: [{tenant: acme, key_sha256: short}]
no_such_key: 1
replicas: [ftp://host]
"""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the developer's settings nor the width of a terminal sway the result."""
    monkeypatch.delenv("FAIRGATE_CONFIG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def dead_url() -> Iterator[str]:
    """Where nobody listens, and nobody else can in the meantime."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def run(*words: str) -> Result:
    """The command in this process."""
    return CliRunner().invoke(app, list(words))


def test_help_names_every_command() -> None:
    """The first thing that anybody types; run as a process, as it is installed."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "--help"], capture_output=True, text=True, check=True
    )
    for command in ("serve", "check", "emulate", "demo", "bench", "keys"):
        assert command in done.stdout
    assert run().exit_code == 2, "without a command it explains itself and does nothing"


def test_every_option_of_every_command_explains_itself() -> None:
    """An option without a word of help is one that nobody dares to use."""
    group = typer.main.get_command(app)
    commands = [group]
    for command in commands:
        commands.extend(getattr(command, "commands", {}).values())
        assert command.help, command.name
        for option in command.params:
            assert getattr(option, "help", "") or option.name.endswith("completion"), option.name
    assert len(commands) >= 8


def test_a_created_key_works_with_the_entry_that_is_printed(tmp_path: Path) -> None:
    """Printed once and stored as a hash: if the two did not fit nobody could tell."""
    done = run("keys", "create", "--tenant", "acme", "--user", "alice", "--tier", "high")
    assert done.exit_code == 0
    api_key, entry = done.stdout.splitlines()
    assert api_key.startswith("fg-")
    assert len(api_key) > 40
    config = tmp_path / "fairgate.yaml"
    config.write_text(f"replicas: [http://127.0.0.1:8000]\nkeys:\n{entry}\n")
    principal = load_settings(config=config, environ={}, overrides={}).keyring().find(
        api_key.encode()
    )  # fmt: skip
    assert principal is not None
    assert (principal.tenant, principal.user, principal.tier) == ("acme", "alice", 1)
    assert api_key not in entry
    assert yaml.safe_load(entry) != yaml.safe_load(
        run("keys", "create", "--tenant", "acme", "--user", "alice").stdout.splitlines()[1]
    ), "no two keys are the same"


@pytest.mark.parametrize("command", ["serve", "check"])
def test_bad_settings_end_with_status_2_and_all_their_faults(command: str, tmp_path: Path) -> None:
    """One fault at a time makes five restarts of five faults."""
    config = tmp_path / "fairgate.yaml"
    config.write_text(BAD)
    done = run(command, "--config", str(config))
    assert done.exit_code == 2
    for key in ("listen.port", "tiers[0].name", "keys[0].key_sha256", "no_such_key", "replicas[0]"):
        assert key in done.stderr
    assert "short" not in done.stderr, "what stands where a hash belongs may be a key"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("serve",), "replica"),
        (("serve", "--replica", "not a url"), "must be like http://host:8000"),
        (("serve", "--replica", "http://h:1", "--host", "10.0.0.1"), "--insecure-no-auth"),
        (("serve", "--replica", "http://h:1", "--policy", "lifo"), "policy"),
        (("check", "--config", "/nowhere/fairgate.yaml"), "/nowhere/fairgate.yaml"),
        (("emulate", "--fault", "no-such-fault"), "unknown fault"),
        (("emulate", "--scheduling-policy", "lifo"), "fcfs or priority"),
    ],
)
def test_what_cannot_work_ends_with_status_2_and_says_why(
    words: tuple[str, ...], hint: str
) -> None:
    """A process manager must not restart what no restart can mend."""
    done = run(*words)
    assert done.exit_code == 2
    assert hint in done.stderr


def test_check_on_a_dead_replica_ends_with_status_1_and_a_hint(dead_url: str) -> None:
    """Run in a deployment before the traffic is turned over."""
    done = run("check", "--replica", dead_url)
    assert done.exit_code == 1
    assert "connection refused" in done.stdout
    assert "is the engine started" in done.stdout
    assert "errors: 2" in done.stdout


async def test_serve_answers_and_ends_with_the_signal(dead_url: str) -> None:
    """Containers are stopped by SIGTERM, and killed when it does not help."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", "--replica", dead_url, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        *words,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "FAIRGATE_SHUTDOWN__LAG_S": "0"},
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            for _ in range(400):
                with contextlib.suppress(httpx.ConnectError):
                    await http.get("/healthz")
                    break
                await asyncio.sleep(0.05)
            ready = await http.get("/readyz")
        process.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(process.communicate(), 20)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert ready.status_code == 503
    assert ready.json()["reason"] == "no replica answers"
    assert process.returncode == 0
    assert f"http://127.0.0.1:{port}" in said.decode()
    assert "only this machine is served" in said.decode()
    assert "Traceback" not in said.decode()


def test_more_than_one_worker_needs_redis() -> None:
    """Each would be fair by itself, and all of them together to nobody."""
    done = run("serve", "--workers", "2", "--replica", "http://127.0.0.1:9")
    assert done.exit_code == 2
    assert "--workers 2 needs Redis" in done.output
    assert "none would be fair" in done.output
