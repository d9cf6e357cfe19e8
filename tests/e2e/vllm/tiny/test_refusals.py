"""What a real vLLM refuses: its own status and words, in the shape that clients read."""

from typing import Any

import pytest

from tests.e2e.vllm.tiny.asking import Both, chat, completion, response

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CHAT = "/v1/chat/completions"
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "tools without a parser": (CHAT, chat(tools=[TOOL])),
    "a forced tool without a parser": (CHAT, chat(tools=[TOOL], tool_choice="required")),
    "too many tokens": (CHAT, chat(max_tokens=10**6)),
    "no tokens": ("/v1/completions", completion(max_tokens=0)),
    "a temperature below zero": (CHAT, chat(temperature=-1)),
    "min_tokens above max_tokens": (CHAT, chat(min_tokens=9)),
    "stream options without a stream": (CHAT, chat(stream_options={"include_usage": True})),
    "prompt logprobs in a stream": (CHAT, chat(stream=True, prompt_logprobs=1)),
    "a schema that is none": (
        CHAT, chat(response_format={"type": "json_schema", "json_schema": {"name": "x"}}),
    ),
    "a pattern that is none": (CHAT, chat(structured_outputs={"regex": "["})),
    "a chat that is none": (CHAT, {"model": "tiny", "messages": "hello"}),
    "a text too long": ("/v1/completions", completion(prompt="word " * 2_000)),
    "a response too long": ("/v1/responses", response(input="word " * 2_000)),
    "a message without a role": (CHAT, {"model": "tiny", "messages": [{"content": "x"}]}),
}  # fmt: skip
POOLING = (
    "/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/score", "/pooling", "/classify",
)  # fmt: skip
POOLED = {
    "model": "tiny", "input": "x", "query": "x", "documents": ["y"], "text_1": "x", "text_2": "y",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_keeps_its_status_and_words(both: Both, name: str) -> None:
    """The words say what to change; a gateway that hides them costs its users an afternoon."""
    path, body = REFUSED[name]
    theirs, ours = await both.post(path, body)
    assert 400 <= theirs.status_code < 500, theirs.text
    assert ours.status_code == theirs.status_code
    told, said = ours.json()["error"], theirs.json()["error"]
    assert told["message"] == said["message"]
    assert told["param"] == said["param"]
    assert isinstance(told["code"], str)
    assert told["type"] == "invalid_request_error"
    assert sorted(told) == ["code", "message", "param", "type"]


async def test_a_prompt_of_too_many_ids_is_refused_before_it_waits(both: Both) -> None:
    """The gateway can count ids itself: nobody should queue for a refusal."""
    theirs, ours = await both.post("/v1/completions", completion(prompt=[5] * 2_000))
    assert (theirs.status_code, ours.status_code) == (400, 400)
    assert ours.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", POOLING)
async def test_what_a_text_model_does_not_serve(both: Both, path: str) -> None:
    """The engine's bare 404 has no message that a client could show."""
    theirs, ours = await both.post(path, POOLED)
    assert (theirs.status_code, ours.status_code) == (404, 404)
    told = ours.json()["error"]
    assert (told["type"], told["code"]) == ("invalid_request_error", "not_found")
    assert told["message"] == theirs.json()["detail"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/messages", "invalid_request_error"), ("/v1/messages/count_tokens", "")],
)
async def test_anthropics_route_refuses_in_anthropics_shape(
    both: Both, path: str, kind: str
) -> None:
    """Its SDK looks for `type: error`, and raises by the type within."""
    theirs, ours = await both.post(path, {"model": "tiny", "messages": [], "max_tokens": -1})
    assert ours.status_code == theirs.status_code
    if theirs.status_code == 200:
        assert not kind
        return
    told = ours.json()
    assert told["type"] == "error"
    assert told["error"]["type"] == "invalid_request_error"
    assert told["error"]["message"] == theirs.json()["error"]["message"]


async def test_an_unknown_model_is_refused_alike(both: Both) -> None:
    """The gateway answers by itself here, and must not name other models."""
    for path, body in ((CHAT, chat()), ("/v1/responses", response())):
        theirs, ours = await both.post(path, {**body, "model": "nope"})
        assert (theirs.status_code, ours.status_code) == (404, 404)
        assert ours.json()["error"]["code"] == "model_not_found"
        assert "tiny" not in ours.text
