"""Whether traffic should come here, and what an operator should know if not."""

import pytest

from gateway.api.readiness import readiness
from gateway.core.messages import (
    Arrived,
    Closed,
    DrainAsked,
    Event,
    ReplicaFound,
    ReplicaLost,
    ReplicaReported,
    Request,
)
from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.core.report import ReplicaReport
from gateway.core.scheduler import Scheduler
from gateway.upstream.replicas import ReplicaStatus

FOUND = ReplicaFound(replica="gpu0", models=frozenset({"b", "a"}), slots=1)
UP = ReplicaStatus(up=True, engine="vllm", models={"b": 1, "a": None}, missing=("vllm:x",))


def scheduler_after(*events: Event) -> Scheduler:
    """A scheduler that was told these at instant 10."""
    scheduler = Scheduler(Policy(tiers=DEFAULT_TIERS))
    for event in events:
        scheduler.handle(event, 10.0)
    return scheduler


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((), "no replica answers"),
        ((FOUND,), None),
        ((FOUND, ReplicaLost("gpu0")), "no replica answers"),
        ((FOUND, ReplicaLost("gpu0"), FOUND), None),
        ((FOUND, DrainAsked("gpu0")), "no replica answers"),
        ((FOUND, Closed()), "shutting down"),
        ((Closed(),), "shutting down"),
    ],
)
def test_ready_means_that_a_request_could_be_served(
    events: tuple[Event, ...], reason: str | None
) -> None:
    """A load balancer sends traffic by this; a restart for its own sake would be worse."""
    answer = readiness(scheduler_after(*events), {}, 10.0)
    assert answer.reason == reason
    assert answer.ready is (reason is None)


def test_each_replica_is_described_by_what_its_probe_and_the_scheduler_know() -> None:
    """The first page that an operator opens when something is slow."""
    report = ReplicaReported(replica="gpu0", sent_at=10.0, report=ReplicaReport(running=0))
    lost = ReplicaStatus(up=False, last_error="GET /metrics: connection refused")
    statuses = {"gpu0": UP, "gpu1": lost}
    answer = readiness(scheduler_after(FOUND, report), statuses, 12.5)
    found = answer.replicas["gpu0"]
    assert (found.up, found.engine, found.models, found.slots) == (True, "vllm", ("a", "b"), 1)
    assert (found.report_age_s, found.is_draining, found.error) == (2.5, False, None)
    assert found.missing_metrics == ("vllm:x",)
    unknown = answer.replicas["gpu1"]
    assert (unknown.up, unknown.slots, unknown.report_age_s) == (False, None, None)
    assert unknown.error == "GET /metrics: connection refused"


def test_it_counts_what_waits_and_what_runs() -> None:
    """Whether a drain is over is read here."""
    arrivals = [
        Arrived(Request(id=f"r{n}", model="a", tier=3, tenant="t", user="u", arrived_at=10.0))
        for n in range(3)
    ]
    answer = readiness(scheduler_after(FOUND, *arrivals), {}, 10.0)
    assert (answer.granted, answer.waiting) == (1, 2)
