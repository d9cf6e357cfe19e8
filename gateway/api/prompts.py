"""How many prompts a request holds, and how many tokens where it holds token ids.

Counted on the JSON text of the field. A large one is never built as objects: its commas are
counted, or its structure is walked; neither stops the loop for long.
"""

import asyncio
import re
from typing import Any, NamedTuple

import msgspec

from gateway.api.strings import end_of_string
from gateway.api.threads import in_thread

BUILT_BYTES_MAX = 64 << 10
"""A longer field is counted without being built."""
SLICE_BYTES = 1 << 20
"""Counted between two turns of the loop."""
COUNTED_MAX = 65_536
"""A longer list of texts counts as that many prompts."""

_IDS = re.compile(rb"\s*\[\s*-?\d")
_LISTS_OF_IDS = re.compile(rb"\s*\[\s*\[\s*(?:-?\d|\])")
_MARK = re.compile(rb'["\[\]{},]')


class Prompts(NamedTuple):
    """What one field holds."""

    texts: int = 1
    """How many prompts."""
    tokens: int | None = None
    """Of all prompts together; None for text, whose tokens nobody knows here."""


ONE = Prompts()


async def counted(text: bytes) -> Prompts:
    """What `text`, the JSON of a field, holds; a single text in the usual case."""
    if len(text) <= BUILT_BYTES_MAX:
        try:
            return _counted_whole(msgspec.json.decode(text))
        except msgspec.DecodeError:
            return ONE  # a number that no engine takes
    if not text.lstrip().startswith(b"["):
        return ONE
    has_texts = b'"' in text or b"{" in text
    if _IDS.match(text) and not has_texts:
        return Prompts(1, 1 + await _count(text, b","))
    if _LISTS_OF_IDS.match(text) and not has_texts:
        lists = await _count(text, b"[") - 1
        return Prompts(lists, 1 + await _count(text, b","))
    return Prompts(await in_thread(_elements, text))


def _counted_whole(prompts: Any) -> Prompts:
    if not isinstance(prompts, list) or not prompts:
        return ONE
    if isinstance(prompts[0], int):
        return Prompts(1, len(prompts))  # a list of integers is one prompt in tokens
    if not all(isinstance(prompt, list) for prompt in prompts):
        return Prompts(len(prompts))
    return Prompts(len(prompts), sum(map(len, prompts)) or None)


async def _count(text: bytes, character: bytes) -> int:
    count = 0
    for start in range(0, len(text), SLICE_BYTES):
        count += text.count(character, start, start + SLICE_BYTES)
        await asyncio.sleep(0)
    return count


def _elements(text: bytes) -> int:
    """Elements of the list that `text`, which is known to be JSON, is; in short steps of Python."""
    depth, commas, at = 0, 0, 0
    while commas < COUNTED_MAX - 1 and (mark := _MARK.search(text, at)):
        at = mark.end()
        match mark[0]:
            case b'"':
                at = end_of_string(text, at)
            case b"[" | b"{":
                depth += 1
            case b"]" | b"}":
                depth -= 1
            case _ if depth == 1:
                commas += 1
    return commas + 1
