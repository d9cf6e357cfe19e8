"""From body bytes to a `Call`: read once, checked as far as the gateway needs, else untouched.

The engine validates its own fields; here only what scheduling and routing read is looked at. The
original bytes are forwarded; where a member must change, all others stay as they were written.
"""

import re
from collections.abc import Callable, MutableMapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from gateway.api.call import Call
from gateway.api.disconnect import ClientLeftError, Receive
from gateway.api.fields import (
    ABSENT,
    FALSE,
    NO_GENERATION,
    NULL,
    Fields,
    GenerationFields,
    read_fields,
    read_members,
)
from gateway.api.outline import OUTLINED_BYTES, Outline, outline_of
from gateway.api.prompts import ONE, Prompts, counted
from gateway.api.routes import Route
from gateway.api.threads import in_thread
from gateway.errors import BadRequestError, BodyTooLargeError
from gateway.upstream.pieces import Part, Segments
from gateway.upstream.sse import Events

REMOVED_FIELDS = ("priority", "kv_transfer_params", "request_id")
"""Fields by which a client could order, route or collide inside an engine."""
SMALL_FIELDS_BYTES_MAX = 256 << 10
"""So much beside prompts and tools is taken apart without a look at how many members it is."""
MEMBERS_MAX = 65_536
"""Of a body that is taken apart, roughly: each costs memory and time."""
USUAL_WISHES = (b'{"include_usage":true}', b'{"include_usage": true}')
"""How clients ask for usage; any other way is read."""
QUOTE: Final = 0x22
"""With which a member's name begins."""
_NO_MEMBERS = re.compile(rb"\s*\}")
_TEXT = msgspec.json.Decoder(str)
ASKED_USAGE = b'"stream_options":{"include_usage":true},'
ASKED_IDS = b'"return_token_ids":true,'


def _ignored(_size: int) -> None:
    """Nobody counts."""


async def read_body(
    receive: Receive,
    length: bytes | None,
    bytes_max: int,
    took: Callable[[int], None] = _ignored,
) -> bytes:
    """The whole request body.

    Raises BodyTooLargeError beyond `bytes_max`, before reading more, and ClientLeftError. `took`
    hears of each piece, and may raise too.
    """
    if length is not None and length.isdigit() and int(length) > bytes_max:
        raise too_large(bytes_max)
    message = await more_body(receive)
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > bytes_max:
            raise too_large(bytes_max)
        took(len(body))
        return body
    chunks, size = [body], len(body)
    took(size)
    while message.get("more_body", False):
        message = await more_body(receive)
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > bytes_max:
            raise too_large(bytes_max)
        took(len(chunk))
        chunks.append(chunk)
    if size <= OUTLINED_BYTES:
        return b"".join(chunks)
    # Fresh memory for 18 MB takes 15 ms to write; the interpreter's lock is not held meanwhile.
    return await in_thread(b"".join, chunks)


async def parse(route: Route, body: bytes, sequences_max: int) -> Call:
    """Read `body`. Raises BadRequestError with the field that is wrong.

    Routes that generate nothing are not bound by `sequences_max`.
    """
    is_plain = len(body) <= OUTLINED_BYTES and body.isascii()
    outline = None if is_plain else await outline_of(body)
    fields = read_fields(route, body if outline is None else outline.text)
    if _steers_engine(fields):
        body = b"".join(_changed(body, outline, fields, _Changes()))
        outline = await outline_of(body)
    prompts = ONE if route.prompts_in is None else await _prompts(route, fields, outline)
    asked = fields if isinstance(fields, GenerationFields) else NO_GENERATION
    follows = route.events is Events.RESPONSE
    return Call(
        route=route,
        model=fields.model,
        streams=asked.stream or False,
        body=body,
        sequences=_sequences(route, asked.n, prompts.texts, sequences_max),
        prompt_tokens=prompts.tokens if route.uses_gpu else 1,
        output_tokens_max=_output_tokens_max(route, asked),
        service_tier=fields.service_tier,
        user=fields.user or fields.safety_identifier,
        session=_hint(fields.prompt_cache_key),
        wants_usage=asked.stream_options is not ABSENT and _wants_usage(asked.stream_options),
        previous_response_id=asked.previous_response_id if follows else None,
        # Engines take other words for true as well; what is none costs nothing here.
        is_background=follows and asked.background not in (ABSENT, NULL, FALSE),
        fields=fields,
        outline=outline,
    )


def rewritten(
    call: Call,
    *,
    model: str | None = None,
    priority: int | None = None,
    cache_salt: str | None = None,
    asks_usage: bool = False,
    asks_ids: bool = False,
) -> bytes | Segments:
    """The body with all that the gateway must say itself; of a large one no copy is made.

    `cache_salt` takes the place of the client's own. `asks_ids`: the client itself says nothing of
    token ids.

    Members that do not change stay byte for byte as the client wrote them. Raises BadRequestError
    for a body of too many members to be taken apart.
    """
    fields = call.fields
    is_salted = cache_salt is not None and fields.cache_salt is not ABSENT
    if model is not None or is_salted or (asks_usage and _has_options(fields)):
        changes = _Changes(model, priority, cache_salt, asks_usage, asks_ids)
        parts = _changed(call.body, call.outline, call.fields, changes)
    else:
        front = ASKED_USAGE if asks_usage else b""
        if priority is not None:
            front += b'"priority":%d,' % priority
        if cache_salt is not None:
            front += b'"cache_salt":"%b",' % cache_salt.encode("ascii")
        if asks_ids:
            front += ASKED_IDS
        if not front:
            return call.body
        parts = _with_front(call.body, front)
    return b"".join(parts) if call.outline is None else Segments(parts)


async def more_body(receive: Receive) -> MutableMapping[str, Any]:
    """The next part of a body. Raises ClientLeftError."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeftError  # what came so far may look complete and is not
    return message


def too_large(bytes_max: int) -> BodyTooLargeError:
    """The error of a body of more than `bytes_max`."""
    return BodyTooLargeError(
        f"The request body is larger than bounds.body, which is {bytes_max} bytes here."
    )


class _Changes(NamedTuple):
    """What the gateway itself says in a body."""

    model: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    asks_usage: bool = False
    asks_ids: bool = False


def _changed(body: bytes, outline: Outline | None, fields: Fields, changes: _Changes) -> list[Part]:
    """The body with these changes, and without what no client may say."""
    text = body if outline is None else outline.marked
    _check_members(text, fields)
    members = read_members(text)
    for name in REMOVED_FIELDS:
        members.pop(name, None)
    if changes.model is not None:
        members["model"] = Raw(msgspec.json.encode(changes.model))
    if changes.asks_usage:
        options = members.pop("stream_options", NULL)
        members = {"stream_options": _with_usage_asked(options), **members}
    if changes.priority is not None:
        members = {"priority": Raw(b"%d" % changes.priority), **members}
    if changes.cache_salt is not None:
        members["cache_salt"] = Raw(b'"%b"' % changes.cache_salt.encode("ascii"))
    if changes.asks_ids:
        members = {"return_token_ids": Raw(b"true"), **members}
    text = msgspec.json.encode(members)
    return [text] if outline is None else outline.filled(text)


def _check_members(text: bytes, fields: Fields) -> None:
    if len(text) <= SMALL_FIELDS_BYTES_MAX:
        return
    heavy = [bytes(field) for field in fields.heavy]
    if len(text) - sum(map(len, heavy)) <= SMALL_FIELDS_BYTES_MAX:
        return
    colons = text.count(b":") - sum(field.count(b":") for field in heavy)
    if colons > MEMBERS_MAX:
        raise BadRequestError("The request body has too many members.")


def _with_front(body: bytes, front: bytes) -> list[Part]:
    """`body` with these members, each with its comma, in front of its others."""
    start = body.index(b"{") + 1
    if body[start] != QUOTE and _NO_MEMBERS.match(body, start):
        front = front[:-1]
    return [body[:start], front, memoryview(body)[start:]]


def _has_options(fields: Fields) -> bool:
    return isinstance(fields, GenerationFields) and fields.stream_options is not ABSENT


def _with_usage_asked(options: Raw) -> Raw:
    """The client's stream options with `include_usage`; what is no object is for the engine."""
    if options == NULL:
        return Raw(b'{"include_usage":true}')
    if not _is_object(options):
        return options
    members = read_members(bytes(options))
    members["include_usage"] = Raw(b"true")
    # It had no effect without the other one, and would now change every event.
    members.pop("continuous_usage_stats", None)
    return Raw(msgspec.json.encode(members))


def _wants_usage(options: Raw) -> bool:
    """Whether the client asks for usage, or may do so in a way that only the engine knows."""
    if options == NULL:
        return False
    text = bytes(options)
    if text in USUAL_WISHES or not text.startswith(b"{"):
        return True
    return read_members(text).get("include_usage", NULL) not in (NULL, FALSE)


def _is_object(text: Raw) -> bool:
    return bytes(text).startswith(b"{")


def _hint(text: Raw) -> str | None:
    """A field that only helps: of the wrong type it helps nobody, and harms nobody either."""
    data = bytes(text)
    return _TEXT.decode(data) if data.startswith(b'"') else None


async def _prompts(route: Route, fields: Fields, outline: Outline | None) -> Prompts:
    """How many there are, and their tokens."""
    assert route.prompts_in is not None
    text = fields.prompts(route.prompts_in)
    if text is ABSENT:
        return ONE
    data = bytes(text)
    if not data.startswith(b"["):
        return ONE
    if outline is None:
        return await counted(data)
    marked = read_fields(route, outline.marked).prompts(route.prompts_in)
    return await counted(b"".join(outline.filled(bytes(marked))))


def _sequences(route: Route, choices: int | None, prompts: int, sequences_max: int) -> int:
    """How many sequences the engine will run: n x number of prompts."""
    if choices is not None and choices < 1:
        raise BadRequestError("`n` must be at least 1.", param="n")
    sequences = (choices or 1) * prompts
    if sequences > sequences_max and route.decodes:
        raise BadRequestError(
            f"This asks for {sequences} sequences; bounds.max_sequences is {sequences_max}.",
            param="n" if choices else route.prompts_in,
        )
    return sequences


def _steers_engine(fields: Fields) -> bool:
    """Whether the client says what only the gateway may say."""
    return (
        fields.priority is not ABSENT
        or fields.kv_transfer_params is not ABSENT
        or fields.request_id is not ABSENT
    )


def _output_tokens_max(route: Route, asked: GenerationFields) -> int | None:
    if not route.decodes:
        return 0
    for name in route.output_tokens_in:
        limit = asked.limit(name)
        if limit is not None:
            return max(1, limit)  # the engine refuses what is below 1
    return route.output_tokens_default
