"""What a real vLLM answers arrives as it wrote it, on every route and with every field it knows."""

import json
from collections import defaultdict
from typing import Any

import pytest

from tests.e2e.vllm.tiny.asking import Both, chat, comparable, completion, response

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SCHEMA = {
    "type": "object",
    "properties": {"found": {"type": "boolean"}},
    "required": ["found"],
    "additionalProperties": False,
}
FORMAT = {"name": "finding", "schema": SCHEMA}

CHATS: dict[str, dict[str, Any]] = {
    "nothing special": {},
    "seed": {"seed": 5, "temperature": 1},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "stop": {"stop": ["ER"]},
    "min_tokens": {"min_tokens": 4},
    "token ids": {"return_token_ids": True},
    "json schema": {"response_format": {"type": "json_schema", "json_schema": FORMAT}},
    "any json": {"response_format": {"type": "json_object"}},
    "a choice": {"structured_outputs": {"choice": ["yes", "no"]}},
}
COMPLETED: dict[str, dict[str, Any]] = {
    "nothing special": {},
    "seed": {"seed": 5, "temperature": 1},
    "logprobs": {"logprobs": 2},
    "echo": {"echo": True, "logprobs": 1},
    "stop": {"stop": ["e"]},
    "min_tokens": {"min_tokens": 4},
    "token ids": {"prompt": [5, 6, 7], "return_token_ids": True},
    "a pattern": {"structured_outputs": {"regex": "[0-9]{3}"}},
}
RESPONDED: dict[str, dict[str, Any]] = {
    "nothing special": {},
    "instructions": {"instructions": "Be brief."},
    "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
    "json schema": {"text": {"format": {"type": "json_schema", **FORMAT}}},
}
MESSAGED: dict[str, dict[str, Any]] = {
    "nothing special": {},
    "system": {"system": "Be brief."},
    "stop": {"stop_sequences": ["ER"]},
}
STREAMED: dict[str, dict[str, Any]] = {
    "plain": {},
    "stream": {"stream": True},
    "stream with usage": {"stream": True, "stream_options": {"include_usage": True}},
    "stream with usage in each chunk": {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
    "stream that declines usage": {"stream": True, "stream_options": {"include_usage": False}},
}
NAMED = {name: STREAMED[name] for name in ("plain", "stream")}


@pytest.mark.parametrize("how", STREAMED)
@pytest.mark.parametrize("what", CHATS)
async def test_a_chat(both: Both, what: str, how: str) -> None:
    """An application that works with vLLM must not notice that something stands before it."""
    await both.assert_same(CHAT, chat(**CHATS[what], **STREAMED[how]))


@pytest.mark.parametrize("how", STREAMED)
@pytest.mark.parametrize("what", COMPLETED)
async def test_a_completion(both: Both, what: str, how: str) -> None:
    """The same for the oldest route."""
    await both.assert_same(COMPLETIONS, completion(**COMPLETED[what], **STREAMED[how]))


@pytest.mark.parametrize("how", NAMED)
@pytest.mark.parametrize("what", RESPONDED)
async def test_a_response(both: Both, what: str, how: str) -> None:
    """Its named events carry whole objects: none may lose a field."""
    await both.assert_same(RESPONSES, response(**RESPONDED[what], **NAMED[how]))


@pytest.mark.parametrize("how", NAMED)
@pytest.mark.parametrize("what", MESSAGED)
async def test_a_message(both: Both, what: str, how: str) -> None:
    """Anthropic's clients find the same events, in the same order."""
    await both.assert_same(MESSAGES, chat(**MESSAGED[what], **NAMED[how]))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Count me."}]}),
        ("/tokenize", {"prompt": "def main(argv):"}),
        ("/tokenize", {"messages": [{"role": "user", "content": "Count me."}]}),
        ("/detokenize", {"tokens": [284, 79, 334]}),
    ],
    ids=["count_tokens", "tokenize", "tokenize a chat", "detokenize"],
)
async def test_what_takes_no_generation(both: Both, path: str, body: dict[str, Any]) -> None:
    """Clients count before they ask: the figure must be the engine's."""
    await both.assert_same(path, {"model": "tiny", **body})


@pytest.mark.parametrize("is_stream", [False, True])
async def test_structured_output_is_what_was_asked_for(both: Both, is_stream: bool) -> None:
    """A field that got lost on the way would leave free text where a program expects a choice."""
    asked = chat(structured_outputs={"choice": ["yes", "no"]}, stream=is_stream)
    said = await both.assert_same(CHAT, asked)
    if is_stream:
        deltas = [event["choices"][0]["delta"] for event in events_of(said)]
        text = "".join(delta.get("content") or "" for delta in deltas)
    else:
        text = json.loads(said)["choices"][0]["message"]["content"]
    assert text in ("yes", "no")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_several_choices_of_one_plain_answer(both: Both, path: str) -> None:
    """Their order is that of the engine."""
    more = {"n": 3, "seed": 3, "temperature": 1}
    said = await both.assert_same(path, chat(**more) if path == CHAT else completion(**more))
    assert len(json.loads(said)["choices"]) == 3


@pytest.mark.parametrize("how", [name for name in STREAMED if name != "plain"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(n=2, seed=3, temperature=1)),
        (COMPLETIONS, completion(n=2, seed=3, temperature=1)),
        (COMPLETIONS, completion(prompt=["def main(", "class Date:"])),
    ],
    ids=["chat", "completion", "two prompts"],
)
async def test_several_choices_of_one_stream(
    both: Both, path: str, body: dict[str, Any], how: str
) -> None:
    """How they mingle is chance in the engine; what each consists of is not."""
    direct, through = await both.post(path, {**body, **STREAMED[how]})
    assert (direct.status_code, through.status_code) == (200, 200), through.text
    theirs, ours = (by_choice(comparable(answer.content)) for answer in (direct, through))
    assert ours == theirs
    assert sorted(key for key in ours if key is not None) == [0, 1]


Chunk = dict[str, Any]


def by_choice(stream: bytes) -> dict[int | None, tuple[str, list[Chunk]]]:
    """The text of each choice, its first chunk and its last; under None what belongs to none.

    Where one token ends and the next chunk begins is chance, and so are the counts in between.
    """
    assert stream.endswith(b"data: [DONE]\n\n")
    found: dict[int | None, list[Chunk]] = defaultdict(list)
    texts: dict[int | None, str] = defaultdict(str)
    for event in events_of(stream):
        choice = event["choices"][0] if event["choices"] else {}
        at = choice.get("index")
        if choice:
            event.pop("usage", None)
        holder = choice.get("delta", choice)
        for name in ("text", "content"):
            texts[at] += holder.pop(name, None) or ""
        found[at].append(event)
    return {at: (texts[at], [events[0], events[-1]]) for at, events in found.items()}


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The chunks of a stream, without its end."""
    lines = [line for line in stream.split(b"\n\n") if line.startswith(b"data: {")]
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]
