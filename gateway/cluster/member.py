"""One gateway among several: who decides about each of its requests, and what it decides for all.

Pure: no clock, no I/O, no randomness. In front of the gateway's own scheduler it offers the same
`handle`; a request that another gateway decides about is *away*, and enters the scheduler only
when it is granted, as a shadow, so that this gateway is right at once when it must decide alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from gateway.cluster.abroad import Abroad, Away
from gateway.cluster.candidacy import Candidacy
from gateway.cluster.follower import DECIDES, HUSH_S, Epochs, Follower, Phase
from gateway.cluster.guests import Guest, ranks_after
from gateway.cluster.leader import Leadership
from gateway.cluster.messages import Beat, Decided, Led, Left, Message, Synced, Told
from gateway.cluster.naming import PoolNames
from gateway.cluster.ports import LEASE_MARGIN_S, LEASE_S, Bid, Leader, Standing
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

CHECKPOINT_EVERY_S: Final = 1.0
KNOWN_FOR_S: Final = 10.0
"""A gateway that was alive so lately counts where the replicas are shared out."""
MISSED_FOR_S: Final = 2 * LEASE_S
"""A new leader waits for a gateway that was alive so lately: the store may have forgotten it."""
FORGET_AFTER_S: Final = 10.0
"""A pool that this gateway has nothing of, and hears nothing of, is forgotten."""


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
        self._candidacy = Candidacy(name, is_bundled)
        self.scheduler = scheduler
        self.post = post
        self.owners: dict[str, tuple[Leadership, Guest]] = {}
        self.followers: dict[str, Follower] = {}
        self.led: dict[str, Leadership] = {}
        self.abroad = Abroad(self)
        self.gateways: dict[str, str] = {name: ""}
        """All that lived when the store was last asked, with what they say about themselves."""
        self._seen: dict[str, float] = {}
        """When each gateway was last among them."""
        self.is_apart = False
        """Whether the store is lost."""
        self.is_leaving = False
        self.about = ""
        self.sharers_min = 1
        """So many gateways there are, as whoever started this one knows."""
        self.resyncs = 0
        self._lease_until = float("-inf")
        self._epochs = Epochs()
        self._keep_at = float("-inf")
        self._sessions = 0
        self._seen_at = float("inf")
        self._out: list[Decision] = []
        self._names = PoolNames()

    @property
    def away(self) -> dict[str, Away]:
        """Its own requests that it does not decide about."""
        return self.abroad.requests

    # The scheduler's own two questions.

    def handle(self, event: Event, now: float) -> list[Decision]:
        """As `Scheduler.handle`, for this gateway's own requests and what it knows of replicas."""
        self._lose_lease(now)
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
        self._lose_lease(now)
        wants, watches, keeps = [], [], {}
        is_due = now >= self._keep_at
        for pool in self.followers:
            leadership = self.led.get(pool)
            if leadership is not None:
                wants.append(pool)
                kept = leadership.checkpoint() if is_due else b""
                if kept:
                    keeps[pool] = kept
            elif self._may_want(pool, now):
                wants.append(pool)
            else:
                watches.append(pool)
        if is_due:
            self._keep_at = now + CHECKPOINT_EVERY_S
        return Bid(
            gateway=self.name, about=self.about, leaves=self._candidacy.given_back(), keeps=keeps,
            wants=tuple(wants), watches=tuple(watches),
        )  # fmt: skip

    def farewell(self) -> Bid:
        """The last one: this gateway is gone."""
        return Bid(
            gateway=self.name, leaves=tuple(sorted({*self._candidacy.leaves, *self.led})), goes=True
        )

    def stands(self, standing: Standing, now: float, *, asked_at: float) -> list[Decision]:
        """The store answered a bid that was sent at `asked_at`."""
        self.gateways = dict(standing.gateways)
        self._seen.update(dict.fromkeys(standing.gateways, now))
        self._seen = {name: at for name, at in self._seen.items() if now - at < KNOWN_FOR_S}
        self.is_apart = False
        self._candidacy.answered()
        self._lease_until = asked_at + LEASE_S - LEASE_MARGIN_S
        self._lose_lease(now)
        for pool, follower in list(self.followers.items()):
            leader = standing.leaders.get(pool)
            if leader is None:
                self._candidacy.vacant(pool, now)
                if pool in self.led:
                    self._step_down([pool], now)
                elif follower.phase is Phase.FOLLOWING:
                    self._turn(follower, Phase.LOOKING, now)
                continue
            self._candidacy.taken(pool)
            if leader.gateway != self.name:
                self._hear_of(follower, leader, now, is_word=False)
            elif pool not in self._candidacy.leaves and now < self._lease_until:
                self._lead(follower, leader.epoch, standing, now)
        self._share(now)
        return self._taken(now)

    def apart(self, now: float) -> list[Decision]:
        """The store is lost: each gateway is on its own, within its part of every replica."""
        if not self.is_apart:
            self.is_apart = True
            self._step_down(self.led, now)
            for follower in self.followers.values():
                follower.enter(Phase.ALONE, now)
            self._share(now)
            for follower in self.followers.values():
                self._settle(follower, now)
        return self._taken(now)

    def beat(self, now: float) -> list[Decision]:
        """A heartbeat: say that we are there, and look who is not."""
        self._lose_lease(now)
        self._look_at_sleep(now)
        if self.led and self._candidacy.gives_way(self._leaders()):
            self._hand_over(self.led, now)
        for leadership in list(self.led.values()):
            leadership.beat(self.gateways, now)
            self._look(leadership, now)
        for follower in list(self.followers.values()):
            if follower.phase is Phase.FOLLOWING:
                if follower.is_due(now):
                    self._sync(follower, now)
                else:
                    self.post(follower.leader, follower.beat())
            if follower.is_late(now):
                self._turn(follower, Phase.ALONE, now)
                follower.is_hushed = True
        self.abroad.tell_again(now)
        self._forget(now)
        self._share(now)
        return self._taken(now)

    def heard(self, message: Message, now: float) -> list[Decision]:
        """Another gateway says something."""
        self._lose_lease(now)
        self._look_at_sleep(now)
        match message:
            case Told() | Synced() | Beat():
                leadership = self.led.get(message.pool)
                if leadership is not None and leadership.epoch == message.epoch:
                    leadership.hear(message, now)
                    self._look(leadership, now)
            case Led() | Decided() | Left():
                self._leader_says(message, now)
        return self._taken(now)

    def retire(self, now: float) -> list[Decision]:
        """Let others lead, if there are any; go on with what is here."""
        self.is_leaving = True
        if len(self.gateways) > 1:
            self._hand_over(self.led, now)
        return self._taken(now)

    @property
    def sharers(self) -> int:
        """Gateways that lived lately, this one included; at least those that are known to."""
        return max(self.sharers_min, len(self._seen))

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
        return self._names.by_model.get(model)

    def _arrived(self, event: Arrived, now: float) -> None:
        request = event.request
        pool = self.pool_of(request.model)
        if pool is None or self.scheduler.is_closed:
            self.feed(event, now)
            return
        follower = self._follower(pool, now)
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
        policy = replace(event.policy, sharers=old.sharers)
        self.feed(PolicyChanged(policy, event.moved_to), now)
        if [each.name for each in old.tiers] != [each.name for each in policy.tiers]:
            for follower in self.followers.values():
                if follower.phase is Phase.FOLLOWING:
                    self._sync(follower, now)

    # What a leader says.

    def _leader_says(self, message: Led | Decided | Left, now: float) -> None:
        follower = self._follower(message.pool, now)
        if isinstance(message, Left):
            if follower.leader == message.sender and follower.epoch == message.epoch:
                self._turn(follower, Phase.LOOKING, now)
                follower.is_hushed = True
                self._candidacy.vacant(message.pool, now)
            return
        leader = Leader(message.sender, message.epoch)
        self._hear_of(follower, leader, now, is_word=True)
        if follower.phase is not Phase.FOLLOWING or message.epoch != follower.epoch:
            return
        gap = follower.is_gap(message, now)
        if gap:
            self._sync(follower, now)
        elif gap is False and isinstance(message, Decided):
            self.abroad.decided(follower, message, now)

    def _hear_of(self, follower: Follower, leader: Leader, now: float, *, is_word: bool) -> None:
        """Somebody else leads; `is_word`: that one says so itself."""
        is_known = leader.gateway == follower.leader and leader.epoch == follower.epoch
        if is_known or leader.epoch < follower.epoch or self.is_apart:
            return
        if follower.is_hushed and not is_word and leader.epoch == follower.epoch:
            return
        if follower.pool in self.led:
            self._step_down([follower.pool], now)
        follower.follow(leader, now)
        self._settle(follower, now)

    # Who decides, and what follows from a change of that.

    def _follower(self, pool: str, now: float) -> Follower:
        follower = self.followers.get(pool)
        if follower is None:
            follower = self.followers[pool] = Follower(self.name, pool, now)
            follower.epoch = self._epochs.of(pool)
            if self.is_apart:
                follower.enter(Phase.ALONE, now)
        return follower

    def _turn(self, follower: Follower, phase: Phase, now: float) -> None:
        follower.enter(phase, now)
        self._share(now)
        self._settle(follower, now)

    def _settle(self, follower: Follower, now: float) -> None:
        """Let each own request of the pool be where its phase wants it."""
        if follower.phase in DECIDES:
            self.abroad.bring_home(follower.pool, (), now)
            return
        self.abroad.send(follower.pool, now)
        if follower.phase is Phase.FOLLOWING:
            self._sync(follower, now)

    def _sync(self, follower: Follower, now: float) -> None:
        self._sessions += 1
        self.resyncs += follower.session > 0
        requests = self.abroad.open_requests(follower.pool, now)
        tiers = tuple(each.name for each in self.scheduler.policy.tiers)
        self.post(follower.leader, follower.sync(self._sessions, requests, now, tiers=tiers))

    # Leading.

    def _may_want(self, pool: str, now: float) -> bool:
        follower = self.followers[pool]
        if self.scheduler.is_closed or follower.phase is Phase.FOLLOWING:
            return False
        if pool not in self._names.known():
            return False  # Known by hearsay only.
        return self._candidacy.wants(
            pool,
            now,
            since=follower.since,
            gateways=self.gateways,
            leaders=self._leaders(),
            leads=bool(self.led),
            is_leaving=self.is_leaving,
        )

    def _leaders(self) -> set[str]:
        """Other gateways that lead something, and live."""
        found = {each.leader for each in self.followers.values() if each.phase is Phase.FOLLOWING}
        return found & self.gateways.keys()

    def _lead(self, follower: Follower, epoch: int, standing: Standing, now: float) -> None:
        known = self.led.get(follower.pool)
        if known is not None:
            if known.epoch == epoch:
                return
            # The store forgot it, or was too late to renew it: others may have led meanwhile.
            self._step_down([follower.pool], now)
            self._candidacy.leaves.discard(follower.pool)
        lately = {name for name, at in self._seen.items() if now - at < MISSED_FOR_S}
        live = {*standing.gateways, *(lately - {follower.former})}
        follower.enter(Phase.GATHERING, now)
        follower.epoch = max(follower.epoch, epoch)
        kept = standing.kept.get(follower.pool, b"")
        leadership = Leadership(self, follower.pool, epoch, live=live, kept=kept, now=now)
        self.led[follower.pool] = leadership
        self._settle(follower, now)
        self._look(leadership, now)

    def _look(self, leadership: Leadership, now: float) -> None:
        if leadership.look(now):
            self.followers[leadership.pool].enter(Phase.LEADING, now)
            self.abroad.bring_home(leadership.pool, leadership.arrivals(), now)

    def _lose_lease(self, now: float) -> None:
        """If it was not renewed in time: stop before anybody else can have it."""
        if self.led and now >= self._lease_until:
            self._step_down(self.led, now)

    def _look_at_sleep(self, now: float) -> None:
        """What was decided while this gateway stood still may have been given to others since."""
        slept_s, self._seen_at = now - self._seen_at, now
        for follower in self.followers.values() if slept_s >= HUSH_S else ():
            if follower.phase is Phase.FOLLOWING:
                self._sync(follower, now)

    def _hand_over(self, pools: Iterable[str], now: float) -> None:
        for leadership in self._step_down(pools, now):
            leadership.leave()

    def _step_down(self, pools: Iterable[str], now: float) -> list[Leadership]:
        """Lead these no more, and grant nothing on the way out: it may be another's by now."""
        over = [self.led.pop(pool) for pool in tuple(pools)]
        for leadership in over:
            self._candidacy.leaves.add(leadership.pool)
            self.followers[leadership.pool].enter(Phase.LOOKING, now)
            leadership.stop(now)
            self.abroad.send(leadership.pool, now)
        for leadership in over:
            leadership.end(now)
        return over

    def _share(self, now: float) -> None:
        """While one decides alone, it keeps to its part of every replica."""
        is_alone = any(each.phase is Phase.ALONE for each in self.followers.values())
        sharers = self.sharers if is_alone else 1
        policy = self.scheduler.policy
        if policy.sharers != sharers:
            self.feed(PolicyChanged(replace(policy, sharers=sharers)), now)

    # The fleet and the end.

    def _forget(self, now: float) -> None:
        """Pools known by hearsay only, of which nothing is heard."""
        known = {*self._names.known(), *(away.pool for away in self.away.values())}
        for pool, follower in list(self.followers.items()):
            quiet_s = now - max(follower.heard_at, follower.since)
            if pool not in known and pool not in self.led and quiet_s >= FORGET_AFTER_S:
                self._part_with(pool)

    def _part_with(self, pool: str) -> None:
        if (follower := self.followers.pop(pool, None)) is not None:
            self._epochs.keep(follower)
        self._candidacy.taken(pool)

    def _regrouped(self, now: float) -> None:
        """The pools were formed anew: requests whose pool has another name follow it."""
        gone = self._names.name(self.scheduler.pools)
        if gone is None:
            return
        self._hand_over(gone & self.led.keys(), now)
        for pool in gone:
            self._part_with(pool)
        self.abroad.regrouped(self._names.by_model, self.followers, now)
        for pool in sorted(self._names.known()):
            self._settle(self._follower(pool, now), now)

    def _close(self, now: float) -> None:
        """What waits is refused, what runs goes on and is told of as before."""
        self.is_leaving = True
        self._hand_over(self.led, now)
        self.feed(Closed(), now)
        self.abroad.close(now)

    def _taken(self, now: float) -> list[Decision]:
        while not self._names.is_of(self.scheduler.pools):
            self._regrouped(now)
        out, self._out = self._out, []
        return out
