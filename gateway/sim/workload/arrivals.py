"""When requests come: endless rows of instants, in seconds since the run began, never decreasing.

Knows neither who sends them nor what they ask. Each is pure: all randomness is in the dice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol


class Arrivals(Protocol):
    """A process of arrivals."""

    def instants(self, dice: Random) -> Iterator[float]:
        """Without end and lazily, or until nothing comes any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Independent clients: gaps are exponential, with no memory."""

    rate_per_s: float
    starts_at: float = 0.0

    def __post_init__(self) -> None:
        _positive("rate_per_s", self.rate_per_s)

    def instants(self, dice: Random) -> Iterator[float]:
        """One after the other."""
        at = self.starts_at
        while True:
            at += dice.expovariate(self.rate_per_s)
            yield at


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """`size` requests at one instant, every `every_s` seconds, each burst up to `jitter_s` late."""

    size: int
    every_s: float
    starts_at: float = 0.0
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        _positive("size", self.size)
        _positive("every_s", self.every_s)
        if not 0 <= self.jitter_s <= self.every_s:
            raise ValueError(f"jitter_s must be 0 to every_s, got {self.jitter_s}")

    def instants(self, dice: Random) -> Iterator[float]:
        """Burst after burst."""
        number = 0
        while True:
            at = self.starts_at + number * self.every_s + self.jitter_s * dice.random()
            for _ in range(self.size):
                yield at
            number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOff:
    """A power user: at `rate_per_s` while on, silent while off.

    Periods are exponential around `on_s` and `off_s`, or exactly so long if `regular`. The first
    one is on, from `starts_at`; `off_s` = 0 never pauses.
    """

    rate_per_s: float
    on_s: float
    off_s: float
    starts_at: float = 0.0
    regular: bool = False

    def __post_init__(self) -> None:
        _positive("rate_per_s", self.rate_per_s)
        _positive("on_s", self.on_s)
        if self.off_s < 0:
            raise ValueError(f"off_s must not be negative, got {self.off_s}")

    def instants(self, dice: Random) -> Iterator[float]:
        """Period after period."""
        begins = self.starts_at
        while True:
            ends = begins + self._period_s(dice, self.on_s)
            at = begins + dice.expovariate(self.rate_per_s)
            while at < ends:
                yield at
                at += dice.expovariate(self.rate_per_s)
            begins = ends + self._period_s(dice, self.off_s)

    def _period_s(self, dice: Random, mean_s: float) -> float:
        return mean_s if self.regular or not mean_s else dice.expovariate(1 / mean_s)


def _positive(name: str, value: float) -> None:
    # Not `value <= 0`: NaN is no rate either.
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive, got {value}")
