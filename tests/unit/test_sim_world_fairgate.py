"""The gateway's scheduler in a simulated world hears what the gateway says, and nothing more."""

from dataclasses import replace
from typing import TypeVar

import pytest

from gateway.core import invariants
from gateway.core.messages import (
    Arrived,
    DrainAsked,
    Event,
    Fault,
    Finished,
    FirstToken,
    Outcome,
    Progressed,
    RecallDone,
    ReplicaFound,
    ReplicaLost,
    ReplicaReported,
    Request,
    Usage,
)
from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Decisions
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.plan import Drain, Failure, Plan, Reports
from gateway.sim.world.play import play
from tests.support.worlds import STEP_MS, Jobs, job, plan_of, statuses

Kind = TypeVar("Kind")

POLICY = Policy(
    tiers=tuple(replace(tier, continuation=True) for tier in DEFAULT_TIERS), warm_up_s=0.0
)


class Overheard(Fairgate):
    """Writes down all that the scheduler is told."""

    def __init__(self, policy: Policy = POLICY) -> None:
        super().__init__(policy)
        self.events: list[Event] = []

    def _tell(self, event: Event, now: float) -> Decisions:  # type: ignore[override]  # a list in any case
        self.events.append(event)
        return super()._tell(event, now)

    def heard(self, kind: type[Kind]) -> list[Kind]:
        """All events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def run(jobs: list[Job], plan: Plan | None = None, policy: Policy = POLICY) -> Overheard:
    """One run to its end; the scheduler's books are right after it, and empty."""
    dispatch = Overheard(policy)
    outcome = play(plan or plan_of(2), Jobs(jobs), dispatch)
    invariants.check(dispatch.scheduler)
    assert not dispatch.scheduler.granted
    assert not dispatch.scheduler.waiting
    assert not dispatch._held
    assert not dispatch._number
    dispatch.statuses = statuses(outcome.status)  # type: ignore[attr-defined]  # for the tests
    return dispatch


def test_an_ordinary_request_is_told_as_the_gateway_tells_it() -> None:
    """The laboratory would judge another scheduler than the one that runs."""
    dispatch = run(
        [job(0, at=0.5, prompt=200, output=100, tier=1, tenant="t", user="u", session="s")]
    )
    assert [type(event) for event in dispatch.events if not isinstance(event, ReplicaReported)] == [
        ReplicaFound, ReplicaFound, Arrived, FirstToken, Progressed, Finished,
    ]  # fmt: skip
    (request,) = [event.request for event in dispatch.heard(Arrived)]
    assert (request.tier, request.tenant, request.user, request.session) == (1, "t", "u", "s")
    assert request.body_bytes == 800
    assert request.streams
    assert request.is_continuable
    (progressed,) = dispatch.heard(Progressed)
    assert 40 < progressed.output_tokens[request.id] < 60
    (finished,) = dispatch.heard(Finished)
    assert finished.outcome is Outcome.DONE
    assert isinstance(finished.usage, Usage)
    assert (finished.usage.prompt_tokens, finished.usage.output_tokens) == (200, 100)
    assert finished.tpot_s == pytest.approx(STEP_MS / 1000)


@pytest.mark.sources
def test_the_scheduler_never_learns_a_length_in_advance() -> None:
    """Every figure would be that of an oracle."""
    short = run([job(0, output=7)]).heard(Arrived)[0].request
    long = run([job(0, output=700)]).heard(Arrived)[0].request
    assert {name: getattr(short, name) for name in Request.__slots__} == {
        name: getattr(long, name) for name in Request.__slots__
    }
    assert short.prompt_tokens is None
    assert short.output_tokens_max is None


def test_what_the_client_says_of_its_length_is_told() -> None:
    """`max_tokens` would help the real scheduler and not the simulated one."""
    request = run([job(0, output=7, output_tokens_max=64)]).heard(Arrived)[0].request
    assert request.output_tokens_max == 64


def test_prefixes_of_a_trace_are_equal_where_they_were() -> None:
    """Affinity would send requests of one conversation anywhere."""
    jobs = [
        job(0, prompt=1100, prefix=(5, 6, 9)),
        job(1, at=1.0, prompt=1100, prefix=(5, 6, 7)),
    ]
    one, other = (event.request.prefix for event in run(jobs).heard(Arrived))
    assert len(one) == 1100 // 64
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * 16 + [False]


def test_a_client_that_leaves_is_told_with_what_it_had() -> None:
    """Cancelling would be free prefill."""
    dispatch = run([job(0, output=100, leaves_at=0.205)])
    (finished,) = dispatch.heard(Finished)
    assert finished.outcome is Outcome.CANCELLED
    assert finished.usage is not None
    assert finished.usage.output_tokens == 20
    (finished,) = run([job(0, output=100, leaves_at=0.005)]).heard(Finished)
    assert (finished.outcome, finished.usage) == (Outcome.CANCELLED, None)


def test_a_broken_answer_goes_on_under_another_id() -> None:
    """Failover in the laboratory would not be the gateway's."""
    plan = plan_of(2, events=(Failure(replica=0, at=0.105, until=2.0),))
    dispatch = run([job(0, output=30), job(1, at=3.0)], plan)
    first, rest, _ = (event.request for event in dispatch.heard(Arrived))
    assert first.id != rest.id
    assert rest.is_continuation
    assert rest.prompt_tokens == 20
    assert rest.arrived_at == pytest.approx(0.106)
    assert rest.excluded == {"replica-000"}
    broke, done, _ = dispatch.heard(Finished)
    assert (broke.outcome, broke.fault, broke.goes_on) == (
        Outcome.FAILED, Fault.BROKE_OFF, True
    )  # fmt: skip
    assert broke.usage is not None
    assert done.usage is not None
    assert broke.usage.output_tokens + done.usage.output_tokens == 30
    assert [event.replica for event in dispatch.heard(ReplicaLost)] == ["replica-000"]
    assert len(dispatch.heard(ReplicaFound)) == 3


def test_what_finds_no_replica_looks_again_until_one_is_back() -> None:
    """A single replica that restarts would lose everything that it held."""
    plan = plan_of(1, events=(Failure(replica=0, at=0.105, until=3.0),))
    dispatch = run([job(0, output=30)], plan)
    assert dispatch.statuses == ["DONE"]  # type: ignore[attr-defined]  # see `run`


def test_what_finds_no_replica_in_time_fails() -> None:
    """A run without replicas would never end."""
    plan = plan_of(1, events=(Failure(replica=0, at=0.105, until=1e4),))
    policy = replace(POLICY, continuation_wait_s=5.0)
    dispatch = run([job(0, output=30)], plan, policy)
    assert dispatch.statuses == ["FAILED"]  # type: ignore[attr-defined]  # see `run`


def test_draining_and_moving_running_requests_come_from_the_policy() -> None:
    """A drain in the laboratory would wait for answers that the gateway moves."""
    plan = plan_of(
        2,
        events=(Drain(replica=0, at=0.5, until=5.0),),
        reports=Reports(interval_s=0.2),
        profile=plan_of().engines[0].profile,
    )
    dispatch = run([job(0, output=300)], plan, replace(POLICY, migrate_running="drain"))
    assert [event.draining for event in dispatch.heard(DrainAsked)] == [True]
    moved, done = dispatch.heard(Finished)
    assert moved.outcome is Outcome.CANCELLED
    assert moved.usage is not None
    assert done.usage is not None
    assert moved.usage.output_tokens + done.usage.output_tokens == 300


def test_what_waits_in_a_busy_engine_is_recalled_for_a_free_one() -> None:
    """Queued migration would be something that only the paper has."""
    jobs = [job(number, at=0.001 * number, output=60 if number % 2 else 6) for number in range(12)]
    tiers = tuple(replace(tier, queue_limit=4) for tier in POLICY.tiers)
    policy = replace(POLICY, tiers=tiers, allowance="constant", headroom_max=0.0)
    dispatch = run(jobs, plan_of(2, slots=2, reports=Reports(interval_s=0.1)), policy)
    assert dispatch.heard(RecallDone)


def test_progress_is_not_told_of_whoever_just_left() -> None:
    """A run would end with an error where a client gives up within a hop of the telling."""
    plan = replace(plan_of(), progress_interval_s=1.0)
    jobs = [job(0, output=500, leaves_at=0.9995), job(1, output=200)]
    outcome = play(plan, Jobs(jobs), Fairgate(POLICY))
    assert outcome.counted()["left"] == 1
