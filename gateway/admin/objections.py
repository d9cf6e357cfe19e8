"""Why what an operator wants is not done, where that is about what is kept and what is in force."""

from gateway.errors import GatewayError


class InvalidDocumentError(GatewayError):
    """What an operator wants does not fit; `param` is the place of the first fault."""

    status, type, code = 400, "invalid_request_error", "invalid_document"


class InUseError(GatewayError):
    """Something else depends on it, which the message names."""

    status, type, code = 409, "invalid_request_error", "in_use"


class TooManyError(GatewayError):
    """A bound on what operators make is reached; the message names it."""

    status, type, code = 409, "invalid_request_error", "too_many"


class PreconditionRequiredError(GatewayError):
    """It is changed only by who says which version it is that should be changed."""

    status, type, code = 428, "invalid_request_error", "precondition_required"
