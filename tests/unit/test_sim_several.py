"""Several gateways before one fleet: who hears what, and what each knows of the others."""

import pytest

from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.sim.world.dispatch import Decisions, Wake
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.plan import Failure, Reports
from gateway.sim.world.play import play
from gateway.sim.world.several import Several
from tests.support.worlds import Jobs, Scripted, job, plan_of, statuses

POLICY = Policy(tiers=DEFAULT_TIERS, warm_up_s=0.0)


def test_clients_reach_the_gateways_in_turn_and_each_hears_of_its_own() -> None:
    """A gateway would be told of requests that it never saw."""
    gateways = [Scripted(), Scripted()]
    play(plan_of(), Jobs([job(n, at=0.01 * n) for n in range(4)]), Several(gateways))
    for index, gateway in enumerate(gateways):
        mine = [index, index + 2]
        for kind in ("arrived", "first", "ended"):
            assert gateway.what(kind) == [(kind, number) for number in mine]


def test_all_hear_of_the_replicas() -> None:
    """One of them would send into the void."""
    gateways = [Scripted(), Scripted()]
    plan = plan_of(2, events=(Failure(replica=1, at=0.1, until=1.0),))
    play(plan, Jobs([job(0), job(1, at=2.0)]), Several(gateways))
    for gateway in gateways:
        assert gateway.what("lost", "back") == [("lost", 1), ("back", 1)]


def test_each_is_woken_when_it_wanted() -> None:
    """The wish of one would replace that of another, which then sleeps for ever."""

    class Sleepy(Scripted):
        def begin(self, *told: object) -> Decisions:
            return (Wake(self.first_at),)

        first_at = 0.0

    gateways = [Sleepy(), Sleepy(), Sleepy()]
    for at, gateway in zip((0.3, 0.1, 0.2), gateways, strict=True):
        gateway.first_at = at
    play(plan_of(), Jobs([job(0, at=1.0)]), Several(gateways))
    assert [[at for at, kind, _, _ in each.heard if kind == "tick"] for each in gateways] == [
        [0.3],
        [0.1],
        [0.2],
    ]


def test_the_others_are_known_as_load_that_the_gauges_show() -> None:
    """Two gateways would fill the same slots twice over, or see what no gateway sees."""
    gateways = [Fairgate(POLICY), Fairgate(POLICY)]
    seen: list[int] = []

    class Watched(Several):
        def tick(self, now: float) -> Decisions:
            (replica,) = gateways[1].scheduler.replicas.values()
            seen.append(replica.foreign)
            return super().tick(now)

    jobs = [job(n, at=0.01 * n, output=400) for n in range(24)]
    plan = plan_of(1, slots=8, reports=Reports(interval_s=0.2))
    outcome = play(plan, Jobs(jobs), Watched(gateways))
    assert statuses(outcome.status) == ["DONE"] * 24
    assert max(seen) >= 4


def test_each_may_miss_a_report() -> None:
    """A lossy network would lose for all at once."""
    gateways = [Scripted(), Scripted()]
    plan = plan_of(reports=Reports(interval_s=0.01))
    play(plan, Jobs([job(0, output=100)]), Several(gateways, loss=0.5, seed=3))
    times = [{at for at, _, _ in gateway.reports} for gateway in gateways]
    assert all(30 < len(each) < 70 for each in times)
    assert times[0] != times[1]


def test_there_must_be_one() -> None:
    """A mistake in a plan would be a division by zero."""
    with pytest.raises(ValueError, match="must be a gateway"):
        Several([])
