"""What a replica's death costs: answers that break off and go on elsewhere, or do not.

One of four replicas dies under load and is back empty later. Requests that had no token yet are
sent again by every dispatcher; those that had go on where the plan continues them.
"""

from dataclasses import replace

from gateway.sim.experiments.measures import by_tier, distributions
from gateway.sim.experiments.report import Measured, Row
from gateway.sim.experiments.setting import FAIRGATE, dispatcher, served_by
from gateway.sim.experiments.tiered import FCFS, Load
from gateway.sim.world.plan import Failure
from gateway.sim.world.play import play


class FailoverKnobs(Load, frozen=True, kw_only=True):
    """See `failover`."""

    rate_per_s: float = 350.0
    dies_at_s: float = 5.0
    away_s: float = 8.0
    dispatchers: tuple[str, ...] = (FCFS, "fifo", FAIRGATE)


def failover_points(knobs: FailoverKnobs) -> list[Row]:
    """Each dispatcher, with answers that go on and with answers that do not."""
    return [
        {"dispatcher": name, "continued": word}
        for name in knobs.dispatchers
        for word in ("yes", "no")
    ]


def failover(knobs: FailoverKnobs, point: Row, seed: int) -> Measured:
    """One run."""
    name, goes_on = str(point["dispatcher"]), point["continued"] == "yes"
    policy = knobs.policy()
    tiers = tuple(replace(tier, continuation=goes_on) for tier in policy.tiers)
    dies = Failure(replica=0, at=knobs.dies_at_s, until=knobs.dies_at_s + knobs.away_s)
    plan = replace(knobs.plan(), events=(dies,), is_continued=goes_on)
    dispatch = dispatcher(name, knobs.tiers, replace(policy, tiers=tiers))
    outcome = play(served_by(name, plan), knobs.source(seed), dispatch)
    counted = outcome.counted()
    twice = sum(attempts > 1 for attempts in outcome.attempts)
    figures: Row = {
        "failed": counted["failed"],
        "refused": counted["refused"],
        "sent again": twice,
        **by_tier(outcome, knobs.tiers),
    }
    case = f"{name}, {'continued' if goes_on else 'not continued'}"
    return Measured(figures=figures, distributions=distributions(outcome, case, knobs.tiers))
