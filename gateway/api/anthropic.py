"""Anthropic's shapes: how errors and signs of life look on its routes."""

import orjson

from gateway.errors import GatewayError

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: GatewayError) -> bytes:
    """The body of an error answer: `{"type":"error","error":{...}}`, as its SDKs read it.

    The code is more than Anthropic tells: programs should not have to read the message.
    """
    kind = _TYPES.get(error.status)
    if kind is None:
        kind = "api_error" if error.status >= 500 else "invalid_request_error"
    told = {"type": kind, "message": error.message, "code": error.code}
    return orjson.dumps({"type": "error", "error": told})


def error_event(error: GatewayError) -> bytes:
    """The last event of a stream that failed after its headers were out."""
    return b"event: error\ndata: %b\n\n" % error_body(error)


def ping(position: int, eta_s: float | None) -> bytes:
    """The sign of life of a stream that waits; its clients know no other, so it says no more."""
    return PING
