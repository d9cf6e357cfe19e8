"""What the store holds, laid over what the configuration says: one tree that settings read.

The policy's sections replace those of the configuration; tenants, users and replicas are added to
its lists. Names that the configuration has stay as it has them. Whether the outcome is right is
not judged here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from gateway.settings_document import Document
from gateway.settings_sources import Place, Tree
from gateway.tenancy.store.port import Kind, Record

ORIGIN = "store"
POLICY_SECTIONS: tuple[str, ...] = tuple(
    name
    for name in (
        "tiers", "service_tiers", "moved_to", "scheduling", "bounds", "retries", "scaling",
        "keepalive_after_s", "media_urls", "cache_isolation",
    )
    if name in Document.model_fields
)  # fmt: skip
"""What one policy document holds, named as in the file."""
ADDED = ("tenants", "replicas", "models")

Name = tuple[Kind, str]
"""Kind and id of a record."""
POLICY: Name = ("policy", "current")
"""The one record of the policy."""


@dataclass(slots=True)
class Overlay:
    """The whole tree, whose records lie where in it, and which have no place in it."""

    tree: Tree
    owners: dict[Place, Name] = field(default_factory=dict)
    shadowed: set[Name] = field(default_factory=set)
    """Records of something that the configuration has too: it stays as it is there."""

    def owner(self, place: Place) -> Name | None:
        """The record that wrote `place`; None for what the configuration wrote."""
        for length in range(len(place), 0, -1):
            found = self.owners.get(place[:length])
            if found is not None:
                return found
        return None


def overlaid(below: Tree, records: Iterable[Record]) -> Overlay:
    """`records` over `below`. Records that are no part of settings, keys, are passed over."""
    values: dict[str, Any] = dict(below.values)
    for name in ADDED:
        values[name] = list(cast("list[Any]", values.get(name) or ()))
    laying = _Laying(values, dict(below.origins), Overlay(Tree()))
    by_kind: dict[Kind, list[Record]] = {}
    for record in records:
        by_kind.setdefault(record.kind, []).append(record)
    for record in by_kind.get("policy", ()):
        laying.policy(record)
    laying.tenants(by_kind.get("tenant", ()), by_kind.get("user", ()))
    for record in by_kind.get("replica", ()):
        laying.replica(record)
    for name in ADDED:
        if not values[name]:
            del values[name]
    laying.overlay.tree = Tree(values, laying.origins, below.problems)
    return laying.overlay


@dataclass(slots=True)
class _Laying:
    """One overlay on its way."""

    values: dict[str, Any]
    origins: dict[Place, str]
    overlay: Overlay

    def policy(self, record: Record) -> None:
        if (record.kind, record.id) != POLICY:
            return
        for section in POLICY_SECTIONS:
            if section not in record.body:
                continue
            for known in [known for known in self.origins if known[0] == section]:
                del self.origins[known]
            self.values[section] = record.body[section]
            self._owned((section,), record)

    def tenants(self, tenants: Iterable[Record], users: Iterable[Record]) -> None:
        listed: list[Any] = self.values["tenants"]
        index_of = {each.get("name"): index for index, each in enumerate(listed)
                    if isinstance(each, Mapping)}  # fmt: skip
        for record in tenants:
            name = record.body["name"]
            if name in index_of:
                self.overlay.shadowed.add((record.kind, record.id))
                continue
            index_of[name] = len(listed)
            listed.append(dict(record.body))
            self._owned(("tenants", index_of[name]), record)
        ours: dict[int, dict[str, Any]] = {}
        for record in users:
            body = dict(record.body)
            tenant, name = body.pop("tenant"), body.pop("name")
            if tenant not in index_of:
                # A user of a tenant that has no line of its own gives it one.
                index_of[tenant] = len(listed)
                listed.append({"name": tenant})
                self._owned(("tenants", index_of[tenant]), record)
            index = index_of[tenant]
            if index not in ours:
                ours[index] = dict(listed[index].get("users") or {})
                listed[index] = {**listed[index], "users": ours[index]}
            if name in ours[index]:
                self.overlay.shadowed.add((record.kind, record.id))
                continue
            ours[index][name] = body
            self._owned(("tenants", index, "users", name), record)

    def replica(self, record: Record) -> None:
        body = dict(record.body)
        model = body.pop("model", None)
        body.pop("drained", None)
        if body.get("url") is None and body.get("dns") is None:
            return  # no replica: a mark on one of the configuration
        if model is None:
            self._replica_in(self.values["replicas"], ("replicas",), body, record)
            return
        models = self.values["models"]
        for index, each in enumerate(models):
            if isinstance(each, Mapping) and each.get("name") == model:
                place = ("models", index, "replicas")
                replicas = list(each.get("replicas") or ())
                models[index] = {**each, "replicas": replicas}
                self._replica_in(replicas, place, body, record)
                return
        models.append({"name": model, "replicas": [body]})
        self._owned(("models", len(models) - 1), record)

    def _replica_in(
        self, replicas: list[Any], place: Place, body: Mapping[str, Any], record: Record
    ) -> None:
        addresses = {_address(each) for each in replicas}
        if _address(body) in addresses:
            self.overlay.shadowed.add((record.kind, record.id))
            return
        replicas.append(body)
        self._owned((*place, len(replicas) - 1), record)

    def _owned(self, place: Place, record: Record) -> None:
        self.overlay.owners[place] = (record.kind, record.id)
        self.origins[place] = ORIGIN


def _address(replica: object) -> object:
    """Where a replica is, whichever way it is written."""
    if isinstance(replica, Mapping):
        return replica.get("url") or f"dns:{replica.get('dns')}"
    return replica
