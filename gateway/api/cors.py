"""Which web pages may use the gateway from a browser."""

from collections.abc import Sequence

from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

EXPOSED_HEADERS = (
    "x-request-id", "request-id", "x-fairgate-tier", "x-fairgate-queue-ms", "x-fairgate-replica",
    "x-fairgate-position", "x-fairgate-model", "retry-after", "retry-after-ms", "x-should-retry",
    "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-requests-reset", "anthropic-ratelimit-tokens-limit",
    "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset",
)  # fmt: skip
"""What a web page of an allowed origin may read beside the body."""


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """`app` for pages of these origins, too."""
    if not origins:
        return app
    # In front of everything: what a page may not read it may as well not have asked.
    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=list(EXPOSED_HEADERS),
    )
