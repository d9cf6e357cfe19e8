"""What a leader knows of the other gateways: their sessions, and which requests are whose.

What such a request is called inside the leader's scheduler is in `inner.py`.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from gateway.cluster.follower import RESYNC_S
from gateway.cluster.inner import inner_request
from gateway.cluster.messages import Decided, Led, Ruling, Told
from gateway.cluster.ports import BEAT_S
from gateway.core.messages import Arrived, Event, Readmitted, Request
from gateway.core.policy import Policy

Coming = tuple[Request, bool]
"""A request that waits, and whether somebody has judged already that it may."""
SILENT_S: Final = 3 * BEAT_S
"""What waits of a gateway that was not heard for so long is not released."""
GIVE_UP_S: Final = 3.0
"""What runs of a gateway that was not heard for so long is not counted any more."""


class Taking(Protocol):
    """Whoever has a scheduler."""

    def feed(self, event: Event, now: float) -> None:
        """Let it take that in."""


def come(to: Taking, coming: Iterable[Coming], now: float) -> None:
    """Requests that wait come to a scheduler, in order of arrival; each is judged once."""
    line = sorted(coming, key=lambda each: (each[0].arrived_at, each[0].id))
    let_in = tuple(request for request, was_let_in in line if was_let_in)
    if let_in:
        to.feed(Readmitted(let_in), now)
    for request, was_let_in in line:
        if not was_let_in:
            to.feed(Arrived(request), now)


class Guest:
    """One gateway that follows, in its present session."""

    __slots__ = (
        "asked_at", "decided", "gateway", "heard_at", "ids", "is_synced", "ranks", "session",
        "told",
    )  # fmt: skip

    def __init__(self, gateway: str, now: float) -> None:
        self.gateway = gateway
        self.session = 0
        self.told = 0
        self.decided = 0
        """Numbers of the last message in each direction, in this session."""
        self.heard_at = now
        self.is_synced = False
        """Whether what is known of it is all and true."""
        self.asked_at = float("-inf")
        self.ranks: tuple[int, ...] = ()
        """By a tier's rank there the one that it has here."""
        self.ids: dict[str, str] = {}
        """Its own id of each of its open requests, by that inside the leader's scheduler."""

    def begin(self, session: int, now: float) -> None:
        """It has told everything."""
        self.session, self.told, self.decided = session, 0, 0
        self.heard_at = now
        self.is_synced = True

    def rank(self, names: tuple[str, ...], policy: Policy) -> None:
        """Its tiers have these names; what is unknown here goes last."""
        rank_of = {tier.name: rank for rank, tier in enumerate(policy.tiers)}
        self.ranks = tuple(rank_of.get(name, len(rank_of) - 1) for name in names)

    def inner(self, request: Request, arrived_at: float, tiers: int) -> Request:
        """One of its requests as the leader's scheduler sees it, which has so many tiers."""
        tier = request.tier
        tier = self.ranks[tier] if tier < len(self.ranks) else min(tier, tiers - 1)
        return inner_request(request, self.gateway, arrived_at, tier=tier)

    def takes(self, message: Told, now: float) -> bool:
        """Whether this is the next of its messages; if one is missing, it counts as not synced."""
        self.heard_at = now
        if message.session != self.session or not self.is_synced:
            self.is_synced &= message.session < self.session
            return False
        if message.number == self.told + 1:
            self.told += 1
            return True
        self.is_synced = message.number <= self.told
        return False

    def may_ask(self, now: float) -> bool:
        """Whether it should be asked for everything now; the answer is under way otherwise."""
        if now - self.asked_at < RESYNC_S:
            return False
        self.asked_at = now
        return True


class Desk:
    """What a leader of one epoch writes to its guests."""

    __slots__ = ("epoch", "me", "pool")

    def __init__(self, me: str, pool: str, epoch: int) -> None:
        self.me = me
        self.pool = pool
        self.epoch = epoch

    def ruling(self, guest: Guest, decision: Ruling) -> Decided:
        """The next message of this session."""
        guest.decided += 1
        return Decided(
            self.me,
            self.pool,
            epoch=self.epoch,
            session=guest.session,
            number=guest.decided,
            decision=decision,
        )

    def led(self, guest: Guest) -> Led:
        """So far everything was told up to here; or: tell me everything."""
        session = guest.session if guest.is_synced else 0
        return Led(self.me, self.pool, self.epoch, session, guest.decided)
