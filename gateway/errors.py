"""Everything that can go wrong for a caller: one tree, one table, each with status, type and code.

No framework is known here; the HTTP edge turns an error into the shape of its route.
"""

from dataclasses import dataclass
from types import MappingProxyType

from gateway.core.messages import Reason


class GatewayError(Exception):
    """An answer that is not a success: what the client is told, and how to come back."""

    status = 500
    type = "server_error"
    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry


class BadRequestError(GatewayError):
    """The request cannot be understood."""

    status, type, code = 400, "invalid_request_error", "invalid_request"


class InvalidKeyError(GatewayError):
    """No API key, or one that is not known."""

    status, type, code = 401, "authentication_error", "invalid_api_key"


class ForbiddenError(GatewayError):
    """The key is known but may not do this."""

    status, type, code = 403, "permission_error", "forbidden"


class ModelNotFoundError(GatewayError):
    """No replica serves this model, or the key may not use it: the answers are the same."""

    status, type, code = 404, "invalid_request_error", "model_not_found"


class RouteNotFoundError(GatewayError):
    """There is no such route."""

    status, type, code = 404, "invalid_request_error", "not_found"


class ResponseNotFoundError(GatewayError):
    """No such stored response, or one of somebody else's: the answers are the same."""

    status, type, code = 404, "invalid_request_error", "response_not_found"


class FileIdNotFoundError(GatewayError):
    """No such file, or one of somebody else's: the answers are the same."""

    status, type, code = 404, "invalid_request_error", "file_not_found"


class BatchNotFoundError(GatewayError):
    """No such batch, or one of somebody else's: the answers are the same."""

    status, type, code = 404, "invalid_request_error", "batch_not_found"


class BatchStateConflictError(GatewayError):
    """What is asked for does not go with the state that a batch is in."""

    status, type, code = 409, "invalid_request_error", "batch_state_conflict"


class BatchQuotaError(GatewayError):
    """There is as much of files or batches as there may be: something has to go first."""

    status, type, code = 429, "insufficient_quota", "quota_exceeded"

    def __init__(self, message: str) -> None:
        super().__init__(message, should_retry=False)


class BatchStoreError(GatewayError):
    """What keeps files and batches cannot be used now."""

    status, type, code = 503, "service_unavailable", "batch_store_unavailable"


class ResponseCancelledError(GatewayError):
    """The response whose events are told was cancelled by another request."""

    status, type, code = 409, "invalid_request_error", "response_cancelled"


class MethodNotAllowedError(GatewayError):
    """The route exists, for another method."""

    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class BodyTooLargeError(GatewayError):
    """The body exceeds a bound, which the message names."""

    status, type, code = 413, "invalid_request_error", "request_too_large"


class StorageFullError(GatewayError):
    """What has to be stored before it can be sent on finds no room, or cannot be read again.

    A fault of this machine's.
    """

    status, type, code = 507, "server_error", "storage_full"


class OverloadedError(GatewayError):
    """The gateway itself has too much to do, or too little to do it with."""

    status, type, code = 503, "service_unavailable", "over_capacity"


class CancelledByOperatorError(GatewayError):
    """An operator ended the request; to send it again is not what was wanted."""

    status, type, code = 503, "service_unavailable", "cancelled_by_operator"

    def __init__(self) -> None:
        super().__init__("An operator of the gateway ended this request.", should_retry=False)


class LimitError(GatewayError):
    """A limit of a tenant, a user or a key stands against the request; nothing was used."""

    limit: str
    """`requests`, `tokens` or `budget`."""
    scope: str
    """`tenant`, `user` or `key`."""


class RateLimitedError(LimitError):
    """As much as may be used within a minute was used."""

    status, type, code = 429, "requests", "rate_limit_exceeded"

    def __init__(self, limit: str, scope: str, *, most: int, retry_after_s: float) -> None:
        super().__init__(
            f"Rate limit reached for {_OF[scope]}: {most} {limit} per minute. "
            f"Please try again in {retry_after_s:.3f}s.",
            retry_after_s=retry_after_s,
            should_retry=True,
        )
        self.type = limit  # as OpenAI has it
        self.limit, self.scope = limit, scope


class QuotaSpentError(LimitError):
    """The budget of a day or month is spent, or held by requests under way."""

    status, type, code = 429, "insufficient_quota", "insufficient_quota"

    def __init__(
        self, scope: str, *, most: int, per: str, is_final: bool, retry_after_s: float
    ) -> None:
        """`is_final`: it is spent until the period ends, whatever those under way give back."""
        state = "is used up" if is_final else "is held by requests under way"
        super().__init__(
            f"The budget of {_OF[scope]}, {most} tokens per {per}, {state}.",
            retry_after_s=retry_after_s,
            should_retry=not is_final,
        )
        self.limit, self.scope = "budget", scope


class BeyondLimitError(LimitError):
    """The request alone is more than a limit ever allows: to wait would be in vain."""

    status, type, code = 400, "invalid_request_error", "request_exceeds_limit"

    def __init__(self, limit: str, scope: str, *, most: int, per: str, requested: int) -> None:
        super().__init__(
            f"This request asks for about {requested} tokens, prompt and output together; "
            f"the limit of {_OF[scope]} is {most} tokens per {per}."
        )
        self.limit, self.scope = limit, scope


class UpstreamFailedError(GatewayError):
    """The engine, or the way to it, broke before it answered."""

    status, type, code = 502, "server_error", "upstream_failed"


class UpstreamTimeoutError(GatewayError):
    """The engine kept the connection and did nothing any more."""

    status, type, code = 504, "server_error", "upstream_timeout"


class EngineRefusedError(GatewayError):
    """The engine answered with an error of its own: passed on, in our shape."""

    def __init__(self, message: str, *, status: int, param: str | None, kind: str | None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.type, self.code = _ENGINE_WORDS.get(status, _engine_words_of_class(status))
        self.kind = kind
        """The engine's own word for it."""


class RefusedError(GatewayError):
    """The scheduler refused: see `REFUSALS` for what each reason becomes."""

    def __init__(self, reason: Reason, retry_after_s: float | None) -> None:
        refusal = REFUSALS[reason]
        super().__init__(
            refusal.message, retry_after_s=retry_after_s if refusal.passes_with_time else None
        )
        self.reason = reason
        self.status, self.type, self.code = refusal.status, refusal.type, refusal.code


_OF = MappingProxyType({"tenant": "your organisation", "user": "this user", "key": "this API key"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """How one reason of the scheduler is told to the client."""

    status: int
    type: str
    code: str
    message: str
    passes_with_time: bool = True
    """False: the same request would be refused again, so no hint says when to come back."""


REFUSALS = MappingProxyType(
    {
        Reason.USER_QUEUE_FULL: Refusal(
            429, "rate_limit_error", "rate_limit_exceeded", "Too many of your requests are waiting."
        ),
        Reason.QUEUE_FULL: Refusal(
            429, "rate_limit_error", "over_capacity", "Too many requests are waiting."
        ),
        Reason.SHED: Refusal(
            429, "rate_limit_error", "over_capacity",
            "The queue is full and this request gave way: its flow holds the most of it.",
        ),
        Reason.TENANT_QUEUE_FULL: Refusal(
            429, "rate_limit_error", "rate_limit_exceeded",
            "Too many requests of your organisation are waiting.",
        ),
        Reason.PATIENCE_SPENT: Refusal(
            429, "rate_limit_error", "patience_spent",
            "No replica became free within the time this request may wait.",
        ),
        Reason.WAIT_TOO_LONG: Refusal(
            429, "rate_limit_error", "patience_spent",
            "Refused on arrival: most likely no replica would become free within the time this "
            "request may wait.",
        ),
        Reason.PROMPT_TOO_LONG: Refusal(
            400, "invalid_request_error", "context_length_exceeded",
            "The prompt is longer than any replica of this model can hold.",
            passes_with_time=False,
        ),
        Reason.NO_REPLICA: Refusal(
            503, "service_unavailable", "no_replica", "No replica can serve this model now."
        ),
        Reason.SHUTTING_DOWN: Refusal(
            503, "service_unavailable", "draining", "This gateway is shutting down."
        ),
    }
)  # fmt: skip

_ENGINE_WORDS = {
    400: ("invalid_request_error", "invalid_request"),
    401: ("server_error", "upstream_failed"),
    404: ("invalid_request_error", "not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "over_capacity"),
    422: ("invalid_request_error", "invalid_request"),
    503: ("service_unavailable", "over_capacity"),
}


def _engine_words_of_class(status: int) -> tuple[str, str]:
    if status >= 500:
        return "server_error", "upstream_failed"
    return "invalid_request_error", "invalid_request"
