"""Any order of events under any policy: what must hold holds after each of them.

Conservation, the books, capacity at every grant, no barging, per-user order, work conservation,
patience, recalls, promotions, scaling within its bounds, and the same decisions for the same
events; all judged by brute force.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.support import world as w
from tests.support.knobs import KNOBS
from tests.support.script import Script, one_tier

STEP = st.tuples(
    st.sampled_from(w.WORK),
    st.integers(0, 1_000),
    st.sampled_from(w.OUTCOMES),
    st.sampled_from(w.TPOTS_S),
)
SHAPE = st.fixed_dictionaries({name: st.sampled_from(each) for name, each in w.SHAPE.items()})
REPLICA = st.sampled_from(sorted(w.REPLICAS))
POLICY = st.fixed_dictionaries({name: st.sampled_from(each) for name, each in KNOBS.items()})


class Core(RuleBasedStateMachine):
    """Hypothesis plays fate."""

    world: w.World | None = None

    @initialize(knobs=POLICY)
    def start(self, knobs: dict[str, Any]) -> None:
        self.world = w.World(knobs)

    @property
    def here(self) -> w.World:
        assert self.world is not None
        return self.world

    @rule(
        shape=SHAPE,
        tier=st.integers(0, 3),
        who=st.sampled_from(w.USERS),
        age_s=st.sampled_from([0.0, 0.0, 4.0]),
        times=st.integers(1, 5),
    )
    def arrive(
        self, *, shape: dict[str, Any], tier: int, who: str, age_s: float, times: int
    ) -> None:
        self.here.arrive(shape, tier=tier, who=who, age_s=age_s, times=times)

    @rule(steps=st.lists(STEP, min_size=1, max_size=8))
    def work(self, steps: list[w.Step]) -> None:
        for step in steps:
            self.here.work(step)

    @rule(name=REPLICA, age_s=st.sampled_from([0.0, 1.0, 5.0]), lie=st.sampled_from(w.LIES))
    def report(self, name: str, age_s: float, lie: str) -> None:
        self.here.report(name, age_s=age_s, lie=lie)

    @rule(name=REPLICA, what=st.sampled_from(w.DISTURBANCES))
    def disturb(self, name: str, what: str) -> None:
        self.here.disturb(name, what)

    @rule(seconds=st.sampled_from([*w.PAUSES_S, 400.0]))
    def advance(self, seconds: float) -> None:
        self.here.advance(seconds)

    @rule(knobs=POLICY)
    def change(self, knobs: dict[str, Any]) -> None:
        self.here.change(knobs)

    def teardown(self) -> None:
        if self.world is None:
            return
        try:
            self.world.end()
        finally:
            self.world.close()


TestCore = Core.TestCase
TestCore.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("seed", range(12))
def test_a_long_busy_day_leaves_nothing_behind(seed: int) -> None:
    """Whoever is left behind by the three-hundredth event: short examples do not get there."""
    w.long_run(seed)


def test_what_needs_no_slot_does_not_overtake_on_a_replica_that_has_rested() -> None:
    """A refused request whose replica may be used again: embeddings must not go before it."""
    script = Script(one_tier(recall=False, limiter="static")).replica("r", slots=4)
    script.arrive_many("q", 2).bounce("q0").expect_waiting("q0")
    script.now += 0.3  # the rest is over, and the wake is a little late
    script.arrive("later", output_tokens_max=0).expect_order("q0", "q1", "q0", "later")
