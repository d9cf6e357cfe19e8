"""Who sends a request: the shares of tiers, and of users within tenants, by weight.

Knows neither when anything comes nor how long it is.
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, inf, isfinite
from random import Random

ENTERPRISE_FIRST = 0.10
ENTERPRISE_MIDDLE = 0.70
ENTERPRISE_LAST_MIN = 0.05
MEMBERS_MAX = 1_000_000
"""Users of one crowd: each costs some hundred bytes."""


def uniform(tiers: int) -> tuple[float, ...]:
    """Equal shares of `tiers` (>= 1) tiers."""
    _counted(tiers)
    return (1 / tiers,) * tiers


def gaussian(tiers: int) -> tuple[float, ...]:
    """Most in the middle: a bell around (K-1)/2 with a sigma of K/4, cut at the outer tiers."""
    _counted(tiers)
    centre, sigma = (tiers - 1) / 2, tiers / 4
    bell = [exp(-(((tier - centre) / sigma) ** 2) / 2) for tier in range(tiers)]
    return tuple(height / sum(bell) for height in bell)


def enterprise(tiers: int) -> tuple[float, ...]:
    """A tenth is critical, 70 % spread over the middle, the rest last; 25 and 75 % of two tiers."""
    _counted(tiers)
    if tiers == 1:
        return (1.0,)
    if tiers == 2:
        return (0.25, 0.75)
    middle = ENTERPRISE_MIDDLE / (tiers - 2)
    last = max(ENTERPRISE_LAST_MIN, 1 - ENTERPRISE_FIRST - ENTERPRISE_MIDDLE)
    return (ENTERPRISE_FIRST, *([middle] * (tiers - 2)), last)


SHAPES = {"uniform": uniform, "gaussian": gaussian, "enterprise": enterprise}


def tier_shares(text: str) -> tuple[float, ...]:
    """Shares as written: `enterprise-4`, `uniform-3`, `gaussian-5`, or weights such as `1,3,6`.

    Raises:
        ValueError: it is none of those; the message says what there is.
    """
    shape, _, count = text.rpartition("-")
    if shape in SHAPES and count.isdecimal() and int(count):
        return SHAPES[shape](int(count))
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        weights = []
    if not _are_weights(weights):
        known = ", ".join(f"{name}-K" for name in SHAPES)
        raise ValueError(f"unknown tier mix {text!r}; known: {known}, or weights such as 1,3,6")
    return tuple(weight / sum(weights) for weight in weights)


@dataclass(frozen=True, slots=True)
class Tiers:
    """Draws tiers by their shares, which need not add up to one."""

    shares: tuple[float, ...] = (1.0,)
    _bounds: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_bounds", _bounds(self.shares))

    def draw(self, dice: Random) -> int:
        """The tier of one request, 0 first."""
        return bisect(self._bounds, dice.random() * self._bounds[-1], hi=len(self._bounds) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One user of a tenant."""

    user: str
    tenant: str = "default"
    weight: float = 1.0
    """How much of the crowd's requests it sends, relative to the others."""
    tier: int | None = None
    """All its requests are of that tier; None: each draws its own."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Users who share one workload, each request drawn by weight."""

    members: tuple[Member, ...]
    _bounds: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bounds = _bounds([member.weight for member in self.members])
        object.__setattr__(self, "_bounds", bounds)

    def draw(self, dice: Random) -> Member:
        """Who sends one request."""
        place = dice.random() * self._bounds[-1]
        return self.members[bisect(self._bounds, place, hi=len(self._bounds) - 1)]


def crowd(
    *,
    users: int = 1,
    tenants: int = 1,
    skew: float = 0.0,
    prefix: str = "",
    tier: int | None = None,
) -> Crowd:
    """`users` users, dealt to `tenants` tenants in turn, with weights 1/rank^skew.

    Args:
        users: `user-0` is the heaviest; at most `MEMBERS_MAX`.
        tenants: `tenant-0` ...; no more than users.
        skew: 0 gives all the same; 1 is Zipf's law.
        prefix: stands before the names of users and tenants.
        tier: of all of them; None: each request draws its own.
    """
    if not 1 <= tenants <= users <= MEMBERS_MAX:
        raise ValueError(
            f"a crowd needs 1 <= tenants <= users <= {MEMBERS_MAX}, got {tenants} and {users}"
        )
    return Crowd(
        tuple(
            Member(
                user=f"{prefix}user-{rank}",
                tenant=f"{prefix}tenant-{rank % tenants}",
                weight=1 / (rank + 1) ** skew,
                tier=tier,
            )
            for rank in range(users)
        )
    )


def _counted(tiers: int) -> None:
    if tiers < 1:
        raise ValueError(f"a mix needs at least one tier, got {tiers}")


def _are_weights(weights: Sequence[float]) -> bool:
    is_known = bool(weights) and all(isfinite(weight) and weight >= 0 for weight in weights)
    return is_known and 0 < sum(weights) < inf


def _bounds(weights: Sequence[float]) -> tuple[float, ...]:
    """Where each one's part of the line ends."""
    if not _are_weights(weights):
        raise ValueError(f"weights must be >= 0 and not all 0, got {list(weights)[:8]}")
    return tuple(accumulate(weights))


ONE_TIER = Tiers()
ANYBODY = Crowd((Member(user="anonymous"),))
