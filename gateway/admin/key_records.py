"""API keys as the store keeps them, and what they are to the gateway: the secret is in neither.

A key looks like `fg-<id>-<secret>`; its id is public and names it everywhere. What is kept of the
rest is its SHA-256.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from secrets import choice, token_urlsafe
from string import ascii_lowercase, digits
from typing import Any

from pydantic import ValidationError

from gateway.settings import Settings
from gateway.settings_document import KeySection, LimitsSection
from gateway.settings_values import allowance_of
from gateway.tenancy.keys import HASHES_MAX, ID_CHARS, Key, Keyring, key_hash
from gateway.tenancy.limits import Allowance
from gateway.tenancy.store.port import Record

ACCESS = "access"
"""Id of the policy record that says: callers need a key, be there one or not."""
SECRET_BYTES = 32
ID = re.compile(rf"[a-z0-9]{{{ID_CHARS}}}")
SECTION_FIELDS = tuple(name for name in KeySection.model_fields if name != "key_sha256")
"""What a stored key and one of the configuration have in common."""


def made_id() -> str:
    """A fresh id."""
    return "".join(choice(ascii_lowercase + digits) for _ in range(ID_CHARS))


def made_key(key_id: str) -> tuple[str, str]:
    """(a fresh key under this id, its hash): the only moment at which the key is known."""
    api_key = f"fg-{key_id}-{token_urlsafe(SECRET_BYTES)}"
    return api_key, key_hash(api_key.encode("ascii"))


def rotated(
    hashes: Iterable[Mapping[str, Any]], sha256: str, *, now: float, overlap_s: float
) -> list[dict[str, Any]]:
    """The hashes once `sha256` is handed out; what was good until now stays so for a while."""
    kept: list[dict[str, Any]] = [{"sha256": sha256, "until": None}]
    good = [each for each in hashes if each["until"] is None or each["until"] > now]
    if good and overlap_s > 0.0:
        # The one handed out last; an older one has had its overlap.
        last = good[0]
        until = now + overlap_s if last["until"] is None else min(now + overlap_s, last["until"])
        kept.append({"sha256": last["sha256"], "until": until})
    assert len(kept) <= HASHES_MAX
    return kept


def key_of(settings: Settings, record: Record) -> Key | None:
    """What the keyring knows of a stored key; None where the record makes no sense."""
    body = record.body
    try:
        section = section_of(settings, body)
        hashes = tuple((each["sha256"], each["until"]) for each in body["hashes"])
        return Key(
            principal=settings.principal(section, record.id),
            hashes=hashes,
            expires_at=body["expires_at"],
            is_blocked=body["blocked"],
        )
    except (ValidationError, LookupError, TypeError):
        return None


def section_of(settings: Settings, body: Mapping[str, Any]) -> KeySection:
    """A stored key as one of the configuration, with tiers that there are.

    A tier that is gone is the one that its requests moved to. Where nobody said, it is the default
    one, and the key may ask for none above: it loses rank rather than entry.
    """
    given = {name: body[name] for name in SECTION_FIELDS if name in body}
    tiers = settings.tier_names
    own = present(settings, given.get("tier")) if given.get("tier") else None
    best = present(settings, given.get("max_tier")) if given.get("max_tier") else None
    effective = own or settings.default_tier
    if best is not None and tiers.index(best) > tiers.index(effective):
        best = None
    given |= {"tier": own, "max_tier": best, "key_sha256": body["hashes"][0]["sha256"]}
    return KeySection.model_validate(given)


def allowance_in(record: Record) -> Allowance | None:
    """The limits of a stored key; None where it has none."""
    try:
        limits = LimitsSection.model_validate(record.body.get("limits") or {})
    except ValidationError:
        return None
    return None if limits == LimitsSection() else allowance_of(limits)


def allowances_of(keys: Iterable[Record]) -> dict[str, Allowance]:
    """Those of all that have any, by id."""
    found = ((record.id, allowance_in(record)) for record in keys)
    return {key_id: allowance for key_id, allowance in found if allowance is not None}


def present(settings: Settings, tier: str | None) -> str | None:
    """The tier of this name, or the one that its requests moved to; None where there is none."""
    names = settings.tier_names
    if tier is None or tier in names:
        return tier
    moved = settings.moved_to.get(tier)
    return moved if moved in names else None


def homeless(settings: Settings, keys: Iterable[Record]) -> Counter[str]:
    """Tiers that stored keys name and nobody knows, with the number of keys of each."""
    named = (
        tier
        for key in keys
        for tier in {key.body.get("tier"), key.body.get("max_tier")}
        if tier is not None and present(settings, tier) is None
    )
    return Counter(named)


def keyring_of(
    settings: Settings, keys: Iterable[Record], *, is_closed: bool, wall: Callable[[], float]
) -> Keyring:
    """All keys, of the configuration and of the store; `is_closed`: never open, be there none."""
    keyring = settings.keyring(wall)
    if is_closed:
        keyring.close()
    for record in keys:
        key = key_of(settings, record)
        if key is not None:
            keyring.put(key)
    return keyring
