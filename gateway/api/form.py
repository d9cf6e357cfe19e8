"""From a multipart form to a `Call`: its small fields are read in passing, its files never held.

The form is stored while it comes, so that a slow client holds no engine and a retry can send it
again. What the fields mean to an engine is the engine's business, but for those read here.
"""

from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.api.call import Call
from gateway.api.disconnect import Receive
from gateway.api.fields import NO_GENERATION
from gateway.api.routes import Route
from gateway.api.upload import Spool, Upload
from gateway.api.wire import REMOVED_FIELDS, more_body, too_large
from gateway.errors import BadRequestError

FIELD_BYTES_MAX = 64 << 10
"""Of one field that is no file."""
PARTS_MAX = 128
READ_FIELDS = frozenset(
    {
        "model", "stream", "stream_include_usage", "user", "safety_identifier", "service_tier",
        "prompt_cache_key", "max_completion_tokens", "max_tokens",
    }
)  # fmt: skip
"""What is kept of a form; each may stand in it once."""
TRUE = frozenset({"true", "1", "t", "yes", "y", "on"})
FALSE = frozenset({"false", "0", "f", "no", "n", "off", ""})
"""Pydantic's words, which engines read forms with."""


async def read_form(
    route: Route,
    receive: Receive,
    *,
    content_type: bytes | None,
    bytes_max: int,
    length: bytes | None = None,
) -> Call:
    """The call in a form; whoever gets it closes its `upload`.

    Raises BadRequestError, BodyTooLargeError before more is read than may be, StorageFullError,
    OverloadedError and ClientLeftError; then nothing is left to be closed.
    """
    boundary = _boundary(content_type)
    if length is not None and length.isdigit() and int(length) > bytes_max:
        raise too_large(bytes_max)
    form, spool = _Form(boundary), Spool()
    try:
        has_more = True
        while has_more:
            message = await more_body(receive)
            data: bytes = message.get("body", b"")
            has_more = message.get("more_body", False)
            if spool.length + len(data) > bytes_max:
                raise too_large(bytes_max)
            form.feed(data)
            await spool.add(data)
        return _call(route, form, spool, content_type or b"")
    except BaseException:
        spool.close()
        raise


class _Form:
    """What the parser finds in a form."""

    def __init__(self, boundary: bytes) -> None:
        try:
            self._parser: Final = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_began,
                    "on_header_field": self._header_named,
                    "on_header_value": self._header_valued,
                    "on_header_end": self._header_ended,
                    "on_headers_finished": self._headers_ended,
                    "on_part_data": self._came,
                    "on_part_end": self._part_ended,
                    "on_end": self._ended,
                },
            )
        except FormParserError as error:
            raise BadRequestError(f"The form cannot be read: {error}.") from None
        self.fields: dict[str, str] = {}
        self.model_at = (0, 0)
        self.file_bytes = 0
        self.is_whole = False
        self._fed: bytes = b""
        self._fed_before = 0
        self._parts = 0
        self._header = self._value = b""
        self._disposition = b""
        self._name = ""
        self._is_file = False
        self._field = bytearray()
        self._began_at: int | None = None

    def feed(self, data: bytes) -> None:
        """The next bytes of the form. Raises BadRequestError."""
        self._fed = data
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise BadRequestError(f"The form cannot be read: {error}.") from None
        self._fed_before += len(data)

    def _part_began(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise BadRequestError(f"The form has more than {PARTS_MAX} parts.")
        self._header = self._value = self._disposition = b""
        self._field.clear()
        self._began_at = None

    def _header_named(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_valued(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ended(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _headers_ended(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise BadRequestError("A part of the form has no name.")
        self._name = options[b"name"].decode("utf-8", "replace")
        self._is_file = b"filename" in options
        if self._name in REMOVED_FIELDS:
            raise BadRequestError(f"`{self._name}` cannot be set by clients.", param=self._name)
        if self._name in READ_FIELDS and (self._is_file or self._name in self.fields):
            raise BadRequestError(f"`{self._name}` must be one field.", param=self._name)

    def _came(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.file_bytes += end - start
            return
        if len(self._field) + end - start > FIELD_BYTES_MAX:
            raise BadRequestError(
                f"`{self._name}` is longer than {FIELD_BYTES_MAX} bytes.", param=self._name
            )
        if not self._field and data is self._fed:
            self._began_at = self._fed_before + start
        self._field += data[start:end]

    def _part_ended(self) -> None:
        if self._is_file or self._name not in READ_FIELDS:
            return
        try:
            self.fields[self._name] = self._field.decode()
        except UnicodeDecodeError:
            raise BadRequestError(f"`{self._name}` must be UTF-8.", param=self._name) from None
        if self._name == "model" and self._began_at is not None:
            self.model_at = (self._began_at, self._began_at + len(self._field))

    def _ended(self) -> None:
        self.is_whole = True


def _call(route: Route, form: _Form, spool: Spool, content_type: bytes) -> Call:
    if not form.is_whole:
        raise BadRequestError("The form ends before its last boundary.")
    fields = form.fields
    if fields.get("model") and form.model_at == (0, 0):
        raise BadRequestError("`model` must be the name of a model.", param="model")
    return Call(
        route=route,
        model=fields.get("model") or None,
        streams=_flag(fields, "stream"),
        body=b"",
        sequences=1,
        prompt_tokens=None,
        output_tokens_max=_output_tokens_max(route, fields),
        service_tier=fields.get("service_tier") or None,
        user=fields.get("user") or fields.get("safety_identifier") or None,
        session=fields.get("prompt_cache_key"),
        wants_usage=_flag(fields, "stream_include_usage"),
        fields=NO_GENERATION,
        upload=Upload(
            spool,
            content_type=content_type,
            model_at=form.model_at,
            file_bytes=form.file_bytes,
        ),
    )


def _boundary(content_type: bytes | None) -> bytes:
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise BadRequestError("The request body must be a form: multipart/form-data.")
    boundary = options.get(b"boundary")
    if not boundary:
        raise BadRequestError("The content-type of the form names no boundary.")
    return boundary


def _flag(fields: dict[str, str], name: str) -> bool:
    word = fields.get(name, "").lower()
    if word not in TRUE and word not in FALSE:
        raise BadRequestError(f"`{name}` must be true or false.", param=name)
    return word in TRUE


def _output_tokens_max(route: Route, fields: dict[str, str]) -> int | None:
    for name in route.output_tokens_in:
        text = fields.get(name)
        if text:
            try:
                return max(1, int(text))
            except ValueError:
                raise BadRequestError(f"`{name}` must be an integer.", param=name) from None
    return route.output_tokens_default
