"""One request of a workload, and the port through which workloads come, open or closed.

Knows nothing of schedulers, engines or clocks: a job says when it comes and how long it truly is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request as a workload knows it, its true length included, which no scheduler may see."""

    number: int
    """0, 1, 2 ... in order of arrival; unique."""
    arrived_at: float
    """Seconds since the run began."""
    prompt_tokens: int
    output_tokens: int
    """The true length."""
    tier: int = 0
    tenant: str = "default"
    user: str = "anonymous"
    output_tokens_max: int | None = None
    """What the client says."""
    prefix: tuple[int, ...] = ()
    """Ids of 512-token prefix blocks, as in Mooncake's trace."""
    session: str | None = None
    leaves_at: float | None = None
    """The client gives up then."""
    streams: bool = True
    """Else the client sees nothing before the end: it shows no first token, and may begin anew."""


class Source(Protocol):
    """A workload, open or closed."""

    def jobs(self) -> Iterator[Job]:
        """In order of arrival, lazily: a million must not lie in memory."""
        ...

    def ended(self, job: Job, at: float) -> Job | None:
        """What its client sends next (closed loop); None for open ones."""
        ...
