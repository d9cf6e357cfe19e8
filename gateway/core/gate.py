"""The release gate: may tier p put a request on replica r now? All conditions must hold.

Released earlier than the engine can start it, a request merely waits in the engine's FIFO and the
order is lost; released later, the GPU idles for a round trip. So the queue allowance is just
enough to bridge that round trip. Headroom keeps a share `h_max e^(-lambda q)` of every replica
free for each tier q above p (K-tier Llumnix); it is reclaimed by not releasing, never by killing.
Ceilings never increase with the tier's rank: tier p is open only where all tiers above it are.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

from gateway.core.fairqueue import Waiting
from gateway.core.policy import Policy, Tier
from gateway.core.replica import Replica

ROUNDING = 1e-9
"""Products such as 0.2 x 5 slots must not become two slots for a rounding error."""


class Closed(StrEnum):
    """The condition that keeps a gate shut."""

    UNUSABLE = "unusable"
    BUSY = "busy"
    QUEUE = "queue"
    SPEED = "speed"
    HEADROOM = "headroom"
    PREFILL = "prefill"
    KV = "kv"


class View:
    """The figures of one replica that all its gates judge, computed once."""

    __slots__ = ("bridged", "now", "occupied", "replica", "slots", "waiting")

    def __init__(self, replica: Replica, now: float) -> None:
        self.replica = replica
        self.now = now
        self.slots = replica.slots
        self.occupied = replica.occupied
        self.waiting = replica.waiting
        bridged_s = replica.round_trip_s + replica.step_s
        self.bridged = math.ceil(replica.release_rate.per_s(now) * bridged_s - ROUNDING)
        """Requests that end there within one round trip and one engine step."""


def open_tiers(replica: Replica, policy: Policy, reserved: Sequence[float], now: float) -> int:
    """How many tiers, from tier 0 down, may release one ordinary request on `replica` now.

    `reserved[p]` is the share of the replica kept for the tiers above p, 0..1.
    """
    if not replica.is_usable or now < replica.busy_until:
        return 0
    if policy.release_at_once:
        return len(policy.tiers)
    view = View(replica, now)
    for rank, tier in enumerate(policy.tiers):
        if closed_by(view, policy, tier, reserved[rank]) is not None:
            return rank
    return len(policy.tiers)


def closed_by(view: View, policy: Policy, tier: Tier, reserved: float) -> Closed | None:
    """The first condition that shuts the gate for an ordinary request of `tier`, or None."""
    replica, slots, occupied = view.replica, view.slots, view.occupied
    if view.waiting >= allowance(tier, view.bridged):
        # A limit of 0 still means: into a free slot with nothing waiting.
        has_room = tier.queue_limit == 0 if slots is None else occupied < slots
        if view.waiting > 0 or not has_room:
            return Closed.QUEUE
    if occupied == 0:
        return None
    if occupied >= policy.min_inflight and replica.tpot_over(tier.tpot_limit_ms / 1e3, view.now):
        return Closed.SPEED
    if reserved > 0.0 and slots is not None:
        away = kept(slots, reserved)
        if away and occupied >= slots - away:
            return Closed.HEADROOM
    return None


def kept(slots: int, reserved: float) -> int:
    """Slots reserved for the tiers above: rounded up, but every tier can use at least one."""
    return min(slots - 1, math.ceil(reserved * slots - ROUNDING))


def unfit_by(waiting: Waiting, replica: Replica, tier: Tier, *, reserved: float) -> Closed | None:
    """What keeps this very request, for its size, off a replica whose gate is open; or None."""
    ledger = replica.ledger
    if ledger.unstarted_prompt_tokens > 0:
        prompt_tokens = ledger.unstarted_prompt_tokens + waiting.prompt_tokens
        if prompt_tokens > tier.prefill_limit_s * replica.prefill_rate:
            return Closed.PREFILL
    if replica.occupied == 0:
        return None  # an oversize request may pass when nothing else is there
    capacity = replica.kv_capacity_tokens
    if capacity is not None and replica.kv_tokens + waiting.kv_tokens > capacity * (1 - reserved):
        return Closed.KV
    slots = replica.slots
    sequences = waiting.request.sequences
    if slots is not None and sequences > 1:
        away = kept(slots, reserved)
        spare = tier.queue_limit if away == 0 else 0
        if replica.occupied + min(sequences, slots) > slots - away + spare:
            return Closed.HEADROOM
    return None


def allowance(tier: Tier, bridged: int) -> int:
    """Requests that `tier` may leave waiting in the engine: enough to bridge one round trip.

    At most the tier's `queue_limit`, the upper bound of "Efficient Request Queueing" (2025).
    """
    wanted = max(1, bridged)
    return min(tier.queue_limit, wanted)
