"""The request that goes on with a broken stream: its token ids as a prompt for `/v1/completions`.

Sampling parameters are the client's own; what shaped the prompt or the answer's form is left out,
since the ids hold the one and the gateway sees to the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Raw

PATH = b"/v1/completions"
_LEFT_OUT = frozenset(
    "messages prompt model n best_of stream stream_options max_tokens max_completion_tokens"
    " min_tokens tools tool_choice parallel_tool_calls functions function_call response_format"
    " logprobs top_logprobs prompt_logprobs echo suffix seed presence_penalty frequency_penalty"
    " chat_template chat_template_kwargs add_generation_prompt continue_final_message"
    " add_special_tokens documents reasoning_effort include_reasoning truncate_prompt_tokens"
    " truncation_side mm_processor_kwargs media_io_kwargs return_prompt_text return_token_ids"
    " return_tokens_as_token_ids priority kv_transfer_params request_id service_tier metadata"
    " store".split()
)
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What is still to be generated."""

    model: str
    """The engine's name of it."""
    ids: bytes
    """Prompt and output so far, as the inside of a JSON list."""
    output_tokens: int
    """Of the output, how many are among them."""
    output_tokens_max: int
    """Most that may still come, at least 1."""
    priority: int | None
    cache_salt: str | None = None
    """In place of the client's own; None: what it says itself."""


def body_of(rest: Rest, original: bytes) -> bytes:
    """The body for `PATH`; `original` is the client's own, whole."""
    asked = _MEMBERS.decode(original)
    told: dict[str, Raw] = {
        "model": Raw(msgspec.json.encode(rest.model)),
        "prompt": Raw(b"[%b]" % rest.ids),
        "max_tokens": Raw(b"%d" % rest.output_tokens_max),
        "stream": Raw(b"true"),
        "stream_options": _with_usage(asked),
        "return_token_ids": Raw(b"true"),
    }
    if rest.priority is not None:
        told["priority"] = Raw(b"%d" % rest.priority)
    least = asked.get("min_tokens", Raw(b"0"))
    if bytes(least).isdigit() and int(least) > rest.output_tokens:
        told["min_tokens"] = Raw(b"%d" % (int(least) - rest.output_tokens))
    told |= {name: value for name, value in asked.items() if name not in _LEFT_OUT}
    if rest.cache_salt is not None:
        told["cache_salt"] = Raw(msgspec.json.encode(rest.cache_salt))
    return msgspec.json.encode(told)


def _with_usage(asked: Mapping[str, Raw]) -> Raw:
    """The client's stream options, and the usage in any case."""
    options = bytes(asked.get("stream_options", Raw(b"null")))
    if not options.startswith(b"{"):
        return Raw(b'{"include_usage":true}')
    members = _MEMBERS.decode(options)
    if bytes(members.get("include_usage", Raw(b"null"))) != b"true":
        members.pop("continuous_usage_stats", None)
    return Raw(msgspec.json.encode({**members, "include_usage": Raw(b"true")}))
