"""What a gateway needs of whatever joins it to the others; Redis is one way to offer it.

Nothing here decides. A lost line is told at once, and comes back by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.cluster.messages import Message

BEAT_S: Final = 0.25
"""Between two heartbeats."""
LEASE_S: Final = 1.0
"""A leader that has not renewed its lease for so long, by the clock of the store, leads no more."""
LEASE_MARGIN_S: Final = 0.1
"""A leader stops this much earlier by its own clock, counted from when it asked."""
SILENCE_S: Final = 0.2
"""A store that has not answered for so long is lost."""
CHECKPOINT_BYTES_MAX: Final = 1 << 20
"""No larger checkpoint is kept."""


class LinkError(Exception):
    """The store cannot be reached, does not answer in time, or does not do what it is asked."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a pool. Epochs of one pool only grow, also over a restart of everybody."""

    gateway: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """What one heartbeat of a gateway asks for, done as one step in this order."""

    gateway: str
    """Unique to this process."""
    about: str = ""
    """For the others to read: where its operators' side listens (opaque here)."""
    leaves: tuple[str, ...] = ()
    """Pools whose lease is given back, if it is held."""
    keeps: Mapping[str, bytes] = field(default_factory=dict)
    """Checkpoint by pool, kept only where the lease is held by this gateway."""
    wants: tuple[str, ...] = ()
    """Pools whose lease is renewed (same epoch), or taken if nobody holds it (epoch + 1)."""
    watches: tuple[str, ...] = ()
    """Pools whose leader is asked for, no more."""
    goes: bool = False
    """This gateway leaves: all that it holds is given back, and it is alive no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the store answered to a `Bid`."""

    gateways: Mapping[str, str]
    """`about` by name, of all that beat within the last `LEASE_S`, the asking one included."""
    leaders: Mapping[str, Leader]
    """By pool, of those wanted and watched; pools that nobody leads are missing."""
    kept: Mapping[str, bytes] = field(default_factory=dict)
    """Last checkpoint, whoever kept it, of each pool that was taken just now."""


class Lease(Protocol):
    """Who leads which pool, and who is there, by the store's own clock."""

    async def beat(self, bid: Bid) -> Standing:
        """One atomic step. Raises LinkError within `SILENCE_S`."""


class Transport(Protocol):
    """Messages from gateway to gateway: most come, once and in order; any may be lost or late."""

    def post(self, to: str, message: Message) -> None:
        """Send; never blocks. All of one turn of the event loop goes together, in order.

        What cannot be sent is dropped, and `lost` is called.
        """

    async def run(
        self, heard: Callable[[Sequence[Message]], None], lost: Callable[[], None]
    ) -> None:
        """Hand over what comes until cancelled, and reconnect as often as needed; never raises.

        `lost`: a command has had no answer for `SILENCE_S`, or the connection broke.
        """

    async def close(self) -> None:
        """Let go of all connections, and of the inbox."""
