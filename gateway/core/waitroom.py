"""All that waits, across pools and tiers: the totals that are bounded, and whose patience ends.

It knows nothing of the order in which requests are served; that is the queues' affair.
"""

from gateway.core.flows import WaitHeap, Waiting
from gateway.core.policy import Bounds, Room
from gateway.core.tally import Tally


def room_of_all(bounds: Bounds) -> Room:
    """What may wait in all."""
    return Room(
        requests=bounds.waiting, body_bytes=bounds.waiting_bytes, tokens=bounds.waiting_tokens
    )


def room_of_user(bounds: Bounds) -> Room:
    """What may wait of one user, over all pools and tiers."""
    return Room(
        requests=bounds.waiting_per_user,
        body_bytes=bounds.waiting_bytes_per_user,
        tokens=bounds.waiting_tokens_per_user,
    )


class WaitingRoom:
    """Waiting requests by id, with tallies of who they belong to and their deadlines."""

    __slots__ = ("all", "by_tenant", "by_tier", "by_user", "deadlines", "requests")

    def __init__(self, tiers: int) -> None:
        self.requests: dict[str, Waiting] = {}
        self.all = Tally()
        self.by_tier = [Tally() for _ in range(tiers)]
        self.by_tenant: dict[str, Tally] = {}
        self.by_user: dict[tuple[str, str], Tally] = {}
        """By (tenant, user), over all pools and tiers."""
        self.deadlines = WaitHeap()

    def enter(self, waiting: Waiting) -> None:
        """A request that has its ticket begins to wait."""
        request = waiting.request
        self.requests[request.id] = waiting
        self.deadlines.push(waiting.deadline, waiting)
        tenant = self.by_tenant.get(request.tenant)
        if tenant is None:
            tenant = self.by_tenant[request.tenant] = Tally()
        key = (request.tenant, request.user)
        user = self.by_user.get(key)
        if user is None:
            user = self.by_user[key] = Tally()
        body_bytes, tokens = request.body_bytes, waiting.kv_tokens
        waiting.tallies = (self.all, self.by_tier[request.tier], tenant, user)
        for tally in waiting.tallies:
            tally.requests += 1
            tally.body_bytes += body_bytes
            tally.tokens += tokens

    def leave(self, waiting: Waiting) -> None:
        """It waits no longer, and its ticket is gone: released, refused or left."""
        request = waiting.request
        del self.requests[request.id]
        self.deadlines.left()
        body_bytes, tokens = request.body_bytes, waiting.kv_tokens
        for tally in waiting.tallies:
            tally.requests -= 1
            tally.body_bytes -= body_bytes
            tally.tokens -= tokens
        _, _, tenant, user = waiting.tallies
        waiting.tallies = ()
        if not user.requests:
            del self.by_user[request.tenant, request.user]
            if not tenant.requests:
                del self.by_tenant[request.tenant]

    def expired(self, now: float) -> Waiting | None:
        """The request whose patience ended first, at `now` or before; it stays."""
        waiting = self.deadlines.first()
        return None if waiting is None or waiting.deadline > now else waiting
