"""Answers about texts: vectors, scores, ranks and classes, which follow from the tokens alone.

Pure; the order of keys is the engine's.
"""

import base64
import struct
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from gateway.emulator.envelope import Envelope
from gateway.emulator.pooling_request import Pooled
from gateway.emulator.text import fingerprint, mixed

VECTOR_WIDTH = 64

Answer = Callable[[Envelope, Pooled], bytes]


def embeddings_body(envelope: Envelope, pooled: Pooled) -> bytes:
    """The answer of /v1/embeddings: a unit vector for each text."""
    vectors = _vectors(pooled)
    data = [
        {"index": index, "object": "embedding", "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    return _list_of(envelope, data)


def pooling_body(envelope: Envelope, pooled: Pooled) -> bytes:
    """The answer of /pooling: the same vectors under another name."""
    vectors = _vectors(pooled)
    data = [
        {"index": index, "object": "pooling", "data": vector}
        for index, vector in enumerate(vectors)
    ]
    return _list_of(envelope, data)


def scores_body(envelope: Envelope, pooled: Pooled) -> bytes:
    """The answer of /score: a number from 0 to 1 for each pair."""
    data = [
        {"index": index, "object": "score", "score": _score(prompt)}
        for index, prompt in enumerate(pooled.call.prompts)
    ]
    return _list_of(envelope, data)


def classes_body(envelope: Envelope, pooled: Pooled) -> bytes:
    """The answer of /classify: one of two labels for each text."""
    data = []
    for index, prompt in enumerate(pooled.call.prompts):
        score = _score(prompt)
        label = "LABEL_1" if score > 0.5 else "LABEL_0"
        probs = [1 - score, score]
        data.append({"index": index, "label": label, "probs": probs, "num_classes": 2})
    return _list_of(envelope, data)


def rerank_body(envelope: Envelope, pooled: Pooled) -> bytes:
    """The answer of /rerank: the most relevant documents first."""
    results = [
        {
            "index": index,
            "document": {"text": document, "multi_modal": None},
            "relevance_score": _score(prompt),
        }
        for index, (document, prompt) in enumerate(
            zip(pooled.documents, pooled.call.prompts, strict=True)
        )
    ]
    results.sort(key=_relevance, reverse=True)
    tokens = pooled.call.prompt_tokens
    body = {
        "id": envelope.id,
        "model": envelope.call.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": results[: pooled.top_n or len(results)],
    }
    return orjson.dumps(body)


def _list_of(envelope: Envelope, data: list[dict[str, Any]]) -> bytes:
    tokens = envelope.call.prompt_tokens
    body = {
        "id": envelope.id,
        "object": "list",
        "created": envelope.created,
        "model": envelope.call.model,
        "data": data,
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
    }
    return orjson.dumps(body)


def _vectors(pooled: Pooled) -> Sequence[object]:
    vectors = [_vector(prompt) for prompt in pooled.call.prompts]
    if not pooled.as_base64:
        return vectors
    packed = [struct.pack(f"<{VECTOR_WIDTH}f", *vector) for vector in vectors]
    return [base64.b64encode(one).decode() for one in packed]


def _vector(prompt: Sequence[int]) -> list[float]:
    state = fingerprint(repr(prompt).encode())
    raw = [mixed(state + index * 0x9E3779B97F4A7C15) / 2**31 - 1 for index in range(VECTOR_WIDTH)]
    norm = sum(value * value for value in raw) ** 0.5 or 1.0
    return [value / norm for value in raw]


def _score(prompt: Sequence[int]) -> float:
    return mixed(fingerprint(repr(prompt).encode())) / 2**32


def _relevance(result: dict[str, Any]) -> float:
    return float(result["relevance_score"])
