"""From request headers to who asks, for whom, in which tier and with how much patience.

Authorisation is by the route that was matched; nothing here looks at a URL.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.api.wire import Call
from gateway.errors import BadRequestError, InvalidKeyError
from gateway.tenancy.keys import OPEN_USER, Keyring, Principal
from gateway.tenancy.users import UserNames

TIER_HEADERS = (b"x-fairgate-tier", b"x-llm-d-inference-objective")
USER_HEADERS = (b"x-fairgate-user", b"x-llm-d-inference-fairness-id")
PATIENCE_HEADERS = (b"x-fairgate-patience-s", b"x-llm-d-inference-ttl")
READ_TIMEOUT_HEADER = b"x-stainless-read-timeout"

Headers = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Asked:
    """What one request is scheduled as."""

    tenant: str
    user: str
    tier: int
    patience_s: float | None


def headers_of(pairs: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers by lower-case name. Of a doubled one the first counts, as the first proxy set it."""
    headers: Headers = {}
    for name, value in pairs:
        headers.setdefault(name, value)
    return headers


def credential(headers: Headers) -> bytes | None:
    """The API key a caller presents, in either of the two usual headers."""
    authorization = headers.get(b"authorization")
    if authorization is not None and authorization[:7].lower() == b"bearer ":
        return authorization[7:].strip()
    return headers.get(b"x-api-key")


def authenticated(keyring: Keyring, headers: Headers) -> Principal:
    """The principal of the presented key. Raises InvalidKeyError."""
    principal = keyring.find(credential(headers))
    if principal is None:
        raise InvalidKeyError("The API key is missing or not known.")
    return principal


class Asking:
    """Applies the rules on tiers, users and patience."""

    def __init__(
        self,
        *,
        tier_ranks: Mapping[str, int],
        service_tiers: Mapping[str, str],
        users: UserNames,
    ) -> None:
        self._tier_ranks = dict(tier_ranks)
        self._service_tiers = dict(service_tiers)
        self._words = {rank: word for word, rank in self._ranks_of_words().items()}
        self._users = users

    def asked(self, principal: Principal, headers: Headers, call: Call) -> Asked:
        """What `call` is scheduled as. Raises BadRequestError for headers that make no sense."""
        return Asked(
            principal.tenant,
            self._user(principal, headers, call),
            self._tier(principal, headers, call),
            _patience_s(headers, call),
        )

    def service_tier_of(self, tier: int) -> str:
        """OpenAI's word for a tier, or the tier's own name where the mapping has none."""
        word = self._words.get(tier)
        if word is not None:
            return word
        return next(name for name, rank in self._tier_ranks.items() if rank == tier)

    def _ranks_of_words(self) -> dict[str, int]:
        return {word: self._tier_ranks[tier] for word, tier in self._service_tiers.items()}

    def _tier(self, principal: Principal, headers: Headers, call: Call) -> int:
        """The tier asked for, clamped to the best the key may have; else the key's own."""
        named = _first(headers, TIER_HEADERS)
        if named is not None:
            rank = self._tier_ranks.get(named)
            if rank is None:
                tiers = ", ".join(self._tier_ranks)
                raise BadRequestError(f"There is no tier `{named[:64]}`; tiers are: {tiers}.")
            return max(rank, principal.max_tier)
        tier = self._service_tiers.get(call.service_tier) if call.service_tier else None
        if tier is None:
            return principal.tier
        return max(self._tier_ranks[tier], principal.max_tier)

    def _user(self, principal: Principal, headers: Headers, call: Call) -> str:
        if not principal.speaks_for_users:
            return principal.user
        name = _first(headers, USER_HEADERS) or call.user
        if not name:
            return principal.user or OPEN_USER
        return self._users.flow_of(principal.tenant, name)


def _patience_s(headers: Headers, call: Call) -> float | None:
    patience_s = _seconds(_first(headers, PATIENCE_HEADERS), "x-fairgate-patience-s")
    if call.streams:
        return patience_s
    # A plain request waits in silence: past its client's read timeout nobody would hear the answer.
    timeout = headers.get(READ_TIMEOUT_HEADER, b"").decode("latin-1")
    try:
        timeout_s = float(timeout)
    except ValueError:
        return patience_s
    if not (math.isfinite(timeout_s) and timeout_s > 0.0):
        return patience_s
    return timeout_s if patience_s is None else min(timeout_s, patience_s)


def _seconds(text: str | None, header: str) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and value > 0.0:
        return value
    raise BadRequestError(f"The header {header} must be a positive number of seconds.")


def _first(headers: Headers, names: tuple[bytes, ...]) -> str | None:
    for name in names:
        value = headers.get(name)
        if value:
            return _text(value)
    return None


def _text(value: bytes) -> str:
    """A header's text: UTF-8, as clients send it and as bodies have it, else byte for byte."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
