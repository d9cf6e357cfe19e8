"""All that waits, across pools and tiers: the totals that are bounded, and whose patience ends.

It knows nothing of the order in which requests are served; that is the queues' affair.
"""

from gateway.core.fairqueue import Waiting
from gateway.core.heap import KeyedHeap
from gateway.core.policy import Bounds


class WaitingRoom:
    """Waiting requests by id, with their number by user, their bytes and their deadlines."""

    __slots__ = ("body_bytes", "by_user", "deadlines", "requests")

    def __init__(self) -> None:
        self.requests: dict[str, Waiting] = {}
        self.body_bytes = 0
        self.by_user: dict[tuple[str, str], int] = {}
        """Requests by (tenant, user), over all pools and tiers."""
        self.deadlines: KeyedHeap[Waiting] = KeyedHeap()

    def enter(self, waiting: Waiting) -> None:
        """A request begins to wait."""
        request = waiting.request
        self.requests[request.id] = waiting
        self.body_bytes += request.body_bytes
        self.deadlines.set(waiting, waiting.deadline)
        user = (request.tenant, request.user)
        self.by_user[user] = self.by_user.get(user, 0) + 1

    def leave(self, waiting: Waiting) -> None:
        """It waits no longer: released, refused or gone."""
        request = waiting.request
        del self.requests[request.id]
        self.body_bytes -= request.body_bytes
        self.deadlines.discard(waiting)
        user = (request.tenant, request.user)
        left = self.by_user[user] - 1
        if left:
            self.by_user[user] = left
        else:
            del self.by_user[user]

    def is_full(self, bounds: Bounds) -> bool:
        """Whether more waits, in number or bytes, than all users together may leave waiting."""
        return len(self.requests) > bounds.waiting or self.body_bytes > bounds.waiting_bytes

    def is_full_for(self, tenant: str, user: str, bounds: Bounds) -> bool:
        """Whether this user may not leave another request waiting."""
        return self.by_user.get((tenant, user), 0) >= bounds.waiting_per_user

    def expired(self, now: float) -> Waiting | None:
        """The request whose patience ended first, at `now` or before; it stays."""
        waiting = self.deadlines.first()
        return None if waiting is None or waiting.deadline > now else waiting
