"""Uploads of speech to calls: the form, the file, and the words that stand for its bytes.

An engine without ears: what it transcribes is the length and the checksum of the file, so that
whoever reads it knows whether the upload arrived unharmed.
"""

import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from gateway.emulator import schema
from gateway.emulator.calls import Call, Card, StreamOptions
from gateway.emulator.refusals import bad_request, refusal
from gateway.emulator.vocabulary import START

FILE_BYTES_PER_S = 32_000
"""Of speech: 16,000 samples of two bytes. Nothing of a file but its length is looked at."""
CLIP_S_MAX = 30.0
"""The encoder sees one clip at a time, so longer files have no longer prompt."""
AUDIO_TOKENS_PER_S = 10
FORMATS = ("text", "json", "verbose_json")
FORMATS_REFUSED = (
    "Currently only support response_format: `text`, `json`, `verbose_json` or `diarized_json`"
)
NO_OPTIONS = "Stream options can only be defined when `stream=True`."

Task = Literal["transcription", "translation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file as it came in."""

    filename: str
    content_type: str
    size_bytes: int
    sha256: str
    """In hexadecimal."""


def transcript(task: Task, content: bytes) -> str:
    """What the engine hears in a file."""
    return f"A {task} of {len(content)} bytes with checksum {sha256(content).hexdigest()}."


async def read_form(headers: Headers, body: bytes) -> tuple[dict[str, Any], bytes, Upload | None]:
    """(fields, content of the file, the file); without a file the content is empty.

    Raises:
        Refusal: a multipart form that is none.
    """
    if not headers.get("content-type", "").startswith("multipart/form-data"):
        return {}, b"", None
    try:
        form = await MultiPartParser(headers, _whole(body)).parse()
    except MultiPartException:
        raise refusal(400, "There was an error parsing the body", "Bad Request") from None
    fields: dict[str, Any] = {}
    content, upload = b"", None
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            fields[name] = value
        elif name == "file":
            content = await value.read()
            upload = Upload(
                filename=value.filename or "",
                content_type=value.content_type or "",
                size_bytes=len(content),
                sha256=sha256(content).hexdigest(),
            )
    await form.close()
    return fields, content, upload


def parse_audio(task: Task, given: dict[str, Any], content: bytes | None, card: Card) -> Call:
    """A call of /v1/audio/transcriptions or translations; `content` None: there was no file.

    Raises:
        Refusal: as the engine would answer.
    """
    fields = schema.Fields(given)
    optional = fields.optional
    if isinstance(given.get("file"), str):
        message = "Expected 'file' to be a file-like object, not 'str'."
        raise refusal(422, message, "Unprocessable Entity")
    if content is None:
        fields.missing("file")
    streams = optional("stream", schema.as_bool, default=False)
    names = ("stream_include_usage", "stream_continuous_usage_stats")
    usage, continuous = (optional(name, schema.as_bool, default=False) for name in names)
    max_tokens = optional("max_completion_tokens", schema.as_int)
    fields.refuse_problems()
    if not streams and (usage or continuous):
        raise bad_request(NO_OPTIONS, param=names[0] if usage else names[1])
    shown = str(given.get("response_format", "json"))
    if shown not in FORMATS:
        raise bad_request(FORMATS_REFUSED)
    if streams and shown == "verbose_json":
        raise bad_request(f"{shown} format doesn't support streaming case")
    heard = content or b""
    duration_s = len(heard) / FILE_BYTES_PER_S
    tokens = 1 + math.ceil(min(duration_s, CLIP_S_MAX) * AUDIO_TOKENS_PER_S)
    prompt = (*(START,) * tokens, *card.vocabulary.encode(str(given.get("prompt", ""))))
    return Call(
        form=task,
        model=str(given.get("model") or card.models[0]),
        prompts=(prompt,),
        max_tokens=max_tokens,
        temperature=0.0,
        streams=streams,
        stream_options=StreamOptions(include_usage=usage, continuous=continuous)
        if streams
        else None,
        script=tuple(card.vocabulary.encode(transcript(task, heard))),
        request={
            "response_format": shown,
            "language": str(given.get("language", "en")),
            "duration_s": duration_s,
        },
    ).check(card)


async def _whole(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body
