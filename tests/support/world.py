"""A scheduler with three replicas and two models, everything that can happen to it, and a judge.

State machines and long seeded runs drive the same world; both must leave it as they found it.
"""

import random
from dataclasses import replace
from typing import Any

import pytest

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
USERS = ("t1/a", "t1/b", "t2/a")
SHAPE: dict[str, tuple[Any, ...]] = {
    "model": ("m", "m", "m", "x", "x", "unknown"),
    "prompt_tokens": (0, 5, 200, 200, 3_000, 20_000),
    "output_tokens_max": (None, 0, 10, 400),
    "sequences": (1, 1, 1, 1, 2, 9),
    "streams": (True, False),
    "patience_s": (None, None, None, 0.0, 3.0),
    "excluded": (frozenset(), frozenset(), frozenset(), frozenset({"r1"}), frozenset({"r1", "r2"})),
}
WORK = (*("finish", "first_token") * 3, "progress", "cancel", "bounce")
OUTCOMES = (Outcome.DONE, Outcome.DONE, *Outcome)
TPOTS_S = (None, None, 0.02, 0.5)
LIES = ("honest", "honest", "zero", "more", "full", "nothing")
DISTURBANCES = ("find", "find", "find", "undrain", "undrain", "learn", "lose", "drain", "remove")
PAUSES_S = (0.0, 0.1, 0.1, 0.6, 0.6, 3.0, 40.0)

Step = tuple[str, int, Outcome, float | None]


class World:
    """One scheduler under test; every choice it makes is judged by brute force."""

    def __init__(self, policy: str) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr("gateway.core.scheduler.choose", judged(choose))
        self.policy = self._first = POLICIES[policy]
        self.script = Script(self.policy)
        self._count = 0
        self._deadlines: dict[str, float] = {}
        for name in REPLICAS:
            self.disturb(name, "find")

    def arrive(
        self, shape: dict[str, Any], *, tier: int, who: str, age_s: float, times: int
    ) -> None:
        """Requests of one kind come; `age_s` makes them retries."""
        tenant, user = who.split("/")
        rank = min(tier, len(self.policy.tiers) - 1)
        arrived_at = max(0.0, self.script.now - age_s)
        patience_s = self.policy.tiers[rank].patience_s
        if shape["patience_s"] is not None:
            patience_s = min(patience_s, shape["patience_s"])
        for _ in range(times):
            self._count += 1
            id = f"q{self._count}"
            self._deadlines[id] = arrived_at + patience_s
            self.script.arrive(
                id, tier=rank, tenant=tenant, user=user, arrived_at=arrived_at, **shape
            )

    def work(self, step: Step) -> None:
        """The engines go on, a client leaves, an engine refuses."""
        what, number, outcome, tpot_s = step
        script = self.script
        ids = [*script.running, *(sorted(script.waiting) if what == "cancel" else ())]
        if not ids:
            return
        id = ids[number % len(ids)]
        if what == "finish":
            usage = Usage(output_tokens=number) if number % 2 else None
            script.finish(id, outcome=outcome, usage=usage, tpot_s=tpot_s)
        elif what == "progress":
            script.progress(script.running[id], **{id: 10 * number})
        else:
            getattr(script, what)(id)

    def report(self, name: str, *, age_s: float, lie: str) -> None:
        """A scrape of that age comes back, honest or not."""
        if name not in self.script.scheduler.replicas:
            return
        mine, slots = len(self.script.on(name)), SLOTS[name] or 4
        running = {"zero": 0, "more": mine + 2, "full": slots}.get(lie, min(mine, slots))
        figures: dict[str, object] = {
            "running": running,
            "waiting": {"zero": 0, "full": 3}.get(lie, max(0, mine - slots)),
            "kv_use": min(1.0, 0.1 * running),
            "kv_capacity_tokens": 30_000,
        }
        sent_at = max(0.0, self.script.now - age_s)
        self.script.report(name, sent_at=sent_at, **({} if lie == "nothing" else figures))

    def disturb(self, name: str, what: str) -> None:
        """A replica comes, goes, or changes."""
        if what == "find":
            self.script.replica(name, slots=SLOTS[name], models=REPLICAS[name])
        elif what == "learn":
            self.script.replica(name, slots=SLOTS[name], models=("m", "x"))
        elif what in ("drain", "undrain"):
            self.script.drain(name, draining=what == "drain")
        else:
            getattr(self.script, what)(name)

    def change(self, name: str) -> None:
        """The operator takes another of the policies."""
        before, self.policy = len(self.policy.tiers), POLICIES[name]
        after = len(self.policy.tiers)
        self.script.change(self.policy, DOWN if after < before else UP if after > before else {})

    def check(self) -> None:
        """Nothing eligible waits beside an open gate; nobody waits beyond its patience."""
        script = self.script
        for pool in script.scheduler.pools:
            idle = list(eligible(pool, pool.replicas.values(), script.now))
            assert not idle, f"{idle[0].request.id} fits and waits"
        now, event, _ = script.log[-1]
        if isinstance(event, Woke):
            late = [id for id in script.waiting if self._deadlines[id] <= now]
            assert not late, f"{late} wait beyond their patience"

    def end(self) -> None:
        """All goes home: the books are empty, and a second scheduler decides the same."""
        script = self.script
        script.cancel(*sorted(script.waiting))
        while script.running:
            script.finish(next(iter(script.running)))
        assert len(script.ended) == self._count, "some never ended"
        for replica in script.scheduler.replicas.values():
            ledger = replica.ledger
            assert ledger.sequences == ledger.kv_tokens == ledger.unstarted_prompt_tokens == 0
        script.check()
        twin = Scheduler(self._first)
        for now, event, decisions in script.log:
            assert twin.handle(event, now) == decisions, "the same events decided otherwise"

    def close(self) -> None:
        """The scheduler chooses unjudged again."""
        self._patch.undo()


def long_run(seed: int, steps: int = 300) -> None:
    """A busy day of the world, the same one for the same seed."""
    dice = random.Random(seed)
    world = World(dice.choice(sorted(POLICIES)))
    try:
        for _ in range(steps):
            _happen(world, dice)
            world.check()
        world.end()
    finally:
        world.close()


def _happen(world: World, dice: random.Random) -> None:
    kind = dice.random()
    replica = dice.choice(sorted(REPLICAS))
    if kind < 0.30:
        shape = {name: dice.choice(values) for name, values in SHAPE.items()}
        who, age_s = dice.choice(USERS), dice.choice((0.0, 0.0, 4.0))
        world.arrive(shape, tier=dice.randrange(4), who=who, age_s=age_s, times=dice.randint(1, 3))
    elif kind < 0.75:
        for _ in range(dice.randint(1, 3)):
            number, outcome = dice.randrange(1_000), dice.choice(OUTCOMES)
            world.work((dice.choice(WORK), number, outcome, dice.choice(TPOTS_S)))
    elif kind < 0.85:
        world.report(replica, age_s=dice.choice((0.0, 1.0, 5.0)), lie=dice.choice(LIES))
    elif kind < 0.97:
        world.script.advance(dice.choice(PAUSES_S))
    elif kind < 0.995:
        world.disturb(replica, dice.choice(DISTURBANCES))
    else:
        world.change(dice.choice(sorted(POLICIES)))
