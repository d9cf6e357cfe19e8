"""What the demo found: the light users' waits alone and under each flood, held against the claims.

Pure. The bound of the fair gateway: a request of a user below its share is the next one released,
when an answer ends on either replica (half a release interval on average), and may find one request
waiting there before it (one more interval). Two intervals leave room for light users who meet, half
as much again as alone for an engine that is busy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.demo.plan import LIGHT_USERS, Phase, PolicyName
from gateway.demo.tally import Tally, Waits

ALONE_FACTOR = 1.5
RELEASE_INTERVALS = 2
FIFO_FACTOR = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one phase came to."""

    policy: PolicyName
    is_flooded: bool
    light_waits: Waits | None
    """Of the light users together; None when none of their requests says anything."""
    release_interval_s: float | None
    complaint: str | None
    """Why the first request failed that did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The light users' waits, and the pace of the replicas, in seconds."""

    alone: Waits
    flooded: Mapping[PolicyName, Waits]
    release_interval_s: float

    @property
    def fair_bound_s(self) -> float:
        """The longest mean wait that the fair gateway is meant to let happen under a flood."""
        return ALONE_FACTOR * self.alone.mean_s + RELEASE_INTERVALS * self.release_interval_s

    @property
    def is_fair(self) -> bool | None:
        """Whether the fair gateway held its bound; None when it was not shown."""
        fair = self.flooded.get("fair")
        return None if fair is None else fair.mean_s <= self.fair_bound_s

    @property
    def is_fifo_slow(self) -> bool | None:
        """Whether fifo let them wait ten times as long as alone; None when it was not shown."""
        fifo = self.flooded.get("fifo")
        return None if fifo is None else fifo.mean_s >= FIFO_FACTOR * self.alone.mean_s


def outcome_of(
    phase: Phase, tally: Tally, *, replicas: int, began_at: float, ended_at: float
) -> Outcome:
    """What `phase` came to."""
    return Outcome(
        policy=phase.policy,
        is_flooded=phase.is_flooded,
        light_waits=tally.waits([user.name for user in LIGHT_USERS], ended_at),
        release_interval_s=tally.release_interval_s(
            replicas, since=began_at + phase.steady_after_s, until=ended_at
        ),
        complaint=tally.complaint,
    )


def verdict_of(outcomes: Sequence[Outcome]) -> Verdict | None:
    """The verdict; None when a phase has no figures. The pace is the first flood's."""
    alone = next((each.light_waits for each in outcomes if not each.is_flooded), None)
    floods = [outcome for outcome in outcomes if outcome.is_flooded]
    intervals_s = [each.release_interval_s for each in floods]
    waits = {each.policy: each.light_waits for each in floods if each.light_waits is not None}
    if alone is None or len(waits) < len(floods) or not intervals_s or intervals_s[0] is None:
        return None
    return Verdict(alone=alone, flooded=waits, release_interval_s=intervals_s[0])


def verdict_lines(verdict: Verdict) -> list[str]:
    """The verdict in words, with all figures that it rests on."""
    lines = [
        "The light users' mean wait for the first token:",
        f"  alone         {waited(verdict.alone):>9}   {counted(verdict.alone)}",
    ]
    for policy, waits in verdict.flooded.items():
        ratio = waits.mean_s / verdict.alone.mean_s
        lines.append(
            f"  flood, {policy}   {waited(waits):>9}   {counted(waits)}, {ratio:.0f} x alone"
        )
    interval_s = verdict.release_interval_s
    lines.append(f"Under the flood each replica finished a request every {interval_s:.3f} s.")
    return lines + _judgements(verdict)


def waited(waits: Waits) -> str:
    """The mean wait; `>=` where some still waited."""
    return f"{'>= ' if waits.is_at_least else ''}{waits.mean_s:.3f} s"


def counted(waits: Waits) -> str:
    """Over how many requests."""
    return f"{waits.count} requests"


def _judgements(verdict: Verdict) -> list[str]:
    alone_s, lines = verdict.alone.mean_s, []
    if verdict.is_fair is not None:
        claim = (
            f"fair <= {ALONE_FACTOR} x alone + {RELEASE_INTERVALS} release intervals: "
            f"{verdict.flooded['fair'].mean_s:.3f} s <= {ALONE_FACTOR} x {alone_s:.3f} s + "
            f"{RELEASE_INTERVALS} x {verdict.release_interval_s:.3f} s = "
            f"{verdict.fair_bound_s:.3f} s"
        )
        lines.append(f"{claim}: {_word(verdict.is_fair)}")
    if verdict.is_fifo_slow is not None:
        claim = (
            f"fifo >= {FIFO_FACTOR} x alone: {verdict.flooded['fifo'].mean_s:.3f} s >= "
            f"{FIFO_FACTOR} x {alone_s:.3f} s = {FIFO_FACTOR * alone_s:.3f} s"
        )
        lines.append(f"{claim}: {_word(verdict.is_fifo_slow)}")
    return lines


def _word(is_true: bool) -> str:
    return "yes" if is_true else "NO"
