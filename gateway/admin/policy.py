"""The policy over REST: read, tried out, put, taken back, and its earlier revisions."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response

from gateway.admin.door import PREFIX
from gateway.admin.office import Office, moves
from gateway.admin.overlay import POLICY
from gateway.admin.paging import Listing
from gateway.admin.policy_document import checked, differences, document_of, mark_of
from gateway.admin.policy_views import (
    PolicyView,
    Rehearsal,
    Revision,
    SetAside,
    affected_by,
    change_views,
    reaction_view,
    revision_view,
)
from gateway.admin.problems import NotFoundError, documented
from gateway.admin.reaction import picture_of, reaction
from gateway.admin.versions import deed_of, require, tag_of, tell
from gateway.core.messages import PolicyChanged
from gateway.errors import BadRequestError
from gateway.tenancy.store.port import AUDIT_PAGE_MAX, AuditEntry, Write

TAG = "policy"
LOOKED_THROUGH_MAX = 10_000
"""Entries of the audit that are looked through for one revision."""
EXAMPLE = {
    "tiers": [
        {"name": "gold", "queue_limit": 2, "patience_s": 60},
        {"name": "bulk", "queue_limit": 0, "patience_s": 3600, "min_share": 0.05},
    ],
    "moved_to": {"standard": "bulk"},
    "scheduling": {"headroom_max": 0.2},
}

Made = Callable[[], dict[str, Any] | None]
"""Makes the policy of what there is; None: the configuration's."""
After = Annotated[str | None, Query(max_length=20, description="The `next` of the page before.")]
DryRun = Annotated[bool, Query(description="Say what would happen, and do nothing.")]
Document = Annotated[
    dict[str, Any],
    Body(description="All sections; what is left out has its default.", examples=[EXAMPLE]),
]


def router(office: Office) -> APIRouter:
    """The routes under `/policy`."""
    routes = APIRouter(prefix=f"{PREFIX}/policy", tags=[TAG])
    _looks(routes, office)
    _deeds(routes, office)
    _revisions(routes, office)
    return routes


def version_of(office: Office) -> str:
    """Of the policy: the store's where it has one, and a mark of what is in force where not."""
    record = office.record(*POLICY)
    version = 0 if record is None else record.version
    if record is not None and POLICY not in office.set_aside:
        return str(version)
    return f"{version}-{mark_of(document_of(office.settings))}"


def view_of(office: Office) -> PolicyView:
    """What is in force, and where it comes from."""
    record, aside = office.record(*POLICY), office.set_aside.get(POLICY)
    return PolicyView(
        source="store" if record is not None and aside is None else "file",
        version=version_of(office),
        set_aside=None
        if record is None or aside is None
        else SetAside(version=record.version, problems=list(aside), policy=dict(record.body)),
        **document_of(office.settings),
    )


async def put(
    office: Office,
    request: Request,
    action: str,
    made: Made,
    *,
    is_version_needed: bool = False,
    homeless_to: str | None = None,
) -> PolicyView:
    """Have the policy that `made` makes of what there is, None: the configuration's; or raise.

    `made` is called once nothing else changes any more.
    """

    def plan() -> list[Write]:
        require(request, version_of(office), is_needed=is_version_needed)
        record = office.record(*POLICY)
        expected = 0 if record is None else record.version
        return [Write(kind=POLICY[0], id=POLICY[1], body=made(), expected=expected)]

    deed = deed_of(request, action, office.wall())
    await office.change(plan, deed, homeless_to=homeless_to)
    return view_of(office)


async def rehearsed(
    office: Office,
    request: Request,
    made: Made,
    *,
    homeless_to: str | None = None,
) -> Rehearsal:
    """What `put` would do; nothing is changed. Raises as it does."""

    def plan() -> list[Write]:
        require(request, version_of(office))
        return [Write(kind=POLICY[0], id=POLICY[1], body=made())]

    settings = await office.rehearse(plan, homeless_to=homeless_to)
    old, new = document_of(office.settings), document_of(settings)
    scheduler, now = office.house.scheduler, office.house.clock()
    affected = affected_by(office, settings)
    picture, policy = picture_of(scheduler, now), scheduler.policy
    reacted = None
    if picture is not None:
        moved_to = moves(office.settings, settings, homeless_to or settings.tier_names[-1])
        changed = PolicyChanged(settings.policy(), moved_to)
        reacted = await asyncio.to_thread(reaction, picture, policy, changed, now)
    return Rehearsal(
        would_change=old != new,
        changes=change_views(differences(old, new)),
        affected=affected,
        reaction=None if reacted is None else reaction_view(reacted),
    )


def _looks(routes: APIRouter, office: Office) -> None:
    @routes.get("", summary="The policy in force", responses=documented())
    async def policy(response: Response) -> PolicyView:
        tell(response, version_of(office))
        return view_of(office)


def _deeds(routes: APIRouter, office: Office) -> None:
    @routes.put(
        "", summary="Have another policy, or try it out with dry_run",
        responses=documented(409, 412, 428, 503),
    )  # fmt: skip
    async def put_policy(
        document: Document,
        request: Request,
        response: Response,
        dry_run: DryRun = False,
    ) -> PolicyView | Rehearsal:
        complete = checked(document)
        if dry_run:
            return await rehearsed(office, request, lambda: complete)
        view = await put(office, request, "policy.put", lambda: complete, is_version_needed=True)
        response.headers["etag"] = tag_of(view.version)
        return view

    @routes.delete(
        "", summary="Go back to the policy of the configuration, or try it out with dry_run",
        responses=documented(404, 409, 412, 503),
    )  # fmt: skip
    async def delete_policy(
        request: Request,
        response: Response,
        dry_run: DryRun = False,
        moved_to: Annotated[
            str | None,
            Query(max_length=32, description="The tier of what is in tiers that are gone then."),
        ] = None,
    ) -> PolicyView | Rehearsal:
        if office.record(*POLICY) is None:
            raise NotFoundError("policy", "in the store")
        if dry_run:
            return await rehearsed(office, request, lambda: None, homeless_to=moved_to)
        view = await put(office, request, "policy.delete", lambda: None, homeless_to=moved_to)
        response.headers["etag"] = tag_of(view.version)
        return view


def _revisions(routes: APIRouter, office: Office) -> None:
    @routes.get("/revisions", summary="Who changed the policy when", responses=documented(503))
    async def revisions(
        limit: Annotated[int, Query(ge=1, le=AUDIT_PAGE_MAX - 1)] = 100,
        after: After = None,
    ) -> Listing[Revision]:
        before = None if after is None else _sequence(after)
        entries = await office.audit(
            before=before, limit=limit + 1, kind=POLICY[0], record_id=POLICY[1]
        )
        shown = entries[:limit]
        has_more = len(entries) > limit
        return Listing[Revision](
            data=[revision_view(entry, is_whole=False) for entry in shown],
            has_more=has_more,
            next=str(shown[-1].sequence) if has_more else None,
        )

    @routes.get("/revisions/{revision}", summary="One of them, with its policy",
                responses=documented(404, 503))  # fmt: skip
    async def revision(revision: int) -> Revision:
        return revision_view(await _entry(office, revision), is_whole=True)

    @routes.post(
        "/revisions/{revision}/restore", summary="Have the policy of that revision again",
        responses=documented(404, 409, 412, 422, 503),
    )  # fmt: skip
    async def restore(
        revision: int,
        request: Request,
        response: Response,
        moved_to: Annotated[
            dict[str, str],
            Body(
                embed=True,
                description="Where the requests of tiers go that it did not have.",
                examples=[{"gold": "standard"}],
            ),
        ] = {},  # noqa: B006  # FastAPI copies defaults, and nobody changes it
    ) -> PolicyView:
        entry = await _entry(office, revision)

        def made() -> dict[str, Any] | None:
            return None if entry.after is None else checked(_moved(entry.after, moved_to))

        if entry.after is None and office.record(*POLICY) is None:
            return view_of(office)
        view = await put(office, request, "policy.restore", made)
        response.headers["etag"] = tag_of(view.version)
        return view


def _moved(document: Mapping[str, Any], moved_to: Mapping[str, str]) -> dict[str, Any]:
    """An earlier document, under which tiers of today may be gone."""
    names = {tier["name"] for tier in document["tiers"]}
    moves = {**document["moved_to"], **moved_to}
    return {**document, "moved_to": {old: new for old, new in moves.items() if old not in names}}


async def _entry(office: Office, revision: int) -> AuditEntry:
    """The entry of the audit that wrote this revision of the policy. Raises NotFoundError."""
    before: int | None = None
    for _ in range(LOOKED_THROUGH_MAX // AUDIT_PAGE_MAX):
        entries = await office.audit(
            before=before, limit=AUDIT_PAGE_MAX, kind=POLICY[0], record_id=POLICY[1]
        )
        for entry in entries:
            if entry.revision == revision:
                return entry
        if len(entries) < AUDIT_PAGE_MAX or entries[-1].revision < revision:
            break
        before = entries[-1].sequence
    raise NotFoundError("revision of the policy", str(revision))


def _sequence(after: str) -> int:
    if not (after.isascii() and after.isdigit()):
        raise BadRequestError("after is no place of this list: take `next`.", param="after")
    return int(after)
