"""Whose prompts may share an engine's prefix cache: the salt that each request is given.

An engine answers sooner where it has seen the beginning of a prompt before, and so tells one tenant
what others asked. vLLM mixes `cache_salt` into the hashes of its cache: equal salts share. The salt
is made of the names alone, so that it is the same on all gateways and after each start; it is no
secret, and need not be one, since no client's salt reaches an engine as it was written. A client
that sends one shares with nobody but who sends the same one within its tenant, or user.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Literal

import msgspec

from gateway.api.fields import ABSENT, NULL, Fields
from gateway.errors import BadRequestError
from gateway.tenancy.keys import Keyring

By = Literal["none", "tenant", "user"]

SALTS_MAX = 10_000
"""Remembered; making one takes a few microseconds."""
SALT_BYTES = 16

_TEXT = msgspec.json.Decoder(str)


class Salt:
    """What stands for `cache_salt` in one request."""

    __slots__ = ("_takes", "text")

    def __init__(self, text: str, takes: Callable[[str], bool]) -> None:
        self.text = text
        self._takes = takes

    def at(self, replica: str) -> str | None:
        """The salt for this replica; None where its engine knows none."""
        return self.text if self._takes(replica) else None


class Isolation:
    """Makes salts."""

    def __init__(
        self,
        by: By = "none",
        takes: Callable[[str], bool] = lambda _: False,
        keyring: Keyring | None = None,
    ) -> None:
        """`takes`: whether the engine of a replica knows salts.

        `keyring` tells whether all callers are one tenant: then nothing is kept from another.
        """
        self._takes = takes
        self._keyring = keyring
        self.configure(by)

    def configure(self, by: By) -> None:
        """Whose requests share from now on: everybody's, a tenant's, a user's."""
        self.by = by
        self._salts: dict[tuple[str, str], Salt] = {}

    def salt_of(self, fields: Fields, *, tenant: str, user: str) -> Salt | None:
        """The salt of a request; None where everybody shares.

        Raises BadRequestError for a salt of the client's that is none.
        """
        if self.by == "none":
            return None
        if self.by == "tenant":
            if self._keyring is not None and self._keyring.is_open:
                return None
            user = ""
        if fields.cache_salt is not ABSENT and fields.cache_salt != NULL:
            return self._made(tenant, user, _own(fields))
        salt = self._salts.get((tenant, user))
        if salt is None:
            if len(self._salts) >= SALTS_MAX:
                self._salts.clear()
            salt = self._salts[tenant, user] = self._made(tenant, user, "")
        return salt

    def sharers(self, tenant: str, user: str) -> str:
        """One name for all whose prompts a request may find in a cache, of its tenant at most."""
        return f"{len(tenant)} {tenant}{user}" if self.by == "user" else tenant

    def _made(self, tenant: str, user: str, own: str) -> Salt:
        # The lengths keep one name from running into the next.
        text = f"{len(tenant)},{len(user)} {tenant}{user}{own}".encode("utf-8", "surrogatepass")
        return Salt(blake2b(text, digest_size=SALT_BYTES).hexdigest(), self._takes)


def _own(fields: Fields) -> str:
    """The client's own salt."""
    text = bytes(fields.cache_salt)
    own = _TEXT.decode(text) if text.startswith(b'"') else ""
    if not own:
        raise BadRequestError("`cache_salt` must be a string, and not empty.", param="cache_salt")
    return own
