"""The routes of the emulated engine that read texts and generate nothing."""

from typing import Any

import pytest

from gateway.emulator.options import EmulatorOptions
from tests.integration.test_emulator_wire import client_of

OPTIONS = EmulatorOptions(models=("tiny",), profile="instant", embeddings=True, max_model_len=64)


async def asked(path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    """The answer's JSON."""
    async with client_of(OPTIONS) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    parsed: dict[str, Any] = answer.json()
    return parsed


@pytest.mark.parametrize(
    ("first", "second"),
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
async def test_one_text_is_scored_against_each_of_several(first: str, second: str) -> None:
    """The engine takes four pairs of names for the same thing."""
    answer = await asked("/score", {first: "which", second: ["one", "two"]})
    scores = [item["score"] for item in answer["data"]]
    assert [item["index"] for item in answer["data"]] == [0, 1]
    assert all(0 <= score <= 1 for score in scores)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
    assert (
        answer["data"]
        == (await asked("/v1/score", {first: "which", second: ["one", "two"]}))["data"]
    )


async def test_two_lists_are_scored_pair_by_pair_or_not_at_all() -> None:
    """Scores would be read against the wrong texts."""
    pairs = {"text_1": ["a", "b"], "text_2": ["c", "d"]}
    both = (await asked("/score", pairs))["data"]
    alone = (await asked("/score", {"text_1": "b", "text_2": "d"}))["data"]
    assert both[1]["score"] == alone[0]["score"]
    error = await asked("/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, 400)
    assert "N:N" in error["error"]["message"]


async def test_documents_come_in_the_order_of_their_relevance() -> None:
    """Retrieval takes the first ones and never looks at the others."""
    documents = ["one", "two", "three", "four"]
    answer = await asked("/v1/rerank", {"query": "which", "documents": documents})
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert {result["document"]["text"] for result in answer["results"]} == set(documents)
    for result in answer["results"]:
        assert documents[result["index"]] == result["document"]["text"]
    best = await asked("/rerank", {"query": "which", "documents": documents, "top_n": 2})
    assert best["results"] == answer["results"][:2]
    assert best["usage"] == answer["usage"]


async def test_texts_are_classified_and_pooled() -> None:
    """Both are vectors to some clients and labels to others."""
    classes = (await asked("/classify", {"input": ["a", "b"]}))["data"]
    pooled = (await asked("/pooling", {"input": "a"}))["data"]
    embedded = (await asked("/v1/embeddings", {"input": "a"}))["data"]
    for item in classes:
        assert sum(item["probs"]) == pytest.approx(1)
        assert item["label"] == f"LABEL_{int(item['probs'][1] > 0.5)}"
        assert item["num_classes"] == 2
    assert pooled[0]["object"] == "pooling"
    assert pooled[0]["data"] == embedded[0]["embedding"]


async def test_a_conversation_can_be_embedded() -> None:
    """Chat models that embed are asked in this form."""
    messages = [{"role": "user", "content": "hello"}]
    answer = await asked("/v1/embeddings", {"messages": messages})
    assert len(answer["data"]) == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/embeddings", {}, 400, "body.input"),
        ("/v1/embeddings", {"input": []}, 400, None),
        ("/pooling", {"input": "a " * 100}, 400, "input_tokens"),
        ("/classify", {"input": "a", "model": "nope"}, 404, "model"),
        ("/score", {"text_1": "a"}, 400, "body.text_2"),
        ("/rerank", {"documents": ["a"]}, 400, "body.query"),
        ("/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, 400, "body.top_n"),
        ("/rerank", {"query": "a", "documents": []}, 400, None),
    ],
)
async def test_what_cannot_be_pooled_is_refused(
    path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    """A gateway's errors for these routes would be tested against invented ones."""
    assert (await asked(path, body, status))["error"]["param"] == param


async def test_a_prompt_that_fills_the_context_can_still_be_embedded() -> None:
    """Nothing is generated, so no room is needed for it."""
    assert (await asked("/v1/embeddings", {"input": [5] * 64}))["usage"]["prompt_tokens"] == 64
