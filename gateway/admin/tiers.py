"""Tiers over REST, one by one. Each change is one of the whole policy, whose version is theirs."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ConfigDict, Field

from gateway.admin.office import Office
from gateway.admin.paging import Listing, Page, page_of
from gateway.admin.policy import DryRun, put, rehearsed, version_of
from gateway.admin.policy_document import checked, document_of
from gateway.admin.policy_views import Rehearsal
from gateway.admin.problems import NotFoundError, documented
from gateway.admin.versions import tell
from gateway.core.policy import Tier
from gateway.errors import BadRequestError
from gateway.settings_document import TierSection

TAG = "tiers"
Name = Annotated[str, Path(max_length=32)]


class TierFields(TierSection):
    """One tier as it is put. Another name than the path's renames it."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"name": "gold", "rank": 0, "patience_s": 20.0}}
    )
    rank: int | None = Field(
        None, ge=0, le=1_000, description="Its position, 0 first; null: as it is, or last."
    )


EXAMPLE: dict[str, Any] = {
    "object": "tier", "name": "gold", "rank": 0, "queue_limit": None, "tpot_limit_ms": 150.0,
    "prefill_limit_s": None, "patience_s": 20.0, "min_share": None, "weight": 1.0,
    "room": {"requests": None, "bytes": None, "tokens": None}, "ttft_target_ms": 500.0,
    "tpot_target_ms": None, "continuation": False, "preemptible": False,
    "in_force": {"queue_limit": 4, "min_share": 0.0, "prefill_limit_s": 1.0},
    "waiting": 0, "running": 3,
}  # fmt: skip


class TierView(TierSection):
    """One tier in force; null is filled in by rank, as `in_force` shows."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})
    object: Literal["tier"] = "tier"
    rank: int
    in_force: dict[str, Any] = Field(description="What is filled in.")
    waiting: int
    running: int


def router(office: Office) -> APIRouter:
    """The routes under `/tiers`."""
    routes = APIRouter(prefix="/tiers", tags=[TAG])
    _looks(routes, office)
    _deeds(routes, office)
    return routes


def _looks(routes: APIRouter, office: Office) -> None:
    @routes.get("", summary="All tiers, the first one first", responses=documented())
    async def tiers(page: Annotated[Page, Query()], response: Response) -> Listing[TierView]:
        tell(response, version_of(office))
        found = page_of(_views(office), page, key=lambda each: (each.rank,), view=lambda each: each)
        return Listing[TierView](**found)

    @routes.get("/{name}", summary="One tier", responses=documented(404))
    async def tier(name: Name, response: Response) -> TierView:
        tell(response, version_of(office))
        return _view(office, name)


def _deeds(routes: APIRouter, office: Office) -> None:
    @routes.put(
        "/{name}", summary="Make, change, move or rename a tier",
        responses=documented(404, 409, 412, 503),
    )  # fmt: skip
    async def put_tier(
        name: Name,
        fields: TierFields,
        request: Request,
        response: Response,
        *,
        dry_run: DryRun = False,
    ) -> TierView | Rehearsal:
        section = fields.model_dump(mode="json", exclude={"rank"})

        def made() -> dict[str, Any]:
            return checked(_with(document_of(office.settings), name, section, fields.rank))

        if dry_run:
            return await rehearsed(office, request, made)
        tell(response, (await put(office, request, "tier.put", made)).version)
        return _view(office, fields.name)

    @routes.delete(
        "/{name}", summary="Remove a tier; its requests go to the tier moved_to",
        status_code=200, responses=documented(404, 409, 412, 503),
    )  # fmt: skip
    async def delete_tier(
        name: Name,
        request: Request,
        response: Response,
        *,
        moved_to: Annotated[str, Query(max_length=32, description="Another tier.")],
        dry_run: DryRun = False,
    ) -> Listing[TierView] | Rehearsal:
        _view(office, name)

        def made() -> dict[str, Any]:
            return checked(_without(document_of(office.settings), name, moved_to))

        if dry_run:
            return await rehearsed(office, request, made)
        tell(response, (await put(office, request, "tier.delete", made)).version)
        return Listing[TierView](data=_views(office), has_more=False, next=None)


def _views(office: Office) -> list[TierView]:
    scheduler = office.house.scheduler
    waiting = [each.request.tier for each in scheduler.waiting.values()]
    running = [grant.tier for grant, _ in scheduler.granted.values()]
    tiers = scheduler.policy.tiers
    return [
        TierView(
            **section,
            rank=rank,
            in_force=_in_force(tiers[rank]),
            waiting=waiting.count(rank),
            running=running.count(rank),
        )
        for rank, section in enumerate(document_of(office.settings)["tiers"])
    ]


def _view(office: Office, name: str) -> TierView:
    for view in _views(office):
        if view.name == name:
            return view
    raise NotFoundError("tier", name)


def _in_force(tier: Tier) -> dict[str, Any]:
    return {
        "queue_limit": tier.queue_limit,
        "min_share": tier.min_share,
        "prefill_limit_s": tier.prefill_limit_s,
    }


def _with(
    document: dict[str, Any], name: str, section: dict[str, Any], rank: int | None
) -> dict[str, Any]:
    """`document` with this tier, under another name where the section has one."""
    tiers = [*document["tiers"]]
    known = [tier["name"] for tier in tiers]
    new = section["name"]
    if name not in known and new != name:
        raise BadRequestError(f"There is no tier `{name}` to rename.", param="name")
    if new != name and new in known:
        raise BadRequestError(f"There is a tier `{new}` already.", param="name")
    place = len(tiers) if name not in known else known.index(name)
    tiers[place : place + 1] = []
    tiers.insert(min(place if rank is None else rank, len(tiers)), section)
    renamed = _moved(document, name, new) if name in known and new != name else document
    moved = {old: to for old, to in renamed["moved_to"].items() if old != new}
    return {**renamed, "tiers": tiers, "moved_to": moved}


def _without(document: dict[str, Any], name: str, moved_to: str) -> dict[str, Any]:
    """`document` without this tier."""
    tiers = [tier for tier in document["tiers"] if tier["name"] != name]
    if moved_to not in {tier["name"] for tier in tiers}:
        text = f"moved_to: {moved_to!r} is no other tier: its requests have to go somewhere."
        raise BadRequestError(text, param="moved_to")
    return {**_moved(document, name, moved_to), "tiers": tiers}


def _moved(document: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """`document` in which all that names the tier `old` names `new`."""
    moves = {name: new if to == old else to for name, to in document["moved_to"].items()}
    words = document["service_tiers"]
    if words is not None:
        words = {word: new if tier == old else tier for word, tier in words.items()}
    return {**document, "moved_to": {**moves, old: new}, "service_tiers": words}
