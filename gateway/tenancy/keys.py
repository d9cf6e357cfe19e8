"""Who a caller is: API keys to principals. Keys are known by their SHA-256 only."""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from time import time
from typing import Literal

OPEN_TENANT = "default"
OPEN_USER = "anonymous"
KEY_BYTES_MAX = 512
"""A longer credential is not hashed at all."""
HASHES_MAX = 2
"""Of one key: the one that was handed out last, and the one before while both are good."""

ID_CHARS = 12
"""Of the id of a key, each of a-z and 0-9."""

Refusal = Literal["unknown", "expired", "blocked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A caller and what it may do; tiers are ranks, 0 is served first."""

    tenant: str
    user: str
    tier: int
    max_tier: int
    models: frozenset[str] | None = None
    """Names it may ask for; None is every model."""
    speaks_for_users: bool = False
    allows_chat_template: bool = False
    """Whether it may send a chat template of its own, which the engine runs."""
    key_id: str = ""
    """Names the key that was presented, and is no secret; empty in open mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One API key that comes, changes and goes by itself. Instants are seconds since 1970."""

    principal: Principal
    hashes: tuple[tuple[str, float | None], ...]
    """Hex SHA-256 of each form of the key that is good, and until when; None: for good."""
    expires_at: float | None = None
    is_blocked: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is good at any time, so that no clock need be read for it."""
        lasts = all(until is None for _, until in self.hashes)
        return lasts and self.expires_at is None and not self.is_blocked


def id_of(sha256: str) -> str:
    """The id of a key that the configuration knows by this hash."""
    return sha256[:ID_CHARS]


def key_hash(api_key: bytes) -> str:
    """Hex SHA-256 of the whole key, the form in which keys are configured."""
    return hashlib.sha256(api_key).hexdigest()


class Keyring:
    """All known API keys; `opened` is who everybody is while no key is configured.

    A key that is good at any time is one look-up in `_principals`; those that expire, are blocked
    or are being rotated lie in `_watched`, and only who finds nothing in the first looks there.
    """

    def __init__(
        self,
        principals: Mapping[str, Principal],
        opened: Principal | None,
        wall: Callable[[], float] = time,
    ) -> None:
        """`principals` are those of the configuration, by hash; `wall` tells seconds since 1970."""
        self._principals = dict(principals)
        self._watched: dict[str, Key] = {}
        self._keys: dict[str, Key] = {}
        self._opened = opened
        self._wall = wall
        self._named: dict[str, Principal] = {}
        """Those of the configuration by id, as they were at the generation `_named_of`."""
        self._named_of = -1
        self.generation = 0
        """Grows with each change: who was found before may be another now, or nobody."""

    def become(self, other: "Keyring") -> None:
        """Know the keys of `other` and no others from now on."""
        self._principals, self._opened = other._principals, other._opened
        self._watched, self._keys = other._watched, other._keys
        self.generation += 1

    def close(self) -> None:
        """From now on callers need a key, whether there is one or not."""
        self._opened = None
        self.generation += 1

    def put(self, key: Key) -> None:
        """Know `key` instead of the one of the same id. From now on callers need a key."""
        self._forget(key.principal.key_id)
        self._opened = None
        self._keys[key.principal.key_id] = key
        is_plain = key.is_plain
        for sha256, _ in key.hashes:
            if is_plain:
                self._principals.setdefault(sha256, key.principal)
            else:
                self._watched[sha256] = key
        self.generation += 1

    def drop(self, key_id: str) -> None:
        """Know the key of this id no more. It does not open the gateway, be it the last one."""
        self._forget(key_id)
        self._opened = None
        self.generation += 1

    @property
    def is_open(self) -> bool:
        """Whether callers need no key."""
        return self._opened is not None

    def find(self, api_key: bytes | None) -> Principal | None:
        """The principal of `api_key`, or None.

        The look-up is by hash, so its time says nothing of how much of a key was right.
        """
        if self._opened is not None:
            return self._opened
        if not api_key or len(api_key) > KEY_BYTES_MAX:
            return None
        sha256 = key_hash(api_key)
        principal = self._principals.get(sha256)
        if principal is None and self._watched:
            key = self._watched.get(sha256)
            if key is not None and self._fault(key, sha256) is None:
                return key.principal
        return principal

    def named(self, key_id: str) -> Principal | None:
        """The principal of the key of this id while that is good, for work that was left here."""
        if self._opened is not None:
            return self._opened
        key = self._keys.get(key_id)
        if key is not None:
            is_good = any(self._fault(key, sha256) is None for sha256, _ in key.hashes)
            return key.principal if is_good else None
        if self._named_of != self.generation:
            self._named = {each.key_id: each for each in self._principals.values()}
            self._named_of = self.generation
        return self._named.get(key_id)

    def refusal(self, api_key: bytes | None) -> Refusal:
        """Why `find` knew nobody; of a key, only who presents the whole of it learns anything."""
        if api_key and len(api_key) <= KEY_BYTES_MAX:
            sha256 = key_hash(api_key)
            key = self._watched.get(sha256)
            if key is not None:
                return self._fault(key, sha256) or "unknown"
        return "unknown"

    def _fault(self, key: Key, sha256: str) -> Refusal | None:
        """What is wrong with a key that is known, presented in this form."""
        if key.is_blocked:
            return "blocked"
        ends_at = inf if key.expires_at is None else key.expires_at
        for known, until in key.hashes:
            if known == sha256 and until is not None:
                ends_at = min(ends_at, until)
        return "expired" if self._wall() >= ends_at else None

    def _forget(self, key_id: str) -> None:
        key = self._keys.pop(key_id, None)
        if key is None:
            return
        for sha256, _ in key.hashes:
            # Of one that the configuration has as well, the configuration's stays.
            if self._principals.get(sha256) is key.principal:
                del self._principals[sha256]
            self._watched.pop(sha256, None)


def is_key(api_key: bytes | None, key_sha256: str) -> bool:
    """Whether `api_key` is the one key with this hash, in constant time."""
    if not api_key or len(api_key) > KEY_BYTES_MAX:
        return False
    return hmac.compare_digest(key_hash(api_key), key_sha256)
