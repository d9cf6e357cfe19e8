"""What the gateway charges, held against what the engine itself counted."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.vllm.tiny.asking import Both, chat, completion, response

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SETTLED_AFTER_S = 0.1
STREAM = {"stream": True}
CALLS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "chat": ("/v1/chat/completions", chat()),
    "chat stream": ("/v1/chat/completions", chat(**STREAM)),
    "chat stream with usage": (
        "/v1/chat/completions", chat(**STREAM, stream_options={"include_usage": True}),
    ),
    "chat of two choices": ("/v1/chat/completions", chat(n=2, seed=1, temperature=1)),
    "chat stream of two choices": (
        "/v1/chat/completions", chat(n=2, seed=1, temperature=1, **STREAM),
    ),
    "completion": ("/v1/completions", completion()),
    "completion stream": ("/v1/completions", completion(**STREAM)),
    "completion of two prompts": (
        "/v1/completions", completion(prompt=["def main(", "class Date:"]),
    ),
    "completion stream of two prompts": (
        "/v1/completions", completion(prompt=["def main(", "class Date:"], **STREAM),
    ),
    "response": ("/v1/responses", response()),
    "response stream": ("/v1/responses", response(**STREAM)),
    "message": ("/v1/messages", chat()),
    "message stream": ("/v1/messages", chat(**STREAM)),
}  # fmt: skip
FREE: dict[str, tuple[str, Mapping[str, Any]]] = {
    "tokenize": ("/tokenize", {"model": "tiny", "prompt": "def main(argv):"}),
    "detokenize": ("/detokenize", {"model": "tiny", "tokens": [284, 79]}),
    "count_tokens": ("/v1/messages/count_tokens", chat()),
    "an answer that the engine refuses": ("/v1/chat/completions", chat(max_tokens=10**6)),
}


@pytest.mark.parametrize("name", CALLS)
async def test_the_gateway_charges_what_the_engine_counted(both: Both, name: str) -> None:
    """Who pays by tokens must be able to hold the bill against the engine's own counters."""
    path, body = CALLS[name]
    engine, gateway = await grown(both, path, body)
    engine["prompt"] /= body.get("n", 1)  # it counts the prompt for each choice, usage once
    assert gateway == engine
    assert gateway["output"] > 0


@pytest.mark.parametrize("name", FREE)
async def test_what_generates_nothing_costs_nothing(both: Both, name: str) -> None:
    """A client that counts its tokens beforehand must not pay for that."""
    path, body = FREE[name]
    engine, gateway = await grown(both, path, body)
    assert gateway == engine == {"prompt": 0, "output": 0}


async def test_many_at_once_add_up(both: Both) -> None:
    """More than the engine runs at once: none is lost, and none counted twice."""
    before = await both.counters()
    calls = [*FREE.values(), *(call for call in CALLS.values() if "n" not in call[1])]
    answers = await asyncio.gather(*(both.through.post(path, json=body) for path, body in calls))
    assert {answer.status_code for answer in answers} == {200, 400}
    engine, gateway = await growth(both, before)
    assert gateway == engine


Counters = dict[str, float]


async def grown(both: Both, path: str, body: Mapping[str, Any]) -> tuple[Counters, Counters]:
    """What one request through the gateway adds to the engine's counters, and to its own."""
    before = await both.counters()
    await both.through.post(path, json=body)
    return await growth(both, before)


async def growth(both: Both, before: tuple[Counters, Counters]) -> tuple[Counters, Counters]:
    """The growth of both since `before`; an engine counts a moment after its last byte."""
    await both.until_nothing_runs()
    await asyncio.sleep(SETTLED_AFTER_S)
    return _differences(before, await both.counters())


def _differences(
    before: tuple[Counters, Counters], after: tuple[Counters, Counters]
) -> tuple[Counters, Counters]:
    engine, gateway = (
        {kind: new[kind] - old[kind] for kind in new}
        for old, new in zip(before, after, strict=True)
    )
    return engine, gateway
