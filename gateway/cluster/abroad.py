"""A gateway's own requests that it does not decide about: another gateway does, or nobody yet.

Each is kept here from its arrival to its end. Granted, it is in the gateway's own scheduler as
well, as a shadow; so what it does is told twice, to the leader and to the shadow. Whom a pool is
led by is not decided here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from gateway.cluster.follower import ALONE_AFTER_S, Follower
from gateway.cluster.guests import Coming, Guest, come
from gateway.cluster.inner import ranked
from gateway.cluster.leader import Leadership
from gateway.cluster.messages import Astray, Decided, Happened, Message, OfOne, Open, Placed
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
    Progressed,
    RecallDone,
    Recalled,
    Refused,
    Request,
    Withdrawn,
)
from gateway.core.scheduler import Scheduler


class Home(Protocol):
    """The gateway whose requests these are."""

    scheduler: Scheduler
    owners: dict[str, tuple[Leadership, Guest]]

    @property
    def followers(self) -> dict[str, Follower]:
        """By pool, whom it follows there."""

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

    __slots__ = (
        "astray_since", "placed_at", "pool", "position", "request", "wait_s", "was_let_in",
    )  # fmt: skip

    def __init__(self, request: Request, pool: str, *, was_let_in: bool = False) -> None:
        self.request = request
        self.pool = pool
        self.was_let_in = was_let_in
        """Whether it may wait, by what this gateway or a leader decided."""
        self.astray_since = float("inf")
        """Since when the leader does not know its model; it is told of it again and again."""
        self.position = 0
        self.wait_s: float | None = None
        self.placed_at = 0.0


class Abroad:
    """All of them."""

    __slots__ = ("_astray", "_home", "requests")

    def __init__(self, home: Home) -> None:
        self._home = home
        self.requests: dict[str, Away] = {}
        self._astray: list[str] = []
        """Those that a leader did not know the model of when it was last told of them."""

    def arrived(self, request: Request, follower: Follower, now: float) -> None:
        """A new one, of a pool that this gateway does not decide about."""
        self.requests[request.id] = Away(request, follower.pool)
        if follower.session:
            self.tell(follower, Arrived(request), now - request.arrived_at)

    def happened(
        self,
        away: Away,
        event: OfOne,
        now: float,
    ) -> None:
        """Something happened to one of them here."""
        request_id = event.request_id
        is_over = isinstance(event, Finished | Cancelled)
        if is_over:
            del self.requests[request_id]
        follower = self._home.followers.get(away.pool)
        if follower is not None and follower.session:
            self.tell(follower, event, None)
        if is_over or isinstance(event, FirstToken):
            self._home.feed(event, now)
        elif isinstance(event, Bounced | RecallDone):
            self._home.feed(Finished(request_id, Outcome.CANCELLED), now)

    def progressed(self, event: Progressed, now: float) -> None:
        """Some of them, among others, produced output."""
        by_pool: dict[str, dict[str, int]] = {}
        for request_id, tokens in event.output_tokens.items():
            away = self.requests.get(request_id)
            if away is not None:
                by_pool.setdefault(away.pool, {})[request_id] = tokens
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
        request_id = decision.request_id
        away = self.requests.get(request_id)
        if away is None:
            if isinstance(decision, Granted):
                self.tell(follower, Finished(request_id, Outcome.CANCELLED), None)
            return
        match decision:
            case Granted():
                away.was_let_in = True
                self._granted(follower, away, decision, now)
            case Refused():
                del self.requests[request_id]
                home.deliver(decision)
            case Recalled() | MoveWanted():
                if request_id in home.scheduler.granted:
                    home.deliver(decision)
            case Placed():
                away.was_let_in = True
                away.position, away.wait_s, away.placed_at = decision.position, decision.wait_s, now
            case Astray():
                away.astray_since = min(away.astray_since, now)
                self._astray.append(request_id)

    def _granted(self, follower: Follower, away: Away, decision: Granted, now: float) -> None:
        request_id, home = decision.request_id, self._home
        if request_id in home.scheduler.granted:
            return
        home.feed(Adopted(request=away.request, replica=decision.replica, is_started=False), now)
        if request_id in home.scheduler.granted:
            home.deliver(decision)
            return
        # Nothing is known here of that replica, or no more: any other may do.
        excluded = away.request.excluded | {decision.replica}
        away.request = replace(away.request, excluded=excluded)
        self.tell(follower, Finished(request_id, Outcome.CANCELLED), None)
        self.tell(follower, Arrived(away.request), now - away.request.arrived_at)

    def tell_again(self, now: float) -> None:
        """A heartbeat: leaders may have found by now what they did not know.

        One that does not for long, or cannot, leaves it to this gateway.
        """
        astray, self._astray = self._astray, []
        for away in [self.requests[each] for each in astray if each in self.requests]:
            follower = self._home.followers.get(away.pool)
            if follower is None or not follower.session:
                continue  # Told anew with all others, as soon as there is a leader.
            if now - away.astray_since >= ALONE_AFTER_S:
                del self.requests[away.request.id]
                self._home.feed(Arrived(away.request), now)
            else:
                self.tell(follower, Arrived(away.request), now - away.request.arrived_at)

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
        waiting = self._own(pool, [each.request for each in scheduler.waiting.values()])
        running = [grant.waiting.request for grant, _ in scheduler.granted.values()]
        for request in [*waiting, *self._own(pool, running)]:
            self.requests[request.id] = Away(request, pool, was_let_in=True)
        if waiting:
            self._home.feed(Withdrawn(tuple(each.id for each in waiting)), now)

    def bring_home(self, pool: str, others: Iterable[Coming], now: float) -> None:
        """This gateway decides: what waits comes to its own scheduler.

        `others`: requests of other gateways that come with them.
        """
        granted = self._home.scheduler.granted
        own = [away for away in self.requests.values() if away.pool == pool]
        for away in own:
            del self.requests[away.request.id]
        waiting = [
            (each.request, each.was_let_in) for each in own if each.request.id not in granted
        ]
        come(self._home, [*waiting, *others], now)

    def open_requests(self, pool: str, now: float) -> tuple[Open, ...]:
        """All of a pool, as a leader wants to know it."""
        return tuple(
            self._open(request_id, away.request, now, was_let_in=away.was_let_in)
            for request_id, away in self.requests.items()
            if away.pool == pool
        )

    def _open(self, request_id: str, request: Request, now: float, *, was_let_in: bool) -> Open:
        granted = self._home.scheduler.granted.get(request_id)
        waited_s = now - request.arrived_at
        if granted is None:
            return Open(request, waited_s, was_let_in=was_let_in)
        grant, replica = granted
        running_s = now - grant.granted_at
        return Open(
            request,
            waited_s,
            replica.name,
            running_s,
            grant.is_started,
            grant.output_tokens,
            was_let_in,
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
        for request_id, away in list(self.requests.items()):
            pool = pool_of.get(away.request.model)
            if pool is not None:
                away.pool = pool
            elif away.pool not in pools:
                del self.requests[request_id]
                if request_id not in self._home.scheduler.granted:
                    self._home.feed(Arrived(away.request), now)

    def rank_anew(self, ranks: tuple[int, ...]) -> None:
        """Tiers have other ranks from now on, by those that they had."""
        for away in self.requests.values():
            away.request = ranked(away.request, ranks)

    def close(self, now: float) -> None:
        """The gateway shuts down: what waits is refused, what runs goes on."""
        for request_id, away in list(self.requests.items()):
            if request_id not in self._home.scheduler.granted:
                self.happened(away, Cancelled(request_id), now)
                self._home.feed(Arrived(away.request), now)
