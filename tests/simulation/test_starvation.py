"""The last tier under a tier 0 that wants everything: its floor, and how long it waits at most."""

from dataclasses import dataclass, replace
from functools import cache

from gateway.core.policy import Policy, Tier
from tests.simulation import policies, scenarios
from tests.simulation.fleet import figures
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.job import Job
from tests.simulation.fleet.scrapes import Wires
from tests.simulation.fleet.workload import Asking, arrive, chat, fixed, keep_asking

LAST = 3
FLOOR = 0.02
FROM_S, UNTIL_S = 20, 150
HEAD = (100, 50)


def shut() -> Policy:
    """Only tier 0 may ever go by its own gates: for the others every engine is too slow."""
    tiers = policies.patient(tpot_limit_ms=1.0)
    return policies.gated(tiers=(policies.patient()[0], *tiers[1:]))


def saturated(policy: Policy) -> Fleet:
    """Tier 0 always has more than the fleet can do."""
    fleet = Fleet(policy, scenarios.pair(), Wires(late_s=1.0))
    keep_asking(fleet, Asking(user="first", says_max=True), chat, depth=64, seed=2)
    return fleet


def is_last(job: Job) -> bool:
    """Whether it is of the last tier."""
    return job.request.tier == LAST


@cache
def a_few_of_the_last() -> Fleet:
    """The last tier asks for less than its floor."""
    fleet = saturated(shut())
    asking = Asking(user="last", tier=LAST, says_max=True)
    arrive(fleet, asking, fixed(*HEAD), per_s=0.4, seed=4, until_s=150.0)
    fleet.run(200.0)
    return fleet


@dataclass(frozen=True, slots=True)
class Wait:
    """How long one request of the last tier waited, and how long it may, in seconds."""

    wait_s: float
    bound_s: float


def waits(fleet: Fleet) -> list[Wait]:
    """head cost / (min_share x rate) + one service time + work ahead in its own flow."""
    jobs = [job for job in fleet.jobs.values() if is_last(job)]
    floor_per_s = FLOOR * rate(fleet)
    service_s = max(
        job.ended_at - job.granted_at
        for job in fleet.jobs.values()
        if job.ended_at is not None and job.granted_at is not None
    )
    found = []
    for job in jobs:
        came = job.request.arrived_at
        ahead = sum(
            other.cost
            for other in jobs
            if other.request.arrived_at < came
            and (other.granted_at is None or other.granted_at > came)
        )
        wait_s = fleet.now - came if job.wait_s is None else job.wait_s
        found.append(Wait(wait_s, (job.cost + ahead) / floor_per_s + service_s))
    return found


def rate(fleet: Fleet) -> float:
    """Cost that the fleet served in a second, all tiers."""
    return sum(figures.served_by(fleet, figures.user_of).values()) / fleet.now


def test_the_longest_wait_of_the_last_tier_is_within_the_stated_bound() -> None:
    """The batch job of the night: it may be last, not forgotten."""
    found = waits(a_few_of_the_last())
    assert len(found) > 40
    assert [wait for wait in found if wait.wait_s > wait.bound_s] == []


def test_a_backlogged_last_tier_gets_its_floor_and_no_more() -> None:
    """Neither the batch job nor the critical tier pays for the other."""
    fleet = saturated(shut())
    asking = Asking(user="last", tier=LAST, says_max=True)
    keep_asking(fleet, asking, fixed(*HEAD), depth=50)
    served = figures.served_between(fleet, figures.tier_of, FROM_S, UNTIL_S)
    share = served[str(LAST)] / sum(served.values())
    assert 0.9 * FLOOR <= share <= 1.5 * FLOOR


def test_every_tier_below_the_first_gets_its_floor() -> None:
    """Three tiers starve as easily as one."""
    fleet = saturated(shut())
    for tier in (1, 2, 3):
        asking = Asking(user=f"t{tier}", tier=tier, says_max=True)
        keep_asking(fleet, asking, fixed(*HEAD), depth=50)
    served = figures.served_between(fleet, figures.tier_of, FROM_S, UNTIL_S)
    for tier in (1, 2, 3):
        assert served[str(tier)] >= 0.85 * FLOOR * sum(served.values())


def test_without_a_floor_the_last_tier_gets_nothing() -> None:
    """The floor must be what serves it, not a gate that leaks."""
    tiers: tuple[Tier, ...] = tuple(replace(tier, min_share=0.0) for tier in shut().tiers)
    fleet = saturated(replace(shut(), tiers=tiers))
    fleet.run(10.0)
    keep_asking(fleet, Asking(user="last", tier=LAST), fixed(*HEAD), depth=5, from_s=10.0)
    fleet.run(90.0)
    assert not any(job.granted_at for job in fleet.jobs.values() if is_last(job))
