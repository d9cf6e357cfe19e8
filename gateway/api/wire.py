"""From body bytes to a `Call`: parsed once, checked as far as the gateway needs, else untouched.

The engine validates its own fields; here only what scheduling and routing read is looked at. The
original bytes are forwarded unless a field must change.
"""

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.api.disconnect import ClientLeftError, Receive
from gateway.api.routes import Route
from gateway.errors import BadRequestError, BodyTooLargeError

PARSE_OFF_LOOP_BYTES = 256 << 10
"""Larger bodies are parsed in a thread: 1 MiB of JSON takes milliseconds."""
REMOVED_FIELDS = ("priority", "kv_transfer_params", "request_id")
"""Fields by which a client could order, route or collide inside an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to a route: what the gateway read of it, and the bytes to send on."""

    route: Route
    model: str | None
    """As the client wrote it; None when it wrote none."""
    streams: bool
    body: bytes
    sequences: int
    prompt_tokens: int | None
    """Of all prompts together, where the client wrote token ids."""
    output_tokens_max: int | None
    service_tier: str | None
    user: str | None
    session: str | None
    """The client's `prompt_cache_key`."""
    fields: dict[str, Any]
    """The parsed body, for the rare case that it must be written anew."""


async def read_body(receive: Receive, length: bytes | None, bytes_max: int) -> bytes:
    """The whole request body.

    Raises BodyTooLargeError beyond `bytes_max`, before reading more, and ClientLeftError.
    """
    if length is not None and length.isdigit() and int(length) > bytes_max:
        raise _too_large(bytes_max)
    message = await _more_body(receive)
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        return body
    chunks, size = [body], len(body)
    while message.get("more_body", False):
        message = await _more_body(receive)
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > bytes_max:
            raise _too_large(bytes_max)
        chunks.append(chunk)
    return b"".join(chunks)


async def parse(route: Route, body: bytes, sequences_max: int) -> Call:
    """Read `body`. Raises BadRequestError with the field that is wrong."""
    if len(body) > PARSE_OFF_LOOP_BYTES:
        fields = await asyncio.to_thread(_json_object, body)
    else:
        fields = _json_object(body)
    removed = [name for name in REMOVED_FIELDS if name in fields]
    for name in removed:
        del fields[name]
    return Call(
        route=route,
        model=_text(fields, "model"),
        streams=_flag(fields, "stream") if route.output_tokens_default != 0 else False,
        body=_written(fields) if removed else body,
        sequences=_sequences(route, fields, sequences_max),
        prompt_tokens=_prompt_tokens(route, fields),
        output_tokens_max=_output_tokens_max(route, fields),
        service_tier=_text(fields, "service_tier"),
        user=_text(fields, "user") or _text(fields, "safety_identifier"),
        session=_hint(fields, "prompt_cache_key"),
        fields=fields,
    )


def renamed(call: Call, model: str) -> bytes:
    """The body with `model` as its model. Raises BadRequestError for one too deep to write."""
    return _written({**call.fields, "model": model})


def with_priority(body: bytes, priority: int) -> bytes:
    """`body` with an engine priority put in front of its other fields."""
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip().startswith(b"}") else b","
    return b'%b"priority":%d%b%b' % (body[:start], priority, comma, body[start:])


async def _more_body(receive: Receive) -> MutableMapping[str, Any]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeftError  # what came so far may look complete and is not
    return message


def _written(fields: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(fields)
    except TypeError:
        # The writer takes fewer levels than the reader.
        raise BadRequestError("The request body is nested too deep.") from None


def _too_large(bytes_max: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"The request body is larger than bounds.body, which is {bytes_max} bytes here."
    )


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"The request body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRequestError("The request body must be a JSON object.")
    return fields


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadRequestError(f"`{name}` must be a string.", param=name)


def _hint(fields: dict[str, Any], name: str) -> str | None:
    """A field that only helps: of the wrong type it helps nobody, and harms nobody either."""
    value = fields.get(name)
    return value if isinstance(value, str) else None


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    raise BadRequestError(f"`{name}` must be true or false.", param=name)


def _count(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise BadRequestError(f"`{name}` must be an integer.", param=name)


def _sequences(route: Route, fields: dict[str, Any], sequences_max: int) -> int:
    """How many sequences the engine will run: n x number of prompts."""
    choices = _count(fields, "n")
    if choices is not None and choices < 1:
        raise BadRequestError("`n` must be at least 1.", param="n")
    prompts = fields.get(route.prompts_in) if route.prompts_in else None
    count = 1
    if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
        count = len(prompts)  # a list of integers is one prompt in tokens
    sequences = (choices or 1) * count
    if sequences > sequences_max:
        raise BadRequestError(
            f"This asks for {sequences} sequences; bounds.max_sequences is {sequences_max}.",
            param="n" if choices else route.prompts_in,
        )
    return sequences


def _prompt_tokens(route: Route, fields: dict[str, Any]) -> int | None:
    """The prompt tokens, counted where the client sent token ids; None where it sent text."""
    prompts = fields.get(route.prompts_in) if route.prompts_in else None
    if not isinstance(prompts, list) or not prompts:
        return None
    if isinstance(prompts[0], int):
        return len(prompts)
    count = 0
    for prompt in prompts:
        if not isinstance(prompt, list):
            return None
        count += len(prompt)
    return count or None


def _output_tokens_max(route: Route, fields: dict[str, Any]) -> int | None:
    if route.output_tokens_default == 0:
        return 0
    limit = _count(fields, "max_completion_tokens")
    if limit is None:
        limit = _count(fields, "max_tokens")
    if limit is None:
        return route.output_tokens_default
    return max(1, limit)  # the engine refuses what is below 1
