"""A large JSON body with its long strings and lists of numbers taken out, so that it can be parsed.

A parser holds the loop as long as it runs, a prompt of a million tokens for tens of milliseconds.
What is taken out is found by its quotes and brackets, in small steps, and put back unseen: the
engine checks it. The rest of the body is as it was.
"""

import asyncio
import re
from codecs import getincrementaldecoder
from secrets import token_hex

from gateway.api.strings import FIRST_LOOK_BYTES, look_for_end, shortened
from gateway.errors import BadRequestError
from gateway.upstream.pieces import Part

OUTLINED_BYTES = 1 << 20
"""Only larger bodies have an outline: this much is parsed within 3 ms."""
LONG_BYTES = 64 << 10
"""What is longer is taken out."""
KEPT_BYTES_MAX = 512 << 10
"""Once so much was left, everything that is not short is taken out."""
SHORT_BYTES = 256
KEPT_NUMBERS_BYTES = 32 << 10
"""The beginning that is left of a long list of numbers."""
BEGINNING_BYTES = 8 << 10
"""Told of what was taken out."""
SLICE_BYTES = 512 << 10
"""Looked at between two turns of the loop."""
STRINGS_A_TURN = 400
STRINGS_A_SLICE = 100
"""Looking through a slice of one that is full of escapes takes as long as so many short ones."""

MEMBERS_A_TURN = 1_000
"""The same of objects that are passed over as a whole."""

_Decoder = getincrementaldecoder("utf-8")
_NEXT_OBJECT = re.compile(rb"\}\s*,\s*(?=\{\s*\Z)")
"""Between two strings: the list goes on with another object."""
_AND_OBJECT = re.compile(rb"\s*,\s*(?=\{)")
_FLAT = re.compile(rb'[^"\[\]{}]{0,1024}+(?:"[^"\\]{0,256}+"[^"\[\]{}]{0,1024}+){0,200}+')
"""Text without brackets, with its short strings; of bounded length."""
_QUOTE, _OPENING = 0x22, b"[{"
_BRACKETS = b"[]{}"


class Outline:
    """The short form of one body."""

    __slots__ = ("_body", "_holes", "_mark", "_objects", "_stand_ins", "_taken_bytes")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._mark = token_hex(8).encode("ascii")
        """Nobody can have written it into the body before."""
        self._holes: list[tuple[int, int]] = []
        self._stand_ins: list[bytes] = []
        self._taken_bytes = 0
        self._objects: set[int] = set()
        """Holes that are objects, since there are very many."""

    @property
    def hides_objects(self) -> bool:
        """Whether `text` lacks objects, since there are very many."""
        return bool(self._objects)

    @property
    def text(self) -> bytes:
        """The body with all that is long shortened to its beginning."""
        return self._with(self._stand_ins)

    @property
    def marked(self) -> bytes:
        """The body with a mark for all that is long: to be changed, and then `filled`."""
        return self._with([b'"%b%d"' % (self._mark, hole) for hole in range(len(self._holes))])

    def filled(self, marked: bytes) -> list[Part]:
        """A text made from `marked`, with everything in its place again: its parts, in order."""
        body, holes = memoryview(self._body), self._holes
        parts: list[Part] = [*re.split(rb'"%b(\d+)"' % self._mark, marked)]
        for place in range(1, len(parts), 2):
            start, end = holes[int(parts[place])]
            parts[place] = body[start:end]
        return parts

    def taken(self, value: str) -> tuple[str, int] | None:
        """What a string in `marked` stands for: its beginning, as JSON has it, and its bytes.

        None where it stands for itself.
        """
        hole = self._hole_of(value)
        if hole is None:
            return None
        start, end = self._holes[hole]
        inside = self._body[start + 1 : min(start + 1 + BEGINNING_BYTES, end - 1)]
        return inside.decode("utf-8", "replace"), end - start - 2

    def hidden(self, value: str) -> bytes | None:
        """The objects that a string in `marked` stands for, with commas between; None: none."""
        hole = self._hole_of(value)
        if hole is None or hole not in self._objects:
            return None
        start, end = self._holes[hole]
        return self._body[start:end]

    def _hole_of(self, value: str) -> int | None:
        mark = self._mark.decode()
        return int(value[len(mark) :]) if value.startswith(mark) else None

    def _with(self, values: list[bytes]) -> bytes:
        pieces: list[bytes] = []
        until = 0
        for (start, end), value in zip(self._holes, values, strict=True):
            pieces += (self._body[until:start], value)
            until = end
        pieces.append(self._body[until:])
        return b"".join(pieces)

    async def find_holes(self) -> None:
        """Find what is long."""
        body, at, steps = self._body, 0, 0
        while at < len(body):
            quote = body.find(b'"', at)
            gap_end = quote if quote >= 0 else len(body)
            if gap_end - at > LONG_BYTES:
                await self._look_between_strings(at, gap_end)
            if quote < 0:
                return
            if at - self._taken_bytes > KEPT_BYTES_MAX and quote - at < SHORT_BYTES:
                more = _NEXT_OBJECT.search(body, at, quote)
                if more is not None:
                    at = await self._pass_objects(more.end())
                    continue
            at, is_over = look_for_end(body, quote + 1, FIRST_LOOK_BYTES)
            while not is_over:
                at, is_over = look_for_end(body, at)
                steps += STRINGS_A_SLICE
                if steps >= STRINGS_A_TURN:
                    steps = 0
                    await asyncio.sleep(0)
            steps += 1
            if at - quote > LONG_BYTES:
                self._take_out(quote, at, shortened(body, quote, at))
                steps = STRINGS_A_TURN
            elif at - quote > SHORT_BYTES and at - self._taken_bytes > KEPT_BYTES_MAX:
                self._take_out(quote, at, b'""')
            if steps >= STRINGS_A_TURN:
                steps = 0
                await asyncio.sleep(0)

    async def _pass_objects(self, start: int) -> int:
        """Take out the objects of a list from the one at `start` on; returns where they end."""
        body, at, end, depth, steps = self._body, start, start, 0, 0
        while at < len(body):
            flat = _FLAT.match(body, at)
            assert flat is not None
            at, steps = flat.end(), steps + 1
            byte = body[at] if at < len(body) else 0
            if byte == _QUOTE:
                at, is_over = look_for_end(body, at + 1, SLICE_BYTES // 8)
                while not is_over:
                    await asyncio.sleep(0)
                    at, is_over = look_for_end(body, at, SLICE_BYTES // 8)
            elif byte in _BRACKETS:
                at += 1
                depth += 1 if byte in _OPENING else -1
                if depth == 0:
                    end = at
                    more = _AND_OBJECT.match(body, at)
                    if more is None:
                        break
                    at = more.end()
            if steps >= MEMBERS_A_TURN:
                steps = 0
                await asyncio.sleep(0)
        if end > start:
            self._objects.add(len(self._holes))
            self._take_out(start, end, b"{}")
        return max(end, at)

    async def _look_between_strings(self, start: int, end: int) -> None:
        """Between two strings: numbers, and the brackets of lists, which must match."""
        body = self._body
        first, last = body.find(b"[", start, end), body.rfind(b"]", start, end) + 1
        if first < 0 or last - first <= LONG_BYTES:
            return
        opened = closed = 0
        for at in range(first, last, SLICE_BYTES):
            piece = body[at : min(at + SLICE_BYTES, last)]
            if b"{" in piece or b"}" in piece:
                return
            opened += piece.count(b"[")
            closed += piece.count(b"]")
            await asyncio.sleep(0)
        if opened == closed:
            stand_in = _first_numbers(body[first : first + KEPT_NUMBERS_BYTES], opened)
            self._take_out(first, last, stand_in)

    def _take_out(self, start: int, end: int, stand_in: bytes) -> None:
        self._holes.append((start, end))
        self._stand_ins.append(stand_in)
        self._taken_bytes += end - start - len(stand_in)


def _first_numbers(text: bytes, lists: int) -> bytes:
    """The beginning of a list of numbers as a list; an empty one in place of several lists."""
    numbers = text[: text.rfind(b",")]
    return numbers + b"]" * lists if numbers.count(b"[") == lists <= 2 else b"[]"


def is_plain(body: bytes) -> bool:
    """Whether there is nothing to do: it is small, and all of it is ASCII."""
    return len(body) <= OUTLINED_BYTES and body.isascii()


async def outline_of(body: bytes) -> Outline | None:
    """The outline of `body`; None where it is small enough to be parsed as it is.

    Raises BadRequestError for what is not UTF-8: most of a body is forwarded without being decoded.
    """
    if len(body) <= OUTLINED_BYTES:
        if not body.isascii():
            _check_utf8(body)
        return None
    decoder = _Decoder()
    for start in range(0, len(body), SLICE_BYTES):
        end = start + SLICE_BYTES
        try:
            decoder.decode(body[start:end], end >= len(body))
        except UnicodeDecodeError as error:
            raise _no_utf8(error) from None
        await asyncio.sleep(0)
    outline = Outline(body)
    await outline.find_holes()
    return outline


def _check_utf8(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise _no_utf8(error) from None


def _no_utf8(error: UnicodeDecodeError) -> BadRequestError:
    return BadRequestError(f"The request body is not valid JSON: {error}")
