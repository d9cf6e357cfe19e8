"""Which pools a gateway should lead: those that nobody does, each in its turn.

All gateways see the same order of preference for a pool, and another one for another pool; where
something is counted over all pools, one order for all. Who has the lease is the store's affair.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final
from zlib import crc32

SPREAD_S: Final = 0.2
"""A gateway waits so long for each one that should rather lead a pool that nobody leads."""


class Candidacy:
    """What one gateway wants to lead, and what it gives back."""

    __slots__ = ("_is_bundled", "_left", "_me", "_vacant_since", "leaves")

    def __init__(self, me: str, is_bundled: Callable[[], bool]) -> None:
        self._me = me
        self._is_bundled = is_bundled
        self._vacant_since: dict[str, float] = {}
        self.leaves: set[str] = set()
        """Pools whose lease is to be given back, until the store has answered that."""
        self._left: tuple[str, ...] = ()

    def given_back(self) -> tuple[str, ...]:
        """For the next bid."""
        self._left = tuple(sorted(self.leaves))
        return self._left

    def answered(self) -> None:
        """The store has answered the last bid."""
        self.leaves.difference_update(self._left)

    def vacant(self, pool: str, now: float) -> None:
        """Nobody leads it, as was just heard."""
        self._vacant_since.setdefault(pool, now)

    def taken(self, pool: str) -> None:
        """Somebody leads it, or it is no more."""
        self._vacant_since.pop(pool, None)

    def wants(
        self,
        pool: str,
        now: float,
        *,
        since: float,
        gateways: Collection[str],
        leaders: Collection[str],
        leads: bool,
        is_leaving: bool,
    ) -> bool:
        """Whether to bid for a pool that nobody leads.

        `since`: when it began to look for a leader, which counts unless it heard that there is
        none; `gateways`: all that live; `leaders`: others that lead something; `leads`: whether
        this one does; `is_leaving`: any other should rather.
        """
        is_bundled = self._is_bundled()
        if is_bundled and leads and not is_leaving:
            before = 0
        else:
            order = sorted(gateways, key=partial(preference, "" if is_bundled else pool))
            before = order.index(self._me) if self._me in order else 0
            others = len(order) * (bool(is_bundled and leaders) + is_leaving)
            before += others if len(order) > 1 else 0
        return now - self._vacant_since.get(pool, since) >= SPREAD_S * before

    def gives_way(self, leaders: Iterable[str]) -> bool:
        """Of two that lead, although one should, the same one gives way for both."""
        own = preference("", self._me)
        return self._is_bundled() and any(preference("", each) < own for each in leaders)


def preference(pool: str, gateway: str) -> tuple[int, str]:
    """One gateway's place among several that could lead `pool`."""
    return crc32(f"{gateway} {pool}".encode()), gateway
