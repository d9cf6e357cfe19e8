"""What waits, by model, tier, tenant and user: how much, how long already, and who is next.

Counted anew for each look, in steps short enough for the loop; the scheduler keeps no such sums.
"""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.desk import Desk
from gateway.admin.door import PREFIX
from gateway.admin.fellows import Inquiry
from gateway.admin.paging import Listing, Page, page_of
from gateway.admin.problems import documented
from gateway.core.flows import Waiting
from gateway.core.state import State

STEP = 2_000
"""Requests that are looked at before others have their turn."""


class QueueView(BaseModel):
    """The requests of one user that wait for one model in one tier.

    In a tier the tenant with the smallest virtual start is served next, and in it the user with the
    smallest; being served moves both on by the cost of the request over the weight.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "queue", "model": "llama-3-8b", "tier": "standard", "tenant": "acme",
                "user": "alice", "waiting": 3, "held": 0, "oldest_wait_s": 2.4,
                "tenant_weight": 2.0, "user_weight": 1.0, "tenant_virtual_start": 5120.0,
                "user_virtual_start": 880.0, "virtual_time": 5004.0, "waiting_cost": 2310.0,
            }
        }
    )  # fmt: skip
    object: Literal["queue"] = "queue"
    model: str
    tier: str
    tenant: str
    user: str
    waiting: int = Field(description="Requests.")
    held: int = Field(description="Those of them that a cap on concurrent requests keeps back.")
    oldest_wait_s: float = Field(description="How long the one that came first has waited.")
    waiting_cost: float = Field(description="What they are predicted to cost, in the cost unit.")
    tenant_weight: float
    user_weight: float
    tenant_virtual_start: float | None = Field(
        description="Among the tenants of the tier; null where all are held."
    )
    user_virtual_start: float | None = Field(description="Among the users of the tenant.")
    virtual_time: float = Field(description="Of the tier: the tenant's start at the last grant.")


class QueuesAsked(Page):
    """Which of them."""

    model: Annotated[str | None, Field(max_length=256)] = None
    tier: Annotated[str | None, Field(max_length=64)] = None
    tenant: Annotated[str | None, Field(max_length=256)] = None
    user: Annotated[str | None, Field(max_length=256)] = None


@dataclass(slots=True)
class Group:
    """Requests of one user for one model in one tier."""

    model: str
    tier: int
    tenant: str
    user: str
    sample: Waiting
    count: int = 0
    held: int = 0
    cost: float = 0.0
    since: float = float("inf")

    @property
    def key(self) -> tuple[str, int, str, str]:
        """Where it stands in the list."""
        return (self.model, self.tier, self.tenant, self.user)


def router(desk: Desk) -> APIRouter:
    """The route `/queues`."""
    routes, inquiry = APIRouter(prefix=f"{PREFIX}/queues", tags=["queues"]), Inquiry(desk.fellows)

    @routes.get("", summary="What waits, by model, tier, tenant and user", responses=documented())
    async def queues(
        asked: Annotated[QueuesAsked, Query()], request: Request, response: Response
    ) -> Listing[QueueView]:
        groups = await grouped(desk.scheduler, asked)
        now = desk.clock()
        # Who left while others were counted has no place any more.
        here = [each for each in groups if each.sample.ticket]
        found = page_of(
            here, asked, key=lambda each: each.key,
            view=lambda each: _view(desk.scheduler, each, now),
        )  # fmt: skip
        return await inquiry.together(
            request, response, Listing[QueueView](**found),
            page=asked, view=QueueView, key=lambda each: _place(desk.scheduler, each),
            joined=_joined,
        )  # fmt: skip

    return routes


async def grouped(state: State, asked: QueuesAsked) -> list[Group]:
    """All groups that are asked for, in no order."""
    groups: dict[tuple[str, int, str, str], Group] = {}
    line = list(state.waiting.values())
    for begin in range(0, len(line), STEP):
        if begin:
            await asyncio.sleep(0)
        for waiting in line[begin : begin + STEP]:
            # Its ticket is gone where it left meanwhile.
            if waiting.ticket and _is_asked(state, waiting, asked):
                _add(groups, waiting)
    return list(groups.values())


def _place(state: State, view: QueueView) -> tuple[str, int, str, str]:
    """Where it stands in the list, by what is told of it."""
    names = [tier.name for tier in state.policy.tiers]
    tier = names.index(view.tier) if view.tier in names else len(names)
    return (view.model, tier, view.tenant, view.user)


def _joined(first: QueueView, second: QueueView) -> QueueView:
    """The same users' requests at two gateways, while each of them decides for itself."""
    most = max(first, second, key=lambda each: each.waiting)
    return most.model_copy(
        update={
            "waiting": first.waiting + second.waiting,
            "held": first.held + second.held,
            "waiting_cost": first.waiting_cost + second.waiting_cost,
            "oldest_wait_s": max(first.oldest_wait_s, second.oldest_wait_s),
        }
    )


def _is_asked(state: State, waiting: Waiting, asked: QueuesAsked) -> bool:
    request = waiting.request
    return (
        asked.model in (None, request.model)
        and asked.tenant in (None, request.tenant)
        and asked.user in (None, request.user)
        and asked.tier in (None, state.policy.tiers[request.tier].name)
    )


def _add(groups: dict[tuple[str, int, str, str], Group], waiting: Waiting) -> None:
    request = waiting.request
    key = (request.model, request.tier, request.tenant, request.user)
    group = groups.get(key)
    if group is None:
        group = groups[key] = Group(*key, sample=waiting)
    elif not group.sample.ticket or group.sample.lane is None:
        group.sample = waiting
    group.count += 1
    group.held += waiting.holder is not None
    group.cost += waiting.cost
    group.since = min(group.since, request.arrived_at)


def _view(state: State, group: Group, now: float) -> QueueView:
    lane, policy = group.sample.lane, state.policy
    user = None if lane is None else lane.flow
    tenant = None if lane is None or lane.parent is None else lane.parent.flow
    queue = state.pool_by_model[group.model].queues[group.tier]
    return QueueView(
        model=group.model,
        tier=state.policy.tiers[group.tier].name,
        tenant=group.tenant,
        user=group.user,
        waiting=group.count,
        held=group.held,
        oldest_wait_s=round(max(0.0, now - group.since), 3),
        waiting_cost=group.cost,
        tenant_weight=policy.tenant_weight(group.tenant),
        user_weight=policy.user_weight(group.tenant, group.user),
        tenant_virtual_start=None if tenant is None else tenant.start,
        user_virtual_start=None if user is None else user.start,
        virtual_time=queue.virtual,
    )
