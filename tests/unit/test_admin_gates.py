"""The gates as operators see them are the gates that the scheduler goes by."""

from dataclasses import replace

import pytest

from gateway.admin.explanations import WORDS
from gateway.admin.gates import GateView, gate_views
from gateway.core.explain import closed_by
from gateway.core.gate import Closed
from gateway.core.messages import Fault
from gateway.core.policy import Policy, Tier
from gateway.core.snapshot import snapshot
from tests.support.script import Script

TIERS = (
    Tier(name="high", queue_limit=2),
    Tier(name="mid", queue_limit=0),
    Tier(name="low", queue_limit=0, tpot_limit_ms=75),
)
POLICY = Policy(tiers=TIERS, headroom_max=0.2, warm_up_s=0.0, recall=False, hold_s=3_600.0)


def gates_of(script: Script, name: str = "r") -> list[GateView]:
    """As they are told now."""
    scheduler = script.scheduler
    return gate_views(
        scheduler.replicas[name], scheduler.pool_by_replica[name], script.now
    )  # fmt: skip


def shut(script: Script) -> list[str | None]:
    """What shuts each tier's gate."""
    return [each.closed_by for each in gates_of(script)]


def full(slots: int = 4, policy: Policy = POLICY) -> Script:
    """All slots are taken, and something of the lowest tier waits."""
    script = Script(policy).replica("r", slots=slots)
    for number in range(slots):
        script.arrive(f"a{number}", tier=0)
    return script.start_all().arrive("w", tier=2)


def test_an_empty_replica_is_open_to_all() -> None:
    """Whoever looks at an idle fleet must see green."""
    script = Script(POLICY).replica("r", slots=4)
    assert shut(script) == [None, None, None]
    assert [each.tier for each in gates_of(script)] == ["high", "mid", "low"]


def test_a_full_replica_says_so_to_those_that_may_not_queue() -> None:
    """`full` for one tier is still open for another, and that is what tiers are for."""
    assert shut(full()) == [None, Closed.QUEUE, Closed.QUEUE]


def test_headroom_is_told_with_the_slots_that_are_kept() -> None:
    """`Why does it not use the last two slots?`"""
    script = Script(POLICY).replica("r", slots=10)
    for number in range(8):
        script.arrive(f"a{number}", tier=0)
    script.start_all()
    views = gates_of(script)
    assert views[0].slots_away == 0
    assert views[2].slots_away >= 2
    assert views[2].closed_by == Closed.HEADROOM
    assert views[2].reason == WORDS[Closed.HEADROOM]


def test_drained_lost_and_tripped_replicas_are_shut_to_all() -> None:
    """The three that operators mix up most easily."""
    assert shut(full().drain("r")) == [Closed.UNUSABLE] * 3
    assert shut(full().lose("r")) == [Closed.UNUSABLE] * 3
    script = full()
    while script.scheduler.replicas["r"].circuit.lets(script.now):
        script.fail(next(iter(script.running)), Fault.REFUSED)
    assert shut(script) == [Closed.TRIPPED] * 3


def test_with_everything_released_at_once_nothing_is_shut() -> None:
    """`--policy fifo` has no gates."""
    script = full(policy=replace(POLICY, release_at_once=True))
    assert shut(script) == [None, None, None]


def test_the_engines_speed_shuts_the_tier_that_cannot_bear_it() -> None:
    """A slow replica takes the patient ones no longer."""
    script = Script(POLICY).replica("r", slots=64)
    for number in range(30):
        script.arrive(f"a{number}", tier=0)
    script.start_all()
    script.scheduler.replicas["r"].speed.take_tpot(0.1, 30.0, script.now)
    found = shut(script)
    assert found[:2] == [None, None]
    assert found[2] == Closed.SPEED


@pytest.mark.parametrize("slots", [1, 2, 5, 16])
@pytest.mark.parametrize("count", [0, 1, 3, 5, 12, 30])
def test_as_many_tiers_are_open_as_the_scheduler_has_open(slots: int, count: int) -> None:
    """A table that says open while nothing goes there sends people to look in the wrong place."""
    script = Script(POLICY).replica("r", slots=slots)
    for number in range(count):
        script.arrive(f"a{number}", tier=number % 3, tenant=f"t{number % 2}")
        script.start_all()
    pool, replica = script.scheduler.pools[0], script.scheduler.replicas["r"]
    found = shut(script)
    assert found == sorted(found, key=lambda each: each is not None), (
        "none is open below a shut one"
    )
    assert sum(each is None for each in found) == pool.open_tiers(replica, script.now)
    for waiting in script.scheduler.waiting.values():
        known = closed_by(pool, waiting, replica, script.now)
        gate = found[waiting.request.tier]
        assert gate == known or gate is None, "a request may be too large for an open gate"


def test_a_look_changes_nothing() -> None:
    """Whoever watches must not make the gateway decide otherwise."""
    script = full()
    before = snapshot(script.scheduler, script.now)
    gates_of(script)
    assert snapshot(script.scheduler, script.now) == before


def test_the_part_of_one_gateway_is_full_whatever_others_left_there() -> None:
    """A gateway that is on its own would show slots as free that it does not give out."""
    script = Script(replace(POLICY, tiers=TIERS[:1], sharers=2)).replica("r", slots=6)
    for _ in range(61):
        script.report("r", running=0, waiting=0)
    script.arrive_many("a", 3).start_all()
    for _ in range(3):
        script.report("r", running=5, waiting=0)
    assert script.scheduler.replicas["r"].foreign == 2
    script.now += 60.0
    assert shut(script) == [Closed.SHARE]
