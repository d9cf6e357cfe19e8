"""What comes out of httpx where no answer does, for every question that a gateway asks by itself.

Which of it means that nobody listens, and what follows from that, is the caller's affair.
"""

from typing import Final

import httpx

UNANSWERED: Final = (
    httpx.HTTPError,
    httpx.StreamError,
    httpx.InvalidURL,
    OSError,
    TimeoutError,
    AttributeError,
)
"""The last one because of connections that break as soon as they are made: httpcore asks what is
left of such a socket about its TLS, and there is none."""
