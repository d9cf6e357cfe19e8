"""What is told of policies, in force, tried out and earlier ones, and how it is put together."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.key_records import present
from gateway.admin.office import Office
from gateway.admin.policy_document import (
    CHANGES_TOLD,
    Difference,
    PolicyDocument,
    differences,
)
from gateway.admin.reaction import REHEARSED_MAX, Reaction
from gateway.settings import Settings
from gateway.tenancy.store.port import AuditEntry

NAMES_TOLD = 100
"""Most tenants, users or keys that are named; of the others only the number is told."""


class SetAside(BaseModel):
    """A policy that is kept and is not in force, since it does not fit the configuration."""

    version: int
    problems: list[str]
    policy: dict[str, Any]


class PolicyView(PolicyDocument):
    """The policy in force. It may be sent back as it is; what is no section is passed over."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "policy", "source": "store", "version": "17", "set_aside": None,
                "tiers": [{"name": "gold", "patience_s": 20}, {"name": "bulk", "queue_limit": 0}],
                "service_tiers": {"default": "bulk"}, "moved_to": {"standard": "bulk"},
                "scheduling": {"order": "strict", "headroom_max": 0.2},
            }
        }
    )  # fmt: skip
    object: Literal["policy"] = "policy"
    source: Literal["file", "store"]
    version: str = Field(description="As in `ETag`.")
    set_aside: SetAside | None


class Change(BaseModel):
    """One value that would be another."""

    path: str = Field(examples=["tiers.gold.weight"])
    before: Any
    after: Any


class AffectedTier(BaseModel):
    """One tier that comes, goes, or is served otherwise."""

    name: str
    becomes: str | None = Field(description="The tier its requests are in then.")
    rank_before: int | None
    rank_after: int | None
    waiting: int
    running: int
    keys: int = Field(description="Keys of the store whose own or best tier it is.")


class Affected(BaseModel):
    """Whom the change is about."""

    tiers: list[AffectedTier]
    tenants: list[str] = Field(description="With anything that waits or runs in those tiers.")
    tenants_more: int
    waiting: int
    running: int
    keys: int


class TurnView(BaseModel):
    """One waiting request, before and after; a turn of null: never, as things stand."""

    request_id: str
    tenant: str
    user: str
    tier_before: str
    tier_after: str
    turn_before: int | None
    turn_after: int | None
    expected_wait_before_s: float | None
    expected_wait_after_s: float | None


class ReactionView(BaseModel):
    """What the scheduler itself would do with what waits now, asked on a copy of it."""

    waiting: int
    running: int
    granted_at_once: list[str]
    refused_at_once: list[str]
    moved_earlier: int
    moved_later: int
    turns: list[TurnView] = Field(description="Those that are served next under the new policy.")


class Rehearsal(BaseModel):
    """What a change would do. Nothing was changed."""

    object: Literal["policy.dry_run"] = "policy.dry_run"
    would_change: bool
    changes: list[Change]
    affected: Affected
    reaction: ReactionView | None = Field(
        description=f"null where more than {REHEARSED_MAX} requests wait and run."
    )


class Revision(BaseModel):
    """One change of the policy."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "revision": 17, "at": 1795000000.5, "who": "ops", "action": "policy.put",
                "request_id": "5f0c", "changed": ["tiers.gold.weight"], "policy": None,
            }
        }
    )  # fmt: skip
    object: Literal["policy.revision"] = "policy.revision"
    revision: int
    at: float = Field(description="Seconds since 1970, UTC.")
    who: str
    action: str
    request_id: str
    changed: list[str] | None = Field(description="Paths; null where there was none before.")
    policy: dict[str, Any] | None = Field(
        description="As it became; null: that of the configuration, and in lists."
    )


def change_views(found: Iterable[Difference]) -> list[Change]:
    """As they are told."""
    views = [Change(path=each.path, before=each.before, after=each.after) for each in found]
    return views[:CHANGES_TOLD]


def reaction_view(reaction: Reaction) -> ReactionView:
    """As it is told."""
    return ReactionView.model_validate(asdict(reaction))


def revision_view(entry: AuditEntry, *, is_whole: bool) -> Revision:
    """One change, with its document where it `is_whole`."""
    changed = None
    if entry.before is not None and entry.after is not None:
        changed = [each.path for each in differences(entry.before, entry.after)][:CHANGES_TOLD]
    return Revision(
        revision=entry.revision,
        at=entry.deed.at,
        who=entry.deed.who,
        action=entry.deed.action,
        request_id=entry.deed.request_id,
        changed=changed,
        policy=dict(entry.after) if is_whole and entry.after is not None else None,
    )


def affected_by(office: Office, new: Settings) -> Affected:
    """Whose requests and keys are in tiers that the change is about. O(requests and keys)."""
    old, scheduler = office.settings, office.house.scheduler
    tiers = _touched(old, new)
    requests = [each.request for each in scheduler.waiting.values()]
    running = [grant.waiting.request for grant, _ in scheduler.granted.values()]
    keys = [
        {present(old, each.body.get("tier")), present(old, each.body.get("max_tier"))}
        for each in office.records("key").values()
    ]
    ranks = {name: rank for rank, name in enumerate(old.tier_names)}
    views = [
        AffectedTier(
            name=name,
            becomes=becomes,
            rank_before=ranks.get(name),
            rank_after=new.tier_names.index(becomes) if becomes is not None else None,
            waiting=sum(each.tier == ranks.get(name) for each in requests),
            running=sum(each.tier == ranks.get(name) for each in running),
            keys=sum(name in named for named in keys),
        )
        for name, becomes in tiers.items()
    ]
    touched = {ranks[name] for name in tiers if name in ranks}
    tenants = sorted({each.tenant for each in requests + running if each.tier in touched})
    return Affected(
        tiers=views,
        tenants=tenants[:NAMES_TOLD],
        tenants_more=max(0, len(tenants) - NAMES_TOLD),
        waiting=sum(view.waiting for view in views),
        running=sum(view.running for view in views),
        keys=sum(bool(named & tiers.keys()) for named in keys),
    )


def _touched(old: Settings, new: Settings) -> dict[str, str | None]:
    """Old and new tiers that differ in anything, each with what it becomes."""
    before, after = old.policy(), new.policy()
    old_tiers = {tier.name: (rank, tier) for rank, tier in enumerate(before.tiers)}
    new_tiers = {tier.name: (rank, tier) for rank, tier in enumerate(after.tiers)}
    touched: dict[str, str | None] = {}
    for name, found in old_tiers.items():
        if name not in new_tiers:
            touched[name] = new.moved_to.get(name)
        elif new_tiers[name] != found:
            touched[name] = name
    return touched | {name: name for name in new_tiers if name not in old_tiers}
