"""Tools that a chat is made to call, and the probabilities of tokens, from the emulated engine."""

import json
from typing import Any

import pytest

from tests.integration.test_emulator_wire import client_of, events_of

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
NAMED = {"type": "function", "function": {"name": "weather"}}


def chat(**fields: Any) -> dict[str, Any]:
    """A chat with a tool."""
    messages = [{"role": "user", "content": "how is it outside?"}]
    return {"messages": messages, "tools": [WEATHER], "max_tokens": 50, **fields}


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
async def test_a_forced_tool_is_called(choice: object, reason: str) -> None:
    """Agents' flows end with this answer, and begin the next turn with it."""
    async with client_of() as client:
        answer = (await client.post(CHAT, json=chat(tool_choice=choice))).json()
    (choice,) = answer["choices"]
    assert isinstance(choice, dict)
    (call,) = choice["message"]["tool_calls"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", reason)
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "word"}
    assert answer["usage"]["completion_tokens"] > 1


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
async def test_a_tools_arguments_come_in_pieces(choice: object, reason: str) -> None:
    """Clients put them together by index, and know id and name from the first piece alone."""
    async with client_of() as client:
        answer = await client.post(CHAT, json=chat(tool_choice=choice, stream=True))
    role, *chunks, done = events_of(answer.content)
    calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks]
    assert (role["choices"][0]["delta"]["role"], done) == ("assistant", "[DONE]")
    assert calls[0]["function"]["name"] == "weather"
    assert calls[0]["id"].startswith("chatcmpl-tool-")
    assert not any("id" in call or call["function"].get("name") for call in calls[1:])
    said = "".join(call["function"]["arguments"] for call in calls)
    assert len(calls) > 1
    assert json.loads(said) == {"city": "word"}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [reason]


async def test_a_call_that_does_not_fit_is_cut() -> None:
    """Half a call must not look like one."""
    async with client_of() as client:
        body = chat(tool_choice="required", max_tokens=2)
        (choice,) = (await client.post(CHAT, json=body)).json()["choices"]
    assert choice["finish_reason"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"tool_choice": "auto"}, "--enable-auto-tool-choice"),
        ({}, "--enable-auto-tool-choice"),
        ({"tools": [], "tool_choice": "none"}, "must not be an empty array"),
        ({"tools": None, "tool_choice": "required"}, "`tools` must be set"),
        ({"tool_choice": {"function": {"name": "other"}}}, "does not match"),
        ({"tool_choice": "sometimes"}, "does not match"),
    ],
)
async def test_a_choice_that_cannot_be_is_refused(fields: dict[str, Any], part: str) -> None:
    """A typing error would be answered with text."""
    async with client_of() as client:
        answer = await client.post(CHAT, json=chat(**fields))
    assert answer.status_code == 400
    assert part in answer.json()["error"]["message"]


async def test_tools_that_are_not_to_be_used_change_nothing() -> None:
    """Clients leave their tools in the request for the last turn."""
    async with client_of() as client:
        answer = await client.post(CHAT, json=chat(tool_choice="none", temperature=0))
        plain = await client.post(CHAT, json=chat(tools=None, temperature=0))
    shown = [one.json()["choices"][0]["message"] for one in (answer, plain)]
    assert shown[0] == shown[1]
    assert "tool_calls" not in shown[0]


async def test_each_piece_of_a_stream_brings_the_probabilities_of_its_tokens() -> None:
    """They would not add up to those of the whole answer."""
    body = {"messages": chat()["messages"], "max_tokens": 12, "temperature": 0}
    body |= {"logprobs": True, "top_logprobs": 3}
    async with client_of() as client:
        whole = (await client.post(CHAT, json=body)).json()["choices"][0]
        events = events_of((await client.post(CHAT, json={**body, "stream": True})).content)
    pieces = [
        token for event in events[1:-1] for token in event["choices"][0]["logprobs"]["content"]
    ]
    assert pieces == whole["logprobs"]["content"]
    assert len(pieces) == 12
    assert {len(token["top_logprobs"]) for token in pieces} == {3}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_completions_probabilities_tell_where_each_token_begins(stream: bool) -> None:
    """Scoring tools cut the text by these offsets."""
    body = {"prompt": "a", "max_tokens": 6, "temperature": 0, "logprobs": 2, "stream": stream}
    async with client_of() as client:
        answer = await client.post("/v1/completions", json=body)
    events = events_of(answer.content)[:-1] if stream else [answer.json()]
    shown = [event["choices"][0]["logprobs"] for event in events]
    offsets = [offset for one in shown for offset in one["text_offset"]]
    assert len(offsets) == 6
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    assert {len(top) for one in shown for top in one["top_logprobs"]} == {2}


async def test_usage_comes_with_every_chunk_or_once_or_never() -> None:
    """A gateway that adds and strips the option has to know which of the three it was."""
    async with client_of() as client:

        async def usages(options: dict[str, bool] | None) -> list[int]:
            body = {"prompt": "a", "max_tokens": 5, "stream": True, "stream_options": options}
            events = events_of((await client.post("/v1/completions", json=body)).content)[:-1]
            return [("usage" in event) + 2 * (not event["choices"]) for event in events]

        assert await usages(None) == [0] * 5
        assert await usages({"include_usage": True}) == [0] * 5 + [3]
        both = {"include_usage": True, "continuous_usage_stats": True}
        assert await usages(both) == [1] * 5 + [3]
