"""Names of users that a trusted application speaks for: any number may come, few are kept."""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable

NAME_CHARS_MAX = 128
FORGET_AFTER_S = 3_600.0
SHARED_FLOWS = 16
"""Flows that all names beyond the bound are hashed into."""


class UserNames:
    """The names in use per tenant, at most `names_max` each; the rest share a few flows."""

    def __init__(
        self, names_max: int, clock: Callable[[], float], known: Iterable[tuple[str, str]] = ()
    ) -> None:
        self._names_max = names_max
        self._clock = clock
        self._known = frozenset(known)
        """(tenant, user) pairs of the configuration: always kept apart."""
        self._seen: dict[str, OrderedDict[str, float]] = {}

    def configure(self, names_max: int, known: Iterable[tuple[str, str]]) -> None:
        """Other bounds and other configured users from now on; names in use stay known."""
        self._names_max = names_max
        self._known = frozenset(known)

    def flow_of(self, tenant: str, name: str) -> str:
        """The user name to schedule under. `tenant` must come from a key, not from a caller."""
        name = name[:NAME_CHARS_MAX]
        if (tenant, name) in self._known:
            return name
        now = self._clock()
        seen = self._seen.setdefault(tenant, OrderedDict())
        while name not in seen and len(seen) >= self._names_max:
            oldest = next(iter(seen))
            if now - seen[oldest] < FORGET_AFTER_S:
                return f"~{zlib.crc32(name.encode()) % SHARED_FLOWS}"
            del seen[oldest]
        seen[name] = now
        seen.move_to_end(name)
        return name
