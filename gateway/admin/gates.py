"""Which tiers a replica takes an ordinary request of now, and by what its gate is shut to others.

What a request is too large for is told by its explanation; the gate of a tier is the same for all.
"""

from pydantic import BaseModel, Field

from gateway.admin.explanations import WORDS
from gateway.core.explain import gates_at, shut_by
from gateway.core.gate import Closed, Gates
from gateway.core.pool import Pool
from gateway.core.replica import Replica


class GateView(BaseModel):
    """The gate of one tier on one replica."""

    tier: str
    closed_by: str | None = Field(description="What shuts it; null: it is open.")
    reason: str | None = Field(description="The same in words, after the name of the replica.")
    slots_away: int = Field(description="Slots kept from this tier for those above.")


def gate_views(replica: Replica, pool: Pool, now: float) -> list[GateView]:
    """Of all tiers, by rank; nothing is noted of it, so that a look changes nothing."""
    gates = gates_at(pool, now)
    known, known_of = replica.away, replica.away_of
    views = [
        _view(tier.name, shut_by(gates, replica, rank, now), _away(gates, replica)[rank])
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
