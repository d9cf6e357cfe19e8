"""What waits inside a busy engine is taken back while another is free: once, and nothing twice."""

from functools import cache
from itertools import pairwise

from tests.simulation import policies, scenarios
from tests.simulation.fleet import figures
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.job import Job, Size
from tests.simulation.fleet.scrapes import Wires
from tests.simulation.fleet.workload import Asking, arrive, chat, fixed, keep_asking

UNTIL_S = 120.0


@cache
def intruded(*, recall: bool) -> Fleet:
    """Again and again somebody fills replica `a` past the gateway, for five seconds."""
    policy = policies.gated(tiers=policies.one_tier(), recall=recall)
    fleet = Fleet(policy, scenarios.pair(slots=4), Wires(late_s=1.0))
    arrive(fleet, Asking(), fixed(100, 40), per_s=8.0, seed=1, until_s=UNTIL_S - 20.0)

    def fill() -> None:
        for _ in range(8):
            fleet.send_foreign("a", Size(50, 500))

    for turn in range(5):
        fleet.clock.at(10.0 + 18.0 * turn, fill)
    fleet.run(UNTIL_S)
    return fleet


def test_queued_work_moves_to_the_freer_replica_once() -> None:
    """Who was let go a moment before somebody else filled that engine."""
    fleet = intruded(recall=True)
    assert fleet.moved > 0
    for job in fleet.jobs.values():
        assert len(job.recalled_at) <= 1
        assert len(job.replicas) <= 2
        assert job.produced == job.size.output_tokens


def test_moving_makes_the_slowest_faster() -> None:
    """It must be worth its traffic."""
    tails_s = [
        figures.percentile(figures.ttfts_s(intruded(recall=recall), is_any, 5.0, 100.0), 0.98)
        for recall in (True, False)
    ]
    assert tails_s[0] < tails_s[1]


def test_no_replica_is_asked_for_more_than_ten_recalls_a_second() -> None:
    """A storm of recalls would be worse than the wait it saves."""
    fleet = intruded(recall=True)
    by_replica: dict[str, list[float]] = {"a": [], "b": []}
    for job in fleet.jobs.values():
        for number, instant in enumerate(job.recalled_at):
            by_replica[job.replicas[number]].append(instant)
    for instants in by_replica.values():
        instants.sort()
        for earlier, later in pairwise(instants):
            assert later - earlier >= 0.1 - 1e-9


def test_a_higher_tier_takes_the_place_of_what_has_not_begun() -> None:
    """Critical must not stand behind what standard was allowed to queue."""
    fleet = Fleet(policies.gated(), scenarios.pair(slots=64)[:1], Wires(hop_s=0.05, late_s=1.0))
    keep_asking(fleet, Asking(user="bulk", tier=2), chat, depth=200)
    arrive(fleet, Asking(user="first"), fixed(50, 20), per_s=2.0, seed=5, until_s=50.0)
    fleet.run(60.0)
    waits_s = figures.waits_s(fleet, lambda job: job.request.tier == 0, 15.0, 50.0)
    assert figures.percentile(waits_s, 0.95) < 0.5
    assert all(len(job.recalled_at) <= 1 for job in fleet.jobs.values())
    assert not any(job.recalled_at for job in fleet.jobs.values() if job.request.tier == 0)


def is_any(job: Job) -> bool:
    """Whoever sent it."""
    return True
