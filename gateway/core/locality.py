"""Inside one user: the request whose prompt the replica already holds, within a bound.

Serving requests with a common prefix together reuses the engine's cache, but must not let one
conversation hold back the others of the same user for ever. As in DLPM (arXiv 2501.14312) a
deficit bounds it: what overtook the first request may cost so much, then the first goes.
"""

from gateway.core.flows import Waiting
from gateway.core.replica import Replica

OVERTAKING_TOKENS_MAX = 16_384
"""Tokens, predicted, that may overtake the first request of a user and class."""
GROUPS_LOOKED_AT = 32
"""Groups of requests with a common first block that one choice looks at."""


def closest(first: Waiting, replica: Replica) -> Waiting | None:
    """A request that may overtake `first` onto `replica` for its cached prefix; None: none."""
    lane = first.lane
    if lane is None or not lane.groups or len(lane.groups) < 2:
        return None
    if lane.overtaken >= OVERTAKING_TOKENS_MAX:
        return None
    best, most = None, replica.cache.cached_tokens(first.request.prefix)
    for looked, group in enumerate(lane.groups.values()):
        if looked >= GROUPS_LOOKED_AT:
            break
        head = group.first()
        if head is None or head is first:
            continue
        cached = replica.cache.cached_tokens(head.request.prefix)
        if cached > most:
            best, most = head, cached
    return best
