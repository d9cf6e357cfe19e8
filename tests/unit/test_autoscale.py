"""When a replica is drained because fewer are advised, and when one is used again."""

import pytest

from gateway.admin.autoscale import Patience, PoolSeen, Rules, Seen, Step, released

RULES = Rules(after_s=300.0, replicas_min=1)
KEY = frozenset({"m"})


def seen(name: str, *, models: str = "m", running: int = 0, resting: bool = False) -> Seen:
    """One replica."""
    return Seen(
        name=name, models=frozenset(models), is_usable=not resting, is_resting=resting,
        running=running,
    )  # fmt: skip


def pool(advised: int | None, *replicas: Seen, waits: bool = False) -> PoolSeen:
    """One pool."""
    return PoolSeen(key=KEY, advised=advised, has_waiting=waits, replicas=replicas)


def test_fewer_for_long_enough_drains_the_least_busy() -> None:
    """A dip between two meetings must not cost the caches of an engine."""
    patience = Patience()
    many = pool(1, seen("a", running=2), seen("b", running=1), seen("c", running=1))
    assert patience.steps([many], RULES, 0.0) == []
    assert patience.steps([many], RULES, 299.0) == []
    assert patience.steps([many], RULES, 300.0) == [Step("drain", "b")]
    assert patience.steps([many], RULES, 301.0) == [], "one at a time, each after as long"


@pytest.mark.parametrize(
    "break_", [pool(2, seen("a"), seen("b")), pool(1, seen("a"), seen("b"), waits=True)]
)
def test_any_break_begins_the_waiting_anew(break_: PoolSeen) -> None:
    """Load that comes back every minute keeps its replicas."""
    patience, many = Patience(), pool(1, seen("a"), seen("b"))
    patience.steps([many], RULES, 0.0)
    assert patience.steps([break_], RULES, 299.0) == []
    assert patience.steps([many], RULES, 300.0) == []
    assert patience.steps([many], RULES, 600.0) == [Step("drain", "a")]


def test_never_below_the_minimum() -> None:
    """Advice of none at night must not leave the first one in the morning without an engine."""
    patience, two = Patience(), Rules(after_s=0.0, replicas_min=2)
    assert patience.steps([pool(0, seen("a"), seen("b"))], two, 0.0) == []
    assert patience.steps([pool(0, seen("a"))], Rules(after_s=0.0, replicas_min=1), 9.0) == []
    alone = pool(1, seen("a"), seen("b", resting=True))
    assert patience.steps([alone], two, 1.0) == [Step("undrain", "b")], "and back up to it"


def test_the_only_one_with_a_model_stays() -> None:
    """An adapter that one replica has would be gone with it."""
    patience, now = Patience(), Rules(after_s=0.0, replicas_min=1)
    mixed = pool(1, seen("a", models="mx"), seen("b", models="m", running=3))
    assert patience.steps([mixed], now, 0.0) == [Step("drain", "b")]
    apart = pool(1, seen("a", models="x"), seen("b", models="m"))
    assert patience.steps([apart], now, 1.0) == []


def test_more_is_done_at_once_and_for_as_many_as_are_missing() -> None:
    """Who waits does not wait for a cool-down too."""
    resting = [seen(name, resting=True) for name in "bcd"]
    steps = Patience().steps([pool(3, seen("a"), *resting)], RULES, 0.0)
    assert steps == [Step("undrain", "b"), Step("undrain", "c")]


def test_without_advice_nothing_is_done() -> None:
    """A scheduler that has just started knows nothing yet."""
    patience = Patience()
    for now in (0.0, 1_000.0):
        assert patience.steps([pool(None, seen("a"), seen("b"))], RULES, now) == []


def test_a_pool_that_is_led_elsewhere_is_forgotten() -> None:
    """Who leads again after an hour has not watched it for an hour."""
    patience, many = Patience(), pool(1, seen("a"), seen("b"))
    patience.steps([many], RULES, 0.0)
    patience.steps([], RULES, 100.0)
    assert patience.steps([many], RULES, 400.0) == []


def test_switched_off_it_gives_back_what_it_took() -> None:
    """An engine that rests for a setting that is gone would rest for ever."""
    pools = [pool(1, seen("a"), seen("b", resting=True))]
    assert released(pools) == [Step("undrain", "b")]
