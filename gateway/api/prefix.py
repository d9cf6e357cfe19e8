"""How a prompt begins: chained hashes of its leading blocks, from the fields of the body alone.

Equal hashes mean an equal beginning, of the same model and tenant, and nothing else; what an
engine has cached is not known here. A body that cannot be read this way has no hashes, which costs
its request a warm replica and nothing more.

Each hash is the tag of its model and tenant (64 bits of BLAKE2b) above the CRC-32 of the prompt up
to the end of the block. A CRC takes a third of the time of a cryptographic hash here; it can be
forged, but only below one's own tag, so that tenants cannot meet. By chance a new beginning looks
like one of the 8,192 that a replica remembers once in 2^19 times, and is placed a little worse.
"""

import sys
from array import array
from hashlib import blake2b
from typing import Any
from zlib import crc32

import orjson

from gateway.api.fields import ABSENT, Fields
from gateway.api.skim import beginning
from gateway.core.messages import PREFIX_BLOCK_TOKENS
from gateway.core.policy import Policy

PREFIX_BLOCKS_MAX = 32
"""More of a prompt is not hashed: 2,048 tokens tell conversations apart."""
BLOCK_BYTES = PREFIX_BLOCK_TOKENS * 4
"""Of text, and of token ids written as 32 bits each."""
READ_BYTES_MAX = PREFIX_BLOCKS_MAX * BLOCK_BYTES
SAMPLE_CHARS = 128
"""Of an image or sound its length, middle and end stand for the whole, which may be megabytes."""
TAGS_MAX = 4_096
"""Models times tenants whose tag is remembered."""
SEEN_BYTES_MAX = 1 << 20
"""Of the field that holds the prompt."""
FRONT_BYTES_MAX = 256 << 10
"""Of tools and instructions no more is hashed; what is longer also by its length."""
KINDS = ("messages", "prompt", "input")
"""Where the prompt stands; the first that there is counts."""


def is_wanted(policy: Policy) -> bool:
    """Whether anything is decided by prefixes under this policy."""
    return policy.affinity.prefix > 0 or policy.within_user == "prefix"


class Prefixes:
    """Hashes beginnings of prompts; the same in every process."""

    __slots__ = ("_tags",)

    def __init__(self) -> None:
        self._tags: dict[tuple[str, str], int] = {}

    def of(self, fields: Fields, *, model: str, tenant: str) -> tuple[int, ...]:
        """`Request.prefix` of the request whose body has these fields: whole blocks only.

        At most `PREFIX_BLOCKS_MAX`; none for several prompts in one request.
        """
        prompt, chained = _beginning(fields)
        end = min(len(prompt), READ_BYTES_MAX) - BLOCK_BYTES + 1
        if end <= 0:
            return ()
        tag = self._tags.get((model, tenant)) or self._new_tag(model, tenant)
        blocks = []
        for start in range(0, end, BLOCK_BYTES):
            chained = crc32(prompt[start : start + BLOCK_BYTES], chained)
            blocks.append(tag | chained)
        return tuple(blocks)

    def _new_tag(self, model: str, tenant: str) -> int:
        if len(self._tags) >= TAGS_MAX:
            self._tags.clear()
        named = f"{len(model)} {model}{tenant}".encode()
        digest = blake2b(named, digest_size=8).digest()
        tag = self._tags[model, tenant] = int.from_bytes(digest, "little") << 32
        return tag


def _beginning(fields: Fields) -> tuple[bytes, int]:
    """(the beginning of the prompt, the hash of what stands in front of it)."""
    front = 0
    for text in (fields.messages, fields.prompt, fields.input):
        front += 1
        if text is not ABSENT:
            break
    if (
        fields.instructions is not ABSENT
        or fields.system is not ABSENT
        or fields.tools is not ABSENT
    ):
        front = _front_of(fields, front)
    prompt = None if text is ABSENT else beginning(memoryview(text)[:SEEN_BYTES_MAX])
    if isinstance(prompt, list):
        if len(prompt) == 1 and isinstance(prompt[0], (str, list)):
            prompt = prompt[0]
        elif prompt and isinstance(prompt[0], dict):
            return _of_messages(prompt), front
    if isinstance(prompt, str):
        return prompt[:READ_BYTES_MAX].encode(), front
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return _of_ids(prompt), front + len(KINDS)
    return b"", front


def _front_of(fields: Fields, front: int) -> int:
    """What chat templates put in front of all messages, whatever its place in the body."""
    for text in (fields.instructions, fields.system, fields.tools):
        data = bytes(text)
        front = crc32(data[:FRONT_BYTES_MAX], crc32(b"%d" % len(data), front))
    return front


def _of_messages(messages: list[Any]) -> bytes:
    """The messages as one text, up to the first that cannot be read."""
    text = ""
    for message in messages:
        if not isinstance(message, dict):
            break
        content = message.get("content")
        is_whole = True
        if not isinstance(content, str):
            content, is_whole = _of_content(content)
        # A text that imitates this only misleads its own author.
        text += f"\0{message.get('role')}\0{content[:READ_BYTES_MAX]}"
        if len(message) > 2:
            rest = {name: message[name] for name in message if name not in ("role", "content")}
            text += _written(rest).decode()
        if not is_whole or len(text) >= READ_BYTES_MAX:
            break
    return text[:READ_BYTES_MAX].encode()


def _of_content(content: Any) -> tuple[str, bool]:
    """(the text of a content that is no string, whether all of it could be read)."""
    if content is None:
        return "", True
    text = ""
    for part in content if isinstance(content, list) else [content]:
        piece = part.get("text") if isinstance(part, dict) else None
        if not isinstance(piece, str):
            piece = _stand_in(part)
        if piece is None:
            return text, False
        text += piece[:READ_BYTES_MAX]
        if len(text) >= READ_BYTES_MAX:
            break
    return text, True


def _stand_in(part: Any) -> str | None:
    """What stands for an image or a sound; None for what is neither."""
    kind = part.get("type") if isinstance(part, dict) else None
    media = part.get(kind) if isinstance(kind, str) else None
    if isinstance(media, dict):
        media = media.get("url", media.get("data"))
    if not isinstance(media, str):
        return None
    middle = len(media) // 2
    sample = media[middle : middle + SAMPLE_CHARS] + media[-SAMPLE_CHARS:]
    return f"\0{len(media)} {crc32(sample.encode())}\0"


def _of_ids(ids: list[Any]) -> bytes:
    """Token ids; nothing where one of them is none."""
    try:
        packed = array("I", ids[: PREFIX_BLOCKS_MAX * PREFIX_BLOCK_TOKENS])
    except (TypeError, OverflowError):
        return b""
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _written(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return b"?"  # nested deeper than can be written
