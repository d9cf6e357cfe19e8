"""Who a caller is: API keys to principals. Keys are known by their SHA-256 only."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

OPEN_TENANT = "default"
OPEN_USER = "anonymous"
KEY_BYTES_MAX = 512
"""A longer credential is not hashed at all."""


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


ID_CHARS = 12
"""Of the id of a key, each of a-z and 0-9."""


def id_of(sha256: str) -> str:
    """The id of a key that the configuration knows by this hash."""
    return sha256[:ID_CHARS]


def key_hash(api_key: bytes) -> str:
    """Hex SHA-256 of the whole key, the form in which keys are configured."""
    return hashlib.sha256(api_key).hexdigest()


class Keyring:
    """All known API keys; `opened` is who everybody is while no key is configured."""

    def __init__(self, principals: Mapping[str, Principal], opened: Principal | None) -> None:
        self._principals = dict(principals)
        self._opened = opened
        self.generation = 0
        """Grows with each change: who was found before may be another now, or nobody."""

    def become(self, other: "Keyring") -> None:
        """Know the keys of `other` and no others from now on."""
        self._principals, self._opened = other._principals, other._opened
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
        return self._principals.get(key_hash(api_key))


def is_key(api_key: bytes | None, key_sha256: str) -> bool:
    """Whether `api_key` is the one key with this hash, in constant time."""
    if not api_key or len(api_key) > KEY_BYTES_MAX:
        return False
    return hmac.compare_digest(key_hash(api_key), key_sha256)
