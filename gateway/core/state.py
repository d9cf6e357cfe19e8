"""What the scheduler holds, and the few steps that every event is made of.

Nothing is decided here. Each step leaves the queues, the room, the ledgers and the charges in
agreement; `invariants.check` derives all of them again.
"""

from math import inf

from gateway.core.caps import Caps, Holder
from gateway.core.flows import Waiting
from gateway.core.ledger import Grant
from gateway.core.messages import Request
from gateway.core.policy import Policy
from gateway.core.pool import Pool, regrouped
from gateway.core.predict import Predictor
from gateway.core.replica import Replica
from gateway.core.waitroom import WaitingRoom, room_of_all, room_of_user


class State:
    """All scheduling state of one or more pools."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.predictor = Predictor(policy.bounds.predictions)
        self.pools: list[Pool] = []
        self.replicas: dict[str, Replica] = {}
        self.drained: set[str] = set()
        """Names that nothing new goes to, be they found yet or not; until they are removed."""
        self.room = WaitingRoom(len(policy.tiers))
        self.room_of_all = room_of_all(policy.bounds)
        self.room_of_user = room_of_user(policy.bounds)
        self.granted: dict[str, tuple[Grant, Replica]] = {}
        self.caps = Caps(policy.sharers)
        self.is_closed = False
        self.pool_by_model: dict[str, Pool] = {}
        self.pool_by_replica: dict[str, Pool] = {}
        self.sequence = 0
        """Number of the last request, or of its last stay in the queue."""
        self.wake_at: float | None = None
        """Instant of the last `WakeWanted` that has not come yet."""
        self.due_at = inf
        """When to look again, whatever else happens."""

    @property
    def waiting(self) -> dict[str, Waiting]:
        """What waits, by request id."""
        return self.room.requests

    def pool_of(self, model: str) -> Pool | None:
        """The pool that serves `model`, or None for a model without any replica."""
        return self.pool_by_model.get(model)

    def number(self) -> int:
        """The next number of a request or of a stay."""
        self.sequence += 1
        return self.sequence

    def enqueue(self, pool: Pool, waiting: Waiting, now: float) -> None:
        """A request begins to wait."""
        waiting.ticket = self.number()
        waiting.entered_at = now
        if not pool.count:
            pool.drain_rate.begin(now)
        pool.push(waiting)
        self._enter_room(waiting)

    def full(self, request: Request) -> Holder | None:
        """Whose cap keeps `request` from running now; None: nobody's."""
        return None if self.policy.release_at_once else self.caps.full(request)

    def hold(self, waiting: Waiting, holder: Holder, now: float) -> None:
        """A request begins to wait outside the queue, until `holder` has room for it."""
        waiting.ticket = self.number()
        waiting.entered_at = now
        waiting.expected_s = waiting.skipped_since = None
        self.caps.hold(waiting, holder)
        self._enter_room(waiting)

    def _enter_room(self, waiting: Waiting) -> None:
        self.room.enter(waiting)
        if self.wake_at is not None and waiting.deadline < self.wake_at:
            self.wake_by(waiting.deadline)

    def dequeue(self, waiting: Waiting, now: float) -> Pool:
        """A request stops waiting without having been released; returns its pool."""
        pool = self.pool_by_model[waiting.request.model]
        if waiting.holder is not None:
            self.caps.drop(waiting)
        else:
            pool.remove(waiting)
            if not pool.count:
                pool.drain_rate.end(now)
        self.room.leave(waiting)
        return pool

    def wake_by(self, instant: float) -> None:
        """Something is due at `instant`: ask to be woken, if that is sooner than was asked for."""
        self.due_at = min(self.due_at, instant)
        if self.wake_at is not None and instant < self.wake_at:
            self.wake_at = None

    def charge(self, grant: Grant, cost_now: float) -> None:
        """Let the grant's flow have been charged `cost_now`, neither more nor less."""
        difference = cost_now - grant.charged
        if difference == 0.0:
            return
        grant.charged = cost_now
        request = grant.waiting.request
        pool = self.pool_by_model.get(request.model)
        if pool is not None and not self.policy.release_at_once:
            pool.settle(request, difference, tier=grant.tier, was_favoured=grant.was_favoured)

    def touch(self, replica: Replica) -> None:
        """Something changed about `replica`."""
        pool = self.pool_by_replica.get(replica.name)
        if pool is None:
            replica.touch()
        else:
            pool.touch(replica)

    def regroup(self, *, keeps_debts: bool = True) -> None:
        """Rebuild the pools, after models or tiers changed; nothing that waits is lost."""
        self.pools = regrouped(
            self.policy,
            self.pools,
            replicas=self.replicas.values(),
            waiting=self.waiting.values(),
            keeps_debts=keeps_debts,
        )
        if self.caps.count:
            line = sorted(self.waiting.values(), key=lambda each: each.order)
            self.caps.rebuild(each for each in line if each.holder is not None)
        self.pool_by_model = {model: pool for pool in self.pools for model in pool.models}
        self.pool_by_replica = {name: pool for pool in self.pools for name in pool.replicas}
