"""Clients that leave a real vLLM in the middle: it stops, and the gateway's books are empty."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.vllm.conftest import Say
from tests.e2e.vllm.tiny.asking import Both, chat, completion, response

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LONG = 960
"""Tokens; the context of the model holds little more."""
STARTS_S_MAX = 10.0
GONE_S_MAX = 1.0
CALLS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "chat": ("/v1/chat/completions", chat(max_tokens=LONG, ignore_eos=True)),
    "completion": ("/v1/completions", completion(max_tokens=LONG, ignore_eos=True)),
    "response": ("/v1/responses", response(max_output_tokens=LONG)),
    "message": ("/v1/messages", chat(max_tokens=LONG)),
}


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("name", CALLS)
async def test_the_engine_stops_when_the_client_leaves(
    both: Both, name: str, is_stream: bool, say: Say
) -> None:
    """A closed tab must not go on costing somebody a slot."""
    path, body = CALLS[name]
    task = asyncio.ensure_future(both.through.post(path, json={**body, "stream": is_stream}))
    await until_running(both, 1)
    await leave(task)
    gone_s = await both.until_nothing_runs()
    say(f"{name}, {'stream' if is_stream else 'plain'}: idle {gone_s * 1000:.0f} ms after")
    assert gone_s < GONE_S_MAX


async def test_those_who_wait_leave_without_a_trace(both: Both) -> None:
    """More than the engine has slots for; all close at once, as when a front end restarts."""
    path, body = CALLS["chat"]
    tasks = [
        asyncio.ensure_future(both.through.post(path, json={**body, "stream": number % 2 == 0}))
        for number in range(12)
    ]
    await until_running(both, 4)
    await asyncio.gather(*map(leave, tasks))
    await both.until_nothing_runs()
    assert (await both.through.post(path, json=chat())).status_code == 200


async def leave(task: "asyncio.Future[Any]") -> None:
    """Close the connection in the middle."""
    task.cancel()
    await asyncio.wait([task])


async def until_running(both: Both, count: int) -> None:
    """Wait until the engine runs so many."""
    async with asyncio.timeout(STARTS_S_MAX):
        while (await both.running())[0] < count:  # noqa: ASYNC110 - an engine tells only who asks
            await asyncio.sleep(0.01)
