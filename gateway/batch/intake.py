"""A file on its way in: a multipart form whose file goes to the storage while it comes.

What the file holds is not looked at here; a form that is wrong, or larger than may be, leaves
nothing behind.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.batch.files import Writer
from gateway.errors import BadRequestError, BodyTooLargeError

FIELD_BYTES_MAX = 4 << 10
FIELDS_MAX = 16
HEADER_BYTES_MAX = 8 << 10
FORM_BYTES_MAX = 64 << 10
"""Of all in a form that is not the file."""
NAME_CHARS_MAX = 255
STORED_BYTES = 1 << 20
"""So much is written at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What came besides the bytes of the file."""

    name: str
    fields: dict[str, str]


class _Parts:
    """What the parser finds."""

    def __init__(self, boundary: bytes) -> None:
        self._parser: Final = MultipartParser(
            boundary,
            {
                "on_part_begin": self._began,
                "on_header_field": self._header_named,
                "on_header_value": self._header_valued,
                "on_header_end": self._header_ended,
                "on_headers_finished": self._headers_ended,
                "on_part_data": self._came,
                "on_part_end": self._part_ended,
                "on_end": self._ended,
            },
        )
        self.fields: dict[str, str] = {}
        self.name: str | None = None
        """Of the file; None: none has begun."""
        self.data = bytearray()
        """Of the file, not stored yet."""
        self.is_whole = False
        self._parts = 0
        self._header, self._value, self._disposition = bytearray(), bytearray(), b""
        self._field_name = ""
        self._field = bytearray()
        self._is_file = False

    def feed(self, data: bytes) -> None:
        """The next bytes of the form. Raises BadRequestError."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise BadRequestError(f"The form cannot be read: {error}.") from None

    def _began(self) -> None:
        self._parts += 1
        if self._parts > FIELDS_MAX:
            raise BadRequestError(f"The form has more than {FIELDS_MAX} parts.")
        self._header.clear()
        self._value.clear()
        self._field.clear()
        self._disposition = b""

    def _header_named(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._bound(self._header, HEADER_BYTES_MAX)

    def _header_valued(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._bound(self._value, HEADER_BYTES_MAX)

    def _header_ended(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _headers_ended(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._field_name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = self._field_name == "file"
        if self._is_file:
            if self.name is not None:
                raise BadRequestError("The form has more than one file.", param="file")
            name = options.get(b"filename", b"").decode("utf-8", "replace")
            self.name = name[-NAME_CHARS_MAX:] or "file"

    def _came(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.data += data[start:end]
            return
        self._field += data[start:end]
        self._bound(self._field, FIELD_BYTES_MAX)

    def _part_ended(self) -> None:
        if not self._is_file:
            self.fields[self._field_name] = self._field.decode("utf-8", "replace")

    def _ended(self) -> None:
        self.is_whole = True

    def _bound(self, kept: bytearray, most: int) -> None:
        if len(kept) > most:
            raise BadRequestError(f"A part of the form that is no file has over {most} bytes.")


async def received(
    pieces: AsyncIterator[bytes],
    writer: Writer,
    *,
    content_type: bytes | None,
    length: bytes | None,
    bytes_max: int,
) -> Form:
    """Store the file of a form with `writer`, which is closed then.

    Raises BadRequestError, BodyTooLargeError before more is read than may be, and FilesError;
    whoever calls abandons the writer then.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BadRequestError("The request body must be a form: multipart/form-data.")
    if length is not None and length.isdigit() and int(length) > bytes_max + FORM_BYTES_MAX:
        raise _too_large(bytes_max)
    try:
        parts = _Parts(boundary)
    except FormParserError as error:
        raise BadRequestError(f"The form cannot be read: {error}.") from None
    size = 0
    async for piece in pieces:
        size += len(piece)
        parts.feed(piece)
        held = len(parts.data)
        if writer.size + held > bytes_max or size > bytes_max + FORM_BYTES_MAX:
            raise _too_large(bytes_max)
        if held >= STORED_BYTES:
            await _store(parts, writer)
    if not parts.is_whole:
        raise BadRequestError("The form ends before its last boundary.")
    if parts.name is None:
        raise BadRequestError("The form has no file.", param="file")
    await _store(parts, writer)
    await writer.close()
    return Form(name=parts.name, fields=parts.fields)


async def _store(parts: _Parts, writer: Writer) -> None:
    data = bytes(parts.data)
    parts.data.clear()
    await writer.write(data)


def _too_large(bytes_max: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"A file may have {bytes_max} bytes at most (batches.file): split it.", param="file"
    )
