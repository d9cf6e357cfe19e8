"""All scheduling state as plain values for JSON, and a scheduler that goes on from them.

For a standby that takes over and for a process that is restarted. Under the very policy that it
was taken under, a restored scheduler decides what the first one would have decided, whatever its
clock reads; under another policy it is as if that one had come by `PolicyChanged`: what waits or
runs is ranked and priced anew, and claims are kept where the tier's name and the cost unit stay.
The wake that was asked for is due at once: send `Woke` first, and it asks again.

What travels between processes and where it is kept is not known here.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import inf, isfinite
from typing import Any

from gateway.core.flows import Waiting
from gateway.core.plain import age_s, instant_of, known_instant
from gateway.core.policy import Policy
from gateway.core.pool import Pool
from gateway.core.scheduler import Scheduler
from gateway.core.snapshot_queue import Known, debts, make_flows, plain_queue, restore_queue
from gateway.core.snapshot_replica import (
    KindTable,
    grant_of,
    kinds_of,
    plain_grant,
    plain_replica,
    plain_ties,
    plain_waiting,
    replica_of,
    restore_judgement,
    restore_ties,
    waiting_of,
)
from gateway.core.state import State
from gateway.core.weigh import reweigh

FAULTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError
)  # fmt: skip
"""What values of a wrong form end in when they are read."""
VERSION = 2
"""Raised with every change of what a snapshot holds; no other version is read."""


def snapshot(state: State, now: float) -> dict[str, Any]:
    """The whole state at `now`, in dicts, lists, strings, finite numbers and None.

    It shares nothing with `state` and changes nothing. O(everything), some 50 us for each request:
    for a standby every now and then, and for a restart, never on a hot path.
    """
    kinds = KindTable()
    data: dict[str, Any] = {
        "version": VERSION,
        "policy": _mark(state.policy),
        "cost": state.policy.cost,
        "tiers": [tier.name for tier in state.policy.tiers],
        "sequence": state.sequence,
        "is_closed": state.is_closed,
        "is_crowded": state.is_crowded,
        "wake_age_s": age_s(
            state.due_at if state.wake_at is None else min(state.due_at, state.wake_at), now
        ),
        "drained": sorted(state.drained),
        "predictor": state.predictor.snapshot(),
        "replicas": [plain_replica(each, now) for each in state.replicas.values()],
        "reserved": [
            [each.name, now - each.reserved_for.key, each.reserved_for.sequence]
            for each in state.replicas.values()
            if each.reserved_for is not None
        ],
        "waiting": [plain_waiting(each, kinds, now) for each in state.waiting.values()],
        "caps": [[each.name, each.most] for each in state.caps.holders.values()],
        "granted": [
            [replica.name, plain_grant(grant, kinds, now)]
            for grant, replica in state.granted.values()
        ],
        "pools": [_plain_pool(pool, kinds, now) for pool in state.pools],
    }
    data["kinds"] = kinds.snapshot()
    data["checksum"] = _checksum(data)
    return data


def restore(policy: Policy, data: Mapping[str, Any], now: float) -> Scheduler:
    """A scheduler that goes on at `now`, by its own clock, from what `snapshot` gave.

    Requests of tiers that `policy` does not name go to its last tier. Raises ValueError on
    anything that is not an undamaged snapshot of this version.
    """
    if not isinstance(data, Mapping):
        raise ValueError("not a snapshot: it is no object")
    if data.get("version") != VERSION:
        found = data.get("version")
        raise ValueError(f"a snapshot of version {found!r}, but only version {VERSION} is read")
    if not isfinite(now):
        raise ValueError(f"the clock reads {now!r}")
    try:
        is_whole = data["checksum"] == _checksum(data)
    except FAULTS as error:
        raise ValueError(f"a damaged snapshot: {error!r}") from error
    if not is_whole:
        raise ValueError("a damaged snapshot: its checksum does not fit")
    try:
        return _Restoring(policy, data, now).scheduler
    except FAULTS as error:
        raise ValueError(f"a damaged snapshot: {error!r}") from error


def _checksum(data: Mapping[str, Any]) -> str:
    told = {key: value for key, value in data.items() if key != "checksum"}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode()).hexdigest()


def _mark(policy: Policy) -> str:
    """Differs where two policies may decide differently."""
    return sha256(repr(policy).encode()).hexdigest()


def _plain_pool(pool: Pool, kinds: KindTable, now: float) -> dict[str, Any]:
    return {
        "models": sorted(pool.models),
        "open": list(pool.open),
        "reserved_shares": list(pool.gates.reserved),
        "seen": pool.snapshot(kinds.number_of, now),
        "recall_checked_age_s": age_s(pool.recall_checked_at, now),
        "recall_due_age_s": age_s(pool.recall_due_at, now),
        "has_queued": pool.has_queued,
        "looked_age_s": age_s(pool.looked_at, now),
        "drain_rate": pool.drain_rate.snapshot(now),
        "advisor": pool.advisor.snapshot(now),
        "forecasts": [forecast.snapshot() for forecast in pool.forecasts],
        "deficits": list(pool.floors.deficits),
        "shares": None if pool.shares is None else pool.shares.snapshot(),
        "elders": None if pool.elders is None else pool.elders.snapshot(now),
        "ties": plain_ties(pool.ties),
        "queues": [plain_queue(queue, kinds, now) for queue in pool.queues],
    }


class _Restoring:
    """One restoration: its clock, its policy, and what the numbers in the snapshot stand for."""

    __slots__ = ("is_same", "keeps_claims", "known", "now", "rank_of", "scheduler")

    def __init__(self, policy: Policy, data: Mapping[str, Any], now: float) -> None:
        self.now = now
        self.scheduler = Scheduler(policy)
        self.is_same = data["policy"] == _mark(policy)
        """Whether what was judged and priced under the former policy still holds."""
        self.keeps_claims = data["cost"] == policy.cost
        ranks = {tier.name: rank for rank, tier in enumerate(policy.tiers)}
        self.rank_of = {old: ranks[name] for old, name in enumerate(data["tiers"]) if name in ranks}
        """New rank by old rank, of the tiers that both policies name."""
        self.known = Known(kinds_of(data["kinds"]), now)
        self.scheduler.sequence = data["sequence"]
        self.scheduler.is_closed = data["is_closed"]
        self.scheduler.is_crowded = data["is_crowded"] and self.is_same
        self.scheduler.drained.update(data["drained"])
        self.scheduler.predictor.restore(data["predictor"])
        self._restore_replicas(data)
        self._restore_requests(data)
        if self.is_same:
            self._restore_reserved(data["reserved"])
        everybody = sorted(self.scheduler.waiting.values(), key=lambda each: each.ticket)
        line = [each for each in everybody if each.holder is None]
        self._restore_caps(data["caps"], everybody)
        self.scheduler.pools = [self._pool(plain, line) for plain in data["pools"]]
        self._index()
        if sum(pool.count for pool in self.scheduler.pools) != len(line):
            raise ValueError("something waits in no pool")
        due_at = instant_of(data["wake_age_s"], now, never=inf)
        self.scheduler.due_at = due_at if due_at > now else inf
        first = self.scheduler.room.deadlines.first()
        if first is not None:
            self.scheduler.wake_at = min(first.deadline, now)
        if self.is_same:
            for plain in data["replicas"]:
                replica = self.scheduler.replicas[plain["name"]]
                restore_judgement(replica, plain["judged"], now)
            for pool in self.scheduler.pools:
                pool.verdicts_restored()

    def _tier(self, old: int) -> int:
        return self.rank_of.get(old, len(self.scheduler.policy.tiers) - 1)

    def _restore_replicas(self, data: Mapping[str, Any]) -> None:
        scheduler = self.scheduler
        for plain in data["replicas"]:
            replica = replica_of(plain, scheduler.policy, self.now)
            scheduler.replicas[replica.name] = replica
        for name, plain in data["granted"]:
            replica = scheduler.replicas[name]
            old = plain["waiting"]["request"]["tier"]
            grant = grant_of(plain, self.known.kinds, self.now, self._tier(old))
            self._weigh_anew(grant.waiting)
            if not (self.keeps_claims and old in self.rank_of):
                grant.charged = 0.0 if scheduler.policy.release_at_once else grant.waiting.cost
            request_id = grant.waiting.request.id
            replica.ledger.enter(grant, self.now)
            if plain["is_started"]:
                replica.ledger.start(request_id)
            scheduler.granted[request_id] = (grant, replica)
            self.known.requests[grant.waiting.sequence] = grant.waiting
        for plain in data["replicas"]:
            ledger = scheduler.replicas[plain["name"]].ledger
            ledger.restore(plain["ledger_history"], self.now)

    def _restore_requests(self, data: Mapping[str, Any]) -> None:
        for plain in data["waiting"]:
            tier = self._tier(plain["request"]["tier"])
            waiting = waiting_of(plain, self.known.kinds, self.now, tier)
            self._weigh_anew(waiting)
            self.scheduler.room.enter(waiting)
            self.known.requests[waiting.sequence] = waiting

    def _weigh_anew(self, waiting: Waiting) -> None:
        if not self.is_same:
            tier = waiting.request.tier
            reweigh(waiting, self.scheduler.policy, {tier: tier})

    def _restore_caps(self, data: Sequence[Sequence[Any]], waiting: Sequence[Waiting]) -> None:
        caps = self.scheduler.caps
        caps.restore({str(name): int(most) for name, most in data})
        for grant, _ in self.scheduler.granted.values():
            caps.enter(grant.waiting.request)
        caps.rebuild(each for each in waiting if each.holder is not None)

    def _restore_reserved(self, data: Sequence[Sequence[Any]]) -> None:
        for name, key_age_s, sequence in data:
            waiting = self.known.request(key_age_s, sequence)
            self.scheduler.replicas[name].reserved_for = waiting

    def _pool(self, data: Mapping[str, Any], line: Sequence[Waiting]) -> Pool:
        policy, now = self.scheduler.policy, self.now
        models = frozenset(data["models"])
        replicas = [each for each in self.scheduler.replicas.values() if each.models & models]
        pool = Pool(policy, models, replicas)
        pool.restore_kinds(data["seen"], self.known.kinds)
        restore_ties(pool.ties, data["ties"])
        self._claims(pool, data)
        for waiting in line:
            if waiting.request.model in models:
                pool.push(waiting)
        pool.restore_seen(data["seen"], self.rank_of, now)
        pool.recall_checked_at = instant_of(data["recall_checked_age_s"], now)
        pool.recall_due_at = known_instant(data["recall_due_age_s"], now)
        pool.has_queued = data["has_queued"]
        pool.looked_at = instant_of(data["looked_age_s"], now)
        pool.drain_rate.restore(data["drain_rate"], now)
        pool.advisor.restore(data["advisor"], now)
        for old, new in self.rank_of.items():
            pool.forecasts[new].restore(data["forecasts"][old])
        if pool.elders is not None and data["elders"] is not None:
            pool.elders.restore(data["elders"], now)
        if self.is_same:
            self._judged(pool, data)
        else:
            pool.refresh(now)
            pool.touch_all()
        return pool

    def _claims(self, pool: Pool, data: Mapping[str, Any]) -> None:
        """Before anything waits: what the flows and the tiers have had already."""
        if self.is_same:
            for queue, plain in zip(pool.queues, data["queues"], strict=True):
                make_flows(queue, plain, pool.policy)
        elif self.keeps_claims:
            for old, new in self.rank_of.items():
                for debt in debts(data["queues"][old]):
                    pool.queues[new].adopt_debt(debt)
                pool.floors.deficits[new] = data["deficits"][old]
            if pool.shares is not None and data["shares"] is not None:
                pool.shares.restore(data["shares"], self.rank_of)

    def _judged(self, pool: Pool, data: Mapping[str, Any]) -> None:
        """After everything waits again: undo what its coming did, and judge nothing anew."""
        for queue, plain in zip(pool.queues, data["queues"], strict=True):
            restore_queue(queue, plain, self.known)
        pool.floors.deficits = [float(deficit) for deficit in data["deficits"]]
        if pool.shares is not None:
            pool.shares.restore(data["shares"], self.rank_of)
        pool.gates.reserved = tuple(data["reserved_shares"])
        pool.open = {name: pool.replicas[name] for name in data["open"]}

    def _index(self) -> None:
        scheduler = self.scheduler
        scheduler.pool_by_model = {model: pool for pool in scheduler.pools for model in pool.models}
        scheduler.pool_by_replica = {
            name: pool for pool in scheduler.pools for name in pool.replicas
        }
