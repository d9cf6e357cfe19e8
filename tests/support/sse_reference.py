"""A server-sent event parser that is plainly right and slow, to hold the fast meter against.

It follows the algorithm of the HTML standard (9.2.6, interpreting an event stream) on the whole
text at once, and reads each payload as JSON.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from gateway.core.messages import Usage
from gateway.upstream.sse import Events

END_OF_LINE = re.compile(rb"\r\n|\n|\r")
RESPONSE_ENDS = ("completed", "incomplete", "failed", "cancelled")
RESPONSE_STARTS = ("created", "queued", "in_progress")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a stream holds."""

    events: int
    is_done: bool
    errors: tuple[bytes, ...]
    usage: Usage | None
    ident: bytes | None = None


def events_of(stream: bytes) -> list[tuple[str, bytes]]:
    """Name and data of every complete event that has data, in order."""
    found: list[tuple[str, bytes]] = []
    event = ""
    lines: list[bytes] = []
    *whole, _unfinished = END_OF_LINE.split(stream)
    for line in whole:
        name, colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data" and colon:
            lines.append(value)
        elif name == b"event" and colon:
            event = value.decode("utf-8", "replace")
        elif not line:
            if lines:
                found.append((event, b"\n".join(lines)))
            event, lines = "", []
    return found


def payloads_of(stream: bytes) -> list[bytes]:
    """The data of every complete event, in order."""
    return [payload for _, payload in events_of(stream)]


def read(stream: bytes, kind: Events = Events.CHUNKS) -> Reading:
    """What a patient reader makes of `stream`."""
    events = events_of(stream)
    match kind:
        case Events.CHUNKS:
            return _read_chunks([payload for _, payload in events])
        case Events.RESPONSE:
            return _read_response(events)
        case Events.MESSAGE:
            return _read_message(events)


def _read_chunks(payloads: list[bytes]) -> Reading:
    values = [_parsed(payload) for payload in payloads]
    errors = tuple(p for p, value in zip(payloads, values, strict=True) if _is_error(value))
    done = sum(payload == b"[DONE]" for payload in payloads)
    usages = [usage for value in values for usage in usages_in(value)]
    return Reading(
        events=len(payloads) - done - len(errors),
        is_done=done > 0,
        errors=errors,
        usage=usages[-1] if usages else None,
    )


def _read_response(events: list[tuple[str, bytes]]) -> Reading:
    count, is_done = 0, False
    errors: list[bytes] = []
    usage: Usage | None = None
    ident: bytes | None = None
    for name, payload in events:
        value = _parsed(payload)
        kind = _kind(name, value, name.startswith("response.") or name == "error")
        if kind in ("error", "response.failed") or _is_error(value):
            errors.append(payload)
        if kind == "error" or (kind != "response.failed" and _is_error(value)):
            continue
        count += kind.endswith(".delta")
        state = kind.removeprefix("response.")
        response = value.get("response") if isinstance(value, dict) else None
        if not isinstance(response, dict):
            response = {}
        if ident is None and state in (*RESPONSE_STARTS, *RESPONSE_ENDS):
            ident = response["id"].encode() if response.get("id") else None
        if state in RESPONSE_ENDS:
            is_done = True
            usage = _usage(response["usage"]) if response.get("usage") is not None else None
    return Reading(count, is_done, tuple(errors), usage, ident)


def _read_message(events: list[tuple[str, bytes]]) -> Reading:
    count, is_done, has_total = 0, False, False
    errors: list[bytes] = []
    usages: list[Usage] = []
    for name, payload in events:
        value = _parsed(payload)
        kind = _kind(name, value, name not in ("", "message"))
        if kind == "error" or _is_error(value):
            errors.append(payload)
        elif kind == "content_block_delta":
            count += 1
        elif kind == "message_stop":
            is_done = True
        elif kind in ("message_start", "message_delta") and isinstance(value, dict):
            inner = value.get("message") if kind == "message_start" else value
            if isinstance(inner, dict) and isinstance(inner.get("usage"), dict):
                usages.append(_usage(inner["usage"]))
                has_total |= kind == "message_delta"
    usage = None
    if usages:
        usage = Usage(
            prompt_tokens=max(u.prompt_tokens for u in usages),
            output_tokens=max(*(u.output_tokens for u in usages), 0 if has_total else count),
            cached_tokens=max(u.cached_tokens for u in usages),
        )
    return Reading(count, is_done, tuple(errors), usage)


def _kind(name: str, value: Any, is_known: bool) -> str:
    """The event's name, or the type in its data."""
    if is_known:
        return name
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else ""


def _parsed(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return None


def _is_error(value: Any) -> bool:
    """The gateway's engines put `error` first, or Anthropic's type before it."""
    if not isinstance(value, dict) or not value:
        return False
    name = next(iter(value))
    return (name == "error" and value[name] is not None) or (
        name == "type" and value[name] == "error"
    )


def usages_in(value: Any) -> list[Usage]:
    """Every usage object, wherever it lies, in the order of the text."""
    found: list[Usage] = []
    if isinstance(value, list):
        for item in value:
            found.extend(usages_in(item))
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "usage" and isinstance(item, dict):
                found.append(_usage(item))
            found.extend(usages_in(item))
    return found


def _usage(fields: dict[str, Any]) -> Usage:
    details = fields.get("prompt_tokens_details") or fields.get("input_tokens_details") or {}
    read = fields.get("cache_read_input_tokens", 0)
    around = read + fields.get("cache_creation_input_tokens", 0)
    return Usage(
        prompt_tokens=fields.get("prompt_tokens", fields.get("input_tokens", 0) + around),
        output_tokens=fields.get("completion_tokens", fields.get("output_tokens", 0)),
        cached_tokens=details.get("cached_tokens") or read,
    )
