"""A scheduler with a few replicas and models, everything that can happen to it, and a judge.

State machines and long seeded runs drive the same world; both must leave it as they found it.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gateway.core import placement, release
from gateway.core.kinds import Kind
from gateway.core.messages import (
    Bounced,
    Fault,
    MoveWanted,
    Outcome,
    PolicyChanged,
    RecallDone,
    Recalled,
    Usage,
    Woke,
)
from gateway.core.placement import Choice
from gateway.core.policy import Policy
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.core.scheduler import Scheduler
from tests.support.knobs import KNOBS, moves, policy_of
from tests.support.oracle import heads, judged, overdue
from tests.support.script import Script

REPLICAS = {"r1": ("m",), "r2": ("m", "x"), "r3": ("x",)}
SLOTS = {"r1": 3, "r2": 2, "r3": None}
ORDERED_BY_TIER = ("r1", "r3")
CONTEXT_TOKENS = {"r1": None, "r2": 9_000, "r3": 15_000}
USERS = ("t1/a", "t1/b", "t2/a")
SHAPE: dict[str, tuple[Any, ...]] = {
    "model": ("m", "m", "m", "x", "x", "unknown"),
    "prompt_tokens": (5, 200, 200, 3_000, 20_000, 0, None),
    "output_tokens_max": (None, 10, 400, 0),
    "sequences": (1, 1, 1, 1, 2, 9),
    "streams": (True, False),
    "patience_s": (None, None, None, 0.0, 3.0),
    "excluded": (frozenset(), frozenset(), frozenset(), frozenset({"r1"}), frozenset({"r1", "r2"})),
    "only": (None,) * 7 + ("r1",),
    "body_bytes": (0, 0, 900, 20_000),
    "prefix": ((), (), (1,), (1, 2), (1, 2, 3), (7,), (7, 8, 9, 10, 11)),
    "session": (None, None, "s1", "s2", "s3"),
    "read_timeout_s": (None, None, 1.0, 30.0),
    "ttft_target_s": (None, 0.2, 9.0),
    "is_continuation": (False,) * 7 + (True,),
    "is_continuable": (True, False),
    "route": ("chat", "embeddings"),
}
WORK = (*("finish", "first_token") * 3, "progress", "cancel", "bounce", "answer", "answer", "adopt")
ANSWERS = ("give_back", "give_back", "keep", "finish", "bounce")
OUTCOMES = (Outcome.DONE, Outcome.DONE, *Outcome)
FAULTS = (None, *Fault)
TPOTS_S = (None, None, 0.02, 0.5)
LIES = ("honest", "honest", "zero", "more", "full", "nothing")
DISTURBANCES = (
    *("find", "find", "find", "undrain", "undrain", "learn", "lose", "drain", "remove"),
    "refuse_connections",
)
PAUSES_S = (0.0, 0.05, 0.1, 0.6, 0.6, 3.0, 40.0)

Step = tuple[str, int, Outcome, float | None]


class Watched(Script):
    """A script that has each recall judged at once."""

    def __init__(self, policy: Policy, judge: Callable[[Recalled, float], None]) -> None:
        super().__init__(policy)
        self._judge = judge

    def _asked_back(self, decision: Recalled) -> None:
        super()._asked_back(decision)
        self._judge(decision, self.now)

    def _asked_away(self, decision: MoveWanted) -> None:
        assert self.scheduler.policy.migrate_running != "off", "moves are switched off"
        asked = [at for at, id, _ in self.move_log if id == decision.request_id]
        assert not asked or self.now - asked[-1] >= 30.0, f"{decision} comes too soon"
        super()._asked_away(decision)


class World:
    """One scheduler under test; every choice it makes is judged by brute force."""

    def __init__(self, knobs: Mapping[str, Any]) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(release, "choose", judged(self._choose))
        self.policy = self._first = policy_of(knobs)
        self.script = Watched(self.policy, self._judge_recall)
        self._count = 0
        self._deadlines: dict[str, float] = {}
        self._looked_at: dict[str, float] = {}
        self._heads: dict[Kind, str] = {}
        self._seen: set[str] = set()
        self._reranked: set[str] = set()
        self._favoured: set[str] = set()
        self._promoted: list[float] = []
        self._recalled_of: dict[str, float] = {}
        self._recalled_ids: set[str] = set()
        for name in REPLICAS:
            self.disturb(name, "find")

    # What happens.

    def arrive(
        self, shape: dict[str, Any], *, tier: int, who: str, age_s: float, times: int
    ) -> None:
        """Requests of one kind come; `age_s` makes them retries."""
        for _ in range(times):
            id, fields = self._new(shape, tier=tier, who=who, age_s=age_s)
            self._do(lambda id=id, fields=fields: self.script.arrive(id, **fields))  # type: ignore[misc]  # bound now

    def work(self, step: Step) -> None:
        """The engines go on, a client leaves, an engine refuses, a recall is answered."""
        what, number, outcome, tpot_s = step
        script = self.script
        if what == "adopt":
            self._adopt(number)
            return
        ids = [*script.running, *(sorted(script.waiting) if what == "cancel" else ())]
        if what == "answer":
            ids = list(script.recalled)
            what = ANSWERS[number % len(ANSWERS)]
        if not ids:
            return
        id = ids[number % len(ids)]
        if what == "finish":
            usage = Usage(output_tokens=number, cached_tokens=number) if number % 2 else None
            fault = FAULTS[number % len(FAULTS)] if outcome is Outcome.FAILED else None
            self._do(
                lambda: script.finish(id, outcome=outcome, usage=usage, tpot_s=tpot_s, fault=fault)
            )
        elif what == "progress":
            heard_at = script.now if number % 3 else None
            self._do(lambda: script.progress(script.running[id], heard_at, **{id: 10 * number}))
        else:
            self._do(lambda: getattr(script, what)(id))

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
            "itl_count": 100.0 * len(self.script.log),
            "itl_sum_s": {"more": 60.0}.get(lie, 2.0) * len(self.script.log),
            "iterations": 7.0 if lie in ("zero", "full") else float(len(self.script.log)),
        }
        sent_at = max(0.0, self.script.now - age_s)
        told = {} if lie == "nothing" else figures
        self._do(lambda: self.script.report(name, sent_at=sent_at, **told))

    def disturb(self, name: str, what: str) -> None:
        """A replica comes, goes, or changes."""
        script = self.script
        if what in ("find", "learn"):
            models = REPLICAS[name] if what == "find" else ("m", "x", "y")
            self._do(
                lambda: script.replica(
                    name,
                    slots=SLOTS[name],
                    models=models,
                    context_tokens=CONTEXT_TOKENS[name],
                    orders_by_tier=name in ORDERED_BY_TIER,
                )
            )
        elif what in ("drain", "undrain"):
            self._do(lambda: script.drain(name, draining=what == "drain"))
        else:
            self._do(lambda: getattr(script, what)(name))

    def change(self, knobs: Mapping[str, Any]) -> None:
        """The operator takes another policy."""
        old, self.policy = self.policy, policy_of(knobs)
        self._promoted.clear()
        self._do(lambda: self.script.change(self.policy, moves(old, self.policy)))

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self._do(lambda: self.script.advance(seconds))

    # What must be so.

    def check(self) -> None:
        """Nothing eligible waits beside an open gate; nobody waits beyond its patience."""
        script = self.script
        self._note_heads()
        if not self.policy.release_at_once:
            for pool in script.scheduler.pools:
                for waiting, replica in overdue(pool, self._looked_at, script.now):
                    id = waiting.request.id
                    assert id in self._reranked, f"{id} fits {replica.name} and waits"
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
            assert not ledger.in_flight, "grants are left"
            assert not any(ledger.by_tier), "tiers are left"
            assert ledger.sequences == ledger.kv_tokens == ledger.unstarted_prompt_tokens == 0
        script.check()
        self._patch.undo()
        # Both unjudged: a look at who is next may settle ties between equal tags otherwise.
        one, other = Scheduler(self._first), Scheduler(self._first)
        for now, event, _ in script.log:
            first = one.handle(event, now)
            assert other.handle(event, now) == first, "the same events decided otherwise"

    def close(self) -> None:
        """The scheduler chooses unjudged again."""
        self._patch.undo()

    # How it is watched.

    def _note_heads(self) -> None:
        """Who became first of its class as the one before was charged, or went elsewhere.

        It may fit where that one did not, and is looked at there when the scheduler wakes.
        """
        script = self.script
        if isinstance(script.log[-1][1], Woke | PolicyChanged | Bounced | RecallDone):
            self._reranked.clear()
        before, self._heads = self._heads, {}
        for pool in script.scheduler.pools:
            for queue in pool.queues:
                for head in heads(queue):
                    id, kind = head.request.id, head.kind
                    former = before.get(kind)
                    self._heads[kind] = id
                    is_past = former in script.waiting or former in script.running
                    if former != id and is_past and id in self._seen:
                        self._reranked.add(id)
        self._seen = set(script.waiting)

    def _do(self, happens: Callable[[], object]) -> None:
        happens()
        self.check()

    def _choose(self, pool: Pool, replicas: list[Replica], now: float) -> Choice | None:
        self._looked_at.update({each.name: now for each in replicas})
        choice = placement.choose(pool, replicas, now)
        if choice is not None:
            id = choice.waiting.request.id
            self._favoured.discard(id)
            if choice.is_owed or choice.is_aged:
                self._favoured.add(id)
            if choice.is_aged:
                self._judge_promotion(now)
        return choice

    def _judge_promotion(self, now: float) -> None:
        """Over any span no more than the rate allows, and one; times the pools there may be."""
        self._promoted.append(now)
        for place, since in enumerate(self._promoted):
            allowed = len(REPLICAS) * (1.0 + (now - since) * self.policy.ageing.per_s)
            count = len(self._promoted) - place
            assert count <= allowed + 1e-6, f"{count} promotions since {since}"

    def _judge_recall(self, decision: Recalled, now: float) -> None:
        id, name = decision.request_id, decision.replica
        assert id not in self._favoured, f"{id} was favoured, and is recalled"
        if self._makes_way(id, now):
            return
        assert self.policy.recall, "recalls are switched off"
        assert id not in self._recalled_ids, f"{id} is recalled a second time"
        last = self._recalled_of.get(name)
        assert last is None or now - last >= 0.1 - 1e-9, f"{name} has no rest between recalls"
        self._recalled_ids.add(id)
        self._recalled_of[name] = now
        found = self.script.scheduler.granted.get(id)
        if found is not None:
            grant, replica = found
            assert not grant.is_started, f"{id} had begun, and is recalled"
            beyond = replica.occupied - (replica.slots or replica.sightings.proven_sequences)
            is_short_of_kv = replica.kv_tokens > (replica.kv_capacity_tokens or float("inf"))
            assert beyond > 0 or is_short_of_kv, f"{id} did not wait, and is recalled"

    def _makes_way(self, id: str, now: float) -> bool:
        """Whether a tier above it was just let into its replica, which is short of slots or KV."""
        found = self.script.scheduler.granted.get(id)
        if found is None:
            return False
        grant, replica = found
        if grant.waiting.request.streams or not self.policy.tiers[grant.tier].preemptible:
            return False
        is_short_of_kv = replica.kv_tokens > (replica.kv_capacity_tokens or float("inf"))
        return any(
            each.tier < grant.tier
            and each.granted_at == now
            and (is_short_of_kv or not each.found_room)
            for each in replica.ledger.grants.values()
        )

    def _new(
        self, shape: dict[str, Any], *, tier: int, who: str, age_s: float
    ) -> tuple[str, dict[str, Any]]:
        self._count += 1
        id, (tenant, user) = f"q{self._count}", who.split("/")
        rank = min(tier, len(self.policy.tiers) - 1)
        arrived_at = max(0.0, self.script.now - age_s)
        patience_s = self.policy.tiers[rank].patience_s
        if shape["is_continuation"]:
            patience_s = self.policy.continuation_wait_s
        elif shape["patience_s"] is not None:
            patience_s = min(patience_s, shape["patience_s"])
        if shape["read_timeout_s"] is not None and not shape["streams"]:
            patience_s = min(patience_s, shape["read_timeout_s"])
        self._deadlines[id] = arrived_at + patience_s
        fields = {"tier": rank, "tenant": tenant, "user": user, "arrived_at": arrived_at}
        return id, {**shape, **fields}

    def _adopt(self, number: int) -> None:
        shape = {name: values[number % len(values)] for name, values in SHAPE.items()}
        id, fields = self._new(shape, tier=number % 4, who=USERS[number % 3], age_s=0.0)
        name = sorted(REPLICAS)[number % 3]
        is_started = bool(number % 2)
        self._do(lambda: self.script.take_over(id, name, is_started=is_started, **fields))


def long_run(seed: int, steps: int = 300) -> None:
    """A busy day of the world, the same one for the same seed."""
    dice = random.Random(seed)
    world = World(mixed(dice))
    try:
        for _ in range(steps):
            _happen(world, dice)
        world.end()
    finally:
        world.close()


def mixed(dice: random.Random) -> dict[str, Any]:
    """Any policy."""
    return {name: dice.choice(values) for name, values in KNOBS.items()}


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
        world.advance(dice.choice(PAUSES_S))
    elif kind < 0.995:
        world.disturb(replica, dice.choice(DISTURBANCES))
    else:
        world.change(mixed(dice))
