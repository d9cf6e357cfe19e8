"""OpenAI's shapes: how errors look, and how an engine's errors are read and passed on."""

import math
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.messages import Fault
from gateway.errors import EngineRefusedError, GatewayError, UpstreamFailedError

ERROR_MESSAGE_CHARS_MAX = 4_096
BUSY_WORDS = ("currently busy", "queue is full", "overloaded", "backlog limit")
"""vLLM, SGLang and TGI in their own words; a 503 or 429 without one is not backpressure."""
LEAVING_WORDS = ("cannot schedule new futures", "shutting down")
"""vLLM 0.32, told to stop, finishes what runs and answers all else with 500 and the first."""

DONE_EVENT = b"data: [DONE]\n\n"


def error_object(error: GatewayError) -> dict[str, Any]:
    """`{"error": {...}}` with a string code, as OpenAI's clients expect it."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_body(error: GatewayError) -> bytes:
    """The body of an error answer."""
    return orjson.dumps(error_object(error))


def error_event(error: GatewayError) -> bytes:
    """The last events of a stream that failed after its headers were out."""
    return b"data: %b\n\n%b" % (error_body(error), DONE_EVENT)


def response_error_event(error: GatewayError) -> bytes:
    """The same for a stream of the Responses API: its own event, which its clients know by name.

    The clients' libraries raise for what stands under `error`, and stop at `[DONE]`.
    """
    told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    event = orjson.dumps({**told, "sequence_number": 0, **error_object(error)})
    return b"event: error\ndata: %b\n\n%b" % (event, DONE_EVENT)


def queued(position: int, eta_s: float | None) -> bytes:
    """A comment that tells a waiting stream where it stands.

    It has no `id:` field: clients would turn later comments into empty events.
    """
    eta = "unknown" if eta_s is None else f"{eta_s:.1f}"
    return f": queued position={position} eta_s={eta}\n\n".encode("ascii")


def retry_headers(error: GatewayError) -> list[tuple[bytes, bytes]]:
    """When, and whether, a client should come back."""
    headers = []
    if error.retry_after_s is not None:
        # Rounded up: who comes back sooner than he was told would be refused again.
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
        headers.append((b"retry-after-ms", b"%d" % max(1, round(error.retry_after_s * 1000))))
    if error.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if error.should_retry else b"false"))
    return headers


@dataclass(frozen=True, slots=True)
class EngineError:
    """What an engine said went wrong."""

    status: int
    message: str
    param: str | None = None
    kind: str | None = None

    @property
    def is_busy(self) -> bool:
        """Backpressure: no fault of the engine's nor of the client's."""
        return self.status in (429, 503) and any(word in self.message for word in BUSY_WORDS)

    @property
    def fault(self) -> Fault | None:
        """What of the engine is to blame; None: nothing, be it busy or asked for the impossible."""
        if self.status < 500 or self.is_busy:
            return None
        is_leaving = any(word in self.message for word in LEAVING_WORDS)
        return Fault.DRAINING if is_leaving else Fault.SERVER_ERROR

    def as_error(self) -> GatewayError:
        """What the client is told when nobody else can answer."""
        if self.status >= 500 or self.status == 401:
            return UpstreamFailedError(f"The engine failed: {self.message}")
        return EngineRefusedError(
            self.message, status=self.status, param=self.param, kind=self.kind
        )

    @property
    def is_clients(self) -> bool:
        """Whether the request itself is at fault, so that no other replica would take it."""
        return self.status < 500 and self.status != 401


def engine_error(status: int, body: bytes) -> EngineError:
    """Read an engine's error body, in any of the shapes that engines use.

    `status` 200 is an error event inside a stream: its own `code` counts then.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return EngineError(status, _cut(body.decode("utf-8", "replace")) or "no message")
    if not isinstance(content, dict):
        return EngineError(status, _cut(str(content)))
    response = content.get("response")  # of a `response.failed`
    inner = content.get("error", content)
    if isinstance(response, dict) and isinstance(response.get("error"), dict):
        inner = response["error"]
    if not isinstance(inner, dict):
        return EngineError(_status(status, None), _cut(str(inner)))
    message = inner.get("message") or inner.get("detail") or inner.get("error") or "no message"
    param, kind = inner.get("param"), inner.get("type")
    return EngineError(
        _status(status, inner.get("code")),
        _cut(message if isinstance(message, str) else str(message)),
        param if isinstance(param, str) else None,
        kind if isinstance(kind, str) else None,
    )


def _status(status: int, code: object) -> int:
    if status >= 400:
        return status
    if isinstance(code, str) and code.isdecimal():
        code = int(code)  # the Responses API has strings there
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def _cut(message: str) -> str:
    return message[:ERROR_MESSAGE_CHARS_MAX]
