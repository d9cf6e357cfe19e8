"""The workloads there are, by name: what each is, which knobs it takes, and how it is made of them.

The one list for command line, experiments and documents; it knows nothing of what plays them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

import msgspec

from gateway.sim.workload.arrivals import Arrivals, Bursts, OnOff, Poisson
from gateway.sim.workload.job import Source
from gateway.sim.workload.knobs import Knobs, length_law
from gateway.sim.workload.merged import Merged
from gateway.sim.workload.mixes import Crowd, Member, Tiers, crowd, tier_shares
from gateway.sim.workload.own import OwnFile
from gateway.sim.workload.synthetic import ClosedLoop, Open
from gateway.sim.workload.traced import SKEW, TENANTS, USERS, Playing, Traced
from gateway.sim.workload.traces import TRACES, Trace

SPAN_S = 300.0
"""A synthetic workload lasts so long when neither `until_s` nor `limit` says otherwise."""
MADE = (
    "seed",
    "until_s",
    "tiers",
    "users",
    "tenants",
    "lengths",
    "output_tokens_max",
    "patience_s",
)
PLAYED = ("seed", "load", "laps", "limit", "until_s", "tokens_max", "tiers", "tier_by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One entry of the catalogue."""

    name: str
    about: str
    """One line."""
    knobs: tuple[str, ...]
    """What can be set."""
    make: Callable[[Knobs], Source] = field(repr=False)
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Where they are others than those of `Knobs`."""

    def default(self, knob: str) -> object:
        """What `knob` is where nobody sets it."""
        return self.defaults.get(knob, getattr(Knobs(), knob))

    def source(self, values: Mapping[str, object]) -> Source:
        """The workload with these knobs; their values may be text, as a command line has them.

        Raises:
            ValueError: an unknown knob (the message lists those there are), or a value that it
                cannot have.
            OSError: a file cannot be read.
        """
        unknown = [name for name in values if name not in self.knobs]
        if unknown:
            raise ValueError(
                f"{self.name} has no {', '.join(unknown)}; it takes {', '.join(self.knobs)}"
            )
        try:
            knobs = msgspec.convert({**self.defaults, **values}, Knobs, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{self.name}: {error}") from error
        return self.make(knobs)


def workload_named(name: str) -> Workload:
    """The entry of that name.

    Raises:
        ValueError: no such workload; the message lists those there are.
    """
    known = workloads()
    for entry in known:
        if entry.name == name:
            return entry
    names = ", ".join(entry.name for entry in known)
    raise ValueError(f"unknown workload {name!r}; known: {names}")


def workloads() -> tuple[Workload, ...]:
    """All of them: made up, recorded, an operator's own."""
    return (
        Workload(
            name="poisson",
            about="light users who ask independently of each other",
            knobs=(*MADE, "limit", "skew", "rate_per_s"),
            make=_poisson,
        ),
        Workload(
            name="bursts",
            about="the same, and one user more who sends many at once, again and again",
            knobs=(*MADE, "skew", "rate_per_s", "size", "every_s", "jitter_s", "without_power"),
            make=_bursts,
        ),
        Workload(
            name="power-user",
            about="the same, and one user more who sends a flood while it is on",
            knobs=(
                *(*MADE, "skew", "rate_per_s", "power_rate_per_s", "power_lengths"),
                *("on_s", "off_s", "regular", "without_power"),
            ),
            make=_power_user,
        ),
        Workload(
            name="closed-loop",
            about="users who wait for each answer, think, and ask again",
            knobs=(*MADE, "limit", "think_s"),
            make=_closed_loop,
        ),
        *map(_recorded, TRACES),
        Workload(
            name="file",
            about="your own: a .csv or .jsonl file of arrival_s, prompt_tokens, output_tokens, ...",
            knobs=("path", "load", "limit", "tokens_max"),
            make=_file,
        ),
    )


def _recorded(trace: Trace) -> Workload:
    owners = ("without_power",) if trace.column == "client" else ("users", "tenants", "skew")
    return Workload(
        name=trace.name,
        about=trace.about,
        knobs=(*PLAYED, *owners),
        make=partial(_traced, trace),
        defaults={"users": USERS, "tenants": TENANTS, "skew": SKEW},
    )


def _poisson(knobs: Knobs) -> Open:
    return _open(knobs, Poisson(rate_per_s=knobs.rate_per_s), _light(knobs))


def _bursts(knobs: Knobs) -> Source:
    bursts = Bursts(size=knobs.size, every_s=knobs.every_s, jitter_s=knobs.jitter_s)
    return _beside(knobs, _open(knobs, bursts, _alone("burst")))


def _power_user(knobs: Knobs) -> Source:
    flood = OnOff(
        rate_per_s=knobs.power_rate_per_s,
        on_s=knobs.on_s,
        off_s=knobs.off_s,
        regular=knobs.regular,
    )
    return _beside(knobs, _open(knobs, flood, _alone("power"), knobs.power_lengths))


def _closed_loop(knobs: Knobs) -> ClosedLoop:
    return ClosedLoop(
        crowd=_light(knobs),
        lengths=length_law(knobs.lengths),
        think_s=knobs.think_s,
        tiers=Tiers(tier_shares(knobs.tiers)),
        seed=knobs.seed,
        limit=knobs.limit,
        until_s=_until_s(knobs),
        output_tokens_max=knobs.output_tokens_max,
        patience_s=knobs.patience_s or inf,
    )


def _traced(trace: Trace, knobs: Knobs) -> Traced:
    playing = Playing(
        load=knobs.load,
        laps=knobs.laps,
        limit=knobs.limit,
        until_s=knobs.until_s or inf,
        tokens_max=knobs.tokens_max,
        tiers=Tiers(tier_shares(knobs.tiers)),
        tier_by=knobs.tier_by,
        crowd=_light(knobs),
        seed=knobs.seed,
        without_power=knobs.without_power,
    )
    return Traced(trace, playing)


def _file(knobs: Knobs) -> OwnFile:
    if not knobs.path:
        raise ValueError("file: which one? Set path")
    return OwnFile(
        Path(knobs.path), load=knobs.load, limit=knobs.limit, tokens_max=knobs.tokens_max
    )


def _open(knobs: Knobs, arrivals: Arrivals, members: Crowd, lengths: str | None = None) -> Open:
    return Open(
        arrivals=arrivals,
        lengths=length_law(lengths or knobs.lengths),
        tiers=Tiers(tier_shares(knobs.tiers)),
        crowd=members,
        # Two parts of one workload must not draw the same numbers.
        seed=f"{knobs.seed} {members.members[0].user}",
        limit=knobs.limit,
        until_s=_until_s(knobs),
        output_tokens_max=knobs.output_tokens_max,
        patience_s=knobs.patience_s or inf,
    )


def _beside(knobs: Knobs, heavy: Open) -> Source:
    light = _poisson(knobs)
    return light if knobs.without_power else Merged((light, heavy))


def _light(knobs: Knobs) -> Crowd:
    return crowd(users=knobs.users, tenants=knobs.tenants, skew=knobs.skew)


def _alone(name: str) -> Crowd:
    return Crowd((Member(user=name, tenant=name),))


def _until_s(knobs: Knobs) -> float:
    if knobs.until_s is None and knobs.limit is None:
        return SPAN_S
    return knobs.until_s or inf
