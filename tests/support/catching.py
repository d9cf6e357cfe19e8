"""What a planted fault is, and the tests that notice one: properties, days, single behaviours.

A test that no fault can fail protects nobody; here each invariant has a fault of its own, and so
has each module of the core that decides anything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.planting import fresh, planted

DAYS = 10
"""Busy days of the world that are looked through for a fault."""
QUIET = frozenset(
    {
        *("__init__", "explain", "invariants", "messages", "plain", "report"),
        *("snapshot", "snapshot_queue", "snapshot_replica"),
    }
)
"""Modules of the core that decide nothing."""

Test = Callable[[], object]


@dataclass(frozen=True)
class Mutation:
    """A fault, where it is planted, and the test that must fail then."""

    name: str
    file: str
    old: str
    new: str
    caught_by: Test

    def run(self) -> None:
        """Its test, over a core with the fault in it."""
        with planted(self.file, self.old, self.new):
            self.caught_by()


def days(first: int = 0) -> Test:
    """Busy days under all policies, beginning with the one that is known to show it."""

    def run() -> None:
        world = fresh("tests.support.world")
        for seed in (first, *range(DAYS)):
            world.long_run(seed)

    return run


def proven(module: str, test: str, **example: Any) -> Test:
    """One example of a property."""

    def run() -> None:
        found = getattr(fresh(f"tests.property.test_core_{module}"), test)
        found.hypothesis.inner_test(**example)

    return run


def unit(module: str, test: str, **example: Any) -> Test:
    """A test of a single behaviour."""
    return lambda: getattr(fresh(f"tests.unit.test_core_{module}"), test)(**example)


def drift(**changes: Any) -> Test:
    """Users that always have more, and their shares."""
    example: dict[str, Any] = {
        "slots": 2, "weights": [1.0, 2.0, 5.0], "sizes": [(400, 1), (1, 200), (20, 20)],
        "limit": None, "cost": "tokens", "within_user": "fcfs", "by_tenant": False, **changes,
    }  # fmt: skip
    test = "test_backlogged_users_never_drift_apart_by_more_than_the_bound"
    return proven("fairness", test, **example)


def settled(**changes: Any) -> Test:
    """One whose estimate was wrong."""
    example: dict[str, Any] = {
        "cost": "tokens", "order": "strict", "sequences": 1, "weight": 4.0, "produced": 900,
        "output": 1_000, **changes,
    }  # fmt: skip
    return proven("fairness", "test_in_the_end_everybody_has_been_charged_what_was_used", **example)


def blameless(cause: str, **changes: Any) -> Test:
    """One that ended by no fault of its own."""
    example: dict[str, Any] = {
        "cause": cause, "cost": "tokens", "order": "strict", "sequences": 1, "weight": 4.0,
        "produced": 0, **changes,
    }  # fmt: skip
    return proven("fairness", "test_what_is_our_fault_costs_its_user_nothing", **example)


def latecomer(**changes: Any) -> Test:
    """One who was away for a while."""
    example: dict[str, Any] = {
        "slots": 1, "alone": 20, "weight": 1.0, "was_here": True, "by_tenant": False, **changes,
    }  # fmt: skip
    return proven("fairness", "test_idle_time_earns_no_credit_and_costs_nothing", **example)


def floor() -> Test:
    """A lower tier under a saturating one."""
    test = "test_the_last_tier_waits_no_longer_than_its_floor_allows"
    return proven("fairness", test, slots=2, share=0.2, top=20, low=20)


def weighted() -> Test:
    """A lower tier with a weight of its own."""
    test = "test_a_weighted_tier_waits_no_longer_than_its_weight_allows"
    return proven("fairness", test, slots=2, weight=1.0, top=20, low=20)


def overtaken() -> Test:
    """Work beside a conversation that is always warm."""
    test = "test_a_cached_conversation_overtakes_for_a_bounded_time"
    return proven("fairness", test, prompt=2_000, blocks=3)


def gives_way(*tiers: int) -> Test:
    """Arrivals of those tiers at a full queue; the first of them is of the heavier flow."""
    sizes = (400, 400, 400, 5, 5, 5, 5, 5)
    come = [
        {
            "tier": tier, "tenant": "t", "user": "a" if size > 5 else "b", "prompt_tokens": size,
            "body_bytes": 0, "output_tokens_max": 10,
        }
        for tier, size in zip(tiers, sizes, strict=True)
    ]  # fmt: skip
    return proven("bounds", "test_the_heaviest_flow_of_the_lowest_tier_gives_way", come=come)


def bounded(whose: str, **fields: Any) -> Test:
    """More of one user than there is room for."""
    one = {
        "tier": 1, "tenant": "t", "user": "a", "prompt_tokens": 5, "body_bytes": 0,
        "output_tokens_max": 10, **fields,
    }  # fmt: skip
    test = "test_no_more_waits_of_anybody_than_there_is_room_for"
    return proven("bounds", test, come=[one] * 12, whose=whose, leave=[])


def no_freer(*, capacity: int | None) -> Test:
    """A replica with ever more to do."""

    def run() -> None:
        monotone, parts = fresh("tests.property.test_core_monotone"), fresh("tests.support.parts")
        replica = parts.a_replica(slots=4, tiers=4)
        if capacity is not None:
            parts.report(replica, now=1.0, running=0, waiting=0, kv_use=0.0,
                         kv_capacity_tokens=capacity)  # fmt: skip
        for number in range(8):
            monotone.assert_no_freer(
                replica, lambda each, id=f"q{number}": parts.put(each, id, prompt_tokens=100)
            )

    return run


def ceilings_fall() -> Test:
    """Tiers of which a lower one asks for more."""

    def run() -> None:
        monotone, parts = fresh("tests.property.test_core_monotone"), fresh("tests.support.parts")
        tiers = [monotone.Tier(name="any", queue_limit=limit) for limit in (1, 3, 2, 0)]
        policy = monotone.four_tiers(tiers=tuple(tiers), allowance="constant", headroom_max=0.0)
        replica = parts.a_replica(slots=1, tiers=4)
        parts.put_many(replica, 2)
        gates = monotone.gates_of(policy, is_active=[True] * 4)
        monotone.assert_ceilings_fall(gates, replica)

    return run
