"""How long prompts and answers are: laws that draw (prompt, output) pairs in tokens.

Knows neither who asks nor when. Each law is pure: all randomness is in the dice it is given.
"""

from bisect import bisect
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp
from random import Random
from typing import Protocol

ZIPF_SPAN_MAX = 1_000_000
"""Different totals of one Zipf law: each costs a number in a table."""


class Lengths(Protocol):
    """A law of lengths."""

    def draw(self, dice: Random) -> tuple[int, int]:
        """Tokens of a prompt (>= 1) and of its answer (>= 1)."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """All the same."""

    prompt_tokens: int = 256
    output_tokens: int = 128

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError("lengths must be at least 1 token")

    def draw(self, dice: Random) -> tuple[int, int]:
        """The same as ever; the dice stay untouched."""
        return self.prompt_tokens, self.output_tokens


@dataclass(frozen=True, slots=True)
class Zipf:
    """Total lengths by Zipf's law: P(low + k) ~ 1/(k + 1)^theta, from `low` to `high` inclusive.

    Two thirds of the total T are prompt, one third is output: floor(2T/3) and floor(T/3). Drawn
    exactly; the approximation of YCSB, which Vidur uses, is 4 % longer in the mean with these
    defaults (107 tokens, not 102).
    """

    theta: float = 1.2
    low: int = 64
    high: int = 512
    _bounds: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        span = self.high - self.low + 1
        if not 3 <= self.low <= self.high or span > ZIPF_SPAN_MAX:
            raise ValueError(
                f"a Zipf law needs 3 <= low <= high and at most {ZIPF_SPAN_MAX} totals, "
                f"got {self.low} and {self.high}"
            )
        bounds = tuple(accumulate((rank + 1) ** -self.theta for rank in range(span)))
        object.__setattr__(self, "_bounds", bounds)

    def draw(self, dice: Random) -> tuple[int, int]:
        """One total, split."""
        bounds = self._bounds
        total = self.low + bisect(bounds, dice.random() * bounds[-1], hi=len(bounds) - 1)
        return 2 * total // 3, total // 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """Prompts and answers independent of each other, each with its median and spread.

    A sigma of 1 puts one in six beyond 2.7 times the median; what is longer than the maxima is cut.
    """

    prompt_median: float = 256.0
    prompt_sigma: float = 1.0
    output_median: float = 128.0
    output_sigma: float = 1.0
    prompt_tokens_max: int = 32_768
    output_tokens_max: int = 8_192

    def __post_init__(self) -> None:
        if min(self.prompt_median, self.output_median) <= 0:
            raise ValueError("medians must be positive")
        if min(self.prompt_sigma, self.output_sigma) < 0:
            raise ValueError("sigmas must not be negative")
        if min(self.prompt_tokens_max, self.output_tokens_max) < 1:
            raise ValueError("maxima must be at least 1 token")

    def draw(self, dice: Random) -> tuple[int, int]:
        """Two bells on a logarithmic scale."""
        prompt = self.prompt_median * exp(self.prompt_sigma * dice.gauss(0, 1))
        output = self.output_median * exp(self.output_sigma * dice.gauss(0, 1))
        return (
            max(1, round(min(prompt, self.prompt_tokens_max))),
            max(1, round(min(output, self.output_tokens_max))),
        )


@dataclass(frozen=True, slots=True)
class Empirical:
    """Pairs that were seen somewhere, each as likely as any other; a prompt keeps its answer."""

    pairs: tuple[tuple[int, int], ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ValueError("an empirical law needs at least one pair of lengths")
        if min(map(min, self.pairs)) < 1:
            raise ValueError("lengths must be at least 1 token")

    def draw(self, dice: Random) -> tuple[int, int]:
        """One of the pairs."""
        return self.pairs[int(dice.random() * len(self.pairs))]
