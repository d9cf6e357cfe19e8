"""Whole JSON answers: finished chats and completions, model cards, tokens.

Pure; the order of keys is the engine's.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.emulator.calls import Card
from gateway.emulator.chunks import finish_reason, tool_call_id
from gateway.emulator.envelope import Envelope, Said
from gateway.emulator.logprobs import chat_logprobs, completion_logprobs
from gateway.emulator.text import fingerprint


def answer_body(envelope: Envelope, said: Sequence[Said]) -> bytes:
    """The answer of a chat or completion that was not streamed."""
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
    call, vocabulary = envelope.call, envelope.card.vocabulary
    top, shows_ids = call.top_logprobs, call.return_token_ids
    ending = {
        "finish_reason": finish_reason(envelope, output),
        "stop_reason": output.stop_reason,
        "token_ids": ids if shows_ids else None,
    }
    if call.form == "chat":
        probable = None if top is None else chat_logprobs(vocabulary, ids, top)
        message = _message(envelope, index, text)
        start = {"index": index, "message": message, "logprobs": probable}
        return {**start, **ending, "routed_experts": None}
    return {
        "index": index,
        "text": text,
        "logprobs": None if top is None else completion_logprobs(vocabulary, ids, top, 0),
        **ending,
        "prompt_logprobs": None,
        "prompt_token_ids": envelope.prompt_of(index) if shows_ids else None,
        "routed_experts": None,
    }


def _message(envelope: Envelope, choice: int, text: str) -> dict[str, Any]:
    tool = envelope.call.tool
    calls: dict[str, Any] = {}
    if tool is not None:
        function = {"name": tool.name, "arguments": text}
        id = tool_call_id(envelope, choice)
        calls = {"tool_calls": [{"id": id, "type": "function", "function": function}]}
    return {
        "role": "assistant",
        "content": text if tool is None else "",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **calls,
        "reasoning": None,
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
