"""What an answer says about itself: the tokens it took, and the id of a stored response.

Reads the shapes of OpenAI's chunks, Responses and Anthropic's Messages; charges nobody.
"""

import re
from typing import Any

import msgspec
import orjson

from gateway.core.messages import Usage
from gateway.upstream.counts import COUNTS
from gateway.upstream.json_text import end_of_value

ID_BYTES_MAX = 256
"""A longer id is not remembered."""

_USAGE = b'"usage"'
_COLON = re.compile(rb"\s*:\s*(?=\{)")
_FIRST_ID = re.compile(rb'\s*\{\s*"id"\s*:\s*"([^"\\]*)"')


def usages_in(text: bytes) -> list[Usage]:
    """Every usage object in `text` (JSON, a piece of it, or events), in order.

    A quote inside a JSON string is escaped, so model output can never look like the key.
    """
    found: list[Usage] = []
    at = text.find(_USAGE)
    while at >= 0:
        at += len(_USAGE)
        usage = _usage_at(text, at)
        if usage is not None:
            found.append(usage)
        at = text.find(_USAGE, at)
    return found


def _usage_at(text: bytes, after_key: int) -> Usage | None:
    start = after_key + 1
    if text[after_key : after_key + 2] != b":{":
        colon = _COLON.match(text, after_key)
        if colon is None:
            return None
        start = colon.end()
    # Most hold numbers alone; of any other the first brace makes no JSON.
    # A slice must not end before it begins: mypyc's then is an error.
    usage = _told(text[start : max(start, text.find(b"}", start) + 1)])
    return usage_of(parsed(text[start : end_of_value(text, start)])) if usage is None else usage


def _told(text: bytes) -> Usage | None:
    """The usage in `text`; None for anything but a plain usage object of OpenAI's.

    An engine that counts in a way of its own is for the slower reader.
    """
    try:
        counts = COUNTS.decode(text)
    except msgspec.MsgspecError:
        return None
    details = counts.prompt_tokens_details or counts.input_tokens_details
    cached = (details.cached_tokens or 0) if details is not None else 0
    prompt = counts.prompt_tokens or counts.input_tokens or 0
    output = counts.completion_tokens or counts.output_tokens or 0
    if prompt < 0 or output < 0 or cached < 0:
        return None
    return Usage(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached)


def usage_of(fields: Any) -> Usage | None:
    """A usage object of OpenAI's or Anthropic's; None for anything else.

    Anthropic's `input_tokens` leaves out what was read from or written to the cache.
    """
    if not isinstance(fields, dict):
        return None
    details = fields.get("prompt_tokens_details") or fields.get("input_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
    read = _count(fields, "cache_read_input_tokens")
    prompt = _count(fields, "prompt_tokens") or (
        _count(fields, "input_tokens") + read + _count(fields, "cache_creation_input_tokens")
    )
    output = _count(fields, "completion_tokens") or _count(fields, "output_tokens")
    return Usage(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached or read)


def larger(one: Usage | None, other: Usage | None) -> Usage | None:
    """The larger figure of each kind: counts only grow, and not every event has them all."""
    if one is None or other is None:
        return one or other
    return Usage(
        prompt_tokens=max(one.prompt_tokens, other.prompt_tokens),
        output_tokens=max(one.output_tokens, other.output_tokens),
        cached_tokens=max(one.cached_tokens, other.cached_tokens),
    )


def response_id_in(body: bytes) -> str | None:
    """The id of a plain answer of the Responses API, or None."""
    first = _FIRST_ID.match(body)  # engines write it first: no need to parse a long answer
    if first is not None:
        return _id(first[1].decode("utf-8", "replace"))
    return response_id_of(parsed(body))


def response_id_of(fields: Any) -> str | None:
    """The id of a response object, or None."""
    return _id(fields.get("id")) if isinstance(fields, dict) else None


def parsed(text: bytes) -> Any:
    """The value of a JSON text; None where it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _id(value: Any) -> str | None:
    is_id = isinstance(value, str) and 0 < len(value.encode("utf-8", "replace")) <= ID_BYTES_MAX
    return value if is_id else None


def _count(fields: dict[str, Any], name: str) -> int:
    """A count of tokens; 0 for whatever else stands there."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
