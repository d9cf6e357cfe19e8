"""A batch as large as one may be, with the real `openai` client: each line as asked directly."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from gateway.bench.process import sample_tree
from tests.e2e.processes import emulating, serving_process
from tests.e2e.soak.conftest import Say
from tests.support.batch_client import CHAT, answered, line
from tests.support.ports import free_port

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800)]

LINES = 50_000
SLOTS = 64
ASKING = 16
"""Direct requests at once."""
END_S_MAX = 900.0
GROWTH_MB_MAX = 60.0
LOOK_S = 0.5


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """One that takes no time, and answers the same prompt alike each time."""
    with emulating("--profile", "instant", "--max-num-seqs", str(SLOTS)) as url:
        yield url


def asked(number: int) -> dict[str, Any]:
    """A small chat, of one to eight tokens."""
    message = {"role": "user", "content": f"Say {number}."}
    tokens = number % 8 + 1
    return {"model": "emulated", "messages": [message], "max_tokens": tokens, "temperature": 0}


async def directly(engine: str) -> dict[int, Any]:
    """The engine's answers to the same requests: the choices of each."""
    found: dict[int, Any] = {}
    left = iter(range(LINES))

    async def ask(http: httpx.AsyncClient) -> None:
        for number in left:
            answer = await http.post(CHAT, json=asked(number))
            found[number] = answer.raise_for_status().json()

    async with (
        httpx.AsyncClient(base_url=engine, timeout=60.0) as http,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(ASKING):
            tasks.create_task(ask(http))
    return found


async def test_fifty_thousand_lines_are_answered_as_asked_directly(
    engine: str, tmp_path: Path, say: Say
) -> None:
    """The most that OpenAI's own Batch API takes."""
    batches = {"files": str(tmp_path / "files"), "store": f"sqlite:///{tmp_path}/batches.db"}
    data = b"".join(line(number, asked(number)) for number in range(LINES))
    replicas = [{"url": engine, "max_num_seqs": SLOTS}]
    with serving_process(tmp_path, free_port(), replicas, batches=batches) as (url, pid):
        sizes = [sample_tree(pid).rss_bytes / 1e6]
        watching = asyncio.ensure_future(_watched(pid, sizes))
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            began_at = monotonic()
            answers = await answered(client, data, END_S_MAX)
            took_s = monotonic() - began_at
        watching.cancel()
    expected = await directly(engine)
    same = sum(
        _said(answers[f"c{number}"]["body"]) == _said(expected[number]) for number in expected
    )
    say(
        f"{LINES} lines ({len(data) / 1e6:.1f} MB) in {took_s:.0f} s, {same} as asked directly;"
        f" gateway {sizes[0]:.0f} MB, at most {max(sizes):.0f}"
    )
    assert same == LINES
    assert max(sizes) - sizes[0] < GROWTH_MB_MAX


async def _watched(pid: int, sizes: list[float]) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        sizes.append(sample_tree(pid).rss_bytes / 1e6)


def _said(body: dict[str, Any]) -> tuple[Any, ...]:
    """All of an answer but its id and its instant."""
    return body["model"], body["choices"], body["usage"]
