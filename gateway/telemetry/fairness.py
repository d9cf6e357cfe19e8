"""How evenly a tier served those who waited all the time: Jain's index of what each one got.

Fair queueing moves a flow's start tag on by what it was served over its weight. So the way that two
tags went while both flows had something waiting is what they got for their weights; equal ways are
fair. Who had nothing waiting in between wanted no more, and says nothing. Tenants of a tier are
compared with one another, and the users of each tenant; the least even of these is told.

Only looks at what the scheduler keeps anyway, and only when somebody asks.

Jain's index of x is (sum x)^2 / (n sum x^2): 1 where all are equal, 1/n where one has everything.
"""

from collections.abc import Iterable, Iterator, Sequence

from gateway.core.flows import Flow
from gateway.core.policy import Policy
from gateway.core.pool import Pool

SPAN_S = 30.0
"""Least time between the looks that are compared, once there are such."""

Tags = dict[tuple[str, ...], tuple[float, float]]
"""(start tag, virtual time on becoming backlogged) of each flow with something waiting."""


def jain(values: Iterable[float]) -> float:
    """Jain's index; 1 of nothing, or of nothing but zeros."""
    each = list(values)
    squares = sum(value * value for value in each)
    return sum(each) ** 2 / (len(each) * squares) if squares else 1.0


class Evenness:
    """Two looks at the tags of all flows; what comes is compared with the older."""

    def __init__(self) -> None:
        self._older: Tags | None = None
        self._newer: Tags = {}
        self._newer_at = 0.0

    def by_tier(self, policy: Policy, pools: Sequence[Pool], now: float) -> dict[str, float]:
        """The index of each tier, by name, over the last `SPAN_S` to twice that.

        1 where no two flows had something waiting all the time.
        """
        tags = dict(_tags(policy, pools))
        if self._older is None:
            self._older = self._newer = tags
            self._newer_at = now
        found = {tier.name: 1.0 for tier in policy.tiers}
        for (tier, *_), ways in _ways(self._older, tags).items():
            if len(ways) > 1 and tier in found:
                found[tier] = min(found[tier], jain(ways))
        if now - self._newer_at >= SPAN_S:
            self._older, self._newer, self._newer_at = self._newer, tags, now
        return found


def _ways(before: Tags, after: Tags) -> dict[tuple[str, ...], list[float]]:
    """How far the tags went of those who waited all the time, by whom they share with."""
    found: dict[tuple[str, ...], list[float]] = {}
    for key, (start, entered) in after.items():
        known = before.get(key)
        if known is not None and known[1] == entered:
            found.setdefault(key[:-1], []).append(max(0.0, start - known[0]))
    return found


def _tags(
    policy: Policy, pools: Sequence[Pool]
) -> Iterator[tuple[tuple[str, ...], tuple[float, float]]]:
    """Keys end with the flow's own name; what stands before it is whom it shares with."""
    for pool in pools:
        models = ",".join(sorted(pool.models))
        for tier, queue in zip(policy.tiers, pool.queues, strict=True):
            for tenant in queue.tenants.values():
                if not tenant.count:
                    continue
                yield (tier.name, models, tenant.name), _tag(tenant)
                for user in tenant.users.values():
                    if user.count:
                        yield (tier.name, models, tenant.name, user.name), _tag(user)


def _tag(flow: Flow) -> tuple[float, float]:
    return flow.start, flow.entered
