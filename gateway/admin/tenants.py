"""Tenants over REST: who shares, with which weight, and how much of it may be used."""

from collections import Counter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.desk import answer_of
from gateway.admin.door import PREFIX
from gateway.admin.names import (
    TENANTS_MAX,
    OwnName,
    changed,
    file_origin,
    refuse_file,
    tenant_names,
    user_id,
)
from gateway.admin.objections import InUseError, TooManyError
from gateway.admin.office import Office
from gateway.admin.paging import Listing, Page, page_of
from gateway.admin.problems import NotFoundError, TakenError, documented
from gateway.admin.versions import answered, deed_of, require, tell
from gateway.settings_document import (
    LimitsSection,
    Positive,
    RoomSection,
    Section,
    TenantSection,
)
from gateway.tenancy.store.port import Write

TAG = "tenants"
KIND: Literal["tenant"] = "tenant"
Name = Annotated[str, Path(max_length=256)]


class TenantFields(Section):
    """What may be changed of a tenant; what is left out stays."""

    weight: Positive = Field(1.0, description="Its share among the tenants.", examples=[2.0])
    room: RoomSection = RoomSection()
    limits: LimitsSection = Field(
        LimitsSection(), examples=[{"requests_per_minute": 600, "concurrent": 16}]
    )


class NewTenant(TenantFields):
    """A tenant to be made."""

    name: Annotated[OwnName, Field(examples=["acme"])]


EXAMPLE: dict[str, Any] = {
    "object": "tenant", "name": "acme", "source": "store", "origin": None, "version": 11,
    "problems": [], "weight": 2.0, "room": {"requests": 500, "bytes": None, "tokens": None},
    "limits": {
        "requests_per_minute": 600, "tokens_per_minute": None, "concurrent": 16,
        "budget": {"tokens": 5_000_000, "per": "month"},
    },
    "users": 1, "keys": 2,
}  # fmt: skip


class TenantView(BaseModel):
    """One tenant."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})
    object: Literal["tenant"] = "tenant"
    name: str
    source: Literal["file", "store"]
    origin: str | None = Field(description="Where the configuration names it.")
    version: int | None = Field(description="As in `ETag`; null where the file has it.")
    problems: list[str] = Field(description="Why what is kept of it is not in force.")
    weight: float
    room: RoomSection
    limits: LimitsSection
    users: int = Field(description="Users with a weight or limits of their own.")
    keys: int


def router(office: Office) -> APIRouter:
    """The routes under `/tenants`."""
    routes = APIRouter(prefix=f"{PREFIX}/tenants", tags=[TAG])
    _looks(routes, office)
    _deeds(routes, office)
    _changes(routes, office)
    return routes


def _looks(routes: APIRouter, office: Office) -> None:
    @routes.get("", summary="All tenants by name", responses=documented())
    async def tenants(page: Annotated[Page, Query()]) -> Listing[TenantView]:
        keys = keys_by_tenant(office)
        sections = {each.name: each for each in office.settings.tenants}
        names = tenant_names(office)
        found = page_of(
            names, page, key=lambda each: (each,),
            view=lambda name: _view(office, name, sections.get(name), keys[name]),
        )  # fmt: skip
        return Listing[TenantView](**found)

    @routes.get("/{name}", summary="One tenant", responses=documented(404))
    async def tenant(name: Name, response: Response) -> TenantView:
        view = view_of(office, name)
        if view.version is not None:
            tell(response, view.version)
        return view


def _deeds(routes: APIRouter, office: Office) -> None:
    @routes.post("", status_code=201, summary="Make a tenant", response_model=TenantView,
                 responses=documented(409, 422, 503))  # fmt: skip
    async def make(new: NewTenant, request: Request) -> Response:
        body = new.model_dump(mode="json")

        def plan() -> list[Write]:
            refuse_file(f"The tenant `{new.name}`", file_origin(office, new.name))
            if office.record(KIND, new.name) is not None:
                raise TakenError(f"There is a tenant `{new.name}` already.")
            if len(office.records(KIND)) >= TENANTS_MAX:
                raise TooManyError(f"There are {TENANTS_MAX} tenants, which is the most.")
            return [Write(kind=KIND, id=new.name, body=body, expected=0)]

        told = TenantView(source="store", origin=None, version=None, problems=[], users=0, keys=0,
                          **body).model_dump_json().encode()  # fmt: skip
        deed = deed_of(request, "tenant.make", office.wall())
        version = await office.change(plan, deed, answer_of(request, 201, told))
        return answered(view_of(office, new.name), 201, version)


def _changes(routes: APIRouter, office: Office) -> None:
    @routes.patch("/{name}", summary="Change a tenant",
                  responses=documented(404, 409, 412, 503))  # fmt: skip
    async def change(
        name: Name, fields: TenantFields, request: Request, response: Response
    ) -> TenantView:
        def plan() -> list[Write]:
            view_of(office, name)
            refuse_file(f"The tenant `{name}`", file_origin(office, name))
            record = office.record(KIND, name)
            if record is None:
                # It is known by its users or keys only: it gets a record.
                body = TenantFields().model_dump(mode="json") | {"name": name}
                require(request, 0)
                return [Write(kind=KIND, id=name, body=changed(body, fields), expected=0)]
            require(request, record.version)
            return [Write(kind=KIND, id=name, body=changed(record.body, fields),
                          expected=record.version)]  # fmt: skip

        tell(response, await office.change(plan, deed_of(request, "tenant.change", office.wall())))
        return view_of(office, name)

    @routes.delete("/{name}", status_code=204, summary="Remove a tenant",
                   responses=documented(404, 409, 412, 503))  # fmt: skip
    async def remove(
        name: Name,
        request: Request,
        cascade: Annotated[bool, Query(description="Its users and keys as well.")] = False,
    ) -> None:
        def plan() -> list[Write]:
            view_of(office, name)
            refuse_file(f"The tenant `{name}`", file_origin(office, name))
            record = office.record(KIND, name)
            require(request, 0 if record is None else record.version)
            file_key = next((each for each in office.settings.keys if each.tenant == name), None)
            if file_key is not None:
                refuse_file(f"A key of `{name}`", "keys")
            below = _below(office, name)
            if below and not cascade:
                counts = Counter(write.kind for write in below)
                what = ", ".join(f"{count} {kind}s" for kind, count in sorted(counts.items()))
                text = f"`{name}` has {what}: remove them first, or say cascade=true."
                raise InUseError(text, param="cascade")
            own = [] if record is None else [
                Write(kind=KIND, id=name, body=None, expected=record.version)
            ]  # fmt: skip
            return own + below

        await office.change(plan, deed_of(request, "tenant.remove", office.wall()))


def keys_by_tenant(office: Office) -> Counter[str]:
    """How many keys each tenant has. O(keys)."""
    stored = (each.body["tenant"] for each in office.records("key").values())
    return Counter([*stored, *(key.tenant for key in office.settings.keys)])


def view_of(office: Office, name: str) -> TenantView:
    """One tenant. Raises NotFoundError."""
    if name not in tenant_names(office):
        raise NotFoundError("tenant", name)
    section = next((each for each in office.settings.tenants if each.name == name), None)
    return _view(office, name, section, keys_by_tenant(office)[name])


def _view(office: Office, name: str, section: TenantSection | None, keys: int) -> TenantView:
    origin = file_origin(office, name)
    record = office.record(KIND, name)
    is_stored = record is not None or name not in {key.tenant for key in office.settings.keys}
    in_force = section or TenantSection(name=name)
    return TenantView(
        name=name,
        source="store" if origin is None and is_stored else "file",
        origin=origin,
        version=None if record is None or origin is not None else record.version,
        problems=list(office.set_aside.get((KIND, name), ())),
        weight=in_force.weight,
        room=in_force.room,
        limits=in_force.limits,
        users=len(in_force.users),
        keys=keys,
    )


def _below(office: Office, name: str) -> list[Write]:
    """What it takes to remove all users and keys of a tenant."""
    prefix = user_id(name, "")
    users = [Write(kind="user", id=each, body=None) for each in office.records("user")
             if each.startswith(prefix)]  # fmt: skip
    keys = [Write(kind="key", id=each.id, body=None) for each in office.records("key").values()
            if each.body["tenant"] == name]  # fmt: skip
    return users + keys
