"""Users of tenants over REST: only those with a weight or limits of their own need to be named."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.desk import answer_of
from gateway.admin.door import PREFIX
from gateway.admin.names import (
    USERS_PER_TENANT_MAX,
    OwnName,
    changed,
    file_origin,
    refuse_file,
    tenant_names,
    user_id,
)
from gateway.admin.objections import TooManyError
from gateway.admin.office import Office
from gateway.admin.paging import Listing, Page, page_of
from gateway.admin.problems import NotFoundError, TakenError, documented
from gateway.admin.versions import answered, deed_of, require, tell
from gateway.errors import BadRequestError
from gateway.settings_document import LimitsSection, Positive, Section, UserSection
from gateway.tenancy.store.port import Write

TAG = "users"
KIND: Literal["user"] = "user"
Tenant = Annotated[str, Path(max_length=256)]
Name = Annotated[str, Path(max_length=256)]


class UserPage(Page):
    """Which part of the list is asked for."""

    tenant: Annotated[str | None, Field(max_length=256, description="Only of this one.")] = None


class UserFields(Section):
    """What may be changed of a user; what is left out stays."""

    weight: Positive = Field(1.0, description="Its share within the tenant.", examples=[1.5])
    limits: LimitsSection = Field(LimitsSection(), examples=[{"tokens_per_minute": 50_000}])


class NewUser(UserFields):
    """A user to be made."""

    tenant: Annotated[OwnName, Field(examples=["acme"])]
    name: Annotated[OwnName, Field(examples=["alice"])]


EXAMPLE: dict[str, Any] = {
    "object": "user", "tenant": "acme", "name": "alice", "source": "store", "origin": None,
    "version": 12, "problems": [], "weight": 2.0,
    "limits": {
        "requests_per_minute": 60, "tokens_per_minute": None, "concurrent": 4, "budget": None,
    },
}  # fmt: skip


class UserView(BaseModel):
    """One user."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})
    object: Literal["user"] = "user"
    tenant: str
    name: str
    source: Literal["file", "store"]
    origin: str | None = Field(description="Where the configuration names it.")
    version: int | None = Field(description="As in `ETag`; null where the file has it.")
    problems: list[str] = Field(description="Why what is kept of it is not in force.")
    weight: float
    limits: LimitsSection


def router(office: Office) -> APIRouter:
    """The routes under `/users`."""
    routes = APIRouter(prefix=f"{PREFIX}/users", tags=[TAG])
    _looks(routes, office)
    _deeds(routes, office)
    return routes


def _looks(routes: APIRouter, office: Office) -> None:
    @routes.get("", summary="Users with a line of their own", responses=documented())
    async def users(
        page: Annotated[UserPage, Query()],
    ) -> Listing[UserView]:
        found = page_of(
            _names(office, page.tenant), page, key=lambda each: each,
            view=lambda each: view_of(office, *each),
        )  # fmt: skip
        return Listing[UserView](**found)

    @routes.get("/{tenant}/{name}", summary="One user", responses=documented(404))
    async def user(tenant: Tenant, name: Name, response: Response) -> UserView:
        view = view_of(office, tenant, name)
        if view.version is not None:
            tell(response, view.version)
        return view


def _deeds(routes: APIRouter, office: Office) -> None:
    @routes.post("", status_code=201, summary="Make a user", response_model=UserView,
                 responses=documented(409, 422, 503))  # fmt: skip
    async def make(new: NewUser, request: Request) -> Response:
        body, record_id = new.model_dump(mode="json"), user_id(new.tenant, new.name)

        def plan() -> list[Write]:
            if new.tenant not in tenant_names(office):
                raise BadRequestError(f"There is no tenant `{new.tenant}`.", param="tenant")
            refuse_file(f"The user `{new.name}`", file_origin(office, new.tenant, new.name))
            if office.record(KIND, record_id) is not None:
                raise TakenError(f"`{new.tenant}` has a user `{new.name}` already.")
            prefix = user_id(new.tenant, "")
            if (
                sum(each.startswith(prefix) for each in office.records(KIND))
                >= USERS_PER_TENANT_MAX
            ):
                text = f"`{new.tenant}` has {USERS_PER_TENANT_MAX} users, which is the most."
                raise TooManyError(text)
            return [Write(kind=KIND, id=record_id, body=body, expected=0)]

        told = UserView(source="store", origin=None, version=None, problems=[], **body)
        answer = answer_of(request, 201, told.model_dump_json().encode())
        version = await office.change(plan, deed_of(request, "user.make", office.wall()), answer)
        return answered(view_of(office, new.tenant, new.name), 201, version)

    @routes.patch("/{tenant}/{name}", summary="Change a user",
                  responses=documented(404, 409, 412, 503))  # fmt: skip
    async def change(
        tenant: Tenant, name: Name, fields: UserFields, request: Request, *, response: Response
    ) -> UserView:
        def plan() -> list[Write]:
            version = _changeable(office, request, tenant, name)
            record = office.records(KIND)[user_id(tenant, name)]
            return [Write(kind=KIND, id=record.id, body=changed(record.body, fields),
                          expected=version)]  # fmt: skip

        tell(response, await office.change(plan, deed_of(request, "user.change", office.wall())))
        return view_of(office, tenant, name)

    @routes.delete("/{tenant}/{name}", status_code=204,
                   summary="Forget the weight and limits of a user; its keys stay",
                   responses=documented(404, 409, 412, 503))  # fmt: skip
    async def remove(tenant: Tenant, name: Name, request: Request) -> None:
        def plan() -> list[Write]:
            version = _changeable(office, request, tenant, name)
            return [Write(kind=KIND, id=user_id(tenant, name), body=None, expected=version)]

        await office.change(plan, deed_of(request, "user.remove", office.wall()))


def _changeable(office: Office, request: Request, tenant: str, name: str) -> int:
    """The version of a user that the store has. Raises GatewayError where it must stay."""
    view = view_of(office, tenant, name)
    refuse_file(f"The user `{name}`", view.origin)
    assert view.version is not None, "what is not in the configuration is in the store"
    require(request, view.version)
    return view.version


def _names(office: Office, tenant: str | None) -> set[tuple[str, str]]:
    """(tenant, name) of all, or of one tenant's."""
    in_force = {(each.name, user) for each in office.settings.tenants for user in each.users}
    stored = {(each.body["tenant"], each.body["name"]) for each in office.records(KIND).values()}
    return {each for each in in_force | stored if tenant in (None, each[0])}


def view_of(office: Office, tenant: str, name: str) -> UserView:
    """One user. Raises NotFoundError."""
    section = next((each for each in office.settings.tenants if each.name == tenant), None)
    in_force = section.users.get(name) if section is not None else None
    record = office.record(KIND, user_id(tenant, name))
    if in_force is None and record is None:
        raise NotFoundError("user", f"{tenant}/{name}")
    origin = file_origin(office, tenant, name)
    shown = in_force or UserSection()
    return UserView(
        tenant=tenant,
        name=name,
        source="store" if origin is None else "file",
        origin=origin,
        version=None if record is None or origin is not None else record.version,
        problems=list(office.set_aside.get((KIND, user_id(tenant, name)), ())),
        weight=shown.weight,
        limits=shown.limits,
    )
