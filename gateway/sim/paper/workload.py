"""The requests of the paper: when they come, how long they are, which tier they are of.

Refuses to know engines. Vidur's generators are followed draw by draw, so that a seed means here
what it means there (the paper's runs used Vidur's default, 42): gaps between arrivals and tiers
come in turn from one generator, lengths from another, which is seeded the way numpy does it.
"""

import math
import random
from collections.abc import Callable
from typing import Literal

from gateway.sim.paper.request import Request

Mix = Literal["uniform", "gaussian", "enterprise"]

RATE_PER_S = 1250.0
GAP_MAX_MEANS = 3.0
"""Vidur cuts a longer gap off, so that the true rate is 5 % above the nominal one."""
TOKENS_MIN = 64
TOKENS_MAX = 512
THETA = 1.2
PROMPT_PER_OUTPUT = 2.0

TWISTER_WORDS = 624
TWISTER_FACTOR = 1_812_433_253
"""Of Knuth's recurrence, by which numpy seeds a Mersenne twister from one number."""


def tier_shares(mix: Mix, tiers: int) -> list[float]:
    """Share of the requests that each tier gets, tier 0 first; they sum to 1.

    Args:
        mix: uniform; gaussian, around the middle tier; enterprise, a tenth critical, seven tenths
            spread over the middle, the rest last.
        tiers: at least 1.
    """
    assert tiers >= 1
    if mix == "gaussian":
        middle, sigma = (tiers - 1) / 2, tiers / 4
        weights = [math.exp(-0.5 * ((tier - middle) / sigma) ** 2) for tier in range(tiers)]
    elif mix == "uniform" or tiers == 1:
        weights = [1.0] * tiers
    elif tiers == 2:
        weights = [0.25, 0.75]
    else:
        weights = [0.10, *[0.70 / (tiers - 2)] * (tiers - 2)]
        weights.append(max(0.05, 1.0 - sum(weights)))
    total = sum(weights)
    return [weight / total for weight in weights]


def draw_requests(
    mix: Mix,
    *,
    tiers: int,
    count: int,
    seed: int,
    rate_per_s: float = RATE_PER_S,
    gap_max_means: float = GAP_MAX_MEANS,
) -> list[Request]:
    """So many requests in order of arrival; the same ones for the same arguments, anywhere.

    Args:
        mix: how they are spread over the tiers.
        tiers: at least 1.
        count: how many.
        seed: what else the draws depend on.
        rate_per_s: Poisson arrivals.
        gap_max_means: a gap is at most so many mean ones; infinity for true Poisson arrivals.
    """
    draw, draw_tokens = random.Random(seed), total_tokens_drawer(seed)
    bounds = _cumulated(tier_shares(mix, tiers))
    requests, now = [], 0.0
    for number in range(count):
        gap = -math.log(1.0 - draw.random()) / rate_per_s
        now += min(gap, gap_max_means / rate_per_s)
        total = draw_tokens()
        output = total / (1.0 + PROMPT_PER_OUTPUT)
        requests.append(
            Request(
                number,
                now,
                _tier(draw.random(), bounds) if tiers > 1 else 0,
                prompt_tokens=int(total - output),
                output_tokens=int(output),
            )
        )
    return requests


def total_tokens_drawer(seed: int) -> Callable[[], int]:
    """Draws prompt and output together: Zipf over TOKENS_MIN..TOKENS_MAX, shortest most often.

    The inverse of a continuous approximation, from Gray et al., "Quickly generating billion-record
    synthetic databases" (SIGMOD 1994), with an exponent above the 1 that it was made for.
    """
    draw = numpy_twister(seed).random
    ranks = TOKENS_MAX - TOKENS_MIN + 1
    zeta = sum(1.0 / rank**THETA for rank in range(1, ranks))
    # The epsilon, and the two sums that end one rank early, are Vidur's.
    eta = (1.0 - (2.0 / ranks) ** (1.0 - THETA)) / (1.0 - 1.0 / (zeta + 1e-8))

    def drawn() -> int:
        share = draw()
        if share * zeta < 1.0:
            return TOKENS_MIN
        if share * zeta < 1.0 + 0.5**THETA:
            return TOKENS_MIN + 1
        return TOKENS_MIN + int(ranks * (eta * share - eta + 1.0) ** (1.0 / (1.0 - THETA)))

    return drawn


def numpy_twister(seed: int) -> random.Random:
    """What `numpy.random.RandomState(seed)` draws with `random_sample`, without numpy."""
    words = [seed & 0xFFFFFFFF]
    for index in range(1, TWISTER_WORDS):
        before = words[-1]
        words.append((TWISTER_FACTOR * (before ^ (before >> 30)) + index) & 0xFFFFFFFF)
    twister = random.Random()
    twister.setstate((3, (*words, TWISTER_WORDS), None))
    return twister


def _cumulated(shares: list[float]) -> list[float]:
    bounds, total = [], 0.0
    for share in shares:
        total += share
        bounds.append(total)
    return bounds


def _tier(draw: float, bounds: list[float]) -> int:
    for tier, bound in enumerate(bounds):
        if draw < bound:
            return tier
    return len(bounds) - 1
