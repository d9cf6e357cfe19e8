"""A gateway's own requests that it does not decide about: another gateway does, or nobody yet.

Each is kept here from its arrival to its end. Granted, it is in the gateway's own scheduler as
well, as a shadow; so what it does is told twice, to the leader and to the shadow. Whom a pool is
led by is not decided here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from gateway.cluster.follower import Follower
from gateway.cluster.guests import Guest
from gateway.cluster.leader import Leadership
from gateway.cluster.messages import Astray, Decided, Happened, Message, Open, Placed
from gateway.core.messages import (
    Adopted,
    Arrived,
    Bounced,
    Cancelled,
    Decision,
    Event,
    Finished,
    FirstToken,
    Granted,
    MoveWanted,
    Outcome,
    PolicyChanged,
    Progressed,
    RecallDone,
    Recalled,
    RecallTooLate,
    Refused,
    Request,
)
from gateway.core.scheduler import Scheduler


class Home(Protocol):
    """The gateway whose requests these are."""

    scheduler: Scheduler
    followers: dict[str, Follower]
    owners: dict[str, tuple[Leadership, Guest]]

    def feed(self, event: Event, now: float) -> None:
        """Let its own scheduler take it in, and carry out what that decides."""

    def deliver(self, decision: Decision) -> None:
        """Tell whoever waits for it."""

    def post(self, to: str, message: Message) -> None:
        """Send."""

    def pool_of(self, model: str) -> str | None:
        """Name of the pool that serves a model."""


class Away:
    """One request, and what was said of its place in the line."""

    __slots__ = ("placed_at", "pool", "position", "request", "wait_s")

    def __init__(self, request: Request, pool: str) -> None:
        self.request = request
        self.pool = pool
        self.position = 0
        self.wait_s: float | None = None
        self.placed_at = 0.0


class Abroad:
    """All of them."""

    __slots__ = ("_home", "requests")

    def __init__(self, home: Home) -> None:
        self._home = home
        self.requests: dict[str, Away] = {}

    def arrived(self, request: Request, follower: Follower, now: float) -> None:
        """A new one, of a pool that this gateway does not decide about."""
        self.requests[request.id] = Away(request, follower.pool)
        if follower.session:
            self.tell(follower, Arrived(request), now - request.arrived_at)

    def happened(
        self,
        away: Away,
        event: FirstToken | Finished | Bounced | RecallDone | RecallTooLate | Cancelled,
        now: float,
    ) -> None:
        """Something happened to one of them here."""
        id = event.request_id
        is_over = isinstance(event, Finished | Cancelled)
        if is_over:
            del self.requests[id]
        follower = self._home.followers.get(away.pool)
        if follower is not None and follower.session:
            self.tell(follower, event, None)
        if is_over or isinstance(event, FirstToken):
            self._home.feed(event, now)
        elif isinstance(event, Bounced | RecallDone):
            self._home.feed(Finished(id, Outcome.CANCELLED), now)

    def progressed(self, event: Progressed, now: float) -> None:
        """Some of them, among others, produced output."""
        by_pool: dict[str, dict[str, int]] = {}
        for id, tokens in event.output_tokens.items():
            away = self.requests.get(id)
            if away is not None:
                by_pool.setdefault(away.pool, {})[id] = tokens
        for pool, output_tokens in by_pool.items():
            follower = self._home.followers.get(pool)
            if follower is not None and follower.session:
                told = Progressed(event.replica, output_tokens, None, event.held)
                ago_s = None if event.heard_at is None else now - event.heard_at
                self.tell(follower, told, ago_s)

    def tell(self, follower: Follower, event: Happened, ago_s: float | None) -> None:
        """Say it to the leader."""
        self._home.post(follower.leader, follower.tell(event, ago_s))

    def decided(self, follower: Follower, message: Decided, now: float) -> None:
        """The leader decided about one of them, which may be gone."""
        decision, home = message.decision, self._home
        id = decision.request_id
        away = self.requests.get(id)
        if away is None:
            if isinstance(decision, Granted):
                self.tell(follower, Finished(id, Outcome.CANCELLED), None)
            return
        match decision:
            case Granted():
                self._granted(follower, away, decision, now)
            case Refused():
                del self.requests[id]
                home.deliver(decision)
            case Recalled() | MoveWanted():
                if id in home.scheduler.granted:
                    home.deliver(decision)
            case Placed():
                away.position, away.wait_s, away.placed_at = decision.position, decision.wait_s, now
            case Astray():
                del self.requests[id]
                home.feed(Arrived(away.request), now)

    def _granted(self, follower: Follower, away: Away, decision: Granted, now: float) -> None:
        id, home = decision.request_id, self._home
        if id in home.scheduler.granted:
            return
        home.feed(Adopted(request=away.request, replica=decision.replica, is_started=False), now)
        if id in home.scheduler.granted:
            home.deliver(decision)
            return
        # Nothing is known here of that replica, or no more: decided by what is.
        del self.requests[id]
        self.tell(follower, Finished(id, Outcome.CANCELLED), None)
        home.feed(Arrived(away.request), now)

    def place_of(self, away: Away, now: float) -> tuple[int, float | None] | None:
        """What was said of its place, and what is left of the wait."""
        if not away.position:
            return None
        left_s = None if away.wait_s is None else max(0.0, away.wait_s - (now - away.placed_at))
        return away.position, left_s

    # All of a pool at once.

    def send(self, pool: str, now: float) -> None:
        """This gateway decides no more: what it has of the pool is decided elsewhere."""
        scheduler = self._home.scheduler
        waiting = [each.request for each in scheduler.waiting.values()]
        for request in self._own(pool, waiting):
            if request.id in scheduler.waiting:
                self.requests[request.id] = Away(request, pool)
                self._home.feed(Cancelled(request.id), now)
        running = [grant.waiting.request for grant, _ in scheduler.granted.values()]
        for request in self._own(pool, running):
            self.requests[request.id] = Away(request, pool)

    def bring_home(self, pool: str, others: Iterable[Request], now: float) -> None:
        """This gateway decides: what waits comes to its own scheduler, in order of arrival.

        `others`: requests of other gateways that come with them.
        """
        granted = self._home.scheduler.granted
        own = [away for away in self.requests.values() if away.pool == pool]
        for away in own:
            del self.requests[away.request.id]
        waiting = [each.request for each in own if each.request.id not in granted]
        for request in sorted([*waiting, *others], key=lambda each: (each.arrived_at, each.id)):
            self._home.feed(Arrived(request), now)

    def open_requests(self, pool: str, now: float) -> tuple[Open, ...]:
        """All of a pool, as a leader wants to know it."""
        return tuple(
            self._open(id, away.request, now)
            for id, away in self.requests.items()
            if away.pool == pool
        )

    def _open(self, id: str, request: Request, now: float) -> Open:
        granted = self._home.scheduler.granted.get(id)
        waited_s = now - request.arrived_at
        if granted is None:
            return Open(request, waited_s)
        grant, replica = granted
        running_s = now - grant.granted_at
        return Open(
            request, waited_s, replica.name, running_s, grant.is_started, grant.output_tokens
        )

    def _own(self, pool: str, requests: Iterable[Request]) -> list[Request]:
        """Those of this gateway's own that it decides about now."""
        home = self._home
        return [
            each
            for each in requests
            if each.id not in home.owners
            and each.id not in self.requests
            and home.pool_of(each.model) == pool
        ]

    # What changes for all.

    def regrouped(self, pool_of: Mapping[str, str], known: Iterable[str], now: float) -> None:
        """Models belong to other pools than before; those of no pool are decided here: refused."""
        pools = frozenset(known)
        for id, away in list(self.requests.items()):
            pool = pool_of.get(away.request.model)
            if pool is not None:
                away.pool = pool
            elif away.pool not in pools:
                del self.requests[id]
                if id not in self._home.scheduler.granted:
                    self._home.feed(Arrived(away.request), now)

    def rank_anew(self, event: PolicyChanged) -> None:
        """Tiers have other ranks in the new policy."""
        old, new = self._home.scheduler.policy, event.policy
        rank_of = {tier.name: rank for rank, tier in enumerate(new.tiers)}
        for away in self.requests.values():
            tier = old.tiers[away.request.tier].name
            rank = rank_of[event.moved_to.get(tier, tier)]
            if rank != away.request.tier:
                away.request = replace(away.request, tier=rank)

    def close(self, now: float) -> None:
        """The gateway shuts down: what waits is refused, what runs goes on."""
        for id, away in list(self.requests.items()):
            if id not in self._home.scheduler.granted:
                self.happened(away, Cancelled(id), now)
                self._home.feed(Arrived(away.request), now)
