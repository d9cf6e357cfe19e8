"""`fairgate batch`, as it is typed, before a gateway with batches."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.cli_batch import left_of, row_of
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.support.batches import line
from tests.support.gateway import Running, running_gateway


@pytest.fixture
async def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Running]:
    """One engine and a gateway that the commands find by its variable."""
    monkeypatch.setenv("COLUMNS", "250")
    files, store = str(tmp_path / "files"), f"sqlite:///{tmp_path}/batches.db"
    async with (
        running_emulator(EmulatorOptions(profile="instant", models=("m",))) as engine,
        running_gateway(engine.url, batches__files=files, batches__store=store) as running,
    ):
        monkeypatch.setenv("FAIRGATE_URL", running.url)
        yield running


async def typed(*words: str, status: int = 0) -> Result:
    """The command, while the gateway goes on."""
    done = await asyncio.to_thread(CliRunner().invoke, app, ["batch", *words])
    assert done.exit_code == status, done.output
    return done


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    """A file of ten."""
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b"".join(line(number, max_tokens=2) for number in range(10)))
    return path


def write(path: Path, data: bytes) -> None:
    """Another file in its place."""
    path.write_bytes(data)


def answered_in(requests: Path) -> list[str] | None:
    """Ids of the answers that lie beside `requests`; None: there is no such file."""
    path = requests.with_suffix(".output.jsonl")
    if not path.exists():
        return None
    return sorted(json.loads(each)["custom_id"] for each in path.read_text().splitlines())


async def test_a_file_becomes_answers(gateway: Running, requests: Path) -> None:
    """One command, from the file to its answers."""
    done = await typed("submit", str(requests))
    batch_id = done.stdout.strip()
    assert "completed: 10 of 10 answered, 0 failed" in done.stderr
    assert answered_in(requests) == sorted(f"c{number}" for number in range(10))
    [listed] = json.loads((await typed("list", "--json")).stdout)
    assert listed["id"] == batch_id
    assert batch_id in (await typed("list")).stdout
    assert "completed" in (await typed("show", batch_id)).stdout
    refused = await typed("cancel", batch_id, status=1)
    assert "batch_state_conflict" in refused.stderr


async def test_a_wrong_file_says_where(gateway: Running, requests: Path) -> None:
    """And its status is 1, for scripts."""
    write(requests, line(0) + b"{}\n")
    done = await typed("submit", str(requests), status=1)
    assert "failed: 0 of" in done.stderr
    assert "line 2: " in done.stderr


async def test_nobody_need_wait(gateway: Running, requests: Path) -> None:
    """A script submits and goes on."""
    done = await typed("submit", str(requests), "--no-wait", "--tier", "high")
    assert done.stdout.startswith("batch_")
    assert answered_in(requests) is None


async def test_a_file_without_a_url_needs_an_endpoint(gateway: Running, requests: Path) -> None:
    """It is said what to do."""
    write(requests, b"nonsense\n")
    refused = await typed("submit", str(requests), status=1)
    assert "--endpoint" in refused.stderr


def test_the_time_left_is_that_of_the_pace_so_far() -> None:
    """A hundred of four hundred in a minute: three minutes more."""
    batch = {
        "id": "b", "status": "in_progress", "in_progress_at": 1_000, "created_at": 990,
        "request_counts": {"total": 400, "completed": 90, "failed": 10},
    }  # fmt: skip
    assert left_of(batch, 1_060.0) == 180.0
    assert row_of(batch, 1_060.0)["left"] == "0:03:00"
    assert left_of({**batch, "status": "completed"}, 1_060.0) is None
