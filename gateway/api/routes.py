"""The generation routes: which exist, what shape their bodies have, what they cost to decode."""

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route that is relayed to an engine."""

    name: str
    """Short name for metrics and predictions."""
    path: str
    prompts_in: str | None = None
    """Body field that may hold several prompts; None: one prompt a request."""
    output_tokens_default: int | None = None
    """What an engine generates when the client names no maximum; None: unbounded, 0: nothing."""
    summary: str


CHAT = Route(name="chat", path="/v1/chat/completions", summary="Chat completion")
COMPLETIONS = Route(
    name="completions",
    path="/v1/completions",
    prompts_in="prompt",
    output_tokens_default=16,
    summary="Text completion",
)
EMBEDDINGS = Route(
    name="embeddings",
    path="/v1/embeddings",
    prompts_in="input",
    output_tokens_default=0,
    summary="Embeddings",
)

ROUTES = MappingProxyType({route.path: route for route in (CHAT, COMPLETIONS, EMBEDDINGS)})
