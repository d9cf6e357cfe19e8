"""One gateway among several: who decides about each of its requests, and what it decides for all.

Pure: no clock, no I/O, no randomness. In front of the gateway's own scheduler it offers the same
`handle`; a request that another gateway decides about is *away*, and enters the scheduler only
when it is granted, as a shadow, so that this gateway is right at once when it must decide alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final
from zlib import crc32

from gateway.cluster.follower import DECIDES, Follower, Phase
from gateway.cluster.guests import Guest
from gateway.cluster.leader import Leadership
from gateway.cluster.messages import (
    Astray,
    Beat,
    Decided,
    Happened,
    Led,
    Left,
    Message,
    Open,
    Placed,
    Synced,
    Told,
)
from gateway.cluster.ports import LEASE_MARGIN_S, LEASE_S, Bid, Leader, Standing
from gateway.core.messages import (
    Adopted,
    Arrived,
    Bounced,
    Cancelled,
    Closed,
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
    ScaleAdvised,
    WakeWanted,
)
from gateway.core.pool import Pool
from gateway.core.scheduler import Scheduler

CHECKPOINT_EVERY_S: Final = 1.0
SPREAD_S: Final = 0.2
"""A gateway waits so long for each one that should rather lead a pool that nobody leads."""
KNOWN_FOR_S: Final = 10.0
"""A gateway that was alive so lately counts where the replicas are shared out."""
MISSED_FOR_S: Final = 2 * LEASE_S
"""A gateway that was alive so lately is waited for by a new leader: the store may have forgotten."""
FORGET_AFTER_S: Final = 10.0
"""A pool that this gateway has nothing of, and hears nothing of, is forgotten."""


class Away:
    """A request that another gateway decides about, or nobody yet."""

    __slots__ = ("placed_at", "pool", "position", "request", "wait_s")

    def __init__(self, request: Request, pool: str) -> None:
        self.request = request
        self.pool = pool
        self.position = 0
        self.wait_s: float | None = None
        self.placed_at = 0.0


class Member:
    """All of the cluster's state in one gateway, and its scheduler behind it."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        post: Callable[[str, Message], None],
        *,
        is_bundled: Callable[[], bool] = lambda: False,
    ) -> None:
        """`name` is never used by another process, not even by a later one; `post` sends.

        `is_bundled`: whether one gateway should lead all pools, since something is counted over
        all of them: how many requests of somebody may run at once.
        """
        self.name = name
        self._is_bundled = is_bundled
        self.scheduler = scheduler
        self.post = post
        self.owners: dict[str, tuple[Leadership, Guest]] = {}
        self.followers: dict[str, Follower] = {}
        self.led: dict[str, Leadership] = {}
        self.away: dict[str, Away] = {}
        self.gateways: dict[str, str] = {name: ""}
        """All that lived when the store was last asked, with what they say about themselves."""
        self.about = ""
        """What the others may read of this one."""
        self._seen: dict[str, float] = {}
        """When each gateway was last among them."""
        self.is_apart = False
        """Whether the store is lost."""
        self.is_leaving = False
        self.resyncs = 0
        self._lease_until = float("-inf")
        self._leaves: set[str] = set()
        """Pools whose lease is to be given back, until the store has answered that."""
        self._left: tuple[str, ...] = ()
        """Those that the last bid gave back."""
        self._vacant_since: dict[str, float] = {}
        self._keep_at = float("-inf")
        self._sessions = 0
        self._out: list[Decision] = []
        self._pools: list[Pool] = []
        self._pool_of: dict[str, str] = {}

    # The scheduler's own two questions.

    def handle(self, event: Event, now: float) -> list[Decision]:
        """As `Scheduler.handle`, for this gateway's own requests and what it knows of replicas."""
        if self.led and now >= self._lease_until:
            self._lose_lease(now)
        match event:
            case Arrived():
                self._arrived(event.request, now)
            case Progressed():
                self._progressed(event, now)
            case (
                FirstToken() | Finished() | Bounced() | RecallDone() | RecallTooLate() | Cancelled()
            ):
                away = self.away.get(event.request_id)
                if away is None:
                    self.feed(event, now)
                else:
                    self._happened(away, event, now)
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
        if not away.position:
            return None
        left_s = None if away.wait_s is None else max(0.0, away.wait_s - (now - away.placed_at))
        return away.position, left_s

    # What the store and the others say.

    def bid(self, now: float) -> Bid:
        """What to ask the store for in this heartbeat."""
        if self.led and now >= self._lease_until:
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
        self._left = tuple(sorted(self._leaves))
        return Bid(
            gateway=self.name,
            about=self.about,
            leaves=self._left,
            keeps=keeps,
            wants=tuple(wants),
            watches=tuple(watches),
        )

    def farewell(self) -> Bid:
        """The last one: this gateway is gone."""
        return Bid(gateway=self.name, leaves=tuple(sorted({*self._leaves, *self.led})), goes=True)

    def stands(self, standing: Standing, now: float, *, asked_at: float) -> list[Decision]:
        """The store answered a bid that was sent at `asked_at`."""
        self.gateways = dict(standing.gateways)
        self._seen.update(dict.fromkeys(standing.gateways, now))
        self._seen = {name: at for name, at in self._seen.items() if now - at < KNOWN_FOR_S}
        self.is_apart = False
        self._leaves.difference_update(self._left)
        self._lease_until = asked_at + LEASE_S - LEASE_MARGIN_S
        for pool, follower in list(self.followers.items()):
            leader = standing.leaders.get(pool)
            if leader is None:
                self._vacant_since.setdefault(pool, now)
                if pool in self.led:
                    self._step_down(pool, Phase.LOOKING, now)
                elif follower.phase is Phase.FOLLOWING:
                    self._turn(follower, Phase.LOOKING, now)
                continue
            self._vacant_since.pop(pool, None)
            if leader.gateway != self.name:
                self._hear_of(follower, leader, now, is_word=False)
            elif pool not in self._leaves:
                self._lead(follower, leader.epoch, standing, now)
        self._share(now)
        return self._taken(now)

    def apart(self, now: float) -> list[Decision]:
        """The store is lost: each gateway is on its own, within its part of every replica."""
        if not self.is_apart:
            self.is_apart = True
            for pool in list(self.led):
                self._step_down(pool, None, now)
            for follower in self.followers.values():
                follower.enter(Phase.ALONE, now)
            self._share(now)
            for follower in self.followers.values():
                self._settle(follower, now)
        return self._taken(now)

    def beat(self, now: float) -> list[Decision]:
        """A heartbeat: say that we are there, and look who is not."""
        if self.led and now >= self._lease_until:
            self._lose_lease(now)
        self._bundle(now)
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
        self._forget(now)
        self._share(now)
        return self._taken(now)

    def heard(self, message: Message, now: float) -> list[Decision]:
        """Another gateway says something."""
        if self.led and now >= self._lease_until:
            self._lose_lease(now)
        match message:
            case Told() | Synced() | Beat():
                leadership = self.led.get(message.pool)
                if leadership is not None and leadership.epoch == message.epoch:
                    self._guest_says(leadership, message, now)
            case Led() | Decided() | Left():
                self._leader_says(message, now)
        return self._taken(now)

    def retire(self, now: float) -> list[Decision]:
        """Let others lead, if there are any; go on with what is here."""
        self.is_leaving = True
        if len(self.gateways) > 1:
            for pool in list(self.led):
                self._hand_over(pool, now)
        return self._taken(now)

    @property
    def sharers(self) -> int:
        """Gateways that lived lately, this one included."""
        return max(1, len(self._seen))

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
                self.scheduler.handle(RecallTooLate(decision.request_id), now)

    def pool_of(self, model: str) -> str | None:
        """Name of the pool that serves `model`: its smallest model."""
        return self._pool_of.get(model)

    # Events of this gateway's own requests.

    def _arrived(self, request: Request, now: float) -> None:
        pool = self.pool_of(request.model)
        if pool is None or self.scheduler.is_closed:
            self.feed(Arrived(request), now)
            return
        follower = self._follower(pool, now)
        if follower.phase in DECIDES:
            self.feed(Arrived(request), now)
            return
        self.away[request.id] = Away(request, pool)
        if follower.session:
            self._tell(follower, Arrived(request), now - request.arrived_at)

    def _happened(self, away: Away, event: Happened, now: float) -> None:
        assert not isinstance(event, Arrived | Progressed)
        id = event.request_id
        is_over = isinstance(event, Finished | Cancelled)
        if is_over:
            del self.away[id]
        follower = self.followers.get(away.pool)
        if follower is not None and follower.session:
            self._tell(follower, event, None)
        if is_over or isinstance(event, FirstToken):
            self.feed(event, now)
        elif isinstance(event, Bounced | RecallDone):
            self.feed(Finished(id, Outcome.CANCELLED), now)

    def _progressed(self, event: Progressed, now: float) -> None:
        self.feed(event, now)
        by_pool: dict[str, dict[str, int]] = {}
        for id, tokens in event.output_tokens.items():
            away = self.away.get(id)
            if away is not None:
                by_pool.setdefault(away.pool, {})[id] = tokens
        for pool, output_tokens in by_pool.items():
            follower = self.followers.get(pool)
            if follower is not None and follower.session:
                told = Progressed(event.replica, output_tokens, None, event.held)
                ago_s = None if event.heard_at is None else now - event.heard_at
                self._tell(follower, told, ago_s)

    def _tell(self, follower: Follower, event: Happened, ago_s: float | None) -> None:
        self.post(follower.leader, follower.tell(event, ago_s))

    # What a leader says.

    def _leader_says(self, message: Led | Decided | Left, now: float) -> None:
        follower = self._follower(message.pool, now)
        if isinstance(message, Left):
            if follower.leader == message.sender and follower.epoch == message.epoch:
                self._turn(follower, Phase.LOOKING, now)
                self._vacant_since.setdefault(message.pool, now)
            return
        leader = Leader(message.sender, message.epoch)
        self._hear_of(follower, leader, now, is_word=True)
        if follower.phase is not Phase.FOLLOWING or message.epoch != follower.epoch:
            return
        gap = follower.is_gap(message, now)
        if gap:
            self._sync(follower, now)
        elif gap is False and isinstance(message, Decided):
            self._decided(follower, message, now)

    def _decided(self, follower: Follower, message: Decided, now: float) -> None:
        decision = message.decision
        id = decision.request_id
        away = self.away.get(id)
        if away is None:
            if isinstance(decision, Granted):
                self._tell(follower, Finished(id, Outcome.CANCELLED), None)
            return
        match decision:
            case Granted():
                self._granted(follower, away, decision, now)
            case Refused():
                del self.away[id]
                self._out.append(decision)
            case Recalled() | MoveWanted():
                if id in self.scheduler.granted:
                    self._out.append(decision)
            case Placed():
                away.position, away.wait_s, away.placed_at = decision.position, decision.wait_s, now
            case Astray():
                del self.away[id]
                self.feed(Arrived(away.request), now)

    def _granted(self, follower: Follower, away: Away, decision: Granted, now: float) -> None:
        id = decision.request_id
        self.feed(Adopted(request=away.request, replica=decision.replica, is_started=False), now)
        if id in self.scheduler.granted:
            self._out.append(decision)
            return
        # Nothing is known here of that replica, or no more: decided by what is.
        del self.away[id]
        self._tell(follower, Finished(id, Outcome.CANCELLED), None)
        self.feed(Arrived(away.request), now)

    def _hear_of(self, follower: Follower, leader: Leader, now: float, *, is_word: bool) -> None:
        """Somebody else leads; `is_word`: that one says so itself."""
        is_known = leader.gateway == follower.leader and leader.epoch == follower.epoch
        if is_known or leader.epoch < follower.epoch or self.is_apart:
            return
        if follower.is_hushed and not is_word and leader.epoch == follower.epoch:
            return
        if follower.pool in self.led:
            self._step_down(follower.pool, None, now)
        follower.follow(leader, now)
        self._settle(follower, now)

    # Who decides, and what follows from a change of that.

    def _follower(self, pool: str, now: float) -> Follower:
        follower = self.followers.get(pool)
        if follower is None:
            follower = self.followers[pool] = Follower(self.name, pool, now)
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
            self._bring_home(follower.pool, (), now)
            return
        for request in self._own(follower.pool, self._waiting()):
            if request.id in self.scheduler.waiting:
                self.away[request.id] = Away(request, follower.pool)
                self.feed(Cancelled(request.id), now)
        for request in self._own(follower.pool, self._running()):
            self.away[request.id] = Away(request, follower.pool)
        if follower.phase is Phase.FOLLOWING:
            self._sync(follower, now)

    def _bring_home(self, pool: str, others: Iterable[Request], now: float) -> None:
        """This gateway decides: what waits comes to its own scheduler, in order of arrival."""
        own = [away for away in self.away.values() if away.pool == pool]
        for away in own:
            del self.away[away.request.id]
        waiting = [each.request for each in own if each.request.id not in self.scheduler.granted]
        for request in sorted([*waiting, *others], key=lambda each: (each.arrived_at, each.id)):
            if request.id not in self.scheduler.granted:
                self.feed(Arrived(request), now)

    def _waiting(self) -> list[Request]:
        return [each.request for each in self.scheduler.waiting.values()]

    def _running(self) -> list[Request]:
        return [grant.waiting.request for grant, _ in self.scheduler.granted.values()]

    def _own(self, pool: str, requests: Iterable[Request]) -> list[Request]:
        """Those of this gateway's own that it decides about now."""
        return [
            each
            for each in requests
            if each.id not in self.owners
            and each.id not in self.away
            and self.pool_of(each.model) == pool
        ]

    def _sync(self, follower: Follower, now: float) -> None:
        self._sessions += 1
        self.resyncs += follower.session > 0
        found = []
        for id, away in self.away.items():
            if away.pool != follower.pool:
                continue
            request, granted = away.request, self.scheduler.granted.get(id)
            waited_s = now - request.arrived_at
            if granted is None:
                found.append(Open(request, waited_s))
                continue
            grant, replica = granted
            found.append(
                Open(
                    request,
                    waited_s,
                    replica.name,
                    now - grant.granted_at,
                    grant.is_started,
                    grant.output_tokens,
                )
            )
        self.post(follower.leader, follower.sync(self._sessions, tuple(found), now))

    # Leading.

    def _may_want(self, pool: str, now: float) -> bool:
        if (self.is_leaving and len(self.gateways) > 1) or self.scheduler.is_closed:
            return False
        if pool not in self._pool_of.values():
            return False  # Known by hearsay only.
        if self.followers[pool].phase is Phase.FOLLOWING:
            return False
        since = self._vacant_since.get(pool, self.followers[pool].since)
        return now - since >= SPREAD_S * self._before(pool)

    def _before(self, pool: str) -> int:
        """How many others should rather lead it, as all gateways see it."""
        is_bundled = self._is_bundled()
        if is_bundled and self.led:
            return 0
        # Everybody has the same order of preference for a pool, and another one for another pool.
        order = sorted(self.gateways, key=partial(_preference, "" if is_bundled else pool))
        before = order.index(self.name) if self.name in order else 0
        return before + (len(order) if is_bundled and self._leaders() else 0)

    def _leaders(self) -> set[str]:
        """Other gateways that lead something."""
        return {each.leader for each in self.followers.values() if each.phase is Phase.FOLLOWING}

    def _bundle(self, now: float) -> None:
        """Of two gateways that lead, although one should, the same one gives way for both."""
        if not self.led or not self._is_bundled():
            return
        own = _preference("", self.name)
        if any(_preference("", each) < own for each in self._leaders() & self.gateways.keys()):
            for pool in list(self.led):
                self._hand_over(pool, now)

    def _lead(self, follower: Follower, epoch: int, standing: Standing, now: float) -> None:
        known = self.led.get(follower.pool)
        if known is not None:
            if known.epoch == epoch:
                return
            # The store forgot it, or was too late to renew it: others may have led meanwhile.
            self._step_down(follower.pool, None, now)
            self._leaves.discard(follower.pool)
        lately = {name for name, at in self._seen.items() if now - at < MISSED_FOR_S}
        live = {*standing.gateways, *(lately - {follower.former})}
        follower.enter(Phase.GATHERING, now)
        follower.epoch = max(follower.epoch, epoch)
        leadership = Leadership(
            self,
            follower.pool,
            epoch,
            live=live,
            kept=standing.kept.get(follower.pool, b""),
            now=now,
        )
        self.led[follower.pool] = leadership
        self._settle(follower, now)
        self._look(leadership, now)

    def _guest_says(
        self, leadership: Leadership, message: Told | Synced | Beat, now: float
    ) -> None:
        match message:
            case Told():
                leadership.told(message, now)
            case Synced():
                leadership.synced(message, now)
                self._look(leadership, now)
            case Beat():
                leadership.heard(message, now)

    def _look(self, leadership: Leadership, now: float) -> None:
        if leadership.look(now):
            self.followers[leadership.pool].enter(Phase.LEADING, now)
            self._bring_home(leadership.pool, leadership.arrivals(), now)

    def _lose_lease(self, now: float) -> None:
        """It was not renewed in time: stop before anybody else can have it."""
        for pool in list(self.led):
            self._step_down(pool, Phase.LOOKING, now)

    def _hand_over(self, pool: str, now: float) -> None:
        leadership = self.led[pool]
        self._step_down(pool, Phase.LOOKING, now)
        leadership.leave()

    def _step_down(self, pool: str, phase: Phase | None, now: float) -> None:
        """Lead no more; `phase`: what comes instead, None: the caller sees to it."""
        leadership = self.led.pop(pool)
        self._leaves.add(pool)
        leadership.is_over = True
        if phase is not None:
            self._turn(self.followers[pool], phase, now)
        leadership.end(now)

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
        known = {*self._pool_of.values(), *(away.pool for away in self.away.values())}
        for pool, follower in list(self.followers.items()):
            quiet_s = now - max(follower.heard_at, follower.since)
            if pool not in known and pool not in self.led and quiet_s >= FORGET_AFTER_S:
                del self.followers[pool]

    def _name_pools(self) -> None:
        self._pools = self.scheduler.pools
        self._pool_of = {
            model: name
            for pool in self._pools
            for name in [min(pool.models)]
            for model in pool.models
        }

    def _regrouped(self, now: float) -> None:
        """The pools were formed anew: requests whose pool has another name follow it."""
        before, names = self._pool_of, set(self._pool_of.values())
        self._name_pools()
        if self._pool_of == before:
            return
        for gone in names - set(self._pool_of.values()):
            if gone in self.led:
                self._hand_over(gone, now)
            self.followers.pop(gone, None)
            self._vacant_since.pop(gone, None)
        for id, away in list(self.away.items()):
            pool = self._pool_of.get(away.request.model)
            if pool is not None:
                away.pool = pool
            elif away.pool not in self.followers:
                del self.away[id]
                if id not in self.scheduler.granted:
                    self.feed(Arrived(away.request), now)
        for pool in sorted(set(self._pool_of.values())):
            self._settle(self._follower(pool, now), now)

    def _rule(self, event: PolicyChanged, now: float) -> None:
        old, new = self.scheduler.policy, event.policy
        rank_of = {tier.name: rank for rank, tier in enumerate(new.tiers)}
        for away in self.away.values():
            tier = old.tiers[away.request.tier].name
            rank = rank_of[event.moved_to.get(tier, tier)]
            if rank != away.request.tier:
                away.request = replace(away.request, tier=rank)
        self.feed(PolicyChanged(replace(new, sharers=old.sharers), event.moved_to), now)

    def _close(self, now: float) -> None:
        """What waits is refused, what runs goes on and is told of as before."""
        self.is_leaving = True
        for pool in list(self.led):
            self._hand_over(pool, now)
        self.feed(Closed(), now)
        for id, away in list(self.away.items()):
            if id not in self.scheduler.granted:
                self._happened(away, Cancelled(id), now)
                self.feed(Arrived(away.request), now)

    def _taken(self, now: float) -> list[Decision]:
        while self.scheduler.pools is not self._pools:
            self._regrouped(now)
        out, self._out = self._out, []
        return out


def _preference(pool: str, gateway: str) -> tuple[int, str]:
    return crc32(f"{gateway} {pool}".encode()), gateway
