"""What a leader knows of the other gateways: their sessions, and which requests are whose.

Inside the leader's scheduler a request of another gateway carries that one's name before its id.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Protocol

from gateway.cluster.follower import RESYNC_S
from gateway.cluster.messages import Decided, Led, Ruling, Told
from gateway.cluster.ports import BEAT_S
from gateway.core.messages import (
    Arrived,
    Bounced,
    Cancelled,
    Event,
    Finished,
    FirstToken,
    PolicyChanged,
    Progressed,
    Readmitted,
    RecallDone,
    RecallTooLate,
    Request,
)
from gateway.core.policy import Policy

Later = FirstToken | Progressed | Finished | Bounced | RecallDone | RecallTooLate | Cancelled
"""What may happen to a request once it has arrived."""
Coming = tuple[Request, bool]
"""A request that waits, and whether somebody has judged already that it may."""
SEPARATOR: Final = "/"
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


def inner_id(gateway: str, request_id: str) -> str:
    """The id of a guest's request inside the leader's scheduler."""
    return f"{gateway}{SEPARATOR}{request_id}"


def inner(request: Request, gateway: str, arrived_at: float, *, tier: int) -> Request:
    """The request as the leader's scheduler sees it, in a tier of its own."""
    # Written out: `dataclasses.replace` takes ten times as long, for every request.
    return Request(
        id=inner_id(gateway, request.id),
        model=request.model,
        tier=tier,
        tenant=request.tenant,
        user=request.user,
        arrived_at=arrived_at,
        prompt_tokens=request.prompt_tokens,
        output_tokens_max=request.output_tokens_max,
        sequences=request.sequences,
        streams=request.streams,
        body_bytes=request.body_bytes,
        patience_s=request.patience_s,
        route=request.route,
        excluded=request.excluded,
        only=request.only,
        prefix=request.prefix,
        session=request.session,
        read_timeout_s=request.read_timeout_s,
        ttft_target_s=request.ttft_target_s,
        is_continuation=request.is_continuation,
        is_continuable=request.is_continuable,
        caps=request.caps,
    )


def ranks_after(old: Policy, event: PolicyChanged) -> tuple[int, ...]:
    """By the rank that a tier has in `old` the one that its requests have from now on."""
    rank_of = {tier.name: rank for rank, tier in enumerate(event.policy.tiers)}
    return tuple(rank_of[event.moved_to.get(tier.name, tier.name)] for tier in old.tiers)


def ranked(request: Request, ranks: tuple[int, ...]) -> Request:
    """The same request in the tier that it has by now."""
    rank = ranks[request.tier]
    return request if rank == request.tier else replace(request, tier=rank)


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
        return inner(request, self.gateway, arrived_at, tier=tier)

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
        return Decided(self.me, self.pool, self.epoch, guest.session, guest.decided, decision)

    def led(self, guest: Guest) -> Led:
        """So far everything was told up to here; or: tell me everything."""
        session = guest.session if guest.is_synced else 0
        return Led(self.me, self.pool, self.epoch, session, guest.decided)


def inner_event(event: Later, gateway: str, now: float, ago_s: float | None) -> Event:
    """The event as the leader's scheduler hears it, at the leader's own instants."""
    match event:
        case Progressed():
            return Progressed(
                event.replica,
                {inner_id(gateway, id): tokens for id, tokens in event.output_tokens.items()},
                None if ago_s is None else now - ago_s,
                frozenset(_inner_ids(gateway, event.held)),
            )
        case Finished():
            return Finished(
                inner_id(gateway, event.request_id),
                event.outcome,
                event.usage,
                event.tpot_s,
                fault=event.fault,
                goes_on=event.goes_on,
            )
        case FirstToken() | Bounced() | RecallDone() | RecallTooLate() | Cancelled():
            return type(event)(inner_id(gateway, event.request_id))


def _inner_ids(gateway: str, ids: Iterable[str]) -> list[str]:
    return [inner_id(gateway, each) for each in ids]
