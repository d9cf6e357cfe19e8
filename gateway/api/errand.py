"""A request that the gateway makes itself, in the name of a key whose secret it does not know.

It takes the way of every request, with the tenant, user, limits and tiers of that key; only the
server can put an errand into a scope, so no client can pass for one.
"""

from gateway.api.disconnect import Scope
from gateway.api.life import Life
from gateway.errors import InvalidKeyError
from gateway.tenancy.keys import Keyring, Principal

ERRAND = "fairgate.errand"
"""Key of the scope under which it stands."""


class Errand:
    """Whose request it is, and what became of it."""

    __slots__ = ("key_id", "life")

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        self.life: Life | None = None
        """What the relay knows of it, once it has begun."""

    def principal(self, keyring: Keyring) -> Principal:
        """Who it is for. Raises InvalidKeyError where the key is good no more."""
        principal = keyring.named(self.key_id)
        if principal is None:
            raise InvalidKeyError("The API key of this batch is not good any more.")
        return principal

    @property
    def is_waiting(self) -> bool:
        """Whether no engine has been sent it."""
        return self.life is None or self.life.sent_at is None


def errand_in(scope: Scope) -> Errand | None:
    """The errand that a scope stands for; None: a client's request."""
    found = scope.get(ERRAND)
    assert found is None or isinstance(found, Errand)
    return found
