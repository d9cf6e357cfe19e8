"""Which gateways there are: as the store says, as was so a moment ago, and at least how many.

What follows from their number is not decided here.
"""

from collections.abc import Mapping
from typing import Final

from gateway.cluster.ports import LEASE_S

KNOWN_FOR_S: Final = 10.0
"""A gateway that was alive so lately counts where the replicas are shared out."""
MISSED_FOR_S: Final = 2 * LEASE_S
"""A new leader waits for a gateway that was alive so lately: the store may have forgotten it."""


class Company:
    """All gateways, this one included."""

    __slots__ = ("_seen", "living", "sharers_min")

    def __init__(self, me: str) -> None:
        self.living: dict[str, str] = {me: ""}
        """All that lived when the store was last asked, with what they say about themselves."""
        self.sharers_min = 1
        """So many there are, as whoever started this one knows."""
        self._seen: dict[str, float] = {}
        """When each was last among the living."""

    def stands(self, living: Mapping[str, str], now: float) -> None:
        """The store says who lives."""
        self.living = dict(living)
        self._seen.update(dict.fromkeys(living, now))
        self._seen = {name: at for name, at in self._seen.items() if now - at < KNOWN_FOR_S}

    def lately(self, now: float) -> set[str]:
        """Those that may live, although the store does not say so."""
        return {name for name, at in self._seen.items() if now - at < MISSED_FOR_S}

    @property
    def sharers(self) -> int:
        """Those that lived lately, this one included; at least those that are known to."""
        return max(self.sharers_min, len(self._seen))
