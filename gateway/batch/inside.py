"""One line of a batch as a request of its key, without a connection: what any client would get.

It goes through the relay like all others, so limits, tiers, retries and accounts are the same.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from gateway.api.disconnect import DEPARTURE, Departure, Receive, Scope, Send
from gateway.api.errand import ERRAND, Errand
from gateway.api.routes import ROUTES, Route
from gateway.batch.outcome import Answer

ANSWER_BYTES_MAX = 64 << 20
"""A longer answer is not kept."""

Serve = Callable[[Scope, Receive, Send, Route], Awaitable[None]]


class AnswerTooLargeError(Exception):
    """The answer has more bytes than may be kept of one."""


class _Error(msgspec.Struct):
    code: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


_ERRORS = msgspec.json.Decoder(_ErrorBody)


class _Client:
    """What stands where a connection would: gives one body, and takes one answer."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._pieces: list[bytes] = []
        self._size = 0
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._is_whole = False
        self.departure = Departure()
        self.is_flooded = False
        """Whether the answer has more bytes than are kept."""

    async def receive(self) -> MutableMapping[str, Any]:
        """The body, once: a client of this kind never leaves."""
        body, self._body = self._body, None
        assert body is not None, "a Departure tells of leaving"
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Take what comes; who is sent too much leaves."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = dict(message["headers"])
            return
        data = message.get("body", b"")
        self._size += len(data)
        if self._size > ANSWER_BYTES_MAX:
            self.is_flooded = True
            self._pieces.clear()
            self.departure.happened()
            return
        self._pieces.append(data)
        self._is_whole = not message.get("more_body", False)

    def answer(self) -> Answer:
        """All of it; one that broke off has the status 0."""
        body = b"".join(self._pieces)
        headers = self._headers
        status = self._status if self._is_whole else 0
        return Answer(
            status=status,
            request_id=headers.get(b"x-request-id", b"").decode("latin-1"),
            body=body,
            code=None if status < 400 else _code_in(body),
            retry_after_s=_retry_after_s(headers),
            should_retry=_should_retry(headers),
        )


async def answered(
    serve: Serve, path: str, body: bytes, *, headers: list[tuple[bytes, bytes]], errand: Errand
) -> Answer:
    """What `serve` answers to a POST of `body`. Raises AnswerTooLargeError."""
    client = _Client(body)
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *headers,
        ],
        DEPARTURE: client.departure,
        ERRAND: errand,
    }
    await serve(scope, client.receive, client.send, ROUTES[path])
    if client.is_flooded:
        raise AnswerTooLargeError
    return client.answer()


def _code_in(body: bytes) -> str | None:
    try:
        return _ERRORS.decode(body).error.code
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _retry_after_s(headers: dict[bytes, bytes]) -> float | None:
    for name, unit_s in ((b"retry-after-ms", 1e-3), (b"retry-after", 1.0)):
        try:
            return float(headers[name]) * unit_s
        except (KeyError, ValueError):
            continue
    return None


def _should_retry(headers: dict[bytes, bytes]) -> bool | None:
    word = headers.get(b"x-should-retry")
    return None if word is None else word == b"true"
