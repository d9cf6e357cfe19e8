"""Batches of everybody, for operators: how far each has come, and what it waits for.

Who has no batches is told so; what a batch is, is not known here.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.door import PREFIX
from gateway.admin.lookout import Lookout
from gateway.admin.problems import documented

BATCHES = 50
BATCHES_MAX = 100
EXAMPLE: dict[str, Any] = {
    "object": "batch.progress", "id": "batch_6748c2", "tenant": "acme", "user": "alice",
    "tier": "background", "status": "in_progress", "model": "llama-3-8b",
    "endpoint": "/v1/chat/completions", "total": 50_000, "completed": 12_000, "failed": 3,
    "created_at": 1764504000.0, "began_at": 1764504002.0, "expires_at": 1764590400.0,
    "left_s": 5400.0, "waits_for": None,
}  # fmt: skip


class ProgressView(BaseModel):
    """One batch. Instants are seconds since 1970."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    object: Literal["batch.progress"] = "batch.progress"
    id: str
    tenant: str
    user: str
    tier: str = Field(description="In which its lines run.")
    status: str = Field(description="As `/v1/batches` has it.")
    model: str | None = Field(description="Of its first line.")
    endpoint: str
    total: int = Field(description="Lines; 0 until its file was checked.")
    completed: int = Field(description="Lines that were answered.")
    failed: int = Field(description="Lines that were answered with an error.")
    created_at: float
    began_at: float | None = Field(description="When its lines began to run.")
    expires_at: float = Field(description="When its window ends.")
    left_s: float | None = Field(
        description="Until its lines are done, at the pace so far; null: that cannot be told."
    )
    waits_for: str | None = Field(
        description="Why it does not go on in this gateway; null: nothing is known that keeps it."
    )


class BatchesView(BaseModel):
    """Batches, open ones first, each kind by age, the newest first."""

    object: Literal["list"] = "list"
    data: list[ProgressView]
    has_more: bool = Field(description="Whether there are more than were told.")
    is_configured: bool = Field(description="Whether this gateway has a place for batches at all.")


class BatchesAsked(BaseModel):
    """How many of them."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[int, Field(ge=1, le=BATCHES_MAX)] = BATCHES


Look = Callable[[int], Awaitable[list[ProgressView]]]
"""So many batches, in the order of `BatchesView`. Raises StoreError."""


def router(look: Look | None, clock: Callable[[], float]) -> APIRouter:
    """The route `/batches`. `look`: None: batches are not configured."""
    routes = APIRouter(prefix=f"{PREFIX}/batches", tags=["batches"])
    lookout = None if look is None else Lookout(partial(look, BATCHES_MAX + 1), clock)

    @routes.get("", summary="How far batches have come", responses=documented(503))
    async def batches(asked: Annotated[BatchesAsked, Query()]) -> BatchesView:
        found = [] if lookout is None else await lookout.look()
        return BatchesView(
            data=found[: asked.limit],
            has_more=len(found) > asked.limit,
            is_configured=lookout is not None,
        )

    return routes
