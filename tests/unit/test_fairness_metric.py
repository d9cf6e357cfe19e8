"""Jain's index of a live queue: 1 where all who waited got the same for their weight."""

import pytest

from gateway.core.messages import (
    Arrived,
    Finished,
    Outcome,
    ReplicaFound,
    Request,
    Usage,
)
from gateway.core.policy import DEFAULT_TIERS, Policy, Tenant
from gateway.core.scheduler import Scheduler
from gateway.telemetry.fairness import SPAN_S, Evenness, jain
from tests.unit.test_metrics import Watched

STANDARD = "standard"


class Line:
    """One replica with one slot, and whoever waits for it."""

    def __init__(self, **tenants: float) -> None:
        weights = {name: Tenant(weight=weight) for name, weight in tenants.items()}
        self.scheduler = Scheduler(Policy(tiers=DEFAULT_TIERS, tenants=weights))
        self.evenness = Evenness()
        self.count = 0
        found = ReplicaFound(replica="r", models=frozenset({"m"}), slots=1)
        self.scheduler.handle(found, 0.0)

    def arrive(self, tenant: str, user: str = "u", count: int = 1) -> None:
        """Requests of a user."""
        for _ in range(count):
            self.count += 1
            request = Request(
                id=f"{self.count}", model="m", tier=2, tenant=tenant, user=user, arrived_at=0.0,
                prompt_tokens=100, output_tokens_max=10,
            )  # fmt: skip
            self.scheduler.handle(Arrived(request), 0.0)

    def serve(self, count: int, now: float) -> None:
        """So many end, and others take their places."""
        for _ in range(count):
            first = next(iter(self.scheduler.granted))
            usage = Usage(prompt_tokens=100, output_tokens=10, cached_tokens=0)
            self.scheduler.handle(Finished(first, Outcome.DONE, usage), now)

    def index(self, now: float) -> float:
        """Of the tier."""
        return self.evenness.by_tier(self.scheduler.policy, self.scheduler.pools, now)[STANDARD]


def test_jain_is_one_for_equals_and_a_share_for_one_alone() -> None:
    """The figure that everybody compares."""
    assert jain([3, 3, 3]) == pytest.approx(1.0)
    assert jain([4, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([]) == jain([0, 0]) == 1.0


def test_a_fair_queue_is_even_by_weight() -> None:
    """A tenant with twice the weight that gets twice as much is no injustice."""
    line = Line(big=2.0, small=1.0)
    line.arrive("big", count=60)
    line.arrive("small", count=60)
    assert line.index(0.0) == 1.0
    line.serve(45, 1.0)
    assert line.index(2.0) > 0.98


def test_users_of_one_tenant_are_compared_too() -> None:
    """Most intranets have one tenant."""
    line = Line()
    for user in ("a", "b", "c"):
        line.arrive("t", user, 40)
    line.index(0.0)
    line.serve(30, 1.0)
    assert line.index(2.0) > 0.98


def test_who_is_passed_over_is_seen() -> None:
    """A judge that calls everything even would be no judge."""
    line = Line()
    line.arrive("a", count=40)
    line.arrive("b", count=40)
    line.index(0.0)
    queue = line.scheduler.pools[0].queues[2]
    queue.tenants["a"].start += 5_000.0  # as if only one had been served
    assert line.index(2.0) == pytest.approx(0.5, abs=0.02)


def test_who_had_nothing_waiting_in_between_says_nothing() -> None:
    """Light users get less because they ask for less."""
    line = Line()
    line.arrive("a", count=40)
    line.arrive("b", count=2)
    line.index(0.0)
    line.serve(20, 1.0)
    line.arrive("b", count=5)
    assert line.index(2.0) == 1.0


def test_it_looks_back_between_one_span_and_two() -> None:
    """An injustice must show, and must not show for ever."""
    line = Line()
    line.arrive("a", count=40)
    line.arrive("b", count=40)
    line.index(0.0)
    line.scheduler.pools[0].queues[2].tenants["a"].start += 5_000.0
    assert line.index(SPAN_S) < 0.6
    assert line.index(2 * SPAN_S - 1.0) < 0.6
    assert line.index(2 * SPAN_S) < 0.6
    assert line.index(2 * SPAN_S + 1.0) == 1.0


def test_a_second_look_at_once_tells_the_same() -> None:
    """Two Prometheus servers, for safety, must not spoil each other's figures."""
    watched = Watched()
    watched.find("gpu0", slots=1)
    for n in range(9):
        watched.arrive(f"s{n}")
    first, second = watched.samples, watched.samples
    assert {name: first[name] for name in first if not name.startswith("process_")} == {
        name: second[name] for name in second if not name.startswith("process_")
    }
