"""How many replicas each pool should have, and by what that is judged."""

from collections.abc import Iterable
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.desk import Desk
from gateway.admin.door import PREFIX
from gateway.admin.fellows import Inquiry, part_of
from gateway.admin.paging import Listing, Page, page_of
from gateway.admin.problems import NotFoundError, documented
from gateway.core.advice import fleet_signal
from gateway.core.pool import Pool


class AdviceView(BaseModel):
    """Advice for the replicas that share models."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "advice", "models": ["llama-3-8b"], "replicas": 2, "usable": 2,
                "advised": 3, "advised_for_s": 12.5, "signal": -0.31, "below": -0.1, "above": 0.6,
                "below_for_s": None, "above_for_s": None, "min": 0, "max": 8, "hold_s": 30.0,
                "cooldown_s": 60.0, "waiting": 41,
            }
        }
    )  # fmt: skip
    object: Literal["advice"] = "advice"
    models: list[str] = Field(description="What these replicas serve.")
    replicas: int = Field(description="How many there are.")
    usable: int = Field(description="Those of them that take anything new.")
    advised: int | None = Field(description="How many there should be; null: nothing was said yet.")
    advised_for_s: float | None = Field(description="Seconds since that was said.")
    signal: float = Field(
        description="Free capacity less what waits, as a share of all capacity: -2 to 1."
    )
    below: float = Field(description="Below this signal more replicas are advised.")
    above: float = Field(description="Above this signal fewer are.")
    below_for_s: float | None = Field(description="Seconds that it has been below.")
    above_for_s: float | None = Field(description="Seconds that it has been above.")
    min: int
    max: int
    hold_s: float = Field(description="How long the signal must stay beyond a threshold.")
    cooldown_s: float = Field(description="Seconds between two advices.")
    waiting: int = Field(description="Requests that wait.")


class TargetView(BaseModel):
    """One number for whoever scales."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "scale.target", "model": "llama-3-8b", "target": 3, "advised": 3,
                "usable": 2,
            }
        }
    )  # fmt: skip
    object: Literal["scale.target"] = "scale.target"
    model: str
    target: int = Field(
        description="How many replicas there should be; what there is while nothing was advised."
    )
    advised: int | None = Field(description="Null: nothing was advised yet.")
    usable: int = Field(description="Those that take anything new.")


class TargetAsked(BaseModel):
    """For which model."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=256)]


def router(desk: Desk) -> APIRouter:
    """The routes under `/scale`."""
    routes, inquiry = APIRouter(prefix=f"{PREFIX}/scale", tags=["scale"]), Inquiry(desk.fellows)

    @routes.get("", summary="How many replicas there should be", responses=documented())
    async def scale(
        page: Annotated[Page, Query()], request: Request, response: Response
    ) -> Listing[AdviceView]:
        led = [pool for pool in desk.scheduler.pools if _leads(desk, pool)]
        others = [pool for pool in desk.scheduler.pools if not _leads(desk, pool)]
        return await inquiry.together(
            request, response, _listed(desk, led, page),
            page=page, view=AdviceView, key=lambda each: tuple(each.models[:1]),
            otherwise=[] if part_of(request) else _listed(desk, others, page).data,
        )  # fmt: skip

    @routes.get(
        "/target", summary="The same of one model, as one number", responses=documented(404)
    )
    async def target(
        asked: Annotated[TargetAsked, Query()], request: Request, response: Response
    ) -> TargetView:
        told = await inquiry.pictured(request, response, asked.model, "")
        return (
            _target(desk, asked.model) if told is None else TargetView.model_validate(told.json())
        )

    return routes


def _target(desk: Desk, model: str) -> TargetView:
    pool = desk.scheduler.pool_by_model.get(model)
    if pool is not None:
        usable = sum(each.is_usable for each in pool.replicas.values())
        advised = pool.advisor.advised
        target = usable if advised is None else advised
        return TargetView(model=model, target=target, advised=advised, usable=usable)
    settings = desk.settings()
    if model not in {each.name for each in settings.models}:
        raise NotFoundError("model", model)
    # It has no replica now, and nobody asked for it: scaled to none, it stays an answer.
    return TargetView(model=model, target=settings.scaling.min, advised=None, usable=0)


def _leads(desk: Desk, pool: Pool) -> bool:
    """Whether this gateway knows best about it."""
    return desk.fellows.leader_of(min(pool.models, default="")) is None


def _listed(desk: Desk, pools: Iterable[Pool], page: Page) -> Listing[AdviceView]:
    now = desk.clock()
    found = page_of(
        pools, page, key=lambda pool: tuple(sorted(pool.models)[:1]),
        view=lambda pool: advice_view(pool, now),
    )  # fmt: skip
    return Listing[AdviceView](**found)


def advice_view(pool: Pool, now: float) -> AdviceView:
    """What is advised for the pool at `now`, and by what."""
    usable = [each for each in pool.replicas.values() if each.is_usable]
    scaling, said = pool.policy.scaling, pool.advisor.snapshot(now)
    return AdviceView(
        models=sorted(pool.models),
        replicas=len(pool.replicas),
        usable=len(usable),
        advised=pool.advisor.advised,
        advised_for_s=_rounded(said["advised_for_s"]),
        signal=round(fleet_signal(pool, usable), 4),
        below=scaling.below,
        above=scaling.above,
        below_for_s=_rounded(said["below_for_s"]),
        above_for_s=_rounded(said["above_for_s"]),
        min=scaling.min,
        max=scaling.max,
        hold_s=scaling.hold_s,
        cooldown_s=scaling.cooldown_s,
        waiting=pool.count,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
