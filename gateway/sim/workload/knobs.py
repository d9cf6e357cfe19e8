"""What can be set of a workload, from a command line or from YAML, and how laws are written there.

Each knob means the same wherever it is taken; which workload takes which is in `catalogue.py`.
"""

from typing import Annotated, Literal

import msgspec

from gateway.sim.workload.lengths import Empirical, Fixed, Lengths, Lognormal, Zipf
from gateway.sim.workload.traces import LENGTH_LISTS, TRACES, lengths_of

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """All there are, with their defaults; seconds, tokens and requests per second."""

    seed: int = 0
    limit: Count | None = None
    """No more requests than that."""
    until_s: Positive | None = None
    """Nothing comes at or after that instant."""
    tiers: str = "1"
    """Shares: `enterprise-4`, `uniform-4`, `gaussian-4`, or weights such as `1,3,6`."""
    users: Count = 20
    tenants: Count = 4
    skew: NotNegative = 0.0
    """Weights of users are 1/rank^skew."""
    lengths: str = "zipf"
    """A law, as `length_law` reads it."""
    output_tokens_max: Count | None = None
    """What clients say; it cuts longer answers."""
    patience_s: Positive | None = None
    """Clients give up after that long."""
    rate_per_s: Positive = 10.0
    """Of all light users together."""
    size: Count = 100
    """Requests of one burst."""
    every_s: Positive = 30.0
    """From burst to burst."""
    jitter_s: NotNegative = 0.0
    """Each burst is up to so late."""
    think_s: NotNegative = 5.0
    """Mean pause of a user between an answer and the next request."""
    power_rate_per_s: Positive = 50.0
    """Of the power user while it is on."""
    power_lengths: str | None = None
    """Of the power user; None: as all others."""
    on_s: Positive = 30.0
    off_s: NotNegative = 30.0
    regular: bool = False
    """Periods are exactly so long, not exponential around it."""
    without_power: bool = False
    """Leave out who sends most; the others come as and when they did."""
    load: Positive = 1.0
    """Recorded time runs so many times faster."""
    laps: Count = 1
    """How often the trace comes."""
    tokens_max: Count | None = None
    """Longer requests, prompt and answer together, are refused and counted."""
    tier_by: Literal["request", "user"] = "request"
    """Each request draws its tier, or each user once."""
    path: str = ""


def length_law(text: str) -> Lengths:
    """`fixed:PROMPT,OUTPUT`, `zipf:THETA,LOW,HIGH`, `lognormal:...`, or the name of a trace.

    Numbers that are left out have the law's defaults. Those of a lognormal are the median and the
    sigma of prompts, then of answers. A trace gives its own pairs of lengths, drawn at random.

    Raises:
        ValueError: no such law or trace, or numbers that it cannot have.
    """
    name, _, rest = text.partition(":")
    try:
        numbers = [float(part) for part in rest.split(",")] if rest else []
    except ValueError:
        raise ValueError(f"{text!r}: {name} takes numbers, got {rest!r}") from None
    match name, numbers:
        case "fixed", [] | [_] | [_, _]:
            return Fixed(*_whole(numbers))
        case "zipf", []:
            return Zipf()
        case "zipf", [theta, *sizes] if len(sizes) <= 2:
            return Zipf(theta, *_whole(sizes))
        case "lognormal", _ if len(numbers) <= 4:
            usual = Lognormal()
            medians = (usual.prompt_median, usual.prompt_sigma)
            ends = (usual.output_median, usual.output_sigma)
            filled = (*numbers, *(*medians, *ends)[len(numbers) :])
            return Lognormal(
                prompt_median=filled[0],
                prompt_sigma=filled[1],
                output_median=filled[2],
                output_sigma=filled[3],
            )
        case _, [] if name in _recorded():
            return Empirical(lengths_of(name))
    raise ValueError(
        f"unknown law of lengths {text!r}; known: fixed:PROMPT,OUTPUT, zipf:THETA,LOW,HIGH, "
        f"lognormal:PROMPT_MEDIAN,SIGMA,OUTPUT_MEDIAN,SIGMA, {', '.join(_recorded())}"
    )


def _whole(numbers: list[float]) -> list[int]:
    if any(number != int(number) for number in numbers):
        raise ValueError(f"tokens are whole numbers, got {numbers}")
    return [int(number) for number in numbers]


def _recorded() -> list[str]:
    return [trace.name for trace in (*TRACES, *LENGTH_LISTS)]
