"""Which tiers a replica takes an ordinary request of now, and by what its gate is shut to others.

What a request is too large for is told by its explanation; the gate of a tier is the same for all.
"""

from pydantic import BaseModel, Field

from gateway.admin.explanations import WORDS
from gateway.core.gate import Closed, Gates
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.core.reservation import is_held


class GateView(BaseModel):
    """The gate of one tier on one replica."""

    tier: str
    closed_by: str | None = Field(description="What shuts it; null: it is open.")
    reason: str | None = Field(description="The same in words, after the name of the replica.")
    slots_away: int = Field(description="Slots kept from this tier for those above.")


def gate_views(replica: Replica, pool: Pool, now: float) -> list[GateView]:
    """Of all tiers, by rank; nothing is noted of it, so that a look changes nothing."""
    gates = Gates(pool.policy)
    gates.reserved = pool.reserved_at(now)
    known, known_of = replica.away, replica.away_of
    views = [
        _view(tier.name, _shut_by(gates, replica, rank, now), _away(gates, replica)[rank])
        for rank, tier in enumerate(pool.policy.tiers)
    ]
    replica.away, replica.away_of = known, known_of
    return views


def _view(tier: str, shut: Closed | None, slots_away: int) -> GateView:
    return GateView(
        tier=tier,
        closed_by=None if shut is None else shut.value,
        reason=None if shut is None else WORDS[shut],
        slots_away=slots_away,
    )


def _away(gates: Gates, replica: Replica) -> tuple[int, ...]:
    if replica.slots is None:
        return (0,) * len(gates.ceilings)
    return gates.away(replica, replica.slots)


def _shut_by(gates: Gates, replica: Replica, tier: int, now: float) -> Closed | None:
    if not replica.is_usable:
        return Closed.UNUSABLE
    if now < replica.busy_until:
        return Closed.BUSY
    if gates.policy.release_at_once:
        return None
    if not replica.circuit.lets(now):
        return Closed.TRIPPED
    kept_for = replica.reserved_for
    if is_held(replica, now) and kept_for is not None and tier >= kept_for.request.tier:
        return Closed.RESERVED
    # What others left there is forgotten once the last report is known as stale.
    is_stale = not replica.is_stale and now >= replica.fresh_until
    gone = replica.foreign - replica.sightings.foreign_lately() if is_stale else 0
    waiting = max(0, replica.waiting - max(0, gone))
    for rank in range(tier + 1):  # ceilings never rise: a gate above it shuts its own too
        shut = gates.closed_by(replica, rank, waiting, now, without_foreign=gone)
        if shut is not None:
            return shut
    return None
