"""Names of tenants and users: who has them, which may be changed here, and how many there are."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import BaseModel

from gateway.admin.office import Office
from gateway.admin.problems import ConfiguredInFileError
from gateway.settings_document import Name, matching
from gateway.settings_sources import Place

TENANTS_MAX = 10_000
"""Of the store."""
USERS_PER_TENANT_MAX = 1_000
"""Of the store, with a weight or limits of their own."""
KEYS_MAX = 50_000
"""Of the store."""
OwnName = Annotated[
    Name, matching(r"(?!\.{1,2}$)[^/]+", "must have no / in it, and be neither . nor ..")
]
"""Of what is made here: it is part of a path. A name of the configuration may be any."""


def user_id(tenant: str, name: str) -> str:
    """Id of a user's record."""
    return f"{quote(tenant, safe='')}/{quote(name, safe='')}"


def tenant_names(office: Office) -> set[str]:
    """All tenants that anybody named: the configuration, the store, or a key. O(all of them)."""
    settings = office.settings
    return {
        *(each.name for each in settings.tenants),
        *(each.tenant for each in settings.keys),
        *office.records("tenant"),
        *(each.body["tenant"] for each in office.records("user").values()),
        *(each.body["tenant"] for each in office.records("key").values()),
    }


def file_origin(office: Office, tenant: str, user: str | None = None) -> str | None:
    """Where the configuration has a line for a tenant, or for a user of one; None: nowhere."""
    tree = office.sources.tree
    tenants = tree.values.get("tenants")
    for index, each in enumerate(tenants if isinstance(tenants, list) else ()):
        if isinstance(each, Mapping) and each.get("name") == tenant:
            if user is None:
                return origin_of(office, ("tenants", index))
            if user in (each.get("users") or {}):
                return origin_of(office, ("tenants", index, "users", user))
    return None


def origin_of(office: Office, place: Place) -> str:
    """`fairgate.yaml:12`, a variable, or the command line."""
    return office.sources.tree.origin(place) or "the configuration"


def refuse_file(what: str, origin: str | None) -> None:
    """Raises ConfiguredInFileError where the configuration has it."""
    if origin is not None:
        raise ConfiguredInFileError(
            f"{what} stands in the configuration ({origin}): it is changed there."
        )


def changed(body: Mapping[str, Any], fields: BaseModel) -> dict[str, Any]:
    """A record with those of the fields that were given."""
    given = fields.model_dump(mode="json", include=set(fields.model_fields_set))
    return {**body, **given}
