"""One gateway among several: who decides about each of its requests, and what it decides for all.

Pure: no clock, no I/O, no randomness. In front of the gateway's own scheduler it offers the same
`handle`; a request that another gateway decides about is *away*, and enters the scheduler only
when it is granted, as a shadow, so that this gateway is right at once when it must decide alone.
"""

from collections.abc import Callable, Sequence

from gateway.cluster.abroad import Abroad, Away
from gateway.cluster.deciders import Deciders
from gateway.cluster.follower import DECIDES, Fit, Follower, Phase
from gateway.cluster.guests import Guest
from gateway.cluster.inner import ranks_after
from gateway.cluster.leader import Leadership
from gateway.cluster.messages import Beat, Decided, Led, Left, Message, Synced, Told
from gateway.cluster.ports import Bid, Leader, Standing
from gateway.core.messages import (
    Arrived,
    Bounced,
    Cancelled,
    Closed,
    Decision,
    Event,
    Finished,
    FirstToken,
    MoveWanted,
    PolicyChanged,
    Progressed,
    RecallDone,
    Recalled,
    RecallTooLate,
    ScaleAdvised,
    WakeWanted,
)
from gateway.core.scheduler import Scheduler


class Member:
    """All of the cluster's state in one gateway, and its scheduler behind it."""

    def __init__(
        self, name: str, scheduler: Scheduler, post: Callable[[str, Message], None], *,
        is_bundled: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """`name` is never used by another process, not even by a later one; `post` sends.

        `is_bundled`: whether one gateway should lead all pools.
        """
        self.name = name
        self.scheduler = scheduler
        self.post = post
        self.owners: dict[str, tuple[Leadership, Guest]] = {}
        self.deciders = Deciders(self, is_bundled)
        self.abroad = Abroad(self)
        self.about = ""
        """What it says of itself to all others."""
        self._seen_at = float("inf")
        self._out: list[Decision] = []

    @property
    def followers(self) -> dict[str, Follower]:
        """By pool, whom it follows there."""
        return self.deciders.followers

    @property
    def led(self) -> dict[str, Leadership]:
        """By pool, what it leads."""
        return self.deciders.led

    @property
    def away(self) -> dict[str, Away]:
        """Its own requests that it does not decide about."""
        return self.abroad.requests

    @property
    def gateways(self) -> dict[str, str]:
        """All that live, with what they say about themselves."""
        return self.deciders.company.living

    @property
    def sharers(self) -> int:
        """So many gateways there are as far as is known."""
        return self.deciders.company.sharers

    @property
    def is_apart(self) -> bool:
        """Whether the store is lost."""
        return self.deciders.is_apart

    # The scheduler's own two questions.

    def handle(self, event: Event, now: float) -> list[Decision]:
        """As `Scheduler.handle`, for this gateway's own requests and what it knows of replicas."""
        self.deciders.lose_lease(now)
        match event:
            case Arrived():
                self._arrived(event, now)
            case Progressed():
                self.feed(event, now)
                if self.away:
                    self.abroad.progressed(event, now)
            case (
                FirstToken() | Finished() | Bounced() | RecallDone() | RecallTooLate() | Cancelled()
            ):
                away = self.away.get(event.request_id)
                if away is None:
                    self.feed(event, now)
                else:
                    self.abroad.happened(away, event, now)
            case PolicyChanged():
                self._rule(event, now)
            case Closed():
                self._close(now)
            case _:
                self.feed(event, now)
        return self._taken(now)

    def place_of(self, request_id: str, now: float) -> tuple[int, float | None] | None:
        """As `Scheduler.place_of`; of one that is away, what was said of it when it came."""
        away = self.away.get(request_id)
        if away is None:
            return self.scheduler.place_of(request_id, now)
        return self.abroad.place_of(away, now)

    # What the store and the others say.

    def bid(self, now: float) -> Bid:
        """What to ask the store for in this heartbeat."""
        self.deciders.lose_lease(now)
        return self.deciders.bid(self.about, now)

    def farewell(self) -> Bid:
        """The last one: this gateway is gone."""
        return self.deciders.farewell()

    def stands(self, standing: Standing, now: float, *, asked_at: float) -> list[Decision]:
        """The store answered a bid that was sent at `asked_at`."""
        self.deciders.stands(standing, now, asked_at=asked_at)
        return self._taken(now)

    def apart(self, now: float) -> list[Decision]:
        """The store is lost."""
        self.deciders.apart(now)
        return self._taken(now)

    def beat(self, now: float) -> list[Decision]:
        """A heartbeat."""
        self._begin(now)
        self.deciders.beat(now)
        return self._taken(now)

    def heard(self, messages: Sequence[Message], now: float) -> list[Decision]:
        """Another gateway says this, in that order."""
        self._begin(now)
        for message in messages:
            self._hear(message, now)
        return self._taken(now)

    def _hear(self, message: Message, now: float) -> None:
        match message:
            case Told() | Synced() | Beat():
                leadership = self.deciders.led.get(message.pool)
                if leadership is not None and leadership.epoch == message.epoch:
                    leadership.hear(message, now)
                    self.deciders.look(leadership, now)
            case Led() | Decided():
                self._leader_says(message, now)
            case Left():
                self.deciders.left(message, now)

    def retire(self, now: float) -> list[Decision]:
        """Let others lead, if there are any; go on with what is here."""
        self.deciders.is_leaving = True
        if len(self.gateways) > 1:
            self.deciders.hand_over(self.led, now)
        return self._taken(now)

    def _begin(self, now: float) -> None:
        """Time went by, maybe more than it should have."""
        self.deciders.lose_lease(now)
        slept_s, self._seen_at = now - self._seen_at, now
        self.deciders.slept(slept_s, now)

    def _leader_says(self, message: Led | Decided, now: float) -> None:
        follower = self.deciders.follower(message.pool, now)
        leader = Leader(message.sender, message.epoch)
        self.deciders.hear_of(follower, leader, now, is_word=True)
        if follower.phase is not Phase.FOLLOWING or message.epoch != follower.epoch:
            return
        match follower.hear(message, now):
            case Fit.GAP:
                self.deciders.sync(follower, now)
            case Fit.NEXT if isinstance(message, Decided):
                self.abroad.decided(follower, message, now)

    # As a host of what is led here.

    def feed(self, event: Event, now: float) -> None:
        """Let the scheduler take it in; what it decides about guests is sent to them."""
        for decision in self.scheduler.handle(event, now):
            if isinstance(decision, WakeWanted):
                self._out.append(decision)
            elif isinstance(decision, ScaleAdvised):
                follower = self.followers.get(min(decision.models))
                if follower is None or follower.phase in DECIDES:
                    self._out.append(decision)
            elif (owner := self.owners.get(decision.request_id)) is not None:
                owner[0].decided(owner[1], decision, now)
            elif decision.request_id not in self.away:
                self._out.append(decision)
            elif isinstance(decision, Recalled | MoveWanted):
                # Only whoever sees all that waits knows what should be taken back.
                self.feed(RecallTooLate(decision.request_id), now)

    def deliver(self, decision: Decision) -> None:
        """Tell whoever waits here for it."""
        self._out.append(decision)

    def pool_of(self, model: str) -> str | None:
        """Name of the pool that serves `model`: its smallest model."""
        return self.deciders.names.by_model.get(model)

    def _arrived(self, event: Arrived, now: float) -> None:
        request = event.request
        pool = self.pool_of(request.model)
        if pool is None or self.scheduler.is_closed:
            self.feed(event, now)
            return
        follower = self.deciders.follower(pool, now)
        if follower.phase in DECIDES:
            self.feed(event, now)
        else:
            self.abroad.arrived(request, follower, now)

    def _rule(self, event: PolicyChanged, now: float) -> None:
        """A reload: whoever leads here is told what the tiers are called now."""
        old = self.scheduler.policy
        ranks = ranks_after(old, event)
        self.abroad.rank_anew(ranks)
        for leadership in self.led.values():
            leadership.rank_anew(ranks)
        policy = event.policy.shared_like(old)
        self.feed(PolicyChanged(policy, event.moved_to), now)
        if [each.name for each in old.tiers] != [each.name for each in policy.tiers]:
            for follower in self.followers.values():
                if follower.phase is Phase.FOLLOWING:
                    self.deciders.sync(follower, now)

    def _close(self, now: float) -> None:
        """What waits is refused, what runs goes on and is told of as before."""
        self.deciders.is_leaving = True
        self.deciders.hand_over(self.led, now)
        self.feed(Closed(), now)
        self.abroad.close(now)

    def _taken(self, now: float) -> list[Decision]:
        while not self.deciders.names.is_of(self.scheduler.pools):
            self.deciders.regroup(now)
        out, self._out = self._out, []
        return out
