"""Anthropic's Messages API of the emulated engine; its wire format is held against recordings."""

import json
from typing import Any

import pytest

from gateway.emulator.options import EmulatorOptions
from tests.integration.test_emulator_wire import client_of, named_events_of

PATH = "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def message(**fields: Any) -> dict[str, Any]:
    """A request for a short answer."""
    return {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 0, **fields}


async def test_a_message_says_what_the_same_chat_says() -> None:
    """Two clients of one model would be talking to two models."""
    async with client_of() as client:
        ours = (await client.post(PATH, json=message())).json()
        chat = (await client.post("/v1/chat/completions", json=message())).json()
        counted = await client.post(f"{PATH}/count_tokens", json=message())
    assert ours["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert ours["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert counted.json()["input_tokens"] == chat["usage"]["prompt_tokens"]


async def test_blocks_systems_and_results_of_tools_are_read() -> None:
    """Agents send all of them in every turn."""
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f"}]},
        {"role": "user", "content": [{"type": "tool_result", "content": "12 degrees"}]},
    ]
    async with client_of() as client:

        async def count(**fields: Any) -> int:
            answer = await client.post(f"{PATH}/count_tokens", json=message(**fields))
            tokens: int = answer.json()["input_tokens"]
            return tokens

        plain = await count()
        assert await count(messages=turns[:1]) == plain
        assert await count(messages=turns) > plain
        assert await count(system="be brief") == await count(
            system=[{"type": "text", "text": "be brief"}]
        )
        assert await count(system="be brief") > plain


async def test_a_stream_says_what_the_whole_answer_says() -> None:
    """Text would be lost between the events."""
    async with client_of() as client:
        whole = (await client.post(PATH, json=message())).json()
        streamed = await client.post(PATH, json=message(stream=True))
    events = named_events_of(streamed.content)
    pieces = [body["delta"]["text"] for name, body in events if name == "content_block_delta"]
    assert "".join(pieces) == whole["content"][0]["text"]
    assert events[-2][1]["usage"] == whole["usage"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
async def test_a_forced_tool_is_a_block_of_its_own(choice: dict[str, str]) -> None:
    """Agents that speak to this API send little else than tools."""
    body = message(tools=[WEATHER], tool_choice=choice, max_tokens=50)
    async with client_of() as client:
        whole = (await client.post(PATH, json=body)).json()
        streamed = await client.post(PATH, json={**body, "stream": True})
    events = named_events_of(streamed.content)
    said = "".join(
        data["delta"]["partial_json"] for name, data in events if name == "content_block_delta"
    )
    (block,) = whole["content"]
    assert (block["type"], block["name"]) == ("tool_use", "weather")
    assert block["input"] == json.loads(said) == {"city": "word"}
    assert whole["stop_reason"] == events[-2][1]["delta"]["stop_reason"] == "tool_use"


async def test_a_stop_sequence_is_named() -> None:
    """Clients could not tell which of theirs ended the answer."""
    async with client_of() as client:
        body = message(stop_sequences=["e"], max_tokens=200)
        answer = (await client.post(PATH, json=body)).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "e")


async def test_an_answer_of_its_own_length_ends_the_turn() -> None:
    """Every answer would look as if it had been cut off."""
    options = EmulatorOptions(models=("tiny",), profile="instant", output_jitter=0.2)
    async with client_of(options) as client:
        answer = (await client.post(PATH, json=message(max_tokens=100))).json()
    assert answer["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("fields", "status", "part"),
    [
        ({"model": "nope"}, 404, "NotFoundError"),
        ({"max_tokens": 999_999}, 400, "BadRequestError"),
        ({"messages": []}, 400, "BadRequestError"),
        ({"tools": [WEATHER]}, 400, "BadRequestError"),
    ],
)
async def test_what_cannot_be_is_refused_in_this_apis_shape(
    fields: dict[str, Any], status: int, part: str
) -> None:
    """Clients would raise a parse error in place of the engine's message."""
    async with client_of() as client:
        answer = await client.post(PATH, json=message(**fields))
    assert answer.status_code == status
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == part


@pytest.mark.parametrize("name", ["model", "messages", "max_tokens"])
async def test_a_missing_field_is_refused_in_the_servers_own_shape(name: str) -> None:
    """The server checks a body's shape before it knows whose API it is, and so must a gateway."""
    body = message()
    del body[name]
    async with client_of() as client:
        answer = await client.post(PATH, json=body)
        zero = await client.post(PATH, json=message(max_tokens=0))
    assert answer.status_code == zero.status_code == 400
    assert answer.json()["error"]["param"] == f"body.{name}"
    assert "max_tokens must be positive" in zero.json()["error"]["message"]
