"""The whole line at a glance: what waits and runs by tier and tenant, counted once for all.

However many requests wait, the answer is small; however many look, they are counted once a second.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gateway import __version__
from gateway.admin.desk import Desk
from gateway.admin.door import PREFIX
from gateway.admin.history import STEP_S, TENANTS_TOLD, point_of
from gateway.admin.lookout import Lookout
from gateway.admin.problems import documented
from gateway.admin.queues import STEP
from gateway.admin.standings import Picture, Standing, picture_of
from gateway.core.flows import Waiting

TENANTS = 20
TENANTS_MAX = 100
SERIES_EXAMPLE: dict[str, Any] = {
    "name": "acme", "waiting": [3, 5], "running": [6, 6], "share": [0.5, 0.6],
    "fair_share": [0.5, 0.5],
}  # fmt: skip
ROW: dict[str, Any] = {
    "waiting": 3, "held": 0, "running": 6, "oldest_wait_s": 2.4, "position": 7,
    "expected_wait_s": 4.1,
}  # fmt: skip
EXAMPLE: dict[str, Any] = {
    "object": "overview", "at": 1764504000.0, "version": "1.0.0", "waiting": 3, "held": 0,
    "running": 12, "waiting_most": 10_000,
    "tiers": [{**ROW, "name": "standard", "rank": 2, "share": 1.0, "fair_share": None}],
    "tenants": [{
        **ROW, "name": "acme", "weight": 2.0, "share": 0.5, "fair_share": 0.6,
        "tiers": [{**ROW, "name": "standard"}],
    }],
    "tenants_more": 0,
}  # fmt: skip


class LineView(BaseModel):
    """What is in one line; its end is where one who came now would stand."""

    name: str
    waiting: int = Field(description="Requests in the queue.")
    held: int = Field(description="Requests that a cap on concurrent requests keeps back.")
    running: int = Field(description="Requests on a replica.")
    oldest_wait_s: float | None = Field(description="Of the one that came first.")
    position: int | None = Field(description="Estimated place of the one that came last.")
    expected_wait_s: float | None = Field(description="Of that one, from now.")


class TierLine(LineView):
    """One tier, all tenants together."""

    rank: int
    share: float | None = Field(description="Of all that runs, 0 to 1; null while nothing does.")
    fair_share: float | None = Field(description="By weight; null where tiers go by rank.")


class TenantLine(LineView):
    """One tenant, all tiers together."""

    weight: float
    share: float | None = Field(description="Of all that runs, 0 to 1; null while nothing does.")
    fair_share: float | None = Field(
        description="What it would be if each tier's running requests were dealt out by weight, "
        "to nobody more than it has here."
    )
    tiers: list[LineView] = Field(description="Those in which it has anything, by rank.")


class Overview(BaseModel):
    """What waits and runs."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    object: Literal["overview"] = "overview"
    at: float = Field(description="When it was counted, in seconds since 1970.")
    version: str = Field(description="Of the gateway.")
    waiting: int
    held: int
    running: int
    waiting_most: int = Field(description="As many may wait, and be held, before one gives way.")
    tiers: list[TierLine]
    tenants: list[TenantLine] = Field(description="Those with most here first.")
    tenants_more: int = Field(description="Tenants that have something here and are not told.")


class SeriesView(BaseModel):
    """One tier or tenant over time; shares are null while nothing runs."""

    name: str
    waiting: list[int]
    running: list[int]
    share: list[float | None]
    fair_share: list[float | None]


class HistoryView(BaseModel):
    """The last minutes, in steps."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "history", "step_s": STEP_S, "at": [1764504000.0, 1764504005.0],
                "tiers": [{**SERIES_EXAMPLE, "name": "standard"}], "tenants": [SERIES_EXAMPLE],
            }
        }
    )  # fmt: skip
    object: Literal["history"] = "history"
    step_s: float
    at: list[float] = Field(description="Instants, in seconds since 1970.")
    tiers: list[SeriesView]
    tenants: list[SeriesView] = Field(
        description=f"The {TENANTS_TOLD} that had most here in that time, by name."
    )


class OverviewAsked(BaseModel):
    """How much of it."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[
        int, Field(ge=1, le=TENANTS_MAX, description="Most tenants that are told.")
    ] = TENANTS
    tenant: Annotated[str | None, Field(max_length=256, description="Only this one.")] = None


@dataclass(slots=True)
class Stretch:
    """Requests of one tenant in one tier: who came first, and who last."""

    since: float
    last: Waiting


@dataclass(frozen=True, slots=True)
class Look:
    """What was counted at once."""

    at: float
    counted_at: float
    """On the scheduler's clock."""
    picture: Picture
    stretches: dict[tuple[str, int], Stretch]


async def counted(desk: Desk) -> Look:
    """All that waits and runs, at once."""
    stretches = dict[tuple[str, int], Stretch]()
    line = list(desk.scheduler.waiting.values())
    for begin in range(0, len(line), STEP):
        if begin:
            await asyncio.sleep(0)
        _stretch(line[begin : begin + STEP], stretches)
    # Counted without a pause, after the long way through the line: it is what is shown.
    return Look(desk.wall(), desk.clock(), picture_of(desk.scheduler), stretches)


def router(desk: Desk) -> APIRouter:
    """The routes under `/overview`."""
    routes = APIRouter(prefix=f"{PREFIX}/overview", tags=["overview"])
    lookout = Lookout(partial(counted, desk), desk.clock)

    @routes.get("", summary="What waits and runs, by tier and tenant", responses=documented())
    async def overview(asked: Annotated[OverviewAsked, Query()]) -> Overview:
        return _told(desk, await lookout.look(), asked)

    @routes.get(
        "/history", summary="The last minutes of it", response_model=HistoryView,
        responses=documented(),
    )  # fmt: skip
    async def history() -> Response:
        kept = desk.history
        told = {
            "object": "history", "step_s": STEP_S, "at": [each.at for each in kept.samples],
            "tiers": kept.tiers(), "tenants": kept.tenants(),
        }  # fmt: skip
        return Response(orjson.dumps(told), media_type="application/json")

    return routes


def _stretch(line: Iterable[Waiting], stretches: dict[tuple[str, int], Stretch]) -> None:
    for waiting in line:
        if not waiting.ticket:
            continue  # it left while others were looked at
        request = waiting.request
        key = (request.tenant, request.tier)
        known = stretches.get(key)
        if known is None:
            stretches[key] = Stretch(request.arrived_at, waiting)
            continue
        known.since = min(known.since, request.arrived_at)
        if waiting.sequence > known.last.sequence:
            known.last = waiting


def _told(desk: Desk, look: Look, asked: OverviewAsked) -> Overview:
    picture, policy = look.picture, desk.scheduler.policy
    names = sorted(picture.tenants, key=lambda each: (-_here(picture.tenants[each]), each))
    if asked.tenant is not None:
        names = [name for name in names if name == asked.tenant]
    tenants = [_tenant(desk, look, name) for name in names[: asked.limit]]
    return Overview(
        at=round(look.at, 3),
        version=__version__,
        waiting=sum(each.waiting for each in picture.tiers),
        held=sum(each.held for each in picture.tiers),
        running=picture.running,
        waiting_most=policy.bounds.waiting,
        # A policy may have changed since it was counted: ranks that are gone are not told.
        tiers=[
            _tier(desk, look, rank) for rank in range(min(len(policy.tiers), len(picture.tiers)))
        ],
        tenants=tenants,
        tenants_more=len(names) - len(tenants),
    )


def _here(standing: Standing) -> int:
    return standing.wanted + standing.held


def _tier(desk: Desk, look: Look, rank: int) -> TierLine:
    standing, picture, policy = look.picture.tiers[rank], look.picture, desk.scheduler.policy
    found = [each for (_, tier), each in look.stretches.items() if tier == rank]
    point = point_of(standing, picture, has_fair=picture.are_tiers_weighted)
    return TierLine(
        **_line(desk, look, found, name=policy.tiers[rank].name, standing=standing),
        rank=rank,
        share=point.share,
        fair_share=point.fair_share,
    )


def _tenant(desk: Desk, look: Look, name: str) -> TenantLine:
    picture, policy = look.picture, desk.scheduler.policy
    standing = picture.tenants[name]
    ranks = [rank for rank in range(len(policy.tiers)) if (name, rank) in picture.places]
    found = {rank: look.stretches.get((name, rank)) for rank in ranks}
    point = point_of(standing, picture)
    return TenantLine(
        **_line(
            desk, look, [each for each in found.values() if each], name=name, standing=standing
        ),
        weight=policy.tenant_weight(name),
        share=point.share,
        fair_share=point.fair_share,
        tiers=[
            LineView(
                **_line(
                    desk, look, [each for each in (found[rank],) if each],
                    name=policy.tiers[rank].name, standing=picture.places[name, rank],
                )
            )
            for rank in ranks
        ],
    )  # fmt: skip


def _line(
    desk: Desk, look: Look, found: list[Stretch], *, name: str, standing: Standing
) -> dict[str, Any]:
    place = None
    if found:
        last = max(found, key=lambda each: each.last.sequence).last
        place = desk.scheduler.place_of(last.request.id, desk.clock())
    wait_s = None if place is None else place[1]
    since = min((each.since for each in found), default=None)
    return {
        "name": name,
        "waiting": standing.waiting,
        "held": standing.held,
        "running": standing.running,
        "oldest_wait_s": None if since is None else round(max(0.0, look.counted_at - since), 3),
        "position": None if place is None else place[0],
        "expected_wait_s": None if wait_s is None else round(wait_s, 3),
    }
