"""From request headers to who asks, for whom, in which tier and with how much patience.

Authorisation is by the route that was matched; nothing here looks at a URL.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from gateway.api.call import Call
from gateway.errors import BadRequestError, InvalidKeyError
from gateway.tenancy.keys import OPEN_USER, Keyring, Principal, Refusal
from gateway.tenancy.users import UserNames

TIER_HEADERS = (b"x-fairgate-tier", b"x-llm-d-inference-objective")
USER_HEADERS = (b"x-fairgate-user", b"x-llm-d-inference-fairness-id")
PATIENCE_HEADERS = (b"x-fairgate-patience-s", b"x-llm-d-inference-ttl")
SESSION_HEADERS = (b"x-session-id",)
READ_TIMEOUT_HEADER = b"x-stainless-read-timeout"
SESSION_CHARS_MAX = 64
"""A longer session id is kept as its hash."""

Headers = dict[bytes, bytes]

_KEY_REFUSALS: dict[Refusal, str] = {
    "unknown": "The API key is missing or not known.",
    "expired": "The API key has expired.",
    "blocked": "The API key is blocked.",
}


@dataclass(slots=True, init=False)
class Asked:
    """What one request is scheduled as; made for each, hence by an `__init__` that is compiled."""

    tenant: str
    user: str
    tier: int
    patience_s: float | None
    session: str | None
    """Names the session among all tenants' and users' sessions."""
    read_timeout_s: float | None
    """When its client gives up; None for a stream, whose client hears comments meanwhile."""

    def __init__(
        self,
        tenant: str,
        user: str,
        tier: int,
        patience_s: float | None,
        *,
        session: str | None = None,
        read_timeout_s: float | None = None,
    ) -> None:
        self.tenant = tenant
        self.user = user
        self.tier = tier
        self.patience_s = patience_s
        self.session = session
        self.read_timeout_s = read_timeout_s


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
    api_key = credential(headers)
    principal = keyring.find(api_key)
    if principal is None:
        raise InvalidKeyError(_KEY_REFUSALS[keyring.refusal(api_key)])
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
        self._users = users
        self.configure(tier_ranks, service_tiers)

    def configure(self, tier_ranks: Mapping[str, int], service_tiers: Mapping[str, str]) -> None:
        """These tiers from now on."""
        self._tier_ranks = dict(tier_ranks)
        self._service_tiers = dict(service_tiers)
        self._words = {rank: word for word, rank in self._ranks_of_words().items()}

    def asked(self, principal: Principal, headers: Headers, call: Call) -> Asked:
        """What `call` is scheduled as. Raises BadRequestError for headers that make no sense."""
        tenant, user = principal.tenant, self.user(principal, headers, call.user)
        return Asked(
            tenant,
            user,
            self._tier(principal, headers, call),
            _seconds(_first(headers, PATIENCE_HEADERS), "x-fairgate-patience-s"),
            session=_session(headers, call, tenant=tenant, user=user),
            read_timeout_s=None if call.streams else _read_timeout_s(headers),
        )

    def best_tier(self, principal: Principal, headers: Headers) -> int:
        """The best rank that a request may turn out to have, whatever its body says."""
        named = _first(headers, TIER_HEADERS)
        rank = None if named is None else self._tier_ranks.get(named)
        return principal.max_tier if rank is None else max(rank, principal.max_tier)

    def user(self, principal: Principal, headers: Headers, named: str | None) -> str:
        """The user a caller speaks for; `named` is the one that its body names."""
        if not principal.speaks_for_users:
            return principal.user
        name = _first(headers, USER_HEADERS) or named
        if not name:
            return principal.user or OPEN_USER
        return self._users.flow_of(principal.tenant, name)

    def named_tier(self, principal: Principal, headers: Headers) -> int | None:
        """The rank that a header asks for, clamped; None: none does. Raises BadRequestError."""
        named = _first(headers, TIER_HEADERS)
        if named is None:
            return None
        rank = self._tier_ranks.get(named)
        if rank is None:
            tiers = ", ".join(self._tier_ranks)
            raise BadRequestError(f"There is no tier `{named[:64]}`; tiers are: {tiers}.")
        return max(rank, principal.max_tier)

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
        rank = self.named_tier(principal, headers)
        if rank is not None:
            return rank
        tier = self._service_tiers.get(call.service_tier) if call.service_tier else None
        if tier is None:
            return principal.tier
        return max(self._tier_ranks[tier], principal.max_tier)


def _session(headers: Headers, call: Call, *, tenant: str, user: str) -> str | None:
    """The session that the client names, told apart from those of all other users."""
    named = _first(headers, SESSION_HEADERS) or call.session
    if not named:
        return None
    if len(named) > SESSION_CHARS_MAX:
        named = blake2b(named.encode(), digest_size=16).hexdigest()
    # The lengths keep a name that holds the separator from meaning another user's session.
    return f"{len(tenant)},{len(user)} {tenant} {user} {named}"


def _read_timeout_s(headers: Headers) -> float | None:
    """What the client's SDK says of its patience: nobody wrote it by hand, so nonsense is none."""
    text = headers.get(READ_TIMEOUT_HEADER)
    if text is None:
        return None
    try:
        timeout_s = float(text)
    except ValueError:
        return None
    return timeout_s if math.isfinite(timeout_s) and timeout_s > 0.0 else None


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
