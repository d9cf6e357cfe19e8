"""Who decides about each pool's requests of this gateway, and what follows when that changes.

Pure, as all of the protocol: what the store and other gateways say comes in, with the instant at
which it is heard. The requests themselves are elsewhere: they are only told where to go.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol

from gateway.cluster.abroad import Abroad
from gateway.cluster.candidacy import Candidacy
from gateway.cluster.company import Company
from gateway.cluster.follower import DECIDES, HUSH_S, Epochs, Follower, Phase
from gateway.cluster.guests import Guest
from gateway.cluster.leader import Leadership
from gateway.cluster.messages import Left, Message
from gateway.cluster.naming import PoolNames
from gateway.cluster.ports import LEASE_MARGIN_S, LEASE_S, Bid, Leader, Standing
from gateway.core.messages import Event, PolicyChanged
from gateway.core.scheduler import Scheduler

CHECKPOINT_EVERY_S: Final = 1.0
FORGET_AFTER_S: Final = 10.0
"""A pool that this gateway has nothing of, and hears nothing of, is forgotten."""


class Gateway(Protocol):
    """The gateway whose deciders these are."""

    name: str
    scheduler: Scheduler
    owners: dict[str, tuple[Leadership, Guest]]
    abroad: Abroad

    def feed(self, event: Event, now: float) -> None:
        """Let its scheduler take it in, and carry out what that decides."""

    def post(self, to: str, message: Message) -> None:
        """Send."""

    def pool_of(self, model: str) -> str | None:
        """Name of the pool that serves a model."""


class Deciders:
    """Of all pools that this gateway has, or heard of."""

    __slots__ = (
        "_candidacy", "_epochs", "_gateway", "_keep_at", "_lease_until", "_sessions", "company",
        "followers", "is_apart", "is_leaving", "led", "names", "resyncs",
    )  # fmt: skip

    def __init__(self, gateway: Gateway, is_bundled: Callable[[], bool]) -> None:
        """`is_bundled`: whether one gateway should lead all pools."""
        self._gateway = gateway
        self._candidacy = Candidacy(gateway.name, is_bundled)
        self.company = Company(gateway.name)
        self.names = PoolNames()
        self.followers: dict[str, Follower] = {}
        self.led: dict[str, Leadership] = {}
        self.is_apart = False
        """Whether the store is lost."""
        self.is_leaving = False
        self.resyncs = 0
        self._lease_until = float("-inf")
        self._epochs = Epochs()
        self._keep_at = float("-inf")
        self._sessions = 0

    # What the store says.

    def bid(self, about: str, now: float) -> Bid:
        """What to ask the store for in this heartbeat."""
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
            gateway=self._gateway.name, about=about, leaves=self._candidacy.given_back(),
            keeps=keeps, wants=tuple(wants), watches=tuple(watches),
        )  # fmt: skip

    def farewell(self) -> Bid:
        """The last one: this gateway is gone."""
        leaves = tuple(sorted({*self._candidacy.leaves, *self.led}))
        return Bid(gateway=self._gateway.name, leaves=leaves, goes=True)

    def stands(self, standing: Standing, now: float, *, asked_at: float) -> None:
        """The store answered a bid that was sent at `asked_at`."""
        self.company.stands(standing.gateways, now)
        self.is_apart = False
        self._candidacy.answered()
        self._lease_until = asked_at + LEASE_S - LEASE_MARGIN_S
        self.lose_lease(now)
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
            if leader.gateway != self._gateway.name:
                self.hear_of(follower, leader, now, is_word=False)
            elif pool not in self._candidacy.leaves and now < self._lease_until:
                self._lead(follower, leader.epoch, standing, now)
        self._share(now)

    def apart(self, now: float) -> None:
        """The store is lost: each gateway is on its own, within its part of every replica."""
        if self.is_apart:
            return
        self.is_apart = True
        self._step_down(self.led, now)
        for follower in self.followers.values():
            follower.enter(Phase.ALONE, now)
        self._share(now)
        for follower in self.followers.values():
            self._settle(follower, now)

    # What the others say, or do not.

    def beat(self, now: float) -> None:
        """A heartbeat: say that we are there, and look who is not."""
        if self.led and self._candidacy.gives_way(self._leaders()):
            self.hand_over(self.led, now)
        for leadership in list(self.led.values()):
            leadership.beat(self.company.living, now)
            self.look(leadership, now)
        for follower in list(self.followers.values()):
            if follower.phase is Phase.FOLLOWING:
                if follower.is_due(now):
                    self.sync(follower, now)
                else:
                    self._gateway.post(follower.leader, follower.beat())
            if follower.is_late(now):
                self._turn(follower, Phase.ALONE, now)
                follower.is_hushed = True
        self._gateway.abroad.tell_again(now)
        self._forget(now)
        self._share(now)

    def hear_of(self, follower: Follower, leader: Leader, now: float, *, is_word: bool) -> None:
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

    def left(self, message: Left, now: float) -> None:
        """Whoever led says that it does no more."""
        follower = self.follower(message.pool, now)
        if follower.leader == message.sender and follower.epoch == message.epoch:
            self._turn(follower, Phase.LOOKING, now)
            follower.is_hushed = True
            self._candidacy.vacant(message.pool, now)

    def slept(self, slept_s: float, now: float) -> None:
        """What was decided while this gateway stood still may have been given to others since."""
        for follower in self.followers.values() if slept_s >= HUSH_S else ():
            if follower.phase is Phase.FOLLOWING:
                self.sync(follower, now)

    def follower(self, pool: str, now: float) -> Follower:
        """That of a pool, which may be new here."""
        follower = self.followers.get(pool)
        if follower is None:
            follower = self.followers[pool] = Follower(self._gateway.name, pool, now)
            follower.epoch = self._epochs.of(pool)
            if self.is_apart:
                follower.enter(Phase.ALONE, now)
        return follower

    def sync(self, follower: Follower, now: float) -> None:
        """Tell the leader everything anew."""
        gateway = self._gateway
        self._sessions += 1
        self.resyncs += follower.session > 0
        requests = gateway.abroad.open_requests(follower.pool, now)
        tiers = tuple(each.name for each in gateway.scheduler.policy.tiers)
        gateway.post(follower.leader, follower.sync(self._sessions, requests, now, tiers=tiers))

    def _turn(self, follower: Follower, phase: Phase, now: float) -> None:
        follower.enter(phase, now)
        self._share(now)
        self._settle(follower, now)

    def _settle(self, follower: Follower, now: float) -> None:
        """Let each own request of the pool be where its phase wants it."""
        if follower.phase in DECIDES:
            self._gateway.abroad.bring_home(follower.pool, (), now)
            return
        self._gateway.abroad.send(follower.pool, now)
        if follower.phase is Phase.FOLLOWING:
            self.sync(follower, now)

    def _share(self, now: float) -> None:
        """Where this gateway decides alone, it keeps to its part of every replica."""
        alone = {pool for pool, each in self.followers.items() if each.phase is Phase.ALONE}
        sharers = 1
        apart: frozenset[str] | None = None
        if self.is_apart or alone:
            sharers = self.company.sharers
            if len(alone) < len(self.followers) and sharers > 1:
                by_model = self.names.by_model.items()
                apart = frozenset(model for model, pool in by_model if pool in alone)
        if apart == frozenset():
            sharers, apart = 1, None  # It is alone about nothing that it has.
        policy = self._gateway.scheduler.policy
        if policy.sharers != sharers or policy.apart != apart:
            shared = replace(policy, sharers=sharers, apart=apart)
            self._gateway.feed(PolicyChanged(shared), now)

    # Leading.

    def look(self, leadership: Leadership, now: float) -> None:
        """Begin to grant, as soon as everybody was heard."""
        if leadership.look(now):
            self.followers[leadership.pool].enter(Phase.LEADING, now)
            self._gateway.abroad.bring_home(leadership.pool, leadership.arrivals(), now)

    def lose_lease(self, now: float) -> None:
        """If it was not renewed in time: stop before anybody else can have it."""
        if self.led and now >= self._lease_until:
            self._step_down(self.led, now)

    def hand_over(self, pools: Iterable[str], now: float) -> None:
        """Let others lead these, as soon as they can."""
        for leadership in self._step_down(pools, now):
            leadership.leave()

    def _may_want(self, pool: str, now: float) -> bool:
        follower = self.followers[pool]
        if self._gateway.scheduler.is_closed or follower.phase is Phase.FOLLOWING:
            return False
        if pool not in self.names.known():
            return False  # Known by hearsay only.
        return self._candidacy.wants(
            pool,
            now,
            since=follower.since,
            gateways=self.company.living,
            leaders=self._leaders(),
            leads=bool(self.led),
            is_leaving=self.is_leaving,
        )

    def _leaders(self) -> set[str]:
        """Other gateways that lead something, and live."""
        found = {each.leader for each in self.followers.values() if each.phase is Phase.FOLLOWING}
        return found & self.company.living.keys()

    def _lead(self, follower: Follower, epoch: int, standing: Standing, now: float) -> None:
        known = self.led.get(follower.pool)
        if known is not None:
            if known.epoch == epoch:
                return
            # The store forgot it, or was too late to renew it: others may have led meanwhile.
            self._step_down([follower.pool], now)
            self._candidacy.leaves.discard(follower.pool)
        live = {*standing.gateways, *(self.company.lately(now) - {follower.former})}
        follower.former = ""  # who led before this one lives, if it is heard from now on
        follower.enter(Phase.GATHERING, now)
        follower.epoch = max(follower.epoch, epoch)
        kept = standing.kept.get(follower.pool, b"")
        leadership = Leadership(self._gateway, follower.pool, epoch, live=live, kept=kept, now=now)
        self.led[follower.pool] = leadership
        self._settle(follower, now)
        self.look(leadership, now)

    def _step_down(self, pools: Iterable[str], now: float) -> list[Leadership]:
        """Lead these no more, and grant nothing on the way out: it may be another's by now."""
        over = [self.led.pop(pool) for pool in tuple(pools)]
        for leadership in over:
            self._candidacy.leaves.add(leadership.pool)
            self.followers[leadership.pool].enter(Phase.LOOKING, now)
            leadership.stop(now)
            self._gateway.abroad.send(leadership.pool, now)
        for leadership in over:
            leadership.end(now)
        return over

    # Which pools there are.

    def regroup(self, now: float) -> None:
        """The pools were formed anew: requests whose pool has another name follow it."""
        gateway = self._gateway
        gone = self.names.name(gateway.scheduler.pools)
        if gone is None:
            return
        self.hand_over(gone & self.led.keys(), now)
        for pool in gone:
            self._part_with(pool)
        gateway.abroad.regrouped(self.names.by_model, self.followers, now)
        known = [self.follower(pool, now) for pool in sorted(self.names.known())]
        self._share(now)
        for follower in known:
            self._settle(follower, now)

    def _forget(self, now: float) -> None:
        """Pools known by hearsay only, of which nothing is heard."""
        known = {
            *self.names.known(),
            *(away.pool for away in self._gateway.abroad.requests.values()),
        }
        for pool, follower in list(self.followers.items()):
            quiet_s = now - max(follower.heard_at, follower.since)
            if pool not in known and pool not in self.led and quiet_s >= FORGET_AFTER_S:
                self._part_with(pool)

    def _part_with(self, pool: str) -> None:
        if (follower := self.followers.pop(pool, None)) is not None:
            self._epochs.keep(follower)
        self._candidacy.taken(pool)
