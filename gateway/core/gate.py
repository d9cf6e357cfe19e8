"""The release gate: may tier p put a request on replica r now? All conditions must hold.

Released earlier than the engine can start it, a request merely waits in the engine's FIFO and the
order is lost; released later, the GPU idles for a round trip. So the queue allowance is just
enough to bridge that round trip. Headroom keeps a share `h_max e^(-lambda q)` of every replica
free for each tier q above p (K-tier Llumnix); it is reclaimed by not releasing, never by killing.
Ceilings never increase with the tier's rank: tier p is open only where all tiers above it are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.core.flows import Waiting
from gateway.core.policy import Policy
from gateway.core.replica import Replica

ROUNDING: Final = 1e-9
"""Products such as 0.2 x 5 slots must not become two slots for a rounding error."""


class Closed(StrEnum):
    """The condition that keeps a gate shut."""

    UNUSABLE = "unusable"
    TRIPPED = "tripped"
    """Its circuit breaker is open, or half open with its one trial under way."""
    BUSY = "busy"
    QUEUE = "queue"
    SPEED = "speed"
    HEADROOM = "headroom"
    LIMIT = "limit"
    SHARE = "share"
    """Its part of the replica is in use; the rest is for schedulers that it does not hear of."""
    WARM_UP = "warm_up"
    RESERVED = "reserved"
    PREFILL = "prefill"
    KV = "kv"
    ELSEWHERE = "elsewhere"
    """The replica does not serve its model, or has failed this very request."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What one tier may find on a replica and still join; never higher than the tier before."""

    queue_limit: int
    tpot_s: float
    prefill_s: float


def ceilings(policy: Policy) -> tuple[Ceiling, ...]:
    """The ceilings of all tiers by rank."""
    found: list[Ceiling] = []
    queue_limit, tpot_s, prefill_s = 1 << 30, math.inf, math.inf
    for tier in policy.tiers:
        queue_limit = min(queue_limit, tier.queue_limit)
        tpot_s = min(tpot_s, tier.tpot_limit_ms / 1e3)
        prefill_s = min(prefill_s, tier.prefill_limit_s)
        found.append(Ceiling(queue_limit, tpot_s, prefill_s))
    return tuple(found)


class Gates:
    """The gates of one pool: its policy, and the share of each replica kept from each tier."""

    __slots__ = (
        "_is_adaptive", "_is_bridging", "_static_limit", "ceilings", "displaced_by", "policy",
        "reserved",
    )  # fmt: skip

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.ceilings = ceilings(policy)
        self._is_bridging = policy.allowance == "bridge"
        self._is_adaptive = policy.limiter == "adaptive"
        limit = policy.inflight_limit
        self._static_limit: float = math.inf if limit is None else float(limit)
        self.displaced_by = tuple(
            tuple(
                rank
                for rank in range(above + 1, len(policy.tiers))
                if policy.tiers[rank].preemptible
            )
            for above in range(len(policy.tiers))
        )
        """The tiers that each tier may take slots from."""
        self.reserved: tuple[float, ...] = (0.0,) * len(policy.tiers)
        """Share, 0..1, kept from tier p for the tiers above it."""

    def open_tiers(self, replica: Replica, now: float) -> int:
        """How many tiers, from tier 0 down, may release one ordinary request on `replica`."""
        if not replica.is_usable or now < replica.busy_until:
            return 0
        last = len(self.ceilings)
        if self.policy.release_at_once:
            return last
        if not replica.circuit.lets(now):
            return 0
        if now >= replica.fresh_until and not replica.is_stale:
            replica.go_stale()
        waiting = replica.waiting
        replica.has_queue = waiting > 0
        if self.closed_by(replica, 0, waiting, now) is not None:
            return 0
        # Ceilings never rise with the rank: what is open to one tier is open to all above it.
        for tier in range(last - 1, 0, -1):
            if self.closed_by(replica, tier, waiting, now) is None:
                return tier + 1
        return 1

    def takes(self, replica: Replica, now: float) -> bool:
        """Whether anything at all may be put on `replica`, be it without need of a slot."""
        return replica.is_usable and now >= replica.busy_until and replica.circuit.lets(now)

    def closed_by(
        self,
        replica: Replica,
        tier: int,
        waiting: int,
        now: float,
        *,
        without: int = 0,
        without_foreign: int = 0,
        rank: int | None = None,
    ) -> Closed | None:
        """The first condition that shuts a usable replica to an ordinary request of `tier`.

        `waiting` is what is thought to wait inside the engine; `without`: sequences of our own
        that are there and are taken to be gone; `without_foreign`: those of others. `rank`: its
        tier, where it is judged by the gates of another.
        """
        own = replica.ledger.sequences - without
        occupied = own + replica.foreign - without_foreign
        slots = replica.slots
        ceiling = self.ceilings[tier]
        yielding = self.yielding(replica, tier if rank is None else rank)
        if waiting and yielding:
            waiting = max(0, waiting - yielding)
        if waiting or ceiling.queue_limit == 0:
            # A limit of 0 still means: into a free slot with nothing waiting.
            is_full = slots is not None and occupied - yielding >= slots
            if (waiting or is_full) and waiting >= self.allowance(replica, tier, now):
                return Closed.QUEUE
        if occupied == 0:
            return None
        if self.policy.sharers > 1 and own >= self.share(replica):
            return Closed.SHARE
        if slots is not None:
            away = self.away(replica, slots)[tier]
            if away and occupied - yielding >= slots - away:
                return Closed.HEADROOM
        if replica.speed.tpot_s is not None and replica.speed.tpot_s > ceiling.tpot_s:
            is_idle = occupied < self.policy.min_inflight
            if not is_idle and replica.speed.tpot_over(ceiling.tpot_s, occupied, now):
                return Closed.SPEED
        if occupied + 1 > self.limit(replica):
            return Closed.LIMIT
        if now < replica.warm_until and occupied >= self.warm_slots(replica, now):
            return Closed.WARM_UP
        return None

    def yielding(self, replica: Replica, tier: int) -> int:
        """Slots that are as good as free for `tier`: what has them ends for it, or waits behind it.

        Only where the engine itself lets the higher tier go first; else what waits there of a lower
        one goes ahead.
        """
        return self._of_yielding(replica, tier, replica.ledger.endable_by_tier)

    def yielding_kv(self, replica: Replica, tier: int) -> float:
        """KV tokens that are as good as free for `tier`, as `yielding`."""
        held = self._of_yielding(replica, tier, replica.ledger.endable_kv_by_tier)
        return held * replica.kv_share

    def _of_yielding(self, replica: Replica, tier: int, sums: list[int]) -> int:
        lower = self.displaced_by[tier]
        if not lower or not replica.orders_by_tier:
            return 0
        return sum([sums[rank] for rank in lower])

    def unfit_by(self, waiting: Waiting, replica: Replica, tier: int, now: float) -> Closed | None:
        """What keeps this very request, for its size, off a replica whose gate is open; or None."""
        rank = waiting.request.tier
        if rank != tier and waiting.kind.decodes and self.yielding(replica, tier):
            # What makes way for the tier that it is judged as does not for its own.
            shut = self.closed_by(replica, tier, replica.waiting, now, rank=rank)
            if shut is not None:
                return shut
        ledger, cached = replica.ledger, 0
        if waiting.request.prefix:
            cached = min(waiting.prompt_tokens, replica.cache.cached_tokens(waiting.request.prefix))
        if ledger.unstarted_prompt_tokens > 0:
            tokens = ledger.unstarted_prompt_tokens + waiting.prompt_tokens - cached
            if tokens > self.ceilings[tier].prefill_s * replica.speed.prefill_rate:
                return Closed.PREFILL
        if not waiting.kind.decodes:
            return None
        return self._too_large_by(waiting, replica, tier, now, cached=cached)

    def is_only_behind_prefill(
        self, waiting: Waiting, replica: Replica, tier: int, now: float
    ) -> bool:
        """Whether prompts yet to be computed are all that keeps this request off `replica`."""
        if self.unfit_by(waiting, replica, tier, now) is not Closed.PREFILL:
            return False
        if not waiting.kind.decodes:
            return True
        return self._too_large_by(waiting, replica, tier, now, cached=0) is None

    def _too_large_by(
        self, waiting: Waiting, replica: Replica, tier: int, now: float, *, cached: int
    ) -> Closed | None:
        """What it lacks besides time: KV, or slots for all its sequences."""
        occupied = replica.ledger.sequences + replica.foreign
        if occupied == 0:
            return None  # an oversize request may pass when nothing else is there
        capacity = replica.kv_capacity_tokens
        if capacity is not None:
            kv_tokens = replica.kv_tokens + waiting.kv_tokens - cached
            kv_tokens -= self.yielding_kv(replica, waiting.request.tier)
            if kv_tokens > capacity * (1 - self.reserved[tier]):
                return Closed.KV
        slots = replica.slots
        sequences = waiting.request.sequences
        if sequences > 1 and self.policy.sharers > 1:
            own = replica.ledger.sequences
            if own and own + min(sequences, slots or sequences) > self.share(replica):
                return Closed.SHARE
        if sequences > 1 and occupied + min(sequences, slots or sequences) > self.limit(replica):
            return Closed.LIMIT
        if slots is not None and sequences > 1:
            away = self.away(replica, slots)[tier]
            spare = 0 if away else self.allowance(replica, tier, now)
            claimed = occupied - self.yielding(replica, waiting.request.tier)
            if claimed + min(sequences, slots) > slots - away + spare:
                return Closed.HEADROOM
        return None

    def limit(self, replica: Replica) -> float:
        """Most sequences on `replica`, beside its slots: as configured, and as its speed allows."""
        if self._is_adaptive and replica.limit.limit < self._static_limit:
            return replica.limit.limit
        return self._static_limit

    def share(self, replica: Replica) -> float:
        """Most sequences of one scheduler on `replica` among several that are on their own."""
        most = self.limit(replica)
        if replica.slots is not None:
            most = min(most, replica.slots)
        return most if math.isinf(most) else max(1, int(most) // self.policy.sharers)

    def allowance(self, replica: Replica, tier: int, now: float) -> int:
        """Requests that `tier` may leave waiting in the engine: enough to bridge one round trip.

        At most the tier's `queue_limit`, the upper bound of "Efficient Request Queueing" (2025).
        """
        limit = self.ceilings[tier].queue_limit
        if not self._is_bridging or limit <= 1:
            return limit
        bridged_s = replica.round_trip_s + replica.speed.step_s
        bridged = math.ceil(replica.release_rate.per_s(now) * bridged_s - ROUNDING)
        return min(limit, bridged) if bridged > 1 else 1

    def away(self, replica: Replica, slots: int) -> tuple[int, ...]:
        """Slots kept from each tier: rounded up, but every tier can use at least one."""
        if replica.away is None or replica.away_of is not self.reserved:
            replica.away_of = self.reserved
            replica.away = tuple(
                min(slots - 1, math.ceil(share * slots - ROUNDING)) for share in self.reserved
            )
        return replica.away

    def warm_slots(self, replica: Replica, now: float) -> float:
        """Sequences that a fresh replica may hold by now; it is filled evenly."""
        span_s = replica.warm_until - replica.warm_from
        share = (now - replica.warm_from) / span_s if span_s > 0.0 else 1.0
        return max(1.0, share * (replica.slots or replica.sightings.proven_sequences or 1))


def reserved_shares(headroom: Sequence[float], is_active: Sequence[bool]) -> tuple[float, ...]:
    """Share of a replica kept from each tier for the active ones above it, 0..1."""
    total, shares = 0.0, []
    for share, active in zip(headroom, is_active, strict=True):
        shares.append(total)
        total += share if active else 0.0
    return tuple(shares)
