"""A fleet that follows advice: late, within its bounds, and never at the cost of a request."""

from dataclasses import replace

from gateway.core.policy import Scaling
from gateway.sim.experiments.elastic import Elastic
from gateway.sim.experiments.setting import policy_of
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.play import play
from tests.support.worlds import Jobs, job, plan_of, statuses

SCALING = Scaling(min=1, max=3, hold_s=1.0, cooldown_s=2.0)


def elastic(start_s: float) -> Elastic:
    """One replica at first."""
    gateway = Fairgate(replace(policy_of(1), scaling=SCALING))
    return Elastic(gateway, begin_with=1, start_s=start_s)


def flood_and_quiet() -> Jobs:
    """Far too much for one replica, then hardly anything."""
    flood = [job(number, at=number / 40, output=60) for number in range(400)]
    quiet = [job(400 + number, at=30.0 + 2 * number, output=5) for number in range(30)]
    return Jobs([*flood, *quiet])


def test_replicas_come_late_and_go_when_they_are_empty() -> None:
    """Advice that nobody can follow helps nobody."""
    dispatch = elastic(start_s=3.0)
    outcome = play(plan_of(3), flood_and_quiet(), dispatch)
    dispatch.close(outcome.lasted_s)
    assert set(statuses(outcome.status)) == {"DONE"}
    assert dispatch.most > 1
    first = min(outcome.sent[row] for row in range(outcome.n) if outcome.replica[row] == 1)
    advised = next(at for at, replicas in dispatch.gateway.advice if replicas > 1)
    assert first >= advised + 3.0
    assert outcome.lasted_s < dispatch.replica_s < dispatch.most * outcome.lasted_s


def test_a_slow_start_makes_requests_wait() -> None:
    """The delay would be for show."""
    waits = []
    for start_s in (0.0, 10.0):
        outcome = play(plan_of(3), flood_and_quiet(), elastic(start_s))
        waits.append(outcome.mean(outcome.ttft_s))
    assert waits[0] < waits[1]
