"""A server-sent event parser that is plainly right and slow, to hold the fast meter against.

It follows the algorithm of the HTML standard (9.2.6, interpreting an event stream) on the whole
text at once, and reads each payload as JSON.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from gateway.core.messages import Usage

END_OF_LINE = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a stream holds."""

    events: int
    is_done: bool
    errors: tuple[bytes, ...]
    usage: Usage | None


def payloads_of(stream: bytes) -> list[bytes]:
    """The data of every complete event, in order."""
    found: list[bytes] = []
    lines: list[bytes] = []
    *whole, _unfinished = END_OF_LINE.split(stream)
    for line in whole:
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                lines.append(value.removeprefix(b" "))
        elif lines:
            found.append(b"\n".join(lines))
            lines = []
    return found


def read(stream: bytes) -> Reading:
    """What a patient reader makes of `stream`."""
    payloads = payloads_of(stream)
    values = [_parsed(payload) for payload in payloads]
    errors = tuple(p for p, value in zip(payloads, values, strict=True) if _is_error(value))
    done = sum(payload == b"[DONE]" for payload in payloads)
    usages = [usage for value in values for usage in _usages_in(value)]
    return Reading(
        events=len(payloads) - done - len(errors),
        is_done=done > 0,
        errors=errors,
        usage=usages[-1] if usages else None,
    )


def _parsed(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return None


def _is_error(value: Any) -> bool:
    """The gateway's engines put `error` first, or Anthropic's type before it."""
    if not isinstance(value, dict) or not value:
        return False
    return next(iter(value)) == "error" or value.get("type") == "error"


def _usages_in(value: Any) -> list[Usage]:
    """Every usage object, wherever it lies, in the order of the text."""
    found: list[Usage] = []
    if isinstance(value, list):
        for item in value:
            found.extend(_usages_in(item))
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "usage" and isinstance(item, dict):
                found.append(_usage(item))
            else:
                found.extend(_usages_in(item))
    return found


def _usage(fields: dict[str, Any]) -> Usage:
    details = fields.get("prompt_tokens_details") or fields.get("input_tokens_details") or {}
    return Usage(
        prompt_tokens=fields.get("prompt_tokens", fields.get("input_tokens", 0)),
        output_tokens=fields.get("completion_tokens", fields.get("output_tokens", 0)),
        cached_tokens=details.get("cached_tokens") or 0,
    )
