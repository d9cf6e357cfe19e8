"""Which users have most here, counted once for all: the overview, one level further down.

However many requests wait, the answer is small; who is next is decided elsewhere.
"""

import asyncio
import heapq
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.desk import Desk
from gateway.admin.door import PREFIX
from gateway.admin.lookout import Lookout
from gateway.admin.overview import ROW, LineView, OverviewAsked
from gateway.admin.problems import documented
from gateway.admin.queues import STEP
from gateway.core.flows import Waiting

EXAMPLE: dict[str, Any] = {
    "object": "overview.users", "at": 1764504000.0,
    "users": [{**ROW, "name": "alice", "tenant": "acme"}], "users_more": 0,
}  # fmt: skip


class UserLine(LineView):
    """One user, all tiers and models together."""

    tenant: str


class UsersOverview(BaseModel):
    """Who has most here."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    object: Literal["overview.users"] = "overview.users"
    at: float = Field(description="When it was counted, in seconds since 1970.")
    users: list[UserLine] = Field(description="Those with most here first.")
    users_more: int = Field(description="Users that have something here and are not told.")


@dataclass(slots=True)
class Count:
    """Requests of one user."""

    waiting: int = 0
    held: int = 0
    running: int = 0
    since: float | None = None
    """When the one that came first did, of those that are not running."""
    last: Waiting | None = None

    @property
    def here(self) -> int:
        """All of them."""
        return self.waiting + self.held + self.running

    def add(self, waiting: Waiting) -> None:
        """Count one that does not run."""
        arrived_at = waiting.request.arrived_at
        if waiting.holder is None:
            self.waiting += 1
        else:
            self.held += 1
        self.since = arrived_at if self.since is None else min(self.since, arrived_at)
        if self.last is None or waiting.sequence > self.last.sequence:
            self.last = waiting


@dataclass(frozen=True, slots=True)
class Look:
    """What was counted at once."""

    at: float
    counted_at: float
    """On the scheduler's clock."""
    users: dict[tuple[str, str], Count]


def router(desk: Desk) -> APIRouter:
    """The route `/overview/users`."""
    routes = APIRouter(prefix=f"{PREFIX}/overview", tags=["overview"])
    lookout = Lookout(partial(counted, desk), desk.clock)

    @routes.get("/users", summary="Which users have most here", responses=documented())
    async def users(asked: Annotated[OverviewAsked, Query()]) -> UsersOverview:
        return _told(desk, await lookout.look(), asked)

    return routes


async def counted(desk: Desk) -> Look:
    """All that waits and runs, by user, in steps short enough for the loop."""
    users: dict[tuple[str, str], Count] = {}
    line = list(desk.scheduler.waiting.values())
    for begin in range(0, len(line), STEP):
        if begin:
            await asyncio.sleep(0)
        for waiting in line[begin : begin + STEP]:
            # Its ticket is gone where it left meanwhile.
            if waiting.ticket:
                _of(users, waiting).add(waiting)
    running = list(desk.scheduler.granted.values())
    for begin in range(0, len(running), STEP):
        if begin:
            await asyncio.sleep(0)
        for grant, _ in running[begin : begin + STEP]:
            _of(users, grant.waiting).running += 1
    return Look(desk.wall(), desk.clock(), users)


def _of(users: dict[tuple[str, str], Count], waiting: Waiting) -> Count:
    request = waiting.request
    key = (request.tenant, request.user)
    count = users.get(key)
    if count is None:
        count = users[key] = Count()
    return count


def _told(desk: Desk, look: Look, asked: OverviewAsked) -> UsersOverview:
    found = [
        (-count.here, *names, count)
        for names, count in look.users.items()
        if asked.tenant in (None, names[0])
    ]
    shown = heapq.nsmallest(asked.limit, found, key=lambda each: each[:3])
    return UsersOverview(
        at=round(look.at, 3),
        users=[_line(desk, look, (tenant, user), count) for _, tenant, user, count in shown],
        users_more=len(found) - len(shown),
    )


def _line(desk: Desk, look: Look, names: tuple[str, str], count: Count) -> UserLine:
    place = None
    if count.last is not None:
        place = desk.scheduler.place_of(count.last.request.id, desk.clock())
    since = None if count.since is None else max(0.0, look.counted_at - count.since)
    wait_s = None if place is None else place[1]
    return UserLine(
        tenant=names[0],
        name=names[1],
        waiting=count.waiting,
        held=count.held,
        running=count.running,
        oldest_wait_s=None if since is None else round(since, 3),
        position=None if place is None else place[0],
        expected_wait_s=None if wait_s is None else round(wait_s, 3),
    )
