"""The port between a world and whoever decides in it what goes where.

fairgate's scheduler is one of several behind it. The world says what a gateway could know and when
it could know it, never the true length of an answer; who may know more says so in `begin`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from gateway.core.report import ReplicaReport
from gateway.sim.engine_config import EngineConfig
from gateway.sim.profiles import Profile
from gateway.sim.replica import Engine
from gateway.sim.workload.job import Job


class Sent(NamedTuple):
    """The request goes to this replica now."""

    number: int
    replica: int
    priority: int = 0
    """For engines that have a policy for it: lower is served first."""


class Refused(NamedTuple):
    """The request is answered without running."""

    number: int
    retry_after_s: float | None = None
    reason: str = ""


class TakeBack(NamedTuple):
    """Take the request from its replica, if nothing of its answer has come; its place is here then.

    Answered at once, by `taken_back` or by `too_late`.
    """

    number: int
    even_begun: bool = False
    """Also where something has come: what is left of it is sent elsewhere later."""


class Move(NamedTuple):
    """Copy the request with its KV to this replica while it runs; answered by `moved`.

    Only engines that can hand over KV do this; one that has not begun just changes queues.
    """

    number: int
    replica: int


class Wake(NamedTuple):
    """Call `tick` then. A later wish replaces an earlier one."""

    at: float


Decision = Sent | Refused | TakeBack | Move | Wake
Decisions = Sequence[Decision]


class Machine(NamedTuple):
    """One replica as its operator knows it."""

    name: str
    profile: Profile
    config: EngineConfig


class Report(NamedTuple):
    """What a scrape of one replica brought, true or not."""

    sent_at: float
    round_trip_s: float
    told: ReplicaReport


class Truth(Protocol):
    """The engines themselves, for baselines whose agents live in them; to read, never to change."""

    def engine(self, replica: int) -> Engine:
        """As it is now; another object after a failure."""
        ...

    def inside(self, replica: int) -> Sequence[int]:
        """Numbers of the requests in it, in the order of their arrival there."""
        ...

    def produced(self, number: int) -> int:
        """Tokens of its answer so far; 0 for one that is in no engine."""
        ...


class Dispatch(Protocol):
    """Hears of everything at the instant at which a gateway would, and decides.

    Numbers are those of the jobs; each that arrived ends by exactly one of `ended`, `left`,
    `broke(goes_on=False)` and its own `Refused`. Replicas are indices into the machines of `begin`.
    """

    hears_progress: bool
    """Whether `progressed` is called; it costs the batch of every engine."""

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """The run begins, with all machines up."""
        ...

    def arrived(self, job: Job, now: float) -> Decisions:
        """A request came. Its `output_tokens` are not for schedulers."""
        ...

    def first_token(self, number: int, now: float) -> Decisions:
        """The first token of its answer came; again after it went on elsewhere."""
        ...

    def progressed(self, replica: int, tokens: Mapping[int, int], now: float) -> Decisions:
        """Tokens so far of the answers that come from there, now and then."""
        ...

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """Its answer, of so many tokens in all, is complete."""
        ...

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """Its client gave up, having so many."""
        ...

    def broke(
        self,
        number: int,
        now: float,
        *,
        replica: int,
        output_tokens: int,
        was_sent: bool,
        goes_on: bool,
    ) -> Decisions:
        """`replica` failed under it, or was down when it came (not `was_sent`).

        Where it `goes_on` it must be sent again, to be computed anew with the `output_tokens` it
        has; else it is over.
        """
        ...

    def taken_back(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """What was to be taken back is here, to be sent again."""
        ...

    def too_late(self, number: int, now: float) -> Decisions:
        """It had begun, and stays where it is."""
        ...

    def moved(self, number: int, now: float, *, replica: int, is_done: bool) -> Decisions:
        """A move is done, or came to nothing: it ended, or there was no room for it."""
        ...

    def reported(self, replica: int, report: Report, now: float) -> Decisions:
        """A scrape came back."""
        ...

    def lost(self, replica: int, now: float) -> Decisions:
        """It does not answer any more."""
        ...

    def back(self, replica: int, now: float) -> Decisions:
        """It answers again, and has forgotten all."""
        ...

    def drained(self, replica: int, now: float, *, is_draining: bool) -> Decisions:
        """The operator wants nothing new on it, or wants it used again."""
        ...

    def tick(self, now: float) -> Decisions:
        """The instant of the last `Wake` has come."""
        ...


class Deaf:
    """Hears everything and decides nothing: what simple dispatchers start from."""

    hears_progress = False

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """See `Dispatch.begin`."""
        return ()

    def first_token(self, number: int, now: float) -> Decisions:
        """See `Dispatch.first_token`."""
        return ()

    def progressed(self, replica: int, tokens: Mapping[int, int], now: float) -> Decisions:
        """See `Dispatch.progressed`."""
        return ()

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.ended`."""
        return ()

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.left`."""
        return ()

    def broke(
        self,
        number: int,
        now: float,
        *,
        replica: int,
        output_tokens: int,
        was_sent: bool,
        goes_on: bool,
    ) -> Decisions:
        """See `Dispatch.broke`."""
        return ()

    def taken_back(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.taken_back`."""
        return ()

    def too_late(self, number: int, now: float) -> Decisions:
        """See `Dispatch.too_late`."""
        return ()

    def moved(self, number: int, now: float, *, replica: int, is_done: bool) -> Decisions:
        """See `Dispatch.moved`."""
        return ()

    def reported(self, replica: int, report: Report, now: float) -> Decisions:
        """See `Dispatch.reported`."""
        return ()

    def lost(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.lost`."""
        return ()

    def back(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.back`."""
        return ()

    def drained(self, replica: int, now: float, *, is_draining: bool) -> Decisions:
        """See `Dispatch.drained`."""
        return ()

    def tick(self, now: float) -> Decisions:
        """See `Dispatch.tick`."""
        return ()
