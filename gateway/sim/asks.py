"""One client of the simulator: what it asks for and how it behaves, and what reached it.

A token is a choice and a position in it, so that nothing can be told twice or left out unseen.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request before it is sent. Instants and durations in seconds of the virtual clock."""

    id: str
    at: float
    model: str = "m"
    user: str = "u"
    tenant: str = "t"
    tier: int = 0
    prompt_tokens: int = 50
    output_tokens: int = 20
    """How long each choice will be; only the engine knows."""
    output_tokens_max: int | None = None
    sequences: int = 1
    streams: bool = True
    patience_s: float | None = None
    """The longest wait in the queue that it asks for."""
    leaves_at: float = inf
    """When its client goes away, whatever it has by then."""
    stalls_at: float = inf
    """From then on its client reads nothing."""
    reads_again_at: float = inf
    prefix: tuple[int, ...] = ()
    session: str | None = None
    is_bad: bool = False
    """The engine refuses it as malformed."""
    is_exact: bool = True
    """Whether the rest of its stream could be produced elsewhere, token for token."""


class End(StrEnum):
    """How it ended for the client; a client that is there gets exactly one of these."""

    DONE = "done"
    """The whole answer."""
    REFUSED = "refused"
    """An error with a status of its own, before anything else."""
    ERROR_EVENT = "error_event"
    """One error event on a stream that had begun."""
    CUT_OFF = "cut_off"
    """The gateway closed the connection of a client that reads nothing."""
    LEFT = "left"
    """The client went away by itself."""


class DeliveryError(AssertionError):
    """Something reached a client that must not: a token twice, out of order, after the end."""


@dataclass(slots=True)
class Client:
    """What has reached one client. `heard` is called with each end."""

    ask: Ask
    heard: Callable[["Client"], object] = lambda _: None
    received: list[int] = field(default_factory=list)
    """Tokens of each choice so far."""
    end: End | None = None
    why: str = ""
    ended_at: float = 0.0
    is_begun: bool = False
    """Whether anything of an answer was passed on."""

    def __post_init__(self) -> None:
        self.received = [0] * self.ask.sequences

    @property
    def tokens(self) -> int:
        """All it has got."""
        return sum(self.received)

    @property
    def is_whole(self) -> bool:
        """Whether each choice is there to its end."""
        return all(each == self.ask.output_tokens for each in self.received)

    def take(self, choice: int, position: int) -> None:
        """One more token."""
        where = f"{self.ask.id}: token {position} of choice {choice}"
        if self.end is not None:
            raise DeliveryError(f"{where} after {self.end}")
        expected = self.received[choice]
        if position != expected:
            raise DeliveryError(f"{where}, and {expected} was due")
        self.is_begun = True
        self.received[choice] += 1

    def finish(self, end: End, now: float, why: str = "") -> None:
        """The terminal event."""
        if self.end is not None:
            raise DeliveryError(f"{self.ask.id}: {end} after {self.end}")
        self.end, self.ended_at, self.why = end, now, why
        self.heard(self)
