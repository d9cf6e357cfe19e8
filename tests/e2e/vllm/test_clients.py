"""An unmodified `openai` client through the gateway to a real vLLM."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.e2e.processes import serving
from tests.e2e.vllm.engines import MODEL
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

QUESTION: list[ChatCompletionUserMessageParam] = [
    {"role": "user", "content": "Write a function that parses a date."}
]


@pytest.fixture(scope="module")
def gateway(engines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway before both replicas."""
    folder: Path = tmp_path_factory.mktemp("gateway")
    with serving(folder, free_port(), engines) as url:
        yield url


@pytest.fixture
def client(gateway: str) -> openai.OpenAI:
    """The client as any application makes it."""
    return openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0)


def test_chat_streams_and_answers(client: openai.OpenAI) -> None:
    """The main job, seen by an application."""
    plain = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=8, temperature=0
    )
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=8, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8


def test_completions_models_and_errors(client: openai.OpenAI) -> None:
    """What vLLM refuses arrives as the exception that the SDK has for it."""
    answer = client.completions.create(model=MODEL, prompt="def main(", max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert [model.id for model in client.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nope", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=10**6)


def test_the_service_tier_comes_back(client: openai.OpenAI) -> None:
    """vLLM ignores the field; the gateway honours and reports it."""
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=2, service_tier="flex"
    )
    assert answer.service_tier == "flex"


def test_bytes_equal_those_of_the_engine(gateway: str, engines: list[str]) -> None:
    """Everything but ids and instants is what vLLM wrote, in the same order."""
    body = {
        "model": MODEL,
        "messages": QUESTION,
        "max_tokens": 12,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    ours, theirs = (
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).text
        for url in (gateway, engines[0])
    )
    assert _comparable(ours) == _comparable(theirs)


def _comparable(text: str) -> list[object]:
    """Content by token, since an engine may put several tokens in one event."""
    tokens: list[int] = []
    content, rest = "", []
    for line in text.splitlines():
        if not line.startswith("data: {"):
            rest.append(line)
            continue
        event = json.loads(line[6:])
        for choice in event["choices"]:
            tokens += choice.get("token_ids") or []
            content += choice["delta"].get("content") or ""
    return [tokens, content, rest[-3:]]
