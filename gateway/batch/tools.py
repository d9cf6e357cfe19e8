"""What all that works on batches works with, and how much of it there may be."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.batch.files import Files
from gateway.batch.inside import Serve
from gateway.batch.store import BatchStore, Quota


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds, all configured."""

    quota: Quota
    file_bytes: int
    lines: int
    line_bytes: int
    in_flight: int
    """Lines of one batch that this gateway has under way."""
    attempts: int
    """Of a line whose engine fails."""
    keep_s: float
    """How long files and batches are kept where nobody says otherwise."""
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The outside, as batches see it."""

    store: BatchStore
    files: Files
    limits: Limits
    serve: Serve
    """The relay."""
    wall: Callable[[], float]
    """Seconds since 1970."""
    holder: str
    """Names this process among all that hold leases."""
    is_leaving: Callable[[], bool]
    """Whether nothing new is to be begun."""
