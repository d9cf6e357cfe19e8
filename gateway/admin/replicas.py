"""Replicas over REST: how each is, and which there are: added, drained, used again, removed.

What the file defines is drained here, but neither made nor removed. How an engine is asked and
when it may be used is not known here.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ConfigDict

from gateway.admin.desk import Desk, answer_of
from gateway.admin.door import PREFIX
from gateway.admin.paging import Listing, Page, page_of
from gateway.admin.problems import (
    ConfiguredInFileError,
    NotFoundError,
    PreconditionFailedError,
    TakenError,
    documented,
)
from gateway.admin.registry import DRAINED, is_address, marking, records_of, resting_names
from gateway.admin.replica_views import ReplicaView, address_fields, live_view
from gateway.errors import BadRequestError
from gateway.settings_document import Name, ReplicaSection
from gateway.tenancy.store.port import Record, Write
from gateway.upstream.replicas import ReplicaStatus, replica_name

NAME_CHARS_MAX = 512
DNS_MARK = "dns:"
TAG = "replicas"

ReplicaName = Annotated[
    str, Path(max_length=NAME_CHARS_MAX, description="As `x-fairgate-replica` tells it.")
]


class NewReplica(ReplicaSection):
    """One engine by its URL, or all addresses of a name; keys are those of the file."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"url": "http://gpu1:8000", "model": "llama-3-8b", "max_num_seqs": 256}
        }
    )
    model: Name | None = None
    """The model it serves; None: those that it lists itself."""


def router(desk: Desk) -> APIRouter:
    """The routes under `/replicas`."""
    routes, shelf = APIRouter(prefix=f"{PREFIX}/replicas", tags=[TAG]), Shelf(desk)
    _looks(routes, shelf)
    _deeds(routes, shelf)
    return routes


def _looks(routes: APIRouter, shelf: "Shelf") -> None:
    @routes.get("", summary="All replicas and how they are", responses=documented())
    async def replicas(page: Annotated[Page, Query()]) -> Listing[ReplicaView]:
        found = page_of(shelf.views(), page, key=lambda each: (each.name,), view=lambda each: each)
        return Listing[ReplicaView](**found)

    @routes.get("/{name}", summary="One replica", responses=documented(404))
    async def replica(name: ReplicaName, response: Response) -> ReplicaView:
        view = shelf.view(name)
        if view.version is not None:
            response.headers["etag"] = f'"{view.version}"'
        return view


def _deeds(routes: APIRouter, shelf: "Shelf") -> None:
    desk = shelf.desk

    @routes.post(
        "", status_code=201, summary="Add a replica", responses=documented(404, 409, 422, 503),
        response_model=ReplicaView,
    )  # fmt: skip
    async def add(new: NewReplica, request: Request) -> Response:
        name = await shelf.check(new)
        body = new.model_dump(mode="json", exclude_defaults=True)
        told = shelf.promised(name, new).model_dump_json().encode()
        write = Write(kind="replica", id=name, body=body, expected=0)
        deed = desk.deed(request, "replica.add")
        await desk.registry.change([write], deed, answer_of(request, 201, told))
        return _json(told, 201)

    @routes.post(
        "/{name}/drain", summary="Let a replica finish what runs there, and give it nothing new",
        responses=documented(404, 409, 422, 503), response_model=ReplicaView,
    )  # fmt: skip
    async def drain(name: ReplicaName, request: Request) -> Response:
        return await _mark(shelf, request, name, is_drained=True)

    @routes.post(
        "/{name}/undrain", summary="Use a drained replica again",
        responses=documented(404, 409, 422, 503), response_model=ReplicaView,
    )  # fmt: skip
    async def undrain(name: ReplicaName, request: Request) -> Response:
        return await _mark(shelf, request, name, is_drained=False)

    @routes.delete(
        "/{name}", status_code=204, summary="Remove a replica; what runs there is finished",
        responses=documented(404, 409, 412, 503),
    )  # fmt: skip
    async def remove(name: ReplicaName, request: Request) -> None:
        record = shelf.removable(name)
        wanted = request.headers.get("if-match")
        if wanted not in (None, "*", f'"{record.version}"'):
            raise PreconditionFailedError(f"It is at version {record.version} now.")
        write = Write(kind="replica", id=name, body=None, expected=record.version)
        await desk.registry.change([write], desk.deed(request, "replica.remove"))


async def _mark(shelf: "Shelf", request: Request, name: str, *, is_drained: bool) -> Response:
    """Drain it, or use it again; to say so twice is to say it once."""
    view = shelf.view(name)
    if view.members is not None:
        text = "A DNS name cannot be drained as a whole: drain the replicas behind it."
        raise BadRequestError(text, param="name")
    told = view.model_copy(update={"is_drained": is_drained, "version": None, "live": None})
    body = told.model_dump_json().encode()
    # What an operator drains stays so, also where the autoscaler had done it before.
    if view.is_drained != is_drained or (is_drained and shelf.rests(name)):
        deed = shelf.desk.deed(request, "replica.drain" if is_drained else "replica.undrain")
        write = shelf.marking(name, is_drained=is_drained)
        await shelf.desk.registry.change([write], deed, answer_of(request, 200, body))
    return _json(body, 200)


class Shelf:
    """All replicas there are, from wherever."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def views(self) -> list[ReplicaView]:
        """Every replica, and every DNS name."""
        return [*self._found().values(), *self._names().values()]

    def view(self, name: str) -> ReplicaView:
        """One of them. Raises NotFoundError."""
        found = self._found().get(name) or self._names().get(name)
        if found is None:
            raise NotFoundError("replica", name)
        return found

    async def check(self, new: NewReplica) -> str:
        """The name of a replica that is to be added.

        Raises BadRequestError, ConfiguredInFileError, TakenError.
        """
        self._check_secrets(new)
        if new.url is not None and new.dns is None:
            name = _name_of(new.url)
            await self.desk.upstreams.check_url(new.url)
        elif new.dns is not None and new.url is None:
            name = DNS_MARK + new.dns
            await self.desk.upstreams.check_dns(new.dns)
        else:
            raise BadRequestError("A replica has a url or a dns name, and not both.", param="url")
        known = self._found().get(name) or self._names().get(name)
        if known is not None and known.source == "file":
            raise ConfiguredInFileError(f"The configuration has the replica `{name}` already.")
        if known is not None:
            raise TakenError(f"There is a replica `{name}` already.")
        return name

    def promised(self, name: str, new: NewReplica) -> ReplicaView:
        """What is to be added, as it will be told before anything is known of it."""
        return ReplicaView(
            name=name, source="store", url=new.url, dns=new.dns,
            models=[] if new.model is None else [new.model], engine=new.engine,
            max_num_seqs=new.max_num_seqs, scheduling_policy=new.scheduling_policy,
            weight=new.weight, is_drained=False, version=None,
            members=None if new.dns is None else [], live=None,
        )  # fmt: skip

    def removable(self, name: str) -> Record:
        """The record of a replica that was added here.

        Raises NotFoundError, ConfiguredInFileError.
        """
        record = self._records().get(name)
        if record is not None and is_address(record.body):
            return record
        view = self.view(name)
        if view.source == "file":
            raise ConfiguredInFileError(f"The configuration defines `{name}`: change it there.")
        raise TakenError(f"`{name}` was found behind {view.dns}: remove `{DNS_MARK}{view.dns}`.")

    def marking(self, name: str, *, is_drained: bool) -> Write:
        """What drains a replica, or uses it again."""
        return marking(self._records().get(name), name, is_drained)

    def rests(self, name: str) -> bool:
        """Whether the autoscaler drained it."""
        return name in resting_names(self.desk.registry.contents.records)

    def _records(self) -> dict[str, Record]:
        return dict(records_of(self.desk.registry.contents.records, "replica"))

    def _found(self) -> dict[str, ReplicaView]:
        desk, records = self.desk, self._records()
        behind, statuses = desk.roster.behind(), desk.fleet.statuses()
        found = {}
        for name, status in statuses.items():
            address = desk.fleet.address(name)
            assert address is not None, "what has a status has an address"
            dns = behind.get(name)
            owner = records.get(name if dns is None else DNS_MARK + dns)
            record = records.get(name)
            found[name] = ReplicaView.model_validate(
                {
                    **address_fields(address, status),
                    "source": "store" if owner and is_address(owner.body) else "file",
                    "dns": dns,
                    "is_drained": bool(record and record.body.get(DRAINED)),
                    "version": record.version if record else None,
                    "members": None,
                    "live": live_view(
                        status,
                        desk.scheduler.replicas.get(name),
                        desk.scheduler.pool_by_replica.get(name),
                        now=desk.clock(),
                    ),
                }
            )
        return found

    def _names(self) -> dict[str, ReplicaView]:
        """The DNS names, with the replicas found behind them."""
        records, behind = self._records(), self.desk.roster.behind()
        found = {}
        for lookup in self.desk.settings().lookups():
            dns = f"{lookup.host}:{lookup.port}"
            name = DNS_MARK + dns
            record = records.get(name)
            address = lookup.found("http://0.0.0.0:1")
            found[name] = ReplicaView.model_validate(
                {
                    **address_fields(address, ReplicaStatus()),
                    "name": name,
                    "url": None,
                    "source": "file" if record is None else "store",
                    "dns": dns,
                    "is_drained": False,
                    "version": None if record is None else record.version,
                    "members": sorted(each for each, known in behind.items() if known == dns),
                    "live": None,
                }
            )
        return found

    def _check_secrets(self, new: NewReplica) -> None:
        """A variable or a file that the configuration does not use already stays this machine's.

        Else a new replica would be sent whatever stands in any variable of the environment.
        """
        settings = self.desk.settings()
        used = [*settings.replicas, *(each for model in settings.models for each in model.replicas)]
        if new.api_key_env and new.api_key_env not in {each.api_key_env for each in used}:
            text = "must be a variable that a replica of the configuration file uses already"
            raise BadRequestError(f"api_key_env {text}.", param="api_key_env")
        if new.ca_file and new.ca_file not in {each.ca_file for each in used}:
            text = "must be a file that a replica of the configuration file uses already"
            raise BadRequestError(f"ca_file {text}.", param="ca_file")


def _name_of(url: str) -> str:
    try:
        return replica_name(url)
    except ValueError as error:
        raise BadRequestError(f"url: {error}.", param="url") from None


def _json(body: bytes, status: int) -> Response:
    return Response(body, status_code=status, media_type="application/json")
