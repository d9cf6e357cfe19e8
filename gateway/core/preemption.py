"""Ending what a preemptible tier runs, so that a request above it gets its slot.

Only a plain request is ended: its client has seen nothing, and it begins anew at its place in the
queue, with what it had computed lost. The youngest goes, which loses the least, one slot for each
that is missing; what a floor or its age let go stays. Which tiers allow it is the operator's word.
"""

from gateway.core.ledger import Grant
from gateway.core.policy import Policy
from gateway.core.replica import Replica


def victims(policy: Policy, replica: Replica, newcomer: Grant) -> list[Grant]:
    """What to take back from `replica`, where `newcomer` found no room; O(slots)."""
    if not any(tier.preemptible for tier in policy.tiers[newcomer.tier + 1 :]):
        return []
    found: list[Grant] = []
    wanted, queued = newcomer.slots, replica.waiting
    for grant in reversed(list(replica.ledger.grants.values())):
        if wanted <= 0:
            break
        if queued > 0 and not grant.is_started:
            queued -= grant.slots  # it waits inside the engine: its end would free no slot
        elif _may_end(policy, grant, newcomer.tier):
            found.append(grant)
            wanted -= grant.slots
    return found


def _may_end(policy: Policy, grant: Grant, tier: int) -> bool:
    if grant.tier <= tier or not policy.tiers[grant.tier].preemptible or not grant.slots:
        return False
    return not (grant.waiting.request.streams or grant.was_favoured or grant.is_recalled)
