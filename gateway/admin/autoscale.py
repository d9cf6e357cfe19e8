"""Which replica to drain, and which to use again, where the advice has said so for long enough.

Pure: it looks at pools and remembers since when there have been too many. How many there should be
is the scheduler's advice; how a replica is drained, or put to sleep, is not known here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

PoolKey = frozenset[str]

AT_ONCE: Final = 1
"""Drained at a time: what the smaller fleet does is looked at before the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One replica of a pool."""

    name: str
    models: frozenset[str]
    is_usable: bool
    """Whether it takes anything new."""
    is_resting: bool
    """Whether it was drained here, and may be used again."""
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSeen:
    """One pool; `advised`: how many replicas there should be, None while nothing was said."""

    key: PoolKey
    advised: int | None
    has_waiting: bool
    replicas: Sequence[Seen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """From when, and down to how many."""

    after_s: float
    replicas_min: int


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do."""

    deed: Literal["drain", "undrain"]
    replica: str


class Patience:
    """Since when each pool has had more than it should."""

    def __init__(self) -> None:
        self._since: dict[PoolKey, float] = {}

    def steps(self, pools: Iterable[PoolSeen], rules: Rules, now: float) -> list[Step]:
        """What to do now. More is done at once, less only after `after_s` without a break."""
        pools, found = list(pools), []
        for key in self._since.keys() - {pool.key for pool in pools}:
            del self._since[key]
        for pool in pools:
            found += self._of(pool, rules, now)
        return found

    def _of(self, pool: PoolSeen, rules: Rules, now: float) -> list[Step]:
        usable = [each for each in pool.replicas if each.is_usable]
        wanted = len(usable) if pool.advised is None else pool.advised
        if wanted < len(usable) and len(usable) > rules.replicas_min and not pool.has_waiting:
            since = self._since.setdefault(pool.key, now)
            if now - since < rules.after_s:
                return []
            del self._since[pool.key]
            spare = _spare(usable)
            return [] if spare is None else [Step("drain", spare.name)]
        self._since.pop(pool.key, None)
        resting = sorted(each.name for each in pool.replicas if each.is_resting)
        missing = max(wanted, rules.replicas_min) - len(usable)
        return [Step("undrain", name) for name in resting[: max(0, missing)]]


def released(pools: Iterable[PoolSeen]) -> list[Step]:
    """What gives back all that was drained here: for when it is switched off."""
    return [
        Step("undrain", each.name) for pool in pools for each in pool.replicas if each.is_resting
    ]


def _spare(usable: Sequence[Seen]) -> Seen | None:
    """The least busy one, as the advice names it, without which each model is still served."""
    for each in sorted(usable, key=lambda seen: (seen.running, seen.name)):
        others = {model for other in usable if other is not each for model in other.models}
        if each.models <= others:
            return each
    return None
