"""The dispatchers that every load balancer has: where they send, and what failures do to them."""

from collections.abc import Callable

import pytest

from gateway.sim.baselines.fifo import Fifo
from gateway.sim.baselines.simple import LeastOutstanding, RoundRobin
from gateway.sim.world.dispatch import Dispatch
from gateway.sim.world.plan import Drain, Failure
from gateway.sim.world.play import play
from tests.support.worlds import Jobs, job, plan_of, statuses

EACH: list[Callable[[], Dispatch]] = [RoundRobin, LeastOutstanding, Fifo]


def test_turns_go_round() -> None:
    """The commonest balancer would favour a replica."""
    outcome = play(plan_of(3), Jobs([job(n, at=n / 1e4) for n in range(6)]), RoundRobin())
    assert sorted(outcome.replica) == [0, 0, 1, 1, 2, 2]


def test_the_fewest_outstanding_is_chosen_and_the_engine_queues() -> None:
    """The contrast to fair queues would not be the usual one."""
    jobs = [job(0, output=50), *(job(n, at=n / 1e4, output=2) for n in range(1, 8))]
    outcome = play(plan_of(2, slots=1), Jobs(jobs), LeastOutstanding())
    assert list(outcome.replica) == [0, 1] * 4
    assert all(outcome.wait_s(row) == 0 for row in range(8))


def test_a_central_queue_holds_what_has_no_slot() -> None:
    """Late binding alone could not be told from fairness."""
    jobs = [job(0, output=50), *(job(n, at=n / 1e4, output=2) for n in range(1, 8))]
    outcome = play(plan_of(2, slots=1), Jobs(jobs), Fifo())
    assert list(outcome.replica) == [0] + [1] * 7
    assert outcome.wait_s(7) > outcome.wait_s(2) > 0
    starts = [outcome.first[row] for row in range(8)]
    assert starts == sorted(starts)


def test_a_bounded_queue_refuses_the_newest() -> None:
    """A queue that nobody bounds would make every percentile depend on the length of the run."""
    jobs = [job(n, at=n / 1e4, output=50) for n in range(4)]
    outcome = play(plan_of(1, slots=1), Jobs(jobs), Fifo(waiting_max=2))
    assert statuses(outcome.status) == ["DONE", "DONE", "DONE", "REFUSED"]


@pytest.mark.parametrize("make", EACH)
def test_a_lost_replica_is_left_out_until_it_is_back(make: Callable[[], Dispatch]) -> None:
    """Half of all requests would be sent into the void."""
    plan = plan_of(2, events=(Failure(replica=0, at=0.5, until=2.0),))
    jobs = [job(n, at=0.1 * n, output=4) for n in range(40)]
    outcome = play(plan, Jobs(jobs), make())
    assert set(statuses(outcome.status)) == {"DONE"}
    assert {outcome.replica[row] for row in range(6, 20)} == {1}
    assert 0 in {outcome.replica[row] for row in range(21, 40)}


@pytest.mark.parametrize("make", EACH)
def test_what_finds_no_replica_waits_for_one(make: Callable[[], Dispatch]) -> None:
    """A restart of everything would lose what came meanwhile."""
    plan = plan_of(1, events=(Failure(replica=0, at=0.01, until=2.0),))
    jobs = [job(0, output=9), job(1, at=1.0), job(2, at=1.0, leaves_at=1.5)]
    outcome = play(plan, Jobs(jobs), make())
    assert statuses(outcome.status) == ["DONE", "DONE", "LEFT"]


@pytest.mark.parametrize("make", EACH)
def test_nothing_new_goes_to_a_draining_replica(make: Callable[[], Dispatch]) -> None:
    """A drain would never end."""
    plan = plan_of(2, events=(Drain(replica=1, at=0.0, until=1.0),))
    jobs = [job(n, at=0.1 + n / 1e4) for n in range(6)]
    outcome = play(plan, Jobs(jobs), make())
    assert set(outcome.replica) == {0}
