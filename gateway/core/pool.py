"""One scheduling domain: a connected component of models and replicas, with its own queues.

The model is a constraint on where a request can run, not a level of fairness: two models that
share no replica never compete, two that share one are served from the same queues.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gateway.core.affinity import Ties
from gateway.core.ageing import Elders
from gateway.core.drain import DrainRate
from gateway.core.fairqueue import FairQueue
from gateway.core.floors import Floors
from gateway.core.flows import Waiting
from gateway.core.gate import Gates, reserved_shares
from gateway.core.kinds import Kind, size_of
from gateway.core.messages import Request
from gateway.core.plain import age_s, instant_of, known_instant
from gateway.core.policy import Policy
from gateway.core.ranking import Ranking
from gateway.core.replica import Replica
from gateway.core.scaling import ScalingAdvisor
from gateway.core.shares import TierShares
from gateway.core.waits import WaitForecast

DRAIN_HALF_LIFE_S = 15.0
KINDS_MAX = 1_024
"""Eligibility classes remembered; forgotten ones are made anew, which is only slower."""


class Pool:
    """Queues per tier, the replicas that serve them, and who was active lately."""

    __slots__ = (
        "_active_until", "_kinds", "_last_seen", "_plain_kinds", "_ranking", "_serving", "advisor",
        "count", "drain_rate", "elders", "floors", "forecasts", "gates",
        "has_adapters", "has_queued", "headroom", "looked_at", "models", "open", "policy",
        "queues", "recall_checked_at", "recall_due_at", "replicas", "shares", "slotless", "ties",
    )  # fmt: skip

    def __init__(
        self, policy: Policy, models: Iterable[str], replicas: Iterable[Replica] = ()
    ) -> None:
        self.models = frozenset(models)
        policy = policy.of_pool(self.models)
        tiers = len(policy.tiers)
        self.policy = policy
        self.has_adapters = len(self.models) > 1
        """Whether it matters which of several models a replica ran last."""
        self.replicas = {each.name: each for each in replicas}
        self.open = dict(self.replicas)
        """Those that may have an open gate: all but the ones judged shut since they changed."""
        self.queues = [FairQueue(policy) for _ in range(tiers)]
        self.count = 0
        """Requests waiting in all tiers."""
        self.slotless = 0
        """Those among them that need no slot."""
        self.gates = Gates(policy)
        self.floors = Floors(policy)
        self.shares = TierShares(policy) if policy.order == "weighted" else None
        self.elders = Elders(policy.ageing) if policy.ageing.after_s is not None else None
        self.forecasts = [WaitForecast() for _ in range(tiers)]
        self.advisor = ScalingAdvisor()
        self.headroom = tuple(policy.headroom_fraction(tier) for tier in range(tiers))
        """Share of a replica that each tier reserves while it is active."""
        self.ties = Ties(policy.bounds)
        self.drain_rate = DrainRate(DRAIN_HALF_LIFE_S)
        self.recall_checked_at = float("-inf")
        self.has_queued = True
        """Whether something may wait inside an engine, and so be recalled."""
        self.recall_due_at: float | None = None
        """When to look again, if it was too soon for what waits inside an engine."""
        self.looked_at = float("-inf")
        """When the number of replicas was last thought about."""
        self._last_seen: list[float | None] = [None] * tiers
        self._active_until = float("-inf")
        self._serving = {
            model: frozenset(each.name for each in self.replicas.values() if model in each.models)
            for model in self.models
        }
        self._plain_kinds: dict[str, Kind] = {}
        self._kinds: dict[tuple[frozenset[str], int, int, bool], Kind] = {}
        for replica in self.replicas.values():
            replica.away = None
            replica.touch()
        self._ranking = Ranking(tiers, list(self.replicas.values()))

    # What waits.

    def push(self, waiting: Waiting) -> None:
        """Queue a request that has its ticket."""
        tier = waiting.request.tier
        queue = self.queues[tier]
        if self.shares is not None and not queue.count:
            self.shares.wake(tier)
        queue.push(waiting)
        self.count += 1
        if not waiting.kind.decodes:
            self.slotless += 1
        if self.elders is not None and tier > 0:
            self.elders.push(waiting)

    def take(self, waiting: Waiting) -> None:
        """Release a request: its flow and its tier are charged the estimate."""
        tier = waiting.request.tier
        self._left(waiting)
        self.queues[tier].take(waiting)
        if self.elders is not None and tier > 0:
            self.elders.left(waiting)
        self._charge_tier(tier, waiting.cost)

    def pass_by(self, waiting: Waiting) -> None:
        """Charge a request that was released without having waited."""
        tier = waiting.request.tier
        if self.shares is not None:
            self.shares.wake(tier)
        self.queues[tier].pass_by(waiting)
        self._charge_tier(tier, waiting.cost)

    def remove(self, waiting: Waiting) -> None:
        """Take a request out of the queue without a charge."""
        self._left(waiting)
        self.queues[waiting.request.tier].remove(waiting)
        if self.elders is not None and waiting.request.tier > 0:
            self.elders.left(waiting)

    def settle(self, request: Request, difference: float, *, tier: int, was_favoured: bool) -> None:
        """An earlier charge was wrong by `difference`: correct it on all levels."""
        self.queues[tier].settle(request.tenant, request.user, difference)
        self.floors.settled(tier, difference, self._counts(), was_owed=was_favoured)
        if self.shares is not None:
            self.shares.charge(tier, difference)

    def _left(self, waiting: Waiting) -> None:
        self.count -= 1
        if not waiting.kind.decodes:
            self.slotless -= 1

    def _charge_tier(self, tier: int, cost: float) -> None:
        self.floors.released(tier, cost, self._counts())
        if self.shares is not None:
            self.shares.released(tier, cost)

    def _counts(self) -> list[int]:
        return [queue.count for queue in self.queues]

    def is_first(self, request: Request) -> bool:
        """Whether nothing that waits ranks before a request that has just come."""
        if not self.count:
            return True
        if self.shares is not None or self.elders is not None:
            return False
        return not any(self.queues[rank].count for rank in range(request.tier + 1))

    # Where it may run.

    def kind_of(self, request: Request, kv_tokens: int) -> Kind:
        """The eligibility class of a request that will hold `kv_tokens` at its end."""
        size = size_of(kv_tokens)
        decodes = request.output_tokens_max != 0
        is_free = not request.excluded and request.only is None
        if size == 0 and request.sequences == 1 and decodes and is_free:
            kind = self._plain_kinds.get(request.model)
            if kind is None:
                kind = self._plain_kinds[request.model] = self._kind(request, size, decodes)
            return kind
        return self._kind(request, size, decodes)

    def _kind(self, request: Request, size: int, decodes: bool) -> Kind:
        replicas = self._serving[request.model]
        if request.excluded:
            replicas = replicas - request.excluded
        if request.only is not None:
            replicas = replicas & {request.only}
        key = (replicas, size, request.sequences, decodes)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            kind = self._kinds[key] = Kind(
                replicas, size=size, sequences=request.sequences, decodes=decodes
            )
        return kind

    def can_serve(self, kind: Kind) -> bool:
        """Whether any usable replica may run requests of this class."""
        return any(self.replicas[name].is_usable for name in kind.replicas)

    def context_tokens(self, model: str) -> int | None:
        """Longest prompt and output of `model`; None while a replica does not say."""
        longest = 0
        for name in self._serving[model]:
            told = self.replicas[name].context_tokens
            if told is None:
                return None
            longest = max(longest, told)
        return longest or None

    def service_s(self, waiting: Waiting) -> float:
        """Seconds that the fastest replica would need for a request, once it has begun."""
        fastest = float("inf")
        for name in waiting.kind.replicas:
            replica = self.replicas[name]
            prefill_s = waiting.prompt_tokens / replica.speed.prefill_rate
            fastest = min(fastest, prefill_s + waiting.output_tokens * replica.speed.step_s)
        return fastest

    def touch(self, replica: Replica) -> None:
        """Something changed about `replica`."""
        replica.touch()
        self.open[replica.name] = replica
        self._ranking.changed(replica)

    def touch_all(self) -> None:
        """Something changed about all replicas, if only the time."""
        for replica in self.replicas.values():
            replica.touch()
            self._ranking.changed(replica)
        self.open = dict(self.replicas)

    def open_tiers(self, replica: Replica, now: float) -> int:
        """Tiers, from 0 down, whose gate on `replica` is open; judged again only if touched.

        Time alone shuts one gate: the allowance beyond the slots shrinks as the release rate
        decays. Those that time opens are looked at again when the scheduler wakes.
        """
        known = replica.open_tiers
        if known is None or (
            replica.judged_at != now and (self.slotless or (known and replica.has_queue))
        ):
            before = known
            known = replica.open_tiers = self.gates.open_tiers(replica, now)
            replica.judged_at = now
            if known != before or not replica.scores:
                self._ranking.changed(replica)
            if known:
                self.open[replica.name] = replica
            else:
                self.open.pop(replica.name, None)
            self._ranking.judged(replica)
        return known

    def freest(self, tier: int, now: float) -> Replica | None:
        """The freest of those open to `tier`, be it reserved; by name among equals.

        Judges what changed, as `open_tiers` does, and looks at nothing else.
        """
        bridging = self._ranking.bridging
        if bridging:
            for replica in list(bridging.values()):
                self.open_tiers(replica, now)
        for replica in self._ranking.unranked(tier):
            if replica.open_tiers is None:
                self.open_tiers(replica, now)
        return self._ranking.first(tier, self.headroom)

    def verdicts_restored(self) -> None:
        """The replicas have again what was judged of them."""
        for replica in self.replicas.values():
            self._ranking.judged(replica)

    # Who is here.

    def saw(self, tier: int, now: float) -> None:
        """A request of `tier` came: its headroom is held from now on."""
        before = self._last_seen[tier]
        self._last_seen[tier] = now
        if before is None or now - before > self.policy.hold_s or now >= self._active_until:
            self.refresh(now)

    def refresh(self, now: float) -> None:
        """Settle which tiers are active, and so what is kept of each replica from the others."""
        policy, until = self.policy, float("inf")
        for seen in self._last_seen:
            if policy.lend and seen is not None and now - seen <= policy.hold_s:
                until = min(until, seen + policy.hold_s + 1e-6)
        self._active_until = until
        reserved = self.reserved_at(now)
        if reserved != self.gates.reserved:
            self.gates.reserved = reserved
            self.touch_all()

    def reserved_at(self, now: float) -> tuple[float, ...]:
        """Share of each replica, 0..1, kept from each tier for those above that are active."""
        policy = self.policy
        return reserved_shares(
            self.headroom,
            [
                not policy.lend or (seen is not None and now - seen <= policy.hold_s)
                for seen in self._last_seen
            ],
        )

    def refresh_if_due(self, now: float) -> None:
        """As `refresh`, when a tier's hold has run out."""
        if now >= self._active_until:
            self.refresh(now)

    def snapshot(self, number_of: Callable[[Kind], int], now: float) -> dict[str, Any]:
        """Who was seen when, until when that holds, and the classes by their numbers."""
        return {
            "seen_age_s": [age_s(seen, now) for seen in self._last_seen],
            "active_age_s": age_s(self._active_until, now),
            "is_active_for_ever": self._active_until == float("inf"),
            "kinds": [number_of(kind) for kind in self._kinds.values()],
            "plain_kinds": {model: number_of(kind) for model, kind in self._plain_kinds.items()},
        }

    def restore_kinds(self, data: Mapping[str, Any], kinds: Sequence[Kind]) -> None:
        """Give what comes the same classes as what waits has."""
        self._plain_kinds = {model: kinds[at] for model, at in data["plain_kinds"].items()}
        for kind in [kinds[at] for at in data["kinds"]]:
            self._kinds[kind.replicas, kind.size, kind.sequences, kind.decodes] = kind

    def restore_seen(self, data: Mapping[str, Any], rank_of: Mapping[int, int], now: float) -> None:
        """Who was seen when, of the tiers in `rank_of`, old ranks to new ones; judges nothing."""
        for old, new in rank_of.items():
            self._last_seen[new] = known_instant(data["seen_age_s"][old], now)
        never = float("inf") if data["is_active_for_ever"] else float("-inf")
        self._active_until = instant_of(data["active_age_s"], now, never=never)

    def adopt(self, other: "Pool") -> None:
        """Take over what a pool that this one replaces knew (same tiers and cost unit)."""
        for mine, theirs in zip(self.queues, other.queues, strict=True):
            for debt in theirs.debts():
                mine.adopt_debt(debt)
        for tier, deficit in enumerate(other.floors.deficits):
            self.floors.deficits[tier] += deficit
        if self.shares is not None and other.shares is not None:
            self.shares.adopt(other.shares)
        if self.elders is not None and other.elders is not None:
            self.elders.adopt(other.elders)
        for tier, seen in enumerate(other._last_seen):
            if seen is not None:
                self._last_seen[tier] = max(seen, self._last_seen[tier] or seen)
        self.advisor.restore(other.advisor.snapshot(0.0), 0.0)
        for forecast, former in zip(self.forecasts, other.forecasts, strict=True):
            forecast.restore(former.snapshot())
        self.looked_at = max(self.looked_at, other.looked_at)
        self.ties = other.ties
        self.ties.resize(self.policy.bounds)


def regrouped(
    policy: Policy,
    old: Sequence[Pool],
    *,
    replicas: Iterable[Replica],
    waiting: Iterable[Waiting],
    keeps_debts: bool,
) -> list[Pool]:
    """The pools after models or tiers changed; all that waits is in one of them again.

    What is held back by a cap only gets its class anew.
    """
    known, line = list(replicas), sorted(waiting, key=lambda each: each.order)
    lonely = [frozenset((each.request.model,)) for each in line]
    pools = [
        Pool(policy, models, [each for each in known if each.models & models])
        for models in components([*(replica.models for replica in known), *lonely])
    ]
    for pool in pools:
        for former in old:
            if former.models & pool.models:
                pool.drain_rate.merge(former.drain_rate)
                if keeps_debts:
                    pool.adopt(former)
    pool_of = {model: pool for pool in pools for model in pool.models}
    for each in line:
        pool = pool_of[each.request.model]
        each.kind = pool.kind_of(each.request, each.kv_tokens)
        if each.holder is None:
            pool.push(each)
    for pool in pools:
        if not pool.count:
            pool.drain_rate.pause()
    return pools


def components(serves: Iterable[frozenset[str]]) -> list[set[str]]:
    """Sets of models connected through replicas that serve several of them."""
    groups: list[set[str]] = []
    for models in serves:
        if not models:
            continue
        joined = set(models)
        rest = []
        for group in groups:
            if group & joined:
                joined |= group
            else:
                rest.append(group)
        groups = [*rest, joined]
    return groups
