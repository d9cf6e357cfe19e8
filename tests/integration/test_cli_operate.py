"""A running gateway operated from the command line, as it is typed."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.support.gateway import Running, running_gateway


@pytest.fixture
async def gateway(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    """One engine and a gateway that the commands find by its variable."""
    monkeypatch.setenv("COLUMNS", "250")
    async with (
        running_emulator(EmulatorOptions(profile="instant")) as engine,
        running_gateway(engine.url) as running,
    ):
        monkeypatch.setenv("FAIRGATE_URL", running.url)
        yield running


async def typed(*words: str, status: int = 0) -> Result:
    """The command, while the gateway goes on."""
    done = await asyncio.to_thread(CliRunner().invoke, app, list(words))
    assert done.exit_code == status, done.output
    return done


async def test_a_tenant_and_its_key_are_made_rotated_and_revoked(gateway: Running) -> None:
    """The first thing that an operator does, and the last thing for a team that leaves."""
    await typed("tenants", "create", "acme", "--weight", "2")
    made = await typed("keys", "create", "--tenant", "acme", "--user", "alice", "--tier", "high")
    key = made.stdout.strip()
    assert key.startswith("fg-")
    assert "shown this once" in made.stderr
    (listed,) = json.loads((await typed("keys", "list", "--json")).stdout)
    assert (listed["tenant"], listed["user"], listed["tier"]) == ("acme", "alice", "high")
    assert key not in json.dumps(listed)
    await typed("keys", "block", listed["id"])
    assert json.loads((await typed("keys", "show", listed["id"], "--json")).stdout)["blocked"]
    await typed("keys", "unblock", listed["id"])
    again = (await typed("keys", "rotate", listed["id"], "--overlap-s", "60")).stdout.strip()
    assert again not in ("", key)
    assert "acme" in (await typed("tenants", "list")).stdout
    refused = await typed("tenants", "remove", "acme", status=1)
    assert "cascade" in refused.stderr
    await typed("keys", "revoke", listed["id"])
    await typed("tenants", "remove", "acme", "--cascade")
    assert json.loads((await typed("tenants", "list", "--json")).stdout) == []


async def test_limits_of_a_tenant_are_set_one_by_one(gateway: Running) -> None:
    """Who raises one limit does not mean to lift the other."""
    await typed("tenants", "create", "acme")
    await typed("tenants", "set", "acme", "--concurrent", "8")
    told = await typed("tenants", "set", "acme", "--requests-per-minute", "60", "--json")
    limits = json.loads(told.stdout)["limits"]
    assert (limits["concurrent"], limits["requests_per_minute"]) == (8, 60)
    await typed("users", "create", "acme", "bob", "--weight", "3")
    (user,) = json.loads((await typed("users", "list", "--tenant", "acme", "--json")).stdout)
    assert (user["name"], user["weight"]) == ("bob", 3.0)
    await typed("users", "remove", "acme", "bob")


async def test_a_policy_is_read_tried_out_and_put(gateway: Running, tmp_path: Path) -> None:
    """What is shown is what can be put: an operator edits it in between."""
    text = (await typed("policy", "show")).stdout
    file = tmp_path / "policy.yaml"
    file.write_text(text.replace("headroom_max: 0.2", "headroom_max: 0.3"))
    rehearsed = await typed("policy", "set", str(file), "--dry-run")
    assert "scheduling.headroom_max" in rehearsed.stdout
    assert gateway.gateway.scheduler.policy.headroom_max == 0.2
    await typed("policy", "set", str(file))
    assert gateway.gateway.scheduler.policy.headroom_max == 0.3
    told = await typed("tiers", "remove", "background", "--moved-to", "standard", "--json")
    assert [tier["name"] for tier in json.loads(told.stdout)] == ["critical", "high", "standard"]
    file.write_text("tiers: [")
    await typed("policy", "set", str(file), status=2)


async def test_a_replica_is_drained_and_used_again(gateway: Running) -> None:
    """An upgrade of one engine, without the console."""
    (replica,) = json.loads((await typed("replicas", "list", "--json")).stdout)
    await typed("replicas", "drain", replica["name"])
    assert gateway.gateway.scheduler.replicas[replica["name"]].is_draining
    await typed("replicas", "undrain", replica["name"])
    assert not gateway.gateway.scheduler.replicas[replica["name"]].is_draining
    refused = await typed("replicas", "remove", replica["name"], status=1)
    assert "configured_in_file" in refused.stderr


async def test_what_is_wrong_is_said_in_one_line(gateway: Running) -> None:
    """Nobody reads a traceback at three in the morning."""
    refused = await typed("keys", "show", "nobody", status=1)
    assert "404" in refused.stderr
    refused = await typed("keys", "list", "--gateway", "http://127.0.0.1:1", status=1)
    assert "does not answer" in refused.stderr
    wrong = await typed("keys", "create", "--tenant", "nobody", "--user", "u", status=1)
    assert wrong.stderr.startswith("tenant: ")
