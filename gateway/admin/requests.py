"""The requests that are here: which, why one waits, and how an operator ends one.

A request has the id that its client was told as `x-request-id`. Its prompt is never shown.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.desk import Desk
from gateway.admin.explanations import STATE_TEXT, ExplanationView, State, rendered
from gateway.admin.paging import Listing, Page, page_of
from gateway.admin.problems import NotFoundError, documented
from gateway.api.life import Life
from gateway.core.explain import explain
from gateway.errors import CancelledByOperatorError

RequestId = Annotated[str, Path(max_length=64, description="As `x-request-id` told it.")]
EXAMPLE: dict[str, Any] = {
    "object": "request", "id": "9f0c2d4e6a8b0c2d4e6a8b0c", "state": "waiting",
    "model": "llama-3-8b", "route": "chat", "tier": "standard", "tenant": "acme", "user": "alice",
    "arrived_at": 1764504000.25, "age_s": 1.7, "waited_s": 1.7, "position": 3, "replica": None,
    "streams": True, "attempts": 1, "output_tokens": 0, "prompt_tokens": None,
    "output_tokens_max": 256, "body_bytes": 412,
}  # fmt: skip


class RequestView(BaseModel):
    """One request."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    object: Literal["request"] = "request"
    id: str
    state: State = Field(description=STATE_TEXT)
    model: str
    route: str
    tier: str
    tenant: str
    user: str
    arrived_at: float = Field(description="Seconds since 1970.")
    age_s: float = Field(description="Seconds since then.")
    waited_s: float = Field(description="Seconds in the queue so far, or until it was granted.")
    position: int | None = Field(description="Estimated place in the line; null: it is in none.")
    replica: str | None = Field(description="Where it runs.")
    streams: bool
    attempts: int = Field(description="Replicas it was tried on, this one included.")
    output_tokens: int = Field(description="Events of its stream so far.")
    prompt_tokens: int | None = Field(description="Null: not known before the engine counts them.")
    output_tokens_max: int | None = Field(description="As the client limits it.")
    body_bytes: int


class Ended(BaseModel):
    """A request that is ended."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"object": "request", "id": "9f0c2d4e6a8b0c2d4e6a8b0c", "state": "cancelled"}
        }
    )
    object: Literal["request"] = "request"
    id: str
    state: Literal["cancelled"] = "cancelled"


class RequestsAsked(Page):
    """Which of them."""

    id: Annotated[str | None, Field(max_length=64, description="Only this one.")] = None
    state: State | None = None
    tier: Annotated[str | None, Field(max_length=64)] = None
    tenant: Annotated[str | None, Field(max_length=256)] = None
    user: Annotated[str | None, Field(max_length=256)] = None
    model: Annotated[str | None, Field(max_length=256)] = None


def router(desk: Desk) -> APIRouter:
    """The routes under `/requests`."""
    routes, line = APIRouter(prefix="/requests", tags=["requests"]), Line(desk)

    @routes.get("", summary="The requests that wait and run", responses=documented())
    async def requests(asked: Annotated[RequestsAsked, Query()]) -> Listing[RequestView]:
        found = page_of(
            line.asked(asked), asked, key=lambda each: (each.began_at, each.request_id),
            view=line.view,
        )  # fmt: skip
        return Listing[RequestView](**found)

    @routes.get("/{request_id}", summary="One request", responses=documented(404))
    async def request(request_id: RequestId) -> RequestView:
        return line.view(line.find(request_id))

    @routes.get(
        "/{request_id}/explain", summary="Why a request waits, or where it runs",
        responses=documented(404),
    )  # fmt: skip
    async def explained(request_id: RequestId) -> ExplanationView:
        return line.explain(line.find(request_id))

    @routes.post(
        "/{request_id}/cancel", summary="End a request; its client is told, and not to retry",
        responses=documented(404, 409, 422, 503),
    )  # fmt: skip
    async def cancel(request_id: RequestId) -> Ended:
        line.find(request_id).end(CancelledByOperatorError())
        return Ended(id=request_id)

    @routes.delete(
        "/{request_id}", status_code=204, summary="The same as `cancel`", responses=documented(404)
    )
    async def delete(request_id: RequestId) -> Response:
        line.find(request_id).end(CancelledByOperatorError())
        return Response(status_code=204)

    return routes


class Line:
    """The requests that were admitted and have not ended."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def asked(self, asked: RequestsAsked) -> list[Life]:
        """Those that are asked for, in no order."""
        return [life for life in list(self._desk.relay.lives) if self._is_asked(life, asked)]

    def find(self, request_id: str) -> Life:
        """One of them. Raises NotFoundError."""
        for life in self._desk.relay.lives:
            if life.request_id == request_id and life.asked is not None:
                return life
        raise NotFoundError("request", request_id)

    def state(self, life: Life) -> State:
        """What it does."""
        scheduler = self._desk.scheduler
        waiting = scheduler.waiting.get(life.attempt_id)
        if waiting is not None:
            return "waiting" if waiting.holder is None else "held"
        return "running" if life.attempt_id in scheduler.granted else "ending"

    def view(self, life: Life) -> RequestView:
        """As it is told."""
        desk, state, now = self._desk, self.state(life), self._desk.clock()
        asked, call = life.asked, life.call
        assert asked is not None
        assert call is not None
        granted = desk.scheduler.granted.get(life.attempt_id)
        place = desk.scheduler.place_of(life.attempt_id, now)
        waited_s = now - life.began_at if state in ("waiting", "held") else life.waited_s
        return RequestView(
            id=life.request_id,
            state=state,
            model=life.model,
            route=life.route.name,
            tier=desk.scheduler.policy.tiers[asked.tier].name,
            tenant=asked.tenant,
            user=asked.user,
            arrived_at=round(desk.wall_at(life.began_at), 3),
            age_s=round(now - life.began_at, 3),
            waited_s=round(waited_s, 3),
            position=None if place is None else place[0],
            replica=None if granted is None else granted[1].name,
            streams=call.streams,
            attempts=life.attempts,
            output_tokens=0 if granted is None else granted[0].output_tokens,
            prompt_tokens=call.prompt_tokens,
            output_tokens_max=call.output_tokens_max,
            body_bytes=call.size,
        )

    def explain(self, life: Life) -> ExplanationView:
        """Why it waits, or where it runs."""
        desk = self._desk
        explanation = explain(desk.scheduler, life.attempt_id, desk.clock())
        if explanation is not None:
            return rendered(explanation, life.request_id)
        view = self.view(life)
        return ExplanationView(
            request_id=view.id, state="ending", model=view.model, tier=view.tier,
            tenant=view.tenant, user=view.user, waited_s=view.waited_s,
            summary="It neither waits nor holds a slot: it is between two attempts, or its client "
            "is still reading.",
            patience_left_s=None, position=None, expected_wait_s=None, cost=None, flow=None,
            flows_ahead=0, ahead=[], is_floor_owed=False, is_aged=False, tiers_ahead=0,
            replicas=[], granted_on=None, held_by=None, held_by_running=0,
            held_by_most=0,
        )  # fmt: skip

    def _is_asked(self, life: Life, asked: RequestsAsked) -> bool:
        who = life.asked
        return (
            who is not None
            and asked.id in (None, life.request_id)
            and asked.tenant in (None, who.tenant)
            and asked.user in (None, who.user)
            and asked.model in (None, life.model)
            and asked.tier in (None, self._desk.scheduler.policy.tiers[who.tier].name)
            and asked.state in (None, self.state(life))
        )
