"""Any order of events: what must hold holds after each of them.

Conservation, the books, capacity at every grant, no barging, work conservation, patience, and the
same decisions for the same events. The oracle judges every single choice by brute force.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from gateway.core.messages import Outcome, Usage, Woke
from gateway.core.placement import choose
from gateway.core.policy import DEFAULT_TIERS, Policy, Tenant
from gateway.core.scheduler import Scheduler
from tests.support.oracle import eligible, judged
from tests.support.script import Script, four_tiers

TWO = (replace(DEFAULT_TIERS[0], queue_limit=2), replace(DEFAULT_TIERS[3], name="rest"))
POLICIES: dict[str, Policy] = {
    "tokens": four_tiers(),
    "requests": four_tiers(cost="requests", tenants={"t1": Tenant(weight=3.0)}),
    "reserving": four_tiers(lend=False, min_inflight=2),
    "two": four_tiers(tiers=TWO, hold_s=5.0),
}
DOWN = {"high": "critical", "standard": "rest", "background": "rest"}
UP = {"rest": "background"}
REPLICAS = {"r1": ("m",), "r2": ("m", "x"), "r3": ("x",)}
SLOTS = {"r1": 3, "r2": 2, "r3": None}

SHAPES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["m", "m", "m", "x", "x", "unknown"]),
        "prompt_tokens": st.sampled_from([0, 5, 200, 3_000, 20_000]),
        "output_tokens_max": st.sampled_from([None, 0, 10, 400]),
        "sequences": st.sampled_from([1, 1, 1, 2, 9]),
        "streams": st.booleans(),
        "patience_s": st.sampled_from([None, None, 0.0, 3.0]),
        "excluded": st.sampled_from([(), (), (), ("r1",), ("r1", "r2")]).map(frozenset),
    }
)
STEPS = st.tuples(
    st.sampled_from(
        ["finish", "finish", "first_token", "first_token", "progress", "cancel", "bounce"]
    ),
    st.integers(0, 1_000),
    st.sampled_from([Outcome.DONE, Outcome.DONE, *Outcome]),
    st.sampled_from([None, None, 0.02, 0.5]),
)
DISTURBANCES = ("find", "find", "find", "undrain", "undrain", "learn", "lose", "drain", "remove")
names = st.sampled_from(sorted(REPLICAS))


class Core(RuleBasedStateMachine):
    """One scheduler, three replicas, two models, and everything that can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("gateway.core.scheduler.choose", judged(choose))
        self.count = 0
        self.deadlines: dict[str, float] = {}

    @initialize(name=st.sampled_from(sorted(POLICIES)))
    def start(self, name: str) -> None:
        self.first = self.policy = POLICIES[name]
        self.script = Script(self.policy)
        for replica in REPLICAS:
            self.find(replica)

    # Requests.

    @rule(
        shape=SHAPES,
        tier=st.integers(0, 3),
        who=st.sampled_from(["t1/a", "t1/b", "t2/a"]),
        age_s=st.sampled_from([0.0, 0.0, 4.0]),
        times=st.integers(1, 6),
    )
    def arrive(
        self, *, shape: dict[str, Any], tier: int, who: str, age_s: float, times: int
    ) -> None:
        tenant, user = who.split("/")
        rank = min(tier, len(self.policy.tiers) - 1)
        arrived_at = max(0.0, self.script.now - age_s)
        patience_s = self.policy.tiers[rank].patience_s
        if shape["patience_s"] is not None:
            patience_s = min(patience_s, shape["patience_s"])
        for _ in range(times):
            self.count += 1
            id = f"q{self.count}"
            self.deadlines[id] = arrived_at + patience_s
            self.script.arrive(
                id, tier=rank, tenant=tenant, user=user, arrived_at=arrived_at, **shape
            )

    @rule(steps=st.lists(STEPS, min_size=1, max_size=6))
    def work(self, steps: list[tuple[str, int, Outcome, float | None]]) -> None:
        """The engines go on, clients leave, engines refuse."""
        script = self.script
        for what, number, outcome, tpot_s in steps:
            ids = [*script.running, *(sorted(script.waiting) if what == "cancel" else ())]
            if not ids:
                continue
            id = ids[number % len(ids)]
            if what == "finish":
                usage = Usage(output_tokens=number) if number % 2 else None
                script.finish(id, outcome=outcome, usage=usage, tpot_s=tpot_s)
            elif what == "progress":
                script.progress(script.running[id], **{id: 10 * number})
            else:
                getattr(script, what)(id)

    # Replicas.

    @rule(
        name=names,
        age_s=st.sampled_from([0.0, 1.0, 5.0]),
        lie=st.sampled_from(["honest", "honest", "zero", "more", "full", "nothing"]),
    )
    def report(self, name: str, age_s: float, lie: str) -> None:
        if name not in self.script.scheduler.replicas:
            return
        mine = len(self.script.on(name))
        slots = SLOTS[name] or 4
        running = {"zero": 0, "more": mine + 2, "full": slots}.get(lie, min(mine, slots))
        figures: dict[str, object] = {
            "running": running,
            "waiting": {"zero": 0, "full": 3}.get(lie, max(0, mine - slots)),
            "kv_use": min(1.0, 0.1 * running),
            "kv_capacity_tokens": 30_000,
        }
        sent_at = max(0.0, self.script.now - age_s)
        self.script.report(name, sent_at=sent_at, **({} if lie == "nothing" else figures))

    @rule(name=names, what=st.sampled_from(DISTURBANCES))
    def disturb(self, name: str, what: str) -> None:
        if what == "find":
            self.find(name)
        elif what == "learn":
            self.script.replica(name, slots=SLOTS[name], models=("m", "x"))
        elif what in ("drain", "undrain"):
            self.script.drain(name, draining=what == "drain")
        else:
            getattr(self.script, what)(name)

    def find(self, name: str) -> None:
        self.script.replica(name, slots=SLOTS[name], models=REPLICAS[name])

    # Time and the operator.

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.6, 3.0, 40.0, 400.0]))
    def advance(self, seconds: float) -> None:
        self.script.advance(seconds)

    @rule(name=st.sampled_from(sorted(POLICIES)))
    def change(self, name: str) -> None:
        policy = POLICIES[name]
        moved_to = {}
        if len(policy.tiers) < len(self.policy.tiers):
            moved_to = DOWN
        elif len(policy.tiers) > len(self.policy.tiers):
            moved_to = UP
        self.policy = policy
        self.script.change(policy, moved_to)

    # What must hold.

    @invariant()
    def nothing_eligible_waits_beside_an_open_gate(self) -> None:
        if not hasattr(self, "script"):
            return
        for pool in self.script.scheduler.pools:
            idle = list(eligible(pool, pool.replicas.values(), self.script.now))
            assert not idle, f"{idle[0].request.id} fits and waits"

    @invariant()
    @precondition(lambda self: hasattr(self, "script") and self.script.log)
    def patience_is_kept_after_every_wake(self) -> None:
        now, event, _ = self.script.log[-1]
        if isinstance(event, Woke):
            late = [id for id in self.script.waiting if self.deadlines[id] <= now]
            assert not late, f"{late} wait beyond their patience"

    def teardown(self) -> None:
        try:
            if hasattr(self, "script"):
                self.end()
        finally:
            self.patch.undo()

    def end(self) -> None:
        """All goes home: the books are empty, and a second scheduler decides the same."""
        script = self.script
        script.cancel(*sorted(script.waiting))
        while script.running:
            script.finish(next(iter(script.running)))
            script.cancel(*sorted(script.waiting))
        assert len(script.ended) == self.count
        for replica in script.scheduler.replicas.values():
            ledger = replica.ledger
            assert ledger.sequences == ledger.kv_tokens == ledger.unstarted_prompt_tokens == 0
        script.check()
        twin = Scheduler(self.first)
        for now, event, decisions in script.log:
            assert twin.handle(event, now) == decisions, "the same events decided otherwise"


TestCore = Core.TestCase
TestCore.settings = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
