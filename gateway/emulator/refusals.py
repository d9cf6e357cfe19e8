"""The engine's error answers, byte for byte: two styles of 400, and the others.

Knows shapes only, OpenAI's and Anthropic's; `calls.py` finds what is wrong.
"""

import json

import orjson

BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
CRASHED = "EngineCore encountered an issue. See stack trace (above) for the root cause."
DRAINING = "cannot schedule new futures after shutdown"
SCHEMA_KIND = "Bad Request"
"""Type of errors about the shape of a body, which look alike on all routes."""


class Refusal(Exception):
    """An answer other than the one asked for."""

    def __init__(
        self,
        status: int,
        body: bytes,
        *,
        kind: str = "",
        message: str = "",
        as_event: bytes = b"",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(status, body)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = headers
        self.body = body
        """The whole JSON."""
        self.as_event = as_event
        """The same as an event of a stream that has its 200 already; spaced as recorded there."""

    def for_messages(self) -> "Refusal":
        """The same as an Anthropic route answers it."""
        if self.kind in ("", SCHEMA_KIND):
            return self
        error = {"type": "error", "error": {"type": self.kind, "message": self.message}}
        return Refusal(self.status, orjson.dumps(error), kind=self.kind, message=self.message)


def refusal(status: int, message: str, kind: str, *, param: str | None = None) -> Refusal:
    """An error in vLLM's own shape."""
    error = {"error": {"message": message, "type": kind, "param": param, "code": status}}
    event = f"data: {json.dumps(error)}\n\n".encode()
    body = orjson.dumps(error)
    return Refusal(status, body, kind=kind, message=message, as_event=event)


def bad_request(message: str, *, param: str | None = None, value: object = None) -> Refusal:
    """A 400 of the semantic style; with `param` the message names it, and its value if any."""
    if param is not None:
        shown = "" if value is None else f", value={value}"
        message = f"{message} (parameter={param}{shown})"
    return refusal(400, message, "BadRequestError", param=param)


def unknown_model(name: str, known: str) -> Refusal:
    """404 for a model that this engine does not serve."""
    message = f"The model `{name}` does not exist. Valid aliases: {known}."
    return refusal(404, message, "NotFoundError", param="model")


def unknown_response(id: str) -> Refusal:
    """404 for a stored response that this engine does not have."""
    message = f"Response with id '{id}' not found."
    return refusal(404, message, "invalid_request_error", param="response_id")


def not_cancellable() -> Refusal:
    """400 for a response that nothing is left of to cancel."""
    message = "Cannot cancel a synchronous response."
    return refusal(400, message, "invalid_request_error", param="response_id")


def busy() -> Refusal:
    """503, the queue limit is reached."""
    return refusal(503, BUSY, "Service Unavailable")


def crashed() -> Refusal:
    """500, the engine core is gone."""
    return refusal(500, CRASHED, "InternalServerError")


def draining() -> Refusal:
    """500 of an engine that was told to stop and finishes what it has."""
    return refusal(500, DRAINING, "InternalServerError")


def unauthorized() -> Refusal:
    """401, whose error is a string where all others have an object."""
    return Refusal(401, b'{"error":"Unauthorized"}')


def not_found() -> Refusal:
    """404 of the web framework: no such route."""
    return Refusal(404, b'{"detail":"Not Found"}')


def method_not_allowed(allowed: str) -> Refusal:
    """405 of the web framework."""
    headers = ((b"allow", allowed.encode()),)
    return Refusal(405, b'{"detail":"Method Not Allowed"}', headers=headers)
