"""API keys over REST: made and shown once, changed, blocked, rotated, revoked at once."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query, Request, Response
from pydantic import Field

from gateway.admin.desk import answer_of
from gateway.admin.door import PREFIX
from gateway.admin.key_records import ACCESS, made_id, made_key, present, rotated
from gateway.admin.key_views import (
    KeyFields,
    KeyMade,
    KeyView,
    NewKey,
    Rotation,
    file_views,
    made,
    stored_view,
)
from gateway.admin.names import KEYS_MAX, changed, refuse_file, tenant_names
from gateway.admin.objections import TooManyError
from gateway.admin.office import Office
from gateway.admin.paging import Listing, Page, page_of
from gateway.admin.problems import NotFoundError, documented
from gateway.admin.versions import answered, deed_of, require, tell
from gateway.errors import BadRequestError
from gateway.tenancy.store.port import Record, Write

TAG = "keys"
KIND: Literal["key"] = "key"
KeyId = Annotated[str, Path(max_length=64)]


@dataclass(frozen=True, slots=True)
class _Order:
    """A key that is about to be handed out."""

    action: str
    status: int
    key_id: str
    body: Mapping[str, Any]
    api_key: str


class KeyPage(Page):
    """Which part of the list is asked for."""

    tenant: Annotated[str | None, Field(max_length=256, description="Only of this one.")] = None
    user: Annotated[str | None, Field(max_length=256, description="Only of this one.")] = None


def router(office: Office) -> APIRouter:
    """The routes under `/keys`."""
    routes = APIRouter(prefix=f"{PREFIX}/keys", tags=[TAG])
    _looks(routes, office)
    _makes(routes, office)
    _deeds(routes, office)
    return routes


def _looks(routes: APIRouter, office: Office) -> None:
    @routes.get("", summary="All keys by id", responses=documented())
    async def keys(page: Annotated[KeyPage, Query()]) -> Listing[KeyView]:
        stored = office.records(KIND)
        known: dict[str, KeyView | Record] = {each.id: each for each in file_views(office)}
        known |= stored
        wanted = [key_id for key_id, each in known.items() if _is_of(each, page)]
        found = page_of(
            wanted, page, key=lambda each: (each,), view=lambda each: _shown(office, known[each])
        )
        return Listing[KeyView](**found)

    @routes.get("/{id}", summary="One key", responses=documented(404))
    async def key(id: KeyId, response: Response) -> KeyView:
        view = view_of(office, id)
        if view.version is not None:
            tell(response, view.version)
        return view


def _makes(routes: APIRouter, office: Office) -> None:
    @routes.post("", status_code=201, summary="Make a key; it is shown once",
                 response_model=KeyMade, responses=documented(409, 422, 503))  # fmt: skip
    async def make(new: NewKey, request: Request) -> Response:
        key_id = made_id()
        api_key, sha256 = made_key(key_id)
        body = new.model_dump(mode="json") | {
            "hashes": [{"sha256": sha256, "until": None}],
            "created_at": office.wall(),
        }

        def plan() -> list[Write]:
            if new.tenant not in tenant_names(office):
                raise BadRequestError(f"There is no tenant `{new.tenant}`.", param="tenant")
            if len(office.records(KIND)) >= KEYS_MAX:
                raise TooManyError(f"There are {KEYS_MAX} keys, which is the most.")
            _check(office, body)
            writes = [Write(kind=KIND, id=key_id, body=body, expected=0)]
            if office.record("policy", ACCESS) is None:
                # From the first key on callers need one, and losing the last opens nothing.
                writes.append(Write(kind="policy", id=ACCESS, body={"since": office.wall()}))
            return writes

        order = _Order("key.make", 201, key_id, body, api_key)
        return await _handed_out(office, request, order, plan)

    @routes.post("/{id}/rotate", summary="Hand a key out anew, under the same id",
                 response_model=KeyMade, responses=documented(404, 409, 412, 422, 503))  # fmt: skip
    async def rotate(
        id: KeyId, request: Request, rotation: Annotated[Rotation | None, Body()] = None
    ) -> Response:
        _record(office, request, id)  # a key is made of the id: it must be one of ours
        api_key, sha256 = made_key(id)
        overlap_s = 0.0 if rotation is None else rotation.overlap_s

        def body_of() -> dict[str, Any]:
            record = _record(office, request, id)
            hashes = rotated(record.body["hashes"], sha256, now=office.wall(), overlap_s=overlap_s)
            return {**record.body, "hashes": hashes}

        def plan() -> list[Write]:
            version = _record(office, request, id).version
            return [Write(kind=KIND, id=id, body=body_of(), expected=version)]

        order = _Order("key.rotate", 200, id, body_of(), api_key)
        return await _handed_out(office, request, order, plan)


def _deeds(routes: APIRouter, office: Office) -> None:
    @routes.patch("/{id}", summary="Change, block or unblock a key",
                  responses=documented(404, 409, 412, 503))  # fmt: skip
    async def change(id: KeyId, fields: KeyFields, request: Request, response: Response) -> KeyView:
        def plan() -> list[Write]:
            record = _record(office, request, id)
            body = changed(record.body, fields)
            _check(office, body, touched=fields.model_fields_set)
            return [Write(kind=KIND, id=id, body=body, expected=record.version)]

        tell(response, await office.change(plan, deed_of(request, "key.change", office.wall())))
        return view_of(office, id)

    @routes.delete("/{id}", status_code=204, summary="Revoke a key at once",
                   responses=documented(404, 409, 412, 503))  # fmt: skip
    async def revoke(id: KeyId, request: Request) -> None:
        def plan() -> list[Write]:
            record = _record(office, request, id)
            return [Write(kind=KIND, id=id, body=None, expected=record.version)]

        await office.change(plan, deed_of(request, "key.revoke", office.wall()))


def view_of(office: Office, key_id: str) -> KeyView:
    """One key. Raises NotFoundError."""
    record = office.record(KIND, key_id)
    if record is not None:
        return stored_view(office, record)
    for view in file_views(office):
        if view.id == key_id:
            return view
    raise NotFoundError("key", key_id)


async def _handed_out(
    office: Office, request: Request, order: "_Order", plan: Callable[[], list[Write]]
) -> Response:
    """Make the change and show the key; what is kept for a repeated request does not hold it."""
    record = Record(kind=KIND, id=order.key_id, version=0, body=order.body)
    promised = stored_view(office, record)
    again = made(promised, None).model_dump_json().encode()
    deed = deed_of(request, order.action, office.wall())
    version = await office.change(plan, deed, answer_of(request, order.status, again))
    return answered(made(view_of(office, order.key_id), order.api_key), order.status, version)


def _record(office: Office, request: Request, key_id: str) -> Record:
    """A key of the store. Raises NotFoundError, ConfiguredInFileError, PreconditionFailedError."""
    view = view_of(office, key_id)
    refuse_file(f"The key `{key_id}`", view.origin)
    record = office.records(KIND)[key_id]
    require(request, record.version)
    return record


def _is_of(key: KeyView | Record, page: KeyPage) -> bool:
    tenant, user = (
        (key.body["tenant"], key.body["user"])
        if isinstance(key, Record)
        else (key.tenant, key.user)
    )
    return page.tenant in (None, tenant) and page.user in (None, user)


def _shown(office: Office, key: KeyView | Record) -> KeyView:
    return stored_view(office, key) if isinstance(key, Record) else key


def _check(office: Office, body: Mapping[str, Any], touched: Set[str] = frozenset({"*"})) -> None:
    """Raises BadRequestError for tiers that there are not, and an end that has come."""
    settings, tiers = office.settings, office.settings.tier_names
    for field in ("tier", "max_tier"):
        if body[field] is not None and present(settings, body[field]) is None:
            text = f"There is no tier `{body[field]}`; there are {', '.join(tiers)}."
            raise BadRequestError(text, param=field)
    own = present(settings, body["tier"]) or settings.default_tier
    best = present(settings, body["max_tier"]) or own
    if tiers.index(best) > tiers.index(own):
        text = f"`{best}` ranks below the key's own tier `{own}`."
        raise BadRequestError(text, param="max_tier")
    is_new = touched & {"*", "expires_at"}
    if is_new and body["expires_at"] is not None and body["expires_at"] <= office.wall():
        raise BadRequestError("expires_at is in the past.", param="expires_at")
