"""The last minutes of who waited and who ran, in a ring, for whoever opens the console late.

A sample is taken every `STEP_S` seconds, whoever looks: what happened before somebody looked is
what they come for. It is bounded in samples, and each of them in tenants.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.admin.standings import Picture, Standing, picture_of
from gateway.core.state import State

STEP_S = 5.0
SAMPLES_MAX = 240
"""Twenty minutes of them."""
TENANTS_KEPT = 30
"""Of each sample: those that wanted most."""
TENANTS_TOLD = 10
"""Those that wanted most over all that is kept."""


@dataclass(frozen=True, slots=True)
class Point:
    """One tenant, or one tier, at one instant; shares are 0..1, None while nothing runs."""

    waiting: int
    running: int
    share: float | None
    fair_share: float | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One instant."""

    at: float
    """Seconds since 1970."""
    tiers: dict[str, Point]
    tenants: dict[str, Point]


@dataclass(frozen=True, slots=True)
class Series:
    """One tenant, or one tier, at all instants that are kept."""

    name: str
    waiting: list[int]
    running: list[int]
    share: list[float | None]
    fair_share: list[float | None]


class History:
    """Samples of one scheduler."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._due_at = float("-inf")
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def look(self, now: float, at: float) -> None:
        """Take a sample if one is due at `now`, on the scheduler's clock; `at` is since 1970."""
        if now < self._due_at:
            return
        # In step with the clock, not with the looks: what comes late does not make all later.
        self._due_at += STEP_S
        if self._due_at <= now:
            self._due_at = now + STEP_S
        self.samples.append(sampled(self._state, at))

    def tiers(self) -> list[Series]:
        """Those of today's policy, by rank."""
        return [
            _series(tier.name, [each.tiers.get(tier.name) for each in self.samples])
            for tier in self._state.policy.tiers
        ]

    def tenants(self) -> list[Series]:
        """Those that wanted most, by name."""
        return [
            _series(name, [each.tenants.get(name) for each in self.samples])
            for name in sorted(_greatest(self.samples))
        ]


def sampled(state: State, at: float) -> Sample:
    """What is here now."""
    picture = picture_of(state)
    tenants = sorted(picture.tenants.items(), key=lambda each: (-each[1].wanted, each[0]))
    return Sample(
        at=round(at, 3),
        tiers={
            tier.name: point_of(standing, picture, has_fair=picture.are_tiers_weighted)
            for tier, standing in zip(state.policy.tiers, picture.tiers, strict=True)
        },
        tenants={name: point_of(each, picture) for name, each in tenants[:TENANTS_KEPT]},
    )


def point_of(standing: Standing, picture: Picture, *, has_fair: bool = True) -> Point:
    """A standing among all that runs."""
    total = picture.running
    return Point(
        waiting=standing.waiting + standing.held,
        running=standing.running,
        share=round(standing.running / total, 4) if total else None,
        fair_share=round(standing.fair / total, 4) if total and has_fair else None,
    )


def _greatest(samples: Iterable[Sample]) -> list[str]:
    wanted: Counter[str] = Counter()
    for sample in samples:
        for name, point in sample.tenants.items():
            wanted[name] += point.waiting + point.running
    return sorted(wanted, key=lambda name: (-wanted[name], name))[:TENANTS_TOLD]


def _series(name: str, points: Sequence[Point | None]) -> Series:
    """Who is missing from a sample neither waited nor ran then."""
    return Series(
        name=name,
        waiting=[0 if each is None else each.waiting for each in points],
        running=[0 if each is None else each.running for each in points],
        share=[None if each is None else each.share for each in points],
        fair_share=[None if each is None else each.fair_share for each in points],
    )
