"""Who is next inside one tier: start-time fair queueing over tenants, then over their users.

Theory. Each flow carries a virtual start tag; the flow with the smallest tag is served, and being
served moves its tag on by cost / weight (Goyal et al., start-time fair queueing, SIGCOMM'96; with
token costs and no knowledge of the output it is VTC, arXiv 2401.00588). The queue's virtual time
is the start tag of the last grant and never goes back. A flow that becomes backlogged starts at
`max(own tag, virtual time)`, so idle time earns nothing and an old low tag lets nobody jump; a
refund takes it no further back than the virtual time of that moment. The same rule runs twice:
tenants share the tier, users share their tenant.

A user's requests are ordered by arrival. What a replica can serve is a matter of the request's
*eligibility class* (model, size, replicas it must avoid), so every heap exists once per class: the
best request for a class is found in O(log n), and a class that fits nowhere blocks no other.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gateway.core.heap import KeyedHeap
from gateway.core.messages import Request
from gateway.core.policy import Policy


class EligibilityClass(NamedTuple):
    """Requests that the same replicas can take: same model, similar size, same exclusions."""

    model: str
    size: int
    """Floor of log4 of the KV tokens it will need."""
    sequences: int
    excluded: frozenset[str]


def class_of(request: Request, kv_tokens: int) -> EligibilityClass:
    """The class of `request`, which will hold `kv_tokens` at its end; 0 counts as 1."""
    size = (max(1, kv_tokens).bit_length() - 1) // 2
    return EligibilityClass(request.model, size, request.sequences, request.excluded)


class Waiting:
    """A request in the queue, with what was predicted for it when it came."""

    __slots__ = ("cost", "deadline", "kind", "order", "output_tokens", "prompt_tokens", "request")

    def __init__(
        self,
        request: Request,
        *,
        kind: EligibilityClass,
        order: tuple[float, int],
        cost: float,
        prompt_tokens: int,
        output_tokens: int,
        deadline: float,
    ) -> None:
        self.request = request
        self.kind = kind
        self.order = order
        """(arrival instant, sequence number): a retry keeps its place."""
        self.cost = cost
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.deadline = deadline

    @property
    def kv_tokens(self) -> int:
        """KV tokens it will hold at its end, prompt and predicted output of every sequence."""
        return (self.prompt_tokens + self.output_tokens) * self.request.sequences


class UserFlow:
    """The waiting requests of one user of one tenant in one tier."""

    __slots__ = ("cost", "count", "entered", "name", "queues", "start", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.start = 0.0
        self.entered = 0.0
        """Virtual time when it last became backlogged: no refund takes `start` below this."""
        self.count = 0
        self.cost = 0.0
        self.queues: dict[EligibilityClass, KeyedHeap[Waiting]] = {}


class TenantFlow:
    """The users of one tenant that have, or had, something to do with this tier."""

    __slots__ = ("count", "entered", "name", "queues", "start", "users", "virtual", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.start = 0.0
        self.entered = 0.0
        self.virtual = 0.0
        self.count = 0
        self.users: dict[str, UserFlow] = {}
        self.queues: dict[EligibilityClass, KeyedHeap[UserFlow]] = {}


class FairQueue:
    """The waiting requests of one tier of one pool, in fair order."""

    __slots__ = (
        "_head_costs", "active_users", "classes", "count", "policy", "tenants", "virtual",
    )  # fmt: skip

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.virtual = 0.0
        self.count = 0
        self.active_users = 0
        """Users of whom something waits here."""
        self._head_costs: tuple[float, float] | None = None
        self.tenants: dict[str, TenantFlow] = {}
        self.classes: dict[EligibilityClass, KeyedHeap[TenantFlow]] = {}

    def __iter__(self) -> Iterator[Waiting]:
        for tenant in self.tenants.values():
            for user in tenant.users.values():
                for queue in user.queues.values():
                    yield from queue.items()

    def push(self, waiting: Waiting) -> None:
        """Add a request to its flow. O(log n)."""
        tenant = self._tenant(waiting.request.tenant)
        user = self._user(tenant, waiting.request.user)
        if tenant.count == 0:
            tenant.entered = self.virtual
            tenant.start = max(tenant.start, self.virtual)
        if user.count == 0:
            self.active_users += 1
            user.entered = tenant.virtual
            user.start = max(user.start, tenant.virtual)
        tenant.count += 1
        user.count += 1
        user.cost += waiting.cost
        self.count += 1
        self._head_costs = None
        kind = waiting.kind
        if kind not in user.queues:
            user.queues[kind] = KeyedHeap()
            if kind not in tenant.queues:
                tenant.queues[kind] = KeyedHeap()
                self.classes.setdefault(kind, KeyedHeap()).set(tenant, tenant.start)
            tenant.queues[kind].set(user, user.start)
        user.queues[kind].set(waiting, waiting.order)

    def head(self, kind: EligibilityClass) -> Waiting | None:
        """The request that is next among those of class `kind`; it stays where it is."""
        tenants = self.classes.get(kind)
        tenant = tenants.first() if tenants else None
        if tenant is None:
            return None
        user = tenant.queues[kind].first()
        assert user is not None, "a tenant is listed only while one of its users waits"
        return user.queues[kind].first()

    def head_costs(self) -> tuple[float, float]:
        """(smallest, largest) cost among the heads of all classes; something must wait."""
        if self._head_costs is None:
            heads = [self.head(kind) for kind in self.classes]
            costs = [head.cost for head in heads if head is not None]
            self._head_costs = min(costs), max(costs)
        return self._head_costs

    def rank(self, waiting: Waiting) -> tuple[float, float, tuple[float, int]]:
        """Sort key of `waiting` among the heads of all classes; the smallest is served first."""
        tenant = self.tenants[waiting.request.tenant]
        return (tenant.start, tenant.users[waiting.request.user].start, waiting.order)

    def take(self, waiting: Waiting) -> None:
        """Release `waiting`: remove it and charge its flow the estimated cost."""
        tenant = self.tenants[waiting.request.tenant]
        user = tenant.users[waiting.request.user]
        self.virtual = max(self.virtual, tenant.start)
        tenant.virtual = max(tenant.virtual, user.start)
        self._unlink(waiting, tenant, user)
        self._charge(tenant, user, waiting.cost)
        self._forget_idle(tenant, user)

    def remove(self, waiting: Waiting) -> None:
        """Remove `waiting` without charge: cancelled, expired or evicted."""
        tenant = self.tenants[waiting.request.tenant]
        user = tenant.users[waiting.request.user]
        self._unlink(waiting, tenant, user)
        self._forget_idle(tenant, user)

    def settle(self, tenant_name: str, user_name: str, difference: float) -> None:
        """Correct an earlier charge by `difference` (negative: a refund) on both levels."""
        tenant = self.tenants.get(tenant_name)
        if tenant is None:
            if difference <= 0.0:
                return  # forgotten: whoever has no tag has nothing to be refunded
            tenant = self._tenant(tenant_name)
            tenant.start = tenant.entered = self.virtual
        user = tenant.users.get(user_name)
        if user is None and difference > 0.0:
            user = self._user(tenant, user_name)
            user.start = user.entered = tenant.virtual
        self._charge(tenant, user, difference)
        self._forget_idle(tenant, user)

    def newest(self, tenant_name: str, user_name: str) -> Waiting:
        """The request of this flow that came last."""
        user = self.tenants[tenant_name].users[user_name]
        return max(
            (waiting for queue in user.queues.values() for waiting in queue.items()),
            key=lambda waiting: waiting.order,
        )

    def user_count(self, tenant_name: str, user_name: str) -> int:
        """Requests of this user waiting here."""
        tenant = self.tenants.get(tenant_name)
        user = tenant.users.get(user_name) if tenant else None
        return user.count if user else 0

    def heaviest(self) -> tuple[float, str, str]:
        """(waiting cost over weight, tenant, user) of the largest flow. O(flows); when full."""
        return max(
            (user.cost / (user.weight * tenant.weight), tenant.name, user.name)
            for tenant in self.tenants.values()
            for user in tenant.users.values()
            if user.count
        )

    def debts(self) -> list[tuple[str, str, float, float]]:
        """(tenant, user, tenant's lead, user's lead over virtual time), to survive a regroup."""
        return [
            (tenant.name, user.name, tenant.start - self.virtual, user.start - tenant.virtual)
            for tenant in self.tenants.values()
            for user in tenant.users.values()
        ]

    def adopt_debt(self, debt: tuple[str, str, float, float]) -> None:
        """Let a flow keep the lead it had in another queue."""
        tenant = self._tenant(debt[0])
        user = self._user(tenant, debt[1])
        tenant.start = max(tenant.start, self.virtual + debt[2])
        user.start = max(user.start, tenant.virtual + debt[3])
        self._forget_idle(tenant, user)

    def _charge(self, tenant: TenantFlow, user: UserFlow | None, cost: float) -> None:
        self._head_costs = None
        if user is not None:
            user.start = max(user.entered, user.start + cost / user.weight)
            for kind in user.queues:
                tenant.queues[kind].set(user, user.start)
        tenant.start = max(tenant.entered, tenant.start + cost / tenant.weight)
        for kind in tenant.queues:
            self.classes[kind].set(tenant, tenant.start)

    def _unlink(self, waiting: Waiting, tenant: TenantFlow, user: UserFlow) -> None:
        kind = waiting.kind
        queue = user.queues[kind]
        queue.discard(waiting)
        tenant.count -= 1
        user.count -= 1
        if user.count == 0:
            self.active_users -= 1
        user.cost = user.cost - waiting.cost if user.count else 0.0
        self.count -= 1
        self._head_costs = None
        if queue:
            return
        del user.queues[kind]
        tenant.queues[kind].discard(user)
        if tenant.queues[kind]:
            return
        del tenant.queues[kind]
        self.classes[kind].discard(tenant)
        if not self.classes[kind]:
            del self.classes[kind]

    def _forget_idle(self, tenant: TenantFlow, user: UserFlow | None) -> None:
        """Drop flows whose tag a newcomer would get anyway."""
        if user is not None and user.count == 0 and user.start <= tenant.virtual:
            del tenant.users[user.name]
        if tenant.count == 0 and not tenant.users and tenant.start <= self.virtual:
            del self.tenants[tenant.name]

    def _tenant(self, name: str) -> TenantFlow:
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = TenantFlow(name, self.policy.tenant_weight(name))
        return tenant

    def _user(self, tenant: TenantFlow, name: str) -> UserFlow:
        user = tenant.users.get(name)
        if user is None:
            weight = self.policy.user_weight(tenant.name, name)
            user = tenant.users[name] = UserFlow(name, weight)
        return user
