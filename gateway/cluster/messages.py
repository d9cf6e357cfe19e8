"""What gateways say to one another about requests: what happened, what is open, what is decided.

Instants never cross a process, durations do: an instant inside an event means nothing to whoever
hears it, `ago_s` tells how long it was past when it was sent. A session is begun by a follower with
`Synced`; inside one both ways are numbered from 1. No gateway's name is ever used by two processes.

Nobody changes one; those of which every request needs some are made as in `core/messages.py`.
"""

from dataclasses import dataclass
from typing import Final

from gateway.core.messages import (
    Arrived,
    Bounced,
    Cancelled,
    Finished,
    FirstToken,
    Granted,
    MoveWanted,
    Progressed,
    RecallDone,
    Recalled,
    RecallTooLate,
    Refused,
    Request,
)

OfOne = FirstToken | Finished | Bounced | RecallDone | RecallTooLate | Cancelled
"""What may happen to one request once it has arrived."""
Happening = Progressed | OfOne
"""The same, and what several of them produced."""
Happened = Arrived | Happening
"""Events of requests, as a follower tells them: ids are its own."""


@dataclass(slots=True, init=False)
class Placed:
    """A request waits: its position, and the seconds that it will most likely wait."""

    request_id: Final[str]
    position: Final[int]
    wait_s: Final[float | None]

    def __init__(self, request_id: str, position: int, wait_s: float | None) -> None:
        self.request_id = request_id
        self.position = position
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Astray:
    """The leader does not lead the model of this request: its own gateway has to look again."""

    request_id: str


OfScheduler = Granted | Refused | Recalled | MoveWanted
"""What a scheduler decides about one request."""
Ruling = OfScheduler | Placed | Astray
"""What a leader says of a request of the gateway that it says it to."""


@dataclass(frozen=True, slots=True)
class Open:
    """A request that has not ended. `replica` is where it runs; None: it waits."""

    request: Request
    waited_s: float
    """Since it arrived, whether it waits or runs."""
    replica: str | None = None
    running_s: float = 0.0
    is_started: bool = False
    output_tokens: int = 0
    was_let_in: bool = False
    """Whether somebody has judged already that it may wait."""


@dataclass(slots=True, init=False)
class Told:
    """Follower to leader: something happened to one of its requests."""

    sender: Final[str]
    pool: Final[str]
    epoch: Final[int]
    session: Final[int]
    number: Final[int]
    event: Final[Happened]
    ago_s: Final[float | None]
    """Age of `arrived_at` of an `Arrived`, of `heard_at` of a `Progressed`; None: it has none."""

    def __init__(
        self,
        sender: str,
        pool: str,
        *,
        epoch: int,
        session: int,
        number: int,
        event: Happened,
        ago_s: float | None = None,
    ) -> None:
        self.sender = sender
        self.pool = pool
        self.epoch = epoch
        self.session = session
        self.number = number
        self.event = event
        self.ago_s = ago_s


@dataclass(frozen=True, slots=True)
class Synced:
    """Follower to leader: all my open requests of the pool; what follows is numbered from 1."""

    sender: str
    pool: str
    epoch: int
    session: int
    """Greater than that of every earlier one of this sender."""
    requests: tuple[Open, ...]
    tiers: tuple[str, ...] = ()
    """Names of the sender's tiers by rank; none: they are the leader's."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Follower to leader, each heartbeat: I am there; the last that I told has this number."""

    sender: str
    pool: str
    epoch: int
    session: int
    number: int


@dataclass(slots=True, init=False)
class Decided:
    """Leader to follower: what is decided about one of its requests."""

    sender: Final[str]
    pool: Final[str]
    epoch: Final[int]
    session: Final[int]
    number: Final[int]
    decision: Final[Ruling]

    def __init__(
        self, sender: str, pool: str, *, epoch: int, session: int, number: int, decision: Ruling
    ) -> None:
        self.sender = sender
        self.pool = pool
        self.epoch = epoch
        self.session = session
        self.number = number
        self.decision = decision


@dataclass(frozen=True, slots=True)
class Led:
    """Leader to follower, each heartbeat: I lead; the last that I decided has this number.

    `session` 0 asks for `Synced`.
    """

    sender: str
    pool: str
    epoch: int
    session: int
    number: int


@dataclass(frozen=True, slots=True)
class Left:
    """Leader to follower: I lead this pool no more, and have decided nothing since."""

    sender: str
    pool: str
    epoch: int


Message = Told | Synced | Beat | Decided | Led | Left
