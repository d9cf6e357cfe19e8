"""One gateway's side of one pool that may be led elsewhere: whom it follows, and what is numbered.

It holds no requests: what is open is known to whoever uses it. It refuses to guess: a number that
is missing, in either direction, ends in `Synced`, which tells everything anew.
"""

from enum import Enum, StrEnum
from typing import Final

from gateway.cluster.messages import Beat, Decided, Happened, Led, Open, Synced, Told
from gateway.cluster.ports import BEAT_S, Leader

RESYNC_S: Final = 0.1
"""Least time between two `Synced` of one pool."""
HUSH_S: Final = 3 * BEAT_S
"""A leader that was not heard for so long is told everything anew, each heartbeat."""
EPOCHS_MAX: Final = 1_024
"""Of more pools that are forgotten, the oldest may be led by anybody."""
ALONE_AFTER_S: Final = 2.0
"""Without a leader that answers for so long, a gateway decides alone."""


class Phase(StrEnum):
    """Who decides about this gateway's requests of a pool."""

    LOOKING = "looking"
    """Nobody yet: they wait for a leader to be known."""
    FOLLOWING = "following"
    """Another gateway."""
    GATHERING = "gathering"
    """This one, as soon as it has heard what the others have there."""
    LEADING = "leading"
    """This one, for all gateways."""
    ALONE = "alone"
    """This one, for itself: nobody leads, or whoever does is not heard."""


DECIDES: Final = frozenset({Phase.LEADING, Phase.ALONE})
"""The phases in which this gateway's own scheduler decides."""


class Fit(Enum):
    """How a message of the present leader fits to what was heard before."""

    NEXT = "next"
    """It follows."""
    GAP = "gap"
    """Something is missing before it, or all is asked for: everything is to be told anew."""
    OLD = "old"
    """It says nothing any more."""


class Follower:
    """A session with the leader of a pool, or the lack of one."""

    __slots__ = (
        "epoch", "former", "heard", "heard_at", "is_hushed", "leader", "me", "phase", "pool",
        "session", "since", "synced_at", "told",
    )  # fmt: skip

    def __init__(self, me: str, pool: str, now: float) -> None:
        self.me = me
        self.pool = pool
        self.phase = Phase.LOOKING
        self.since = now
        """When the phase began."""
        self.leader = self.former = ""
        """Who leads, and who led when somebody else last did."""
        self.epoch = 0
        """The highest that was heard of: nothing of a lower one counts any more."""
        self.session = 0
        """0: none."""
        self.told = 0
        self.heard = 0
        """Numbers of the last message in each direction, in this session."""
        self.heard_at = now
        self.synced_at = float("-inf")
        self.is_hushed = False
        """Whether it is alone since its leader did not answer: only a word from there ends that."""

    def enter(self, phase: Phase, now: float) -> None:
        """From now on that is who decides."""
        self.phase, self.since = phase, now
        self.is_hushed = False
        if phase is not Phase.FOLLOWING:
            self.leader, self.session = "", 0

    def follow(self, leader: Leader, now: float) -> None:
        """Another gateway leads; a session is still to be begun."""
        self.enter(Phase.FOLLOWING, now)
        self.leader = self.former = leader.gateway
        self.epoch = leader.epoch
        self.heard_at = now

    def sync(
        self, session: int, requests: tuple[Open, ...], now: float, *, tiers: tuple[str, ...] = ()
    ) -> Synced:
        """Begin a session with all that is open."""
        self.session, self.told, self.heard = session, 0, 0
        self.synced_at = now
        return Synced(self.me, self.pool, self.epoch, session, requests, tiers)

    def tell(self, event: Happened, ago_s: float | None) -> Told:
        """The next message of this session."""
        self.told += 1
        return Told(
            self.me,
            self.pool,
            epoch=self.epoch,
            session=self.session,
            number=self.told,
            event=event,
            ago_s=ago_s,
        )

    def beat(self) -> Beat:
        """So far everything was told up to here."""
        return Beat(self.me, self.pool, self.epoch, self.session, self.told)

    def hear(self, message: Led | Decided, now: float) -> Fit:
        """Take note of a message of the present leader."""
        if message.session == 0:
            return Fit.GAP if now - self.synced_at >= RESYNC_S else Fit.OLD
        if message.session != self.session:
            return Fit.OLD
        self.heard_at = now
        if isinstance(message, Led):
            return Fit.GAP if message.number > self.heard else Fit.NEXT
        if message.number == self.heard + 1:
            self.heard += 1
            return Fit.NEXT
        return Fit.GAP if message.number > self.heard else Fit.OLD

    def is_due(self, now: float) -> bool:
        """Whether the leader should be told everything anew, since it is silent."""
        return now - max(self.heard_at, self.synced_at) >= HUSH_S

    def is_late(self, now: float) -> bool:
        """Whether nobody has led for too long."""
        if self.phase is Phase.FOLLOWING:
            return now - self.heard_at >= ALONE_AFTER_S
        return self.phase is Phase.LOOKING and now - self.since >= ALONE_AFTER_S


class Epochs:
    """Those of pools that were forgotten, so that a leader of the past is not believed there."""

    __slots__ = ("_by_pool",)

    def __init__(self) -> None:
        self._by_pool: dict[str, int] = {}

    def keep(self, follower: Follower) -> None:
        """It is forgotten."""
        self._by_pool[follower.pool] = follower.epoch
        if len(self._by_pool) > EPOCHS_MAX:
            del self._by_pool[next(iter(self._by_pool))]

    def of(self, pool: str) -> int:
        """The highest heard of there, and keep it no longer; 0: none is known."""
        return self._by_pool.pop(pool, 0)
