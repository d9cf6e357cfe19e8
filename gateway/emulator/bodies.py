"""Whole JSON answers: finished generations, model cards, embeddings, tokens.

Pure; the order of keys is the engine's.
"""

import base64
import struct
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.emulator.calls import Card
from gateway.emulator.chunks import Envelope
from gateway.emulator.text import Output, fingerprint, mixed

EMBEDDING_WIDTH = 64

Said = tuple[Output, list[int], str]
"""A finished choice: its output, token ids and text."""


def answer_body(envelope: Envelope, said: Sequence[Said]) -> bytes:
    """The answer of a generation that was not streamed."""
    call = envelope.call
    is_chat = call.form == "chat"
    ids = call.return_token_ids
    prompt = {
        "prompt_logprobs": None,
        "prompt_token_ids": call.prompts[0] if is_chat and ids else None,
        "prompt_text": None,
    }
    body = {
        "id": envelope.id,
        "object": "chat.completion" if is_chat else "text_completion",
        "created": envelope.created,
        "model": call.model,
        "choices": [_choice(envelope, index, one) for index, one in enumerate(said)],
        "service_tier": None,
        "system_fingerprint": envelope.fingerprint,
        "usage": _usage(call.prompt_tokens, sum(output.n_tokens for output, _, _ in said)),
        **(prompt if is_chat else {}),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }
    return orjson.dumps(body)


def embeddings_body(envelope: Envelope, *, as_base64: bool) -> bytes:
    """The answer of /v1/embeddings: a unit vector that depends on the tokens alone."""
    prompts = envelope.call.prompts
    vectors = [_vector(prompt) for prompt in prompts]
    packed = [struct.pack(f"<{EMBEDDING_WIDTH}f", *vector) for vector in vectors]
    shown: Sequence[object] = (
        [base64.b64encode(one).decode() for one in packed] if as_base64 else vectors
    )
    body = {
        "id": envelope.id,
        "object": "list",
        "created": envelope.created,
        "model": envelope.call.model,
        "data": [
            {"index": index, "object": "embedding", "embedding": embedding}
            for index, embedding in enumerate(shown)
        ],
        "usage": {
            "prompt_tokens": envelope.call.prompt_tokens,
            "total_tokens": envelope.call.prompt_tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        },
    }
    return orjson.dumps(body)


def models_body(card: Card, created: int) -> bytes:
    """The answer of /v1/models. Adapters name their base model and have no length of their own."""
    base = card.models[0]
    cards = [_model_card(name, created, base, card.context_tokens) for name in card.models]
    return orjson.dumps({"object": "list", "data": cards})


def tokenize_body(ids: Sequence[int], card: Card, *, shows_text: bool) -> bytes:
    """The answer of /tokenize."""
    texts = [card.vocabulary.token_text(id) for id in ids] if shows_text else None
    body = {
        "count": len(ids),
        "max_model_len": card.context_tokens,
        "tokens": ids,
        "token_strs": texts,
    }
    return orjson.dumps(body)


def detokenize_body(text: str) -> bytes:
    """The answer of /detokenize."""
    return orjson.dumps({"prompt": text})


def _choice(envelope: Envelope, index: int, said: Said) -> dict[str, Any]:
    output, ids, text = said
    shows_ids = envelope.call.return_token_ids
    ending = {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}
    if envelope.call.form == "chat":
        message = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            **ending,
            "token_ids": ids if shows_ids else None,
            "routed_experts": None,
        }
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        **ending,
        "token_ids": ids if shows_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": envelope.prompt_of(index) if shows_ids else None,
        "routed_experts": None,
    }


def _usage(prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def _model_card(name: str, created: int, base: str, context_tokens: int) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{fingerprint(name.encode()):016x}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": f"models/{name}" if name == base else f"adapters/{name}",
        "parent": None if name == base else base,
        "max_model_len": context_tokens if name == base else None,
        "permission": [permission],
    }


def _vector(prompt: Sequence[int]) -> list[float]:
    state = fingerprint(repr(prompt).encode())
    raw = [
        mixed(state + index * 0x9E3779B97F4A7C15) / 2**31 - 1 for index in range(EMBEDDING_WIDTH)
    ]
    norm = sum(value * value for value in raw) ** 0.5 or 1.0
    return [value / norm for value in raw]
