"""The requests that are here: which, why one waits, and how an operator ends one.

A request has the id that its client was told as `x-request-id`. Its prompt is never shown.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.desk import Desk
from gateway.admin.door import PREFIX
from gateway.admin.explanations import STATE_TEXT, ExplanationView, State, rendered
from gateway.admin.fellows import PICTURE, Inquiry, key_in, part_of
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
    routes, line = APIRouter(prefix=f"{PREFIX}/requests", tags=["requests"]), Line(desk)
    inquiry = Inquiry(desk.fellows)
    _add_reads(routes, line, inquiry)
    _add_ends(routes, line, inquiry)
    return routes


def _add_reads(routes: APIRouter, line: "Line", inquiry: Inquiry) -> None:
    @routes.get("", summary="The requests that wait and run", responses=documented())
    async def requests(
        asked: Annotated[RequestsAsked, Query()], request: Request, response: Response
    ) -> Listing[RequestView]:
        found = page_of(line.asked(asked), asked, key=line.place, view=line.view)
        return await inquiry.together(
            request, response, Listing[RequestView](**found),
            page=asked, view=RequestView, key=lambda each: (each.arrived_at, each.id),
        )  # fmt: skip

    @routes.get("/{request_id}", summary="One request", responses=documented(404))
    async def one(request_id: RequestId, request: Request, response: Response) -> RequestView:
        life = line.found(request_id)
        if life is not None:
            return line.view(life)
        answer = await inquiry.elsewhere(request, response)
        if answer is None:
            raise NotFoundError("request", request_id)
        return RequestView.model_validate(answer.json())

    @routes.get(
        "/{request_id}/explain", summary="Why a request waits, or where it runs",
        responses=documented(404),
    )  # fmt: skip
    async def explained(
        request_id: RequestId, request: Request, response: Response
    ) -> ExplanationView:
        key, life = key_in(request), line.found(request_id)
        if key is not None and part_of(request) == PICTURE:
            return line.explain_key(key, request_id)
        if life is None:
            answer = await inquiry.elsewhere(request, response)
            if answer is None:
                raise NotFoundError("request", request_id)
            return ExplanationView.model_validate(answer.json())
        pictured = await inquiry.pictured(request, response, life.model, life.attempt_id)
        if pictured is None:
            return line.explain(life)
        return ExplanationView.model_validate(pictured.json())


def _add_ends(routes: APIRouter, line: "Line", inquiry: Inquiry) -> None:
    async def ended(request_id: str, request: Request, response: Response) -> None:
        life = line.found(request_id)
        if life is not None:
            life.end(CancelledByOperatorError())
        elif await inquiry.elsewhere(request, response) is None:
            raise NotFoundError("request", request_id)

    @routes.post(
        "/{request_id}/cancel", summary="End a request; its client is told, and not to retry",
        responses=documented(404, 409, 422, 503),
    )  # fmt: skip
    async def cancel(request_id: RequestId, request: Request, response: Response) -> Ended:
        await ended(request_id, request, response)
        return Ended(id=request_id)

    @routes.delete(
        "/{request_id}", status_code=204, summary="The same as `cancel`", responses=documented(404)
    )
    async def delete(request_id: RequestId, request: Request) -> Response:
        response = Response(status_code=204)
        await ended(request_id, request, response)
        return response


class Line:
    """The requests that were admitted and have not ended."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._ahead_s = desk.wall() - desk.clock()
        """Once and for all: the place of a request in the list must not change."""

    def asked(self, asked: RequestsAsked) -> list[Life]:
        """Those that are asked for, in no order."""
        return [life for life in list(self._desk.relay.lives) if self._is_asked(life, asked)]

    def found(self, request_id: str) -> Life | None:
        """One of them; None: it is not here."""
        for life in self._desk.relay.lives:
            if life.request_id == request_id and life.asked is not None:
                return life
        return None

    def place(self, life: Life) -> tuple[float, str]:
        """Where it stands in the list, which is that of several gateways."""
        return (round(life.began_at + self._ahead_s, 3), life.request_id)

    def state(self, life: Life) -> State:
        """What it does."""
        scheduler, fellows = self._desk.scheduler, self._desk.fellows
        key = fellows.key_here(life.attempt_id)
        waiting = scheduler.waiting.get(key)
        if waiting is not None:
            return "waiting" if waiting.holder is None else "held"
        if key in scheduler.granted:
            return "running"
        return "waiting" if fellows.waits(life.attempt_id) else "ending"

    def view(self, life: Life) -> RequestView:
        """As it is told."""
        desk, state, now = self._desk, self.state(life), self._desk.clock()
        asked, call = life.asked, life.call
        assert asked is not None
        assert call is not None
        granted = desk.scheduler.granted.get(desk.fellows.key_here(life.attempt_id))
        position, _ = desk.place_of(life.attempt_id)
        waited_s = now - life.began_at if state in ("waiting", "held") else life.waited_s
        return RequestView(
            id=life.request_id,
            state=state,
            model=life.model,
            route=life.route.name,
            tier=desk.scheduler.policy.tiers[asked.tier].name,
            tenant=asked.tenant,
            user=asked.user,
            arrived_at=self.place(life)[0],
            age_s=round(now - life.began_at, 3),
            waited_s=round(waited_s, 3),
            position=position or None,
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
        key = desk.fellows.key_here(life.attempt_id)
        explanation = explain(desk.scheduler, key, desk.clock())
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

    def explain_key(self, key: str, request_id: str) -> ExplanationView:
        """The same of another gateway's request, by its id in our scheduler. NotFoundError."""
        explanation = explain(self._desk.scheduler, key, self._desk.clock())
        if explanation is None:
            raise NotFoundError("request", request_id)
        return rendered(explanation, request_id)

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
