"""What can go wrong in a fleet, as data: when, where, for how long.

Nothing happens here; `mischief.py` carries it out.
"""

from dataclasses import dataclass
from enum import StrEnum

from gateway.core.policy import Policy


class FaultKind(StrEnum):
    """One way in which an engine, a network, an operator or the gateway itself disturbs."""

    # The engine's process.
    CRASH = "crash"
    """It dies with its connections, what was on the way included; a new one starts afterwards."""
    CORE_KILLED = "core_killed"
    """Its core dies: each stream gets an error event and `[DONE]`, then the process exits."""
    TERMINATED = "terminated"
    """SIGTERM: it accepts nothing more and falls silent; killed and started anew afterwards."""
    DRAINING = "draining"
    """SIGTERM with a timeout: new requests get a 500, what runs goes on; then it exits."""
    FROZEN = "frozen"
    """Its core does nothing; the server in front of it still answers."""
    STOPPED = "stopped"
    """The whole process does nothing: connections open, and nobody answers."""
    FLAPPING = "flapping"
    """It crashes and comes back again and again."""
    STUCK = "stuck"
    """It forgets some of the streams that it has begun, and goes on with all others."""
    SLOW = "slow"
    """Each step takes many times as long."""
    # What it answers.
    BUSY = "busy"
    """New requests get a 503, or a 200 and then a 503 event."""
    BROKEN = "broken"
    """New requests get a 500."""
    FOREIGN = "foreign"
    """Somebody who does not know the gateway asks it directly."""
    # The network.
    CUT = "cut"
    """All its connections are reset, and the engine lives."""
    REFUSED = "refused"
    """No new connection is accepted; those there are go on."""
    # What it tells of itself.
    UNMEASURED = "unmeasured"
    """Scrapes fail, its models are listed."""
    UNANSWERED = "unanswered"
    """Probes run into their timeout."""
    STALE = "stale"
    """Reports show what was when it began."""
    ZERO = "zero"
    """Reports say that it does nothing, as after a cold start."""
    CROWDED = "crowded"
    """Reports say that it does much more than it does."""
    # The operator and the gateway.
    DRAIN = "drain"
    """The operator drains it, and lets it be used again."""
    REMOVE = "remove"
    """The operator takes it out of the configuration, and puts it back."""
    POLICY = "policy"
    """Another policy comes into force."""
    SHUTDOWN = "shutdown"
    """The gateway admits nothing any more; what still runs after the duration is ended."""


REPORTS = frozenset({FaultKind.STALE, FaultKind.ZERO, FaultKind.CROWDED})
"""Those that are lies."""
OURS = frozenset({FaultKind.POLICY, FaultKind.SHUTDOWN})
"""Those that happen to no replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One disturbance. `at` and `duration_s` are seconds of the virtual clock."""

    kind: FaultKind
    at: float
    duration_s: float = 0.0
    replica: str = ""
    """Empty for what happens to the gateway."""
    factor: float = 1.0
    """How many times as slow, where it is slow; how many foreign requests come, or are stuck."""
    policy: Policy | None = None
    """The one that comes into force."""

    def __str__(self) -> str:
        where = f" of {self.replica}" if self.replica else ""
        return f"{self.at:.3f} s: {self.kind}{where} for {self.duration_s:.3f} s"
