"""What of a body an engine would fetch from somewhere, and whether it may.

An engine loads images, sounds and videos from wherever a client says: from addresses that only the
engine can reach, or from its own disk. So a body brings its media along (`data:`), or names a host
that was allowed. All places are looked at in which vLLM 0.32, SGLang, TGI or llama.cpp read such an
address, on every route: chat, Responses, Anthropic's sources, and the contents that the pooling
routes take. Only a body with a word of theirs in it is looked at at all.
"""

import asyncio
import re
from typing import Any, Final

import msgspec

from gateway.api.call import Call
from gateway.api.fields import ABSENT
from gateway.api.outline import SLICE_BYTES, Outline
from gateway.errors import BadRequestError

URL_CHARS_MAX = 8_192
"""A longer one that is no `data:` is not even looked at."""
CONTENTS_SEEN_MAX = 64
"""So many messages are looked at one by one, whether they are mere texts."""
VALUES_A_TURN = 2_000
"""Looked at between two turns of the loop."""

ADDRESSES = frozenset(
    {"image_url", "audio_url", "video_url", "file_url", "image", "audio", "video"}
)
"""Members whose value, or whose value's `url`, is fetched."""
HOLDERS = ADDRESSES | {"source", "input_image", "input_audio", "input_video", "input_file", "file"}
"""Members in whose value a `url` is fetched."""
TYPES = HOLDERS | {"document", "url"}
"""Types of parts whose own `url` is fetched."""
CONTENTS = frozenset({"data", "file_data"})
"""Members that hold the medium itself; some engines fetch them where they look like an address."""
TURNS_ROUTES = frozenset({"chat", "messages", "count_tokens"})
"""Routes on which media stand in the contents of messages, or in an Anthropic `system`."""
WORDS: Final = (b'url"', b'data"', b'"image"', b'"source"', b'"video"', b'"audio"')
"""One of them stands in every body in which something could be fetched."""
WORD_BYTES_MAX: Final = 8
"""None of them is longer: of two slices, the first reaches so far into the second."""
NOT_LOOKED_AT = frozenset(
    {"tools", "tool_choice", "functions", "response_format", "text", "metadata"}
)
"""Members of the whole body that are schemas and notes: nothing in them is fetched."""

_WRITTEN_OUT = re.compile(rb"\\u00[2-7]")
"""An ASCII character as an escape: a word may be written so."""
_URL = re.compile(
    r"(https?)://([a-z0-9_.-]+)(?::(\d{1,5}))?(?:[/?#][\x21-\x5b\x5d-\x7e]*)?", re.IGNORECASE
)
"""Nothing that two readers could take for two hosts: no user, no backslash, no space."""
_PARTS_NEXT = re.compile(rb"\s*:\s*[\[{]")
_ADDRESS_SIGNS = re.compile(r"[:.\\]")
"""Base64 has none of them."""
_PORTS = {"http": "80", "https": "443"}

Path = tuple[Any, ...]
"""(path of what it is in, key or index); () is the body."""


def may_fetch(call: Call) -> bool:
    """Whether anything in a body could be an address, at a glance."""
    if call.outline is not None and call.outline.hides_objects:
        return True
    text = call.body if call.outline is None else call.outline.marked
    if text.find(b"\\u00") >= 0 and _WRITTEN_OUT.search(text) is not None:
        return True
    if call.route.name in TURNS_ROUTES:
        if call.fields.system is ABSENT and not _has_parts(text):
            return False
    elif text.find(b"{", text.index(b"{") + 1) < 0:
        return False
    return _has_words(text)


def _has_words(text: bytes) -> bool:
    """Whether any member could be one that is looked at."""
    return any(text.find(word) >= 0 for word in WORDS)


def _has_parts(text: bytes) -> bool:
    """Whether any message is more than a text, or there are too many to see."""
    at = 0
    for _ in range(CONTENTS_SEEN_MAX):
        at = text.find(b'"content"', at)
        if at < 0:
            return False
        at += len(b'"content"')
        if _PARTS_NEXT.match(text, at) is not None:
            return True
    return True


class MediaRule:
    """From which hosts engines may fetch what clients name."""

    def __init__(self, hosts: tuple[str, ...] = ()) -> None:
        """`hosts`: like `a.example.org`, `*.example.org`, each perhaps with a port; none: none."""
        self._hosts = frozenset(host for host in hosts if not host.startswith("*."))
        self._domains = tuple(host[1:] for host in hosts if host.startswith("*."))

    async def check(self, call: Call) -> int:
        """Bytes of the media that the body itself brings; their text is no prompt.

        Raises BadRequestError, with the place of the first address that is not allowed.
        """
        outline = call.outline
        text = call.body if outline is None else outline.marked
        try:
            body = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRequestError(f"The request body cannot be read: {error}") from None
        assert isinstance(body, dict), "it was read as one before"
        todo: list[tuple[Any, str, Path]] = [
            (value, key, ((), key)) for key, value in body.items() if key not in NOT_LOOKED_AT
        ]
        found_bytes = seen = 0
        while todo:
            value, name, path = todo.pop()
            seen += 1
            if seen % VALUES_A_TURN == 0:
                await asyncio.sleep(0)
            if isinstance(value, str):
                hidden = None if outline is None else outline.hidden(value)
                if hidden is None:
                    found_bytes += self._looked(value, name, path, outline)
                else:
                    todo.append((await _objects_in(hidden), name, path))
            elif isinstance(value, list):
                todo.extend((item, name, (path, i)) for i, item in enumerate(value))
            elif isinstance(value, dict):
                todo.extend(_members(value, name, path))
        return found_bytes

    def _looked(self, value: str, name: str, path: Path, outline: Outline | None) -> int:
        """Bytes of a medium. Raises BadRequestError for an address that is not allowed."""
        if name not in ADDRESSES and name not in CONTENTS:
            return 0
        taken = None if outline is None else outline.taken(value)
        size = len(value) if taken is None else taken[1]
        if taken is not None:
            value = taken[0]
        if value[:5].lower() == "data:" or not value:
            return size
        if name in CONTENTS and not _ADDRESS_SIGNS.search(value, 0, URL_CHARS_MAX):
            return size
        if size > URL_CHARS_MAX or not self._is_allowed(value):
            where = _dotted(path)
            raise BadRequestError(f"`{where}` must be a data: URL{self._or_hosts()}.", param=where)
        return 0

    def _is_allowed(self, url: str) -> bool:
        found = _URL.fullmatch(url)
        if found is None:
            return False
        scheme, host, port = found[1].lower(), found[2].lower(), found[3]
        if port is not None and port != _PORTS[scheme]:
            host = f"{host}:{port}"
        return host in self._hosts or any(host.endswith(domain) for domain in self._domains)

    def _or_hosts(self) -> str:
        return ", or one of a host that is allowed here" if self._hosts or self._domains else ""


async def _objects_in(hidden: bytes) -> list[Any]:
    """Objects that were passed over since there are so many; none where none could be of use."""
    for start in range(0, len(hidden), SLICE_BYTES):
        part = hidden[start : start + SLICE_BYTES + WORD_BYTES_MAX]
        if _has_words(part) or part.find(b"\\u00") >= 0:
            break
        await asyncio.sleep(0)
    else:
        return []
    try:
        found = msgspec.json.decode(b"[%b]" % hidden)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequestError(f"The request body cannot be read: {error}") from None
    assert isinstance(found, list)
    return found


def _members(value: dict[str, Any], name: str, path: Path) -> list[tuple[Any, str, Path]]:
    """What is in an object; its `url` by the name of an address where it is one."""
    kind = value.get("type")
    if kind == "tool_use":
        return []  # what a model asked a tool for
    is_fetched = name in HOLDERS or (isinstance(kind, str) and kind in TYPES)
    members = []
    for key, item in value.items():
        if key == "url":
            if is_fetched:
                members.append((item, "image_url", (path, key)))
        elif key in CONTENTS:
            if is_fetched and kind != "text":  # Anthropic's documents may be plain text
                members.append((item, key, (path, key)))
        else:
            members.append((item, key, (path, key)))
    return members


def _dotted(path: Path) -> str:
    """`messages[0].content[1].image_url.url`"""
    parts: list[str] = []
    while path:
        path, part = path
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
    return "".join(reversed(parts)).removeprefix(".")
