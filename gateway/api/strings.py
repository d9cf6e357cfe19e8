"""JSON strings by their bytes: where one ends, and what stands for one that is too long."""

import msgspec

KEPT_BYTES = 9 << 10
"""The beginning that is left of a long string that can be cut anywhere."""
KEPT_ESCAPED_BYTES = 48 << 10
"""The same of one with escapes or other alphabets: six bytes may be one character."""
SAMPLE_BYTES = 96
"""The middle and the end that are left, to tell one image or sound from another."""
CHARACTER_BYTES_MAX = 12
"""One character as two escapes; a cut moves back by no more."""
SLICE_BYTES = 64 << 10
FIRST_LOOK_BYTES = 256
"""Most strings end within it; looking further is doubled each time."""
BACKSLASH = 0x5C

_TEXT = msgspec.json.Decoder(str)


def end_of_string(text: bytes, at: int) -> int:
    """Index behind the closing quote of the string whose content goes on at `at`.

    The end of `text` where it is cut off before that.
    """
    is_over, size = False, FIRST_LOOK_BYTES
    while not is_over:
        at, is_over = look_for_end(text, at, size)
        size = min(2 * size, SLICE_BYTES)
    return at


def look_for_end(text: bytes, at: int, size: int = SLICE_BYTES) -> tuple[int, bool]:
    """The same within `size` bytes, at least 2: (the end, True), or (where to go on, False)."""
    quote = text.find(b'"', at, at + size)
    if quote >= 0 and (quote == at or text[quote - 1] != BACKSLASH):
        return quote + 1, True
    piece = text[at : at + size]
    if BACKSLASH in piece:
        # Escaped backslashes first: what is left before a quote escapes it.
        piece = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        quote = piece.find(b'"')
        if quote >= 0:
            return at + quote + 1, True
    at += len(piece)
    if at >= len(text):
        return len(text), True
    return at - piece.endswith(b"\\"), False


def shortened(text: bytes, start: int, end: int) -> bytes:
    """A string that begins like the long one in `text` from `start` to `end`, quotes included.

    Of plain ASCII, as images are, also the middle, the end and the length are left.
    """
    assert end - start > KEPT_ESCAPED_BYTES
    if _can_be_cut_anywhere(text, start, end):
        middle = (start + end) // 2
        return b'%b%b%b%d"' % (
            text[start : start + KEPT_BYTES],
            text[middle : middle + SAMPLE_BYTES],
            text[end - SAMPLE_BYTES - 1 : end - 1],
            end - start,
        )
    kept_end = start + KEPT_ESCAPED_BYTES
    for cut in range(kept_end, kept_end - CHARACTER_BYTES_MAX, -1):
        kept = text[start:cut] + b'"'
        try:
            _TEXT.decode(kept)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # a character was cut in two
        return kept
    return b'""'


def _can_be_cut_anywhere(text: bytes, start: int, end: int) -> bool:
    """Whether every byte is a character; never copied as a whole, since it may be megabytes."""
    return text.find(b"\\", start, end) < 0 and all(
        text[at : min(at + SLICE_BYTES, end)].isascii() for at in range(start, end, SLICE_BYTES)
    )
