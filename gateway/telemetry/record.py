"""One request, settled: the single value from which metrics and log lines are made.

It holds no prompt, no output and no key.
"""

import msgspec

from gateway.core.messages import Usage


class SettledRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How one request went, in seconds and tokens; names as configured, never as guessed."""

    request_id: str
    route: str
    model: str
    tenant: str
    user: str
    tier: str
    replica: str
    """The last replica it was granted; empty when it never was."""
    outcome: str
    """`done`, `cancelled`, or the code of the error the client got."""
    status: int
    attempts: int
    """Exchanges with engines that were begun or waited for."""
    continuations: int = 0
    """How often its stream went on on another replica."""
    waited_s: float
    ttft_s: float | None
    tpot_s: float | None
    duration_s: float
    overhead_s: float
    usage: Usage | None
    arrived_at: float = 0.0
    """On the gateway's clock; in Unix time where it is written."""
    streams: bool = False
    sequences: int = 1
    output_tokens_max: int | None = None
    """As the client set it."""
    body_bytes: int = 0
    session: str | None = None
    """Tells the sessions of all users apart; where it is written, as a hash."""
    prefix: tuple[int, ...] = ()
    """Chained hashes of the prompt's leading blocks, of 64 tokens each, where anything is decided
    by them. Where they are written only their last 32 bits: the others tell model and tenant."""
    trace_id: str | None = None
    """Of the trace that was recorded of it, 32 hexadecimal digits; None where none was."""
