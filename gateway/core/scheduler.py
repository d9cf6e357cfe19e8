"""The scheduler: events in, decisions out. The only file that changes scheduling state.

`handle(event, now)` is synchronous and pure: no clock, no randomness, no I/O, no logging. The
gateway, a simulator and a cluster's leader can all run the same object. Each event touches few
replicas, and only those are looked at again.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from gateway.core import admission, cost
from gateway.core.fairqueue import Waiting
from gateway.core.ledger import Grant
from gateway.core.messages import (
    Arrived,
    Bounced,
    Cancelled,
    Closed,
    Decision,
    DrainAsked,
    Event,
    Finished,
    FirstToken,
    Granted,
    Outcome,
    PolicyChanged,
    Progressed,
    Reason,
    Refused,
    ReplicaFound,
    ReplicaLost,
    ReplicaRemoved,
    ReplicaReported,
    Request,
    Usage,
    WakeWanted,
    Woke,
)
from gateway.core.placement import choose
from gateway.core.policy import Policy
from gateway.core.pool import Pool, regrouped
from gateway.core.predict import Predictor
from gateway.core.replica import Replica
from gateway.core.waitroom import WaitingRoom
from gateway.core.weigh import reweigh, weigh

RECHECK_S = 0.5
"""While requests wait, gates that open with time alone are looked at again this often."""
BUSY_REST_S = 0.25
"""A replica that answered "busy" gets nothing for this long, or until something ends there."""
CHARGE_AHEAD = 1.25
"""A request that outgrows its estimate is charged this much of what it has cost so far: seldom."""


class Scheduler:
    """All scheduling state of one or more pools."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.predictor = Predictor(policy.bounds.predictions)
        self.pools: list[Pool] = []
        self.replicas: dict[str, Replica] = {}
        self.room = WaitingRoom()
        self.granted: dict[str, tuple[Grant, Replica]] = {}
        self.is_closed = False
        self._pool_of: dict[str, Pool] = {}
        self._sequence = 0
        self._wake_at: float | None = None

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take in one event at instant `now` (seconds, never going back) and decide."""
        out: list[Decision] = []
        match event:
            case Arrived():
                self._arrived(event.request, now, out)
            case FirstToken():
                self._started(event.request_id, now, out)
            case Finished():
                self._finished(event, now, out)
            case Cancelled():
                self._finished(Finished(event.request_id, Outcome.CANCELLED), now, out)
            case Progressed():
                self._progressed(event)
            case Bounced():
                self._bounced(event.request_id, now, out)
            case ReplicaReported():
                self._reported(event, now, out)
            case ReplicaFound():
                self._found(event, now, out)
            case ReplicaLost():
                self._lost(event.replica)
            case ReplicaRemoved():
                self._removed(event.replica)
            case DrainAsked():
                self._drain(event, now, out)
            case PolicyChanged():
                self._policy_changed(event, now, out)
            case Closed():
                self._close(now, out)
            case Woke():
                self._woke(now, out)
            case _:
                assert_never(event)
        self._ask_to_wake(now, out)
        return out

    # Questions; they change nothing.

    @property
    def waiting(self) -> dict[str, Waiting]:
        """What waits, by request id."""
        return self.room.requests

    def pool_of(self, model: str) -> Pool | None:
        """The pool that serves `model`, or None for a model without any replica."""
        return self._pool_of.get(model)

    def place_of(self, request_id: str, now: float) -> tuple[int, float | None] | None:
        """(estimated position, expected wait in seconds) of a waiting request; None if it is not.

        O(requests of that user): for entering the queue and for a comment now and then.
        """
        waiting = self.waiting.get(request_id)
        if waiting is None:
            return None
        request = waiting.request
        pool = self._pool_of[request.model]
        user = pool.queues[request.tier].tenants[request.tenant].users[request.user]
        ahead = sum(
            other.order < waiting.order for heap in user.queues.values() for other in heap.items()
        )
        place = admission.position(pool, request.tier, ahead)
        return place, admission.wait_s(pool, place, now)

    # Arrival and admission.

    def _arrived(self, request: Request, now: float, out: list[Decision]) -> None:
        assert request.id not in self.waiting, "an id waits once"
        assert request.id not in self.granted, "an id is granted once"
        pool = self._pool_of.get(request.model)
        if self.is_closed:
            self._refuse(request, Reason.SHUTTING_DOWN, now, out)
            return
        if pool is None or not pool.has_replica_for(request):
            self._refuse(request, Reason.NO_REPLICA, now, out)
            return
        if self.room.is_full_for(request.tenant, request.user, self.policy.bounds):
            self._refuse(request, Reason.USER_QUEUE_FULL, now, out)
            return
        self._sequence += 1
        waiting = weigh(self.policy, self.predictor, request, self._sequence)
        pool.saw(request.tier, now)
        if self.policy.release_at_once:
            self._forward(pool, waiting, now, out)
            return
        queue = pool.queues[request.tier]
        self._enqueue(pool, waiting)
        # Behind another of its class nothing is open for it that was not for that one.
        if queue.head(waiting.kind) is waiting:
            self._fill(pool, pool.replicas.values(), now, out)
        while request.id in self.waiting and self.room.is_full(self.policy.bounds):
            self._shed(waiting, now, out)

    def _enqueue(self, pool: Pool, waiting: Waiting) -> None:
        pool.queues[waiting.request.tier].push(waiting)
        self.room.enter(waiting)

    def _dequeue(self, waiting: Waiting) -> None:
        request = waiting.request
        self._pool_of[request.model].queues[request.tier].remove(waiting)
        self.room.leave(waiting)

    def _shed(self, newcomer: Waiting, now: float, out: list[Decision]) -> None:
        waiting = admission.victim(self.pools)
        self._evict(waiting, Reason.QUEUE_FULL if waiting is newcomer else Reason.SHED, now, out)
        self._fill_behind(waiting, now, out)

    def _evict(self, waiting: Waiting, reason: Reason, now: float, out: list[Decision]) -> None:
        self._dequeue(waiting)
        self._refuse(waiting.request, reason, now, out)

    def _fill_behind(self, gone: Waiting, now: float, out: list[Decision]) -> None:
        """One that waited went: the next of its class may fit where it did not."""
        pool = self._pool_of[gone.request.model]
        if pool.queues[gone.request.tier].head(gone.kind) is not None:
            self._fill(pool, pool.replicas.values(), now, out)

    def _refuse(self, request: Request, reason: Reason, now: float, out: list[Decision]) -> None:
        pool = self._pool_of.get(request.model)
        place = 1
        if pool is not None:
            ahead = pool.queues[request.tier].user_count(request.tenant, request.user)
            place = admission.position(pool, request.tier, ahead)
        after_s = admission.retry_after_s(pool, place, now, self.policy.bounds)
        out.append(Refused(request.id, reason, after_s))

    # Release.

    def _fill(
        self, pool: Pool, replicas: Iterable[Replica], now: float, out: list[Decision]
    ) -> None:
        """Release onto `replicas` until nothing more may go there."""
        touched = list(replicas)
        while pool.waiting and (choice := choose(pool, touched, now)) is not None:
            waiting = choice.waiting
            tier = waiting.request.tier
            pool.queues[tier].take(waiting)
            self.room.leave(waiting)
            pool.floors.released(tier, waiting.cost, pool.backlog)
            grant = self._grant(pool, waiting, choice.replica, now=now, out=out)
            grant.was_owed = choice.is_owed

    def _forward(self, pool: Pool, waiting: Waiting, now: float, out: list[Decision]) -> None:
        """The contrast: no queue and no gate, to the replica with the least outstanding."""
        fitting = [each for each in pool.replicas.values() if each.may_serve(waiting.request)]
        replica = min(fitting, key=lambda each: (each.ledger.sequences, each.name))
        self._grant(pool, waiting, replica, now=now, out=out).charged = 0.0

    def _grant(
        self, pool: Pool, waiting: Waiting, replica: Replica, *, now: float, out: list[Decision]
    ) -> Grant:
        sequences = waiting.request.sequences
        if replica.slots is not None:
            sequences = min(sequences, replica.slots)
        grant = Grant(waiting, sequences=sequences, granted_at=now)
        grant.found_room = replica.has_room_for(sequences)
        replica.ledger.enter(grant, now)
        replica.touch()
        self.granted[waiting.request.id] = (grant, replica)
        pool.drain_rate.add(now)
        waited_s = max(0.0, now - waiting.request.arrived_at)
        out.append(Granted(waiting.request.id, replica.name, waited_s))
        return grant

    # What happens to a grant.

    def _started(self, request_id: str, now: float, out: list[Decision]) -> None:
        found = self.granted.get(request_id)
        if found is None:
            return
        grant, replica = found
        if replica.ledger.start(request_id) is not None:
            replica.take_first_token(grant, now)
            self._refill(replica, now, out)

    def _progressed(self, event: Progressed) -> None:
        replica = self.replicas.get(event.replica)
        if replica is None:
            return
        for request_id, output_tokens in event.output_tokens.items():
            grant = replica.ledger.produced(request_id, output_tokens)
            if grant is None:
                continue
            waiting = grant.waiting
            due = cost.produced(
                self.policy,
                sequences=waiting.request.sequences,
                prompt_tokens=waiting.prompt_tokens,
                output_tokens=grant.output_tokens,
            )
            if due > grant.charged:
                self._charge(grant, due * CHARGE_AHEAD)

    def _finished(self, event: Finished, now: float, out: list[Decision]) -> None:
        waiting = self.waiting.get(event.request_id)
        if waiting is not None:
            self._dequeue(waiting)
            self._fill_behind(waiting, now, out)
            return
        found = self.granted.pop(event.request_id, None)
        if found is None:
            return
        grant, replica = found
        replica.ledger.leave(event.request_id, now)
        replica.busy_until = 0.0
        replica.release_rate.add(now)
        if event.tpot_s is not None:
            replica.take_tpot(event.tpot_s, now)
        self._settle(grant, replica, event, now)
        self._forget_if_gone(replica)
        self._refill(replica, now, out)

    def _settle(self, grant: Grant, replica: Replica, event: Finished, now: float) -> None:
        waiting = grant.waiting
        request = waiting.request
        usage = event.usage
        if usage is not None and event.outcome is Outcome.DONE:
            self.predictor.learn(request, usage)
        if usage is None:
            output_tokens = grant.output_tokens
            if event.outcome is Outcome.DONE and not output_tokens:
                output_tokens = waiting.output_tokens * request.sequences
            usage = Usage(output_tokens=output_tokens)
        if not usage.prompt_tokens:
            usage = replace(usage, prompt_tokens=waiting.prompt_tokens)
        actual = cost.settled(
            self.policy,
            outcome=event.outcome,
            sequences=request.sequences,
            usage=usage,
            prefilled=replica.prefilled_share(grant, now),
        )
        self._charge(grant, actual)

    def _charge(self, grant: Grant, cost_now: float) -> None:
        """Let the grant's flow have been charged `cost_now`, neither more nor less."""
        request = grant.waiting.request
        difference, grant.charged = cost_now - grant.charged, cost_now
        pool = self._pool_of.get(request.model)
        if pool is None or self.policy.release_at_once or difference == 0.0:
            return
        pool.queues[request.tier].settle(request.tenant, request.user, difference)
        pool.floors.settled(request.tier, difference, pool.backlog, was_owed=grant.was_owed)

    def _bounced(self, request_id: str, now: float, out: list[Decision]) -> None:
        found = self.granted.pop(request_id, None)
        if found is None:
            return
        grant, replica = found
        request = grant.waiting.request
        replica.ledger.leave(request_id, now)
        replica.busy_until = now + BUSY_REST_S
        self._charge(grant, 0.0)
        self._forget_if_gone(replica)
        pool = self._pool_of.get(request.model)
        if self.is_closed:
            self._refuse(request, Reason.SHUTTING_DOWN, now, out)
        elif pool is None or not pool.has_replica_for(request):
            self._refuse(request, Reason.NO_REPLICA, now, out)
        else:
            self._enqueue(pool, grant.waiting)
        self._refill_all(now, out)

    # What happens to a replica.

    def _found(self, event: ReplicaFound, now: float, out: list[Decision]) -> None:
        replica = self.replicas.get(event.replica)
        if replica is None:
            replica = self.replicas[event.replica] = Replica(
                event.replica, tiers=len(self.policy.tiers)
            )
        if replica.is_lost:
            replica.is_lost = False
            replica.forget()
        replica.is_removed = False
        replica.configured_slots = event.slots
        replica.weight = event.weight
        if replica.models != event.models:
            replica.models = event.models
            self._regroup(self.policy)
            self._refill_all(now, out)
        else:
            self._refill(replica, now, out)

    def _reported(self, event: ReplicaReported, now: float, out: list[Decision]) -> None:
        replica = self.replicas.get(event.replica)
        if replica is None or replica.is_lost:
            return
        replica.take_report(
            event.report, sent_at=event.sent_at, now=now, round_trip_s=event.round_trip_s
        )
        self._refill(replica, now, out)

    def _lost(self, name: str) -> None:
        replica = self.replicas.get(name)
        if replica is not None:
            replica.is_lost = True
            replica.forget()
            replica.touch()

    def _removed(self, name: str) -> None:
        replica = self.replicas.get(name)
        if replica is not None:
            replica.is_removed = True
            replica.touch()
            self._forget_if_gone(replica)

    def _forget_if_gone(self, replica: Replica) -> None:
        if replica.is_removed and not replica.ledger.grants:
            self.replicas.pop(replica.name, None)
            self._regroup(self.policy)

    def _drain(self, event: DrainAsked, now: float, out: list[Decision]) -> None:
        replica = self.replicas.get(event.replica)
        if replica is not None:
            replica.is_draining = event.draining
            self._refill(replica, now, out)

    def _refill(self, replica: Replica, now: float, out: list[Decision]) -> None:
        replica.touch()
        if not self.waiting or not replica.is_usable:
            return
        for pool in self.pools:
            if replica.name in pool.replicas:
                self._fill(pool, (replica,), now, out)

    def _refill_all(self, now: float, out: list[Decision]) -> None:
        for replica in self.replicas.values():
            replica.touch()
        for pool in self.pools:
            if pool.waiting:
                self._fill(pool, pool.replicas.values(), now, out)

    # Policy, grouping, time, the end.

    def _policy_changed(self, event: PolicyChanged, now: float, out: list[Decision]) -> None:
        old, new = self.policy, event.policy
        rank_of = {tier.name: rank for rank, tier in enumerate(new.tiers)}
        tier_of = {
            rank: rank_of[event.moved_to.get(tier.name, tier.name)]
            for rank, tier in enumerate(old.tiers)
        }
        for replica in self.replicas.values():
            replica.ledger.resize(tier_of, len(new.tiers))
        same_tiers = all(tier_of[rank] == rank for rank in tier_of) and len(tier_of) == len(rank_of)
        keeps_debts = same_tiers and old.cost == new.cost
        for waiting in self.waiting.values():
            reweigh(waiting, new, tier_of)
        for grant, _ in self.granted.values():
            reweigh(grant.waiting, new, tier_of)
            if not keeps_debts and not old.release_at_once:
                grant.charged = grant.waiting.cost
        self.policy = new
        self._regroup(new, keeps_debts=keeps_debts)
        self._refill_all(now, out)

    def _regroup(self, policy: Policy, *, keeps_debts: bool = True) -> None:
        """Rebuild the pools, after models or tiers changed; nothing that waits is lost."""
        self.pools = regrouped(
            policy,
            self.pools,
            replicas=self.replicas.values(),
            waiting=self.waiting.values(),
            keeps_debts=keeps_debts,
        )
        self._pool_of = {model: pool for pool in self.pools for model in pool.models}

    def _woke(self, now: float, out: list[Decision]) -> None:
        self._wake_at = None
        self._expire(now, out)
        for replica in self.replicas.values():
            if not replica.is_report_fresh(now, self.policy.scrape_interval_s):
                replica.start_plain(now, queued=0)
        self._refill_all(now, out)

    def _expire(self, now: float, out: list[Decision]) -> None:
        while (waiting := self.room.expired(now)) is not None:
            pool = self._pool_of[waiting.request.model]
            served = pool.has_replica_for(waiting.request)
            reason = Reason.PATIENCE_SPENT if served else Reason.NO_REPLICA
            self._evict(waiting, reason, now, out)

    def _close(self, now: float, out: list[Decision]) -> None:
        self.is_closed = True
        for waiting in list(self.waiting.values()):
            self._evict(waiting, Reason.SHUTTING_DOWN, now, out)

    def _ask_to_wake(self, now: float, out: list[Decision]) -> None:
        if not self.waiting:
            return
        wanted = min(self.room.deadlines.first_key(), now + RECHECK_S)
        if self._wake_at is None or wanted < self._wake_at or self._wake_at <= now:
            self._wake_at = wanted
            out.append(WakeWanted(wanted))
