"""One line of a batch's input: what it must be, and its body as it was written.

A body is kept byte for byte; what is in it is the route's affair, and is judged when it runs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

CUSTOM_ID_CHARS_MAX = 512
EMPTY = msgspec.Raw(b"")
BLANK = b" \t\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with a line, or with the file where `line` is None; lines count from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One request of a batch."""

    custom_id: str
    body: bytes


class _Written(msgspec.Struct):
    """A line as it must be written; all else in it is passed over."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Wish(msgspec.Struct):
    """What of a body is looked at before it is sent."""

    model: msgspec.Raw = EMPTY
    stream: msgspec.Raw = EMPTY


_LINES = msgspec.json.Decoder(_Written)
_WISHES = msgspec.json.Decoder(_Wish)


def parsed(data: bytes) -> Line:
    """The request in a line that was found valid."""
    written = _LINES.decode(data)
    return Line(custom_id=written.custom_id, body=bytes(written.body))


def examined(data: bytes, *, number: int, endpoint: str) -> Line | Fault:
    """The request in line `number`, or what is wrong with it."""
    try:
        written = _LINES.decode(data)
    except msgspec.ValidationError as error:
        text = f"A line is an object with custom_id, method, url and body: {error}."
        return Fault(code="invalid_line", message=text, line=number)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Fault(code="invalid_json_line", message="This line is no JSON.", line=number)
    if not 0 < len(written.custom_id) <= CUSTOM_ID_CHARS_MAX:
        text = f"custom_id must have 1 to {CUSTOM_ID_CHARS_MAX} characters."
        return Fault(code="invalid_custom_id", message=text, line=number, param="custom_id")
    if written.method != "POST":
        text = "method must be POST."
        return Fault(code="invalid_method", message=text, line=number, param="method")
    if written.url != endpoint:
        text = f"url must be the endpoint of the batch, {endpoint}."
        return Fault(code="mismatched_url", message=text, line=number, param="url")
    body = bytes(written.body)
    objection = _objection(body)
    if objection is not None:
        param, text = objection
        return Fault(code="invalid_body", message=text, line=number, param=param)
    return Line(custom_id=written.custom_id, body=body)


def whole_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """(the lines that end in `data`, without their ends; what is left of it)."""
    *lines, rest = data.split(b"\n")
    return lines, rest


def is_blank(line: bytes) -> bool:
    """Whether nothing stands in it: it is passed over."""
    return not line.strip(BLANK)


class Tally:
    """Counts the lines of a file and cuts them into parts, of which each can be worked on alone."""

    def __init__(
        self,
        *,
        endpoint: str,
        lines_max: int,
        line_bytes_max: int,
        part_lines: int,
        faults_max: int,
    ) -> None:
        self._endpoint = endpoint
        self._lines_max = lines_max
        self._line_bytes_max = line_bytes_max
        self._part_lines = part_lines
        self._faults_max = faults_max
        self._seen: set[int] = set()
        self.number = 0
        """Of the line that was looked at last, from 1."""
        self.lines = 0
        """Requests so far."""
        self.starts: list[tuple[int, int]] = []
        """Of each part: the number of its first request, and where that stands in the file."""
        self.faults: list[Fault] = []

    @property
    def is_hopeless(self) -> bool:
        """Whether there are more faults than are told: the rest need not be read."""
        return len(self.faults) >= self._faults_max

    def count(self, lines: Iterable[bytes], at: int) -> None:
        """Look at lines that follow on those before; the first of them begins at byte `at`."""
        for data in lines:
            self.number += 1
            if not is_blank(data):
                self._examine(data, at)
                if self.is_hopeless:
                    return
            at += len(data) + 1

    def too_long(self, number: int) -> None:
        """Line `number` has more bytes than a request may have."""
        text = f"A request may have {self._line_bytes_max} bytes (bounds.body); this has more."
        self.faults.append(Fault(code="line_too_long", message=text, line=number))

    def verdict(self) -> tuple[Fault, ...]:
        """All that is wrong, once the file has ended; nothing: it is valid."""
        if not self.lines and not self.faults:
            return (Fault(code="empty_file", message="The file has no requests."),)
        return tuple(self.faults[: self._faults_max])

    def _examine(self, data: bytes, at: int) -> None:
        if self.lines >= self._lines_max:
            text = f"The file has more than {self._lines_max} requests."
            self.faults = [*self.faults, Fault(code="too_many_requests", message=text)]
            self._faults_max = len(self.faults)
            return
        if len(data) > self._line_bytes_max:
            self.too_long(self.number)
            return
        found = examined(data, number=self.number, endpoint=self._endpoint)
        if isinstance(found, Fault):
            self.faults.append(found)
            return
        key = hash(found.custom_id)  # of 64 bits: fifty thousand ids would take megabytes
        if key in self._seen:
            text = "Another line has this custom_id."
            fault = Fault(
                code="duplicate_custom_id", message=text, line=self.number, param="custom_id"
            )
            self.faults.append(fault)
            return
        self._seen.add(key)
        if self.lines % self._part_lines == 0:
            self.starts.append((self.lines, at))
        self.lines += 1


def requests_in(lines: Iterable[bytes]) -> Iterator[Line]:
    """The requests in lines of a valid file."""
    return (parsed(data) for data in lines if not is_blank(data))


def _objection(body: bytes) -> tuple[str, str] | None:
    """(the field, why it is refused); None: the body may be sent."""
    try:
        wish = _WISHES.decode(body)
    except msgspec.ValidationError:
        return "body", "body must be an object."
    if not bytes(wish.model).startswith(b'"'):
        return "body.model", "body.model must be the name of a model."
    if bytes(wish.stream) not in (b"", b"false", b"null"):
        return "body.stream", "A batch has no streams: leave body.stream out."
    return None
