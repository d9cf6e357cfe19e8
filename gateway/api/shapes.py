"""The shapes in which a route speaks for itself: errors, and signs of life while it waits."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.api import anthropic, openai
from gateway.api.routes import Route
from gateway.errors import GatewayError
from gateway.upstream.sse import Events


@dataclass(frozen=True, slots=True)
class Shape:
    """How one kind of route words what does not come from an engine."""

    error_body: Callable[[GatewayError], bytes]
    error_event: Callable[[GatewayError], bytes]
    """All that ends a stream which failed after its headers were out."""
    waits: Callable[[int, float | None], bytes]
    """What a stream is told while it waits: its position, and its expected wait in seconds."""
    end: bytes = b""
    """What an engine's own error event lacks to end a stream, where the engine leaves it out."""
    id_header: bytes = b"x-request-id"
    """Where clients look for the id of a request."""


CHUNKS = Shape(openai.error_body, openai.error_event, openai.queued, end=openai.DONE_EVENT)
RESPONSE = Shape(openai.error_body, openai.response_error_event, openai.queued)
MESSAGE = Shape(
    anthropic.error_body, anthropic.error_event, anthropic.ping, id_header=b"request-id"
)


def shape_of(route: Route) -> Shape:
    """The shape of a route."""
    if route.is_anthropic:
        return MESSAGE
    return RESPONSE if route.events is Events.RESPONSE else CHUNKS
