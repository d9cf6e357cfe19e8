"""The scheduler: events in, decisions out. The only file that changes scheduling state.

`handle(event, now)` is synchronous and pure: no clock, no randomness, no I/O, no logging. The
gateway, a simulator and a cluster's leader can all run the same object. Each event touches few
replicas, and only those are looked at again.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from gateway.core import admission, cost
from gateway.core.fairqueue import EligibilityClass, Waiting
from gateway.core.heap import KeyedHeap
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
from gateway.core.pool import Pool, components
from gateway.core.predict import Predictor
from gateway.core.replica import Replica

RECHECK_S = 0.5
"""While requests wait, gates that open with time alone are looked at again this often."""
BUSY_REST_S = 0.25
"""A replica that answered "busy" gets nothing for this long, or until something ends there."""


class Scheduler:
    """All scheduling state of one or more pools."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.predictor = Predictor(policy.bounds.predictions)
        self.pools: list[Pool] = []
        self.replicas: dict[str, Replica] = {}
        self.waiting: dict[str, Waiting] = {}
        self.granted: dict[str, tuple[Grant, Replica]] = {}
        self.is_closed = False
        self._pool_of: dict[str, Pool] = {}
        self._waiting_by_user: dict[tuple[str, str], int] = {}
        self._deadlines: KeyedHeap[Waiting] = KeyedHeap()
        self._waiting_bytes = 0
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

    def pool_of(self, model: str) -> Pool | None:
        """The pool that serves `model`, or None for a model without any replica."""
        return self._pool_of.get(model)

    def place_of(self, request_id: str, now: float) -> tuple[int, float | None] | None:
        """(estimated position, expected wait in seconds) of a waiting request; None if it is not.

        O(users); meant for a comment every few seconds, not for every event.
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
        if pool is None or not pool.serving(request.model):
            self._refuse(request, Reason.NO_REPLICA, now, out)
            return
        user = (request.tenant, request.user)
        if self._waiting_by_user.get(user, 0) >= self.policy.bounds.waiting_per_user:
            self._refuse(request, Reason.USER_QUEUE_FULL, now, out)
            return
        waiting = self._weigh(request)
        pool.saw(request.tier, now)
        if self.policy.release_at_once:
            self._forward(pool, waiting, now, out)
            return
        was_blocked = waiting.kind in pool.queues[request.tier].classes
        self._enqueue(pool, waiting)
        if not was_blocked:
            only = (request.tier, waiting.kind)
            self._fill(pool, pool.serving(request.model), now, out, only=only)
        if request.id in self.waiting and self._is_full():
            self._shed(waiting, now, out)

    def _weigh(self, request: Request) -> Waiting:
        prompt_tokens = self.predictor.prompt_tokens(request)
        output_tokens = self.predictor.output_tokens(request)
        tier = self.policy.tiers[request.tier]
        patience_s = min(tier.patience_s, request.patience_s or tier.patience_s)
        kv_tokens = (prompt_tokens + output_tokens) * request.sequences
        self._sequence += 1
        return Waiting(
            request,
            kind=EligibilityClass(
                request.model, int(math.log2(kv_tokens) / 2), request.sequences, request.excluded
            ),
            order=(request.arrived_at, self._sequence),
            cost=cost.estimated(
                self.policy,
                sequences=request.sequences,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
            ),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            deadline=request.arrived_at + patience_s,
        )

    def _enqueue(self, pool: Pool, waiting: Waiting) -> None:
        request = waiting.request
        pool.queues[request.tier].push(waiting)
        self.waiting[request.id] = waiting
        self._waiting_bytes += request.body_bytes
        self._deadlines.set(waiting, waiting.deadline)
        user = (request.tenant, request.user)
        self._waiting_by_user[user] = self._waiting_by_user.get(user, 0) + 1

    def _dequeued(self, waiting: Waiting) -> None:
        request = waiting.request
        del self.waiting[request.id]
        self._waiting_bytes -= request.body_bytes
        self._deadlines.discard(waiting)
        user = (request.tenant, request.user)
        left = self._waiting_by_user[user] - 1
        if left:
            self._waiting_by_user[user] = left
        else:
            del self._waiting_by_user[user]

    def _is_full(self) -> bool:
        bounds = self.policy.bounds
        return len(self.waiting) > bounds.waiting or self._waiting_bytes > bounds.waiting_bytes

    def _shed(self, newcomer: Waiting, now: float, out: list[Decision]) -> None:
        pool, waiting = admission.victim(self.pools)
        self._evict(
            pool, waiting, Reason.QUEUE_FULL if waiting is newcomer else Reason.SHED, now, out
        )

    def _evict(
        self, pool: Pool, waiting: Waiting, reason: Reason, now: float, out: list[Decision]
    ) -> None:
        pool.queues[waiting.request.tier].remove(waiting)
        self._dequeued(waiting)
        self._refuse(waiting.request, reason, now, out)

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
        self,
        pool: Pool,
        replicas: Iterable[Replica],
        now: float,
        out: list[Decision],
        only: tuple[int, EligibilityClass] | None = None,
    ) -> None:
        """Release onto `replicas` until nothing more may go there."""
        touched = list(replicas)
        while (choice := choose(pool, touched, now, only)) is not None:
            waiting, replica = choice.waiting, choice.replica
            queue = pool.queues[waiting.request.tier]
            queue.take(waiting)
            self._dequeued(waiting)
            backlog = [queue.count for queue in pool.queues]
            pool.floors.released(waiting.request.tier, waiting.cost, backlog)
            self._grant(pool, waiting, replica, now, out)
            if only is not None:
                return

    def _forward(self, pool: Pool, waiting: Waiting, now: float, out: list[Decision]) -> None:
        """The contrast: no queue and no gate, to the replica with the least outstanding."""
        fitting = [
            replica
            for replica in pool.serving(waiting.request.model)
            if replica.name not in waiting.request.excluded
        ]
        if not fitting:
            self._refuse(waiting.request, Reason.NO_REPLICA, now, out)
            return
        replica = min(fitting, key=lambda candidate: (candidate.ledger.sequences, candidate.name))
        self._grant(pool, waiting, replica, now, out)

    def _grant(
        self, pool: Pool, waiting: Waiting, replica: Replica, now: float, out: list[Decision]
    ) -> None:
        sequences = waiting.request.sequences
        if replica.slots is not None:
            sequences = min(sequences, replica.slots)
        grant = Grant(waiting, sequences=sequences, granted_at=now)
        replica.ledger.enter(grant, now)
        replica.touch()
        self.granted[waiting.request.id] = (grant, replica)
        pool.drain_rate.add(now)
        waited_s = max(0.0, now - waiting.request.arrived_at)
        out.append(Granted(waiting.request.id, replica.name, waited_s))

    # What happens to a grant.

    def _started(self, request_id: str, now: float, out: list[Decision]) -> None:
        found = self.granted.get(request_id)
        if found is None:
            return
        grant, replica = found
        if replica.ledger.start(request_id, now) is not None:
            replica.take_first_token(grant.waiting.prompt_tokens, grant.granted_at, now)
            self._refill(replica, now, out)

    def _progressed(self, event: Progressed) -> None:
        replica = self.replicas.get(event.replica)
        if replica is not None:
            for request_id, output_tokens in event.output_tokens.items():
                replica.ledger.produced(request_id, output_tokens)

    def _finished(self, event: Finished, now: float, out: list[Decision]) -> None:
        waiting = self.waiting.get(event.request_id)
        if waiting is not None:
            self._pool_of[waiting.request.model].queues[waiting.request.tier].remove(waiting)
            self._dequeued(waiting)
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
            produced = waiting.output_tokens if event.outcome is Outcome.DONE else 0
            usage = Usage(
                prompt_tokens=waiting.prompt_tokens, output_tokens=produced * request.sequences
            )
        prefilled = 1.0
        if not grant.is_started:
            expected_s = waiting.prompt_tokens / replica.prefill_rate
            prefilled = (now - grant.granted_at) / expected_s if expected_s > 0.0 else 1.0
        actual = cost.settled(
            self.policy,
            outcome=event.outcome,
            sequences=request.sequences,
            usage=usage,
            prefilled=prefilled,
        )
        pool = self._pool_of.get(request.model)
        if pool is not None and not self.policy.release_at_once:
            queue = pool.queues[request.tier]
            queue.settle(request.tenant, request.user, actual - waiting.cost)

    def _bounced(self, request_id: str, now: float, out: list[Decision]) -> None:
        found = self.granted.pop(request_id, None)
        if found is None:
            return
        grant, replica = found
        request = grant.waiting.request
        replica.ledger.leave(request_id, now)
        pool = self._pool_of.get(request.model)
        if pool is None or not pool.serving(request.model):
            self._refuse(request, Reason.NO_REPLICA, now, out)
            return
        replica.busy_until = now + BUSY_REST_S
        pool.queues[request.tier].settle(request.tenant, request.user, -grant.waiting.cost)
        self._enqueue(pool, grant.waiting)
        self._refill(replica, now, out)

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
        self._start_plain(replica, event.sent_at, now)
        self._refill(replica, now, out)

    def _start_plain(self, replica: Replica, as_of: float, now: float) -> None:
        """A plain request shows no first token: infer that the engine began with it.

        It did when its predicted prefill has passed and the engine's queue, as scraped, is
        shorter than its rank from the newest; without fresh reports the prefill alone decides.
        """
        interval_s = self.policy.scrape_interval_s
        report = replica.report if replica.is_report_fresh(now, interval_s) else None
        queued = 0 if report is None or report.waiting is None else report.waiting
        for rank, grant in replica.ledger.rank_of_unstarted():
            waiting = grant.waiting
            if waiting.request.streams or rank <= queued:
                continue
            prefill_s = waiting.prompt_tokens / replica.prefill_rate + replica.step_s
            if grant.granted_at + prefill_s <= as_of:
                replica.ledger.start(waiting.request.id, now)

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
            for pool in self.pools:
                pool.replicas.pop(replica.name, None)

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
        for grant, _ in self.granted.values():
            grant.waiting.request = _at_tier(grant.waiting.request, tier_of)
        for waiting in self.waiting.values():
            waiting.request = _at_tier(waiting.request, tier_of)
        same_tiers = all(tier_of[rank] == rank for rank in tier_of) and len(tier_of) == len(rank_of)
        self.policy = new
        self._regroup(new, keep_debts=same_tiers)
        self._refill_all(now, out)

    def _regroup(self, policy: Policy, *, keep_debts: bool = True) -> None:
        """Rebuild the pools, after models or tiers changed; nothing that waits is lost."""
        old = self.pools
        served = [replica.models for replica in self.replicas.values()]
        lonely = [frozenset((waiting.request.model,)) for waiting in self.waiting.values()]
        self.pools = [Pool(policy, models) for models in components([*served, *lonely])]
        self._pool_of = {model: pool for pool in self.pools for model in pool.models}
        for pool in self.pools:
            for replica in self.replicas.values():
                if replica.models & pool.models:
                    pool.replicas[replica.name] = replica
            for former in old:
                if keep_debts and former.models & pool.models:
                    pool.adopt(former)
        for waiting in sorted(self.waiting.values(), key=lambda each: each.order):
            self._pool_of[waiting.request.model].queues[waiting.request.tier].push(waiting)

    def _woke(self, now: float, out: list[Decision]) -> None:
        self._wake_at = None
        self._expire(now, out)
        for replica in self.replicas.values():
            if not replica.is_report_fresh(now, self.policy.scrape_interval_s):
                self._start_plain(replica, now, now)
        self._refill_all(now, out)

    def _expire(self, now: float, out: list[Decision]) -> None:
        while True:
            waiting = self._deadlines.first()
            if waiting is None or waiting.deadline > now:
                return
            pool = self._pool_of[waiting.request.model]
            has_replica = bool(pool.serving(waiting.request.model))
            reason = Reason.PATIENCE_SPENT if has_replica else Reason.NO_REPLICA
            self._evict(pool, waiting, reason, now, out)

    def _close(self, now: float, out: list[Decision]) -> None:
        self.is_closed = True
        for waiting in list(self.waiting.values()):
            pool = self._pool_of[waiting.request.model]
            self._evict(pool, waiting, Reason.SHUTTING_DOWN, now, out)

    def _ask_to_wake(self, now: float, out: list[Decision]) -> None:
        if not self.waiting:
            return
        wanted = min(self._deadlines.first_key(), now + RECHECK_S)
        if self._wake_at is None or wanted < self._wake_at or self._wake_at <= now:
            self._wake_at = wanted
            out.append(WakeWanted(wanted))


def _at_tier(request: Request, tier_of: dict[int, int]) -> Request:
    tier = tier_of[request.tier]
    return request if tier == request.tier else replace(request, tier=tier)
