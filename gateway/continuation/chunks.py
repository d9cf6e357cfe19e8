"""One chunk of an engine's stream, taken apart without losing a byte of what is passed on.

Values stay as the engine wrote them; what they mean for a continuation is decided elsewhere.
"""

import msgspec
from msgspec import Raw

ABSENT = Raw()
NULL = Raw(b"null")


class Choice(msgspec.Struct):
    """The one choice of a chunk."""

    index: int = 0
    delta: dict[str, Raw] | None = None
    """Of a chat."""
    text: Raw = ABSENT
    """Of a completion."""
    logprobs: Raw = NULL
    finish_reason: Raw = NULL
    stop_reason: Raw = NULL
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Chunk(msgspec.Struct):
    """One chunk."""

    choices: list[Choice]
    id: Raw = NULL
    object: Raw = NULL
    created: Raw = NULL
    model: Raw = NULL
    usage: dict[str, Raw] | None = None
    system_fingerprint: Raw = ABSENT
    prompt_token_ids: list[int] | None = None


_CHUNK = msgspec.json.Decoder(Chunk)


def read_chunk(payload: bytes) -> Chunk | None:
    """The chunk that `payload` is; None for anything else."""
    try:
        return _CHUNK.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def front_of(chunk: Chunk) -> bytes:
    """How every event of the stream begins to which `chunk` belongs, up to its choices."""
    return b'data: {"id":%b,"object":%b,"created":%b,"model":%b,"choices":[' % (
        bytes(chunk.id), bytes(chunk.object), bytes(chunk.created), bytes(chunk.model),
    )  # fmt: skip
