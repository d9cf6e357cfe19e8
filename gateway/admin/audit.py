"""Who changed what, when, from what to what. Hashes of keys are told by their beginning only."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.desk import Desk
from gateway.admin.door import PREFIX
from gateway.admin.paging import LIMIT, LIMIT_MAX, Listing
from gateway.admin.problems import documented
from gateway.errors import BadRequestError
from gateway.tenancy.store.port import AuditEntry, Kind

SECRETS = frozenset({"sha256", "key_sha256"})
SHOWN_CHARS = 8
SEQUENCE_MAX = 1 << 53


class AuditView(BaseModel):
    """One record's part of one change."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "audit_entry", "sequence": 42, "revision": 17, "at": 1764504000.25,
                "who": "ops", "action": "replica.drain", "request_id": "9f0c2d4e6a8b0c2d4e6a8b0c",
                "kind": "replica", "id": "gpu0-8000", "before": None, "after": {"drained": True},
            }
        }
    )  # fmt: skip
    object: Literal["audit_entry"] = "audit_entry"
    sequence: int = Field(description="Grows with each entry.")
    revision: int = Field(description="Of the change; its entries share it.")
    at: float = Field(description="Seconds since 1970.")
    who: str = Field(description="The name of the admin key; `local` where none was needed.")
    action: str
    request_id: str = Field(description="`x-request-id` of the request that did it.")
    kind: Kind
    id: str
    before: dict[str, Any] | None = Field(description="Null: it was not there.")
    after: dict[str, Any] | None = Field(description="Null: it is gone.")


class AuditAsked(BaseModel):
    """Which part of it, the newest first."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = LIMIT
    after: Annotated[
        str | None, Field(max_length=32, description="The `next` of the page before.")
    ] = None
    kind: Kind | None = None
    id: Annotated[str | None, Field(max_length=1024)] = None


def router(desk: Desk) -> APIRouter:
    """The route `/audit`."""
    routes = APIRouter(prefix=f"{PREFIX}/audit", tags=["audit"])

    @routes.get("", summary="Who changed what, the newest first", responses=documented(503))
    async def audit(asked: Annotated[AuditAsked, Query()]) -> Listing[AuditView]:
        found = await desk.registry.audit(
            before=None if asked.after is None else _sequence(asked.after),
            limit=asked.limit + 1, kind=asked.kind, record_id=asked.id,
        )  # fmt: skip
        shown, has_more = found[: asked.limit], len(found) > asked.limit
        return Listing[AuditView](
            data=[_view(entry) for entry in shown],
            has_more=has_more,
            next=str(shown[-1].sequence) if has_more else None,
        )

    return routes


def _sequence(after: str) -> int:
    if after.isascii() and after.isdigit() and int(after) <= SEQUENCE_MAX:
        return int(after)
    raise BadRequestError("after is no place of this list: take `next` of a page.", param="after")


def _view(entry: AuditEntry) -> AuditView:
    return AuditView(
        sequence=entry.sequence,
        revision=entry.revision,
        at=entry.deed.at,
        who=entry.deed.who,
        action=entry.deed.action,
        request_id=entry.deed.request_id,
        kind=entry.kind,
        id=entry.id,
        before=None if entry.before is None else _shown(entry.before),
        after=None if entry.after is None else _shown(entry.after),
    )


def _shown(value: Any) -> Any:
    """A document without what only who checks a key needs."""
    if isinstance(value, Mapping):
        return {
            key: f"{item[:SHOWN_CHARS]}..." if key in SECRETS and isinstance(item, str)
            else _shown(item)
            for key, item in value.items()
        }  # fmt: skip
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return value
