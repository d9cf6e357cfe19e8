"""A scheduler restored from a snapshot goes on exactly as the one it was taken of would have.

Instants lie on a grid that floats hold exactly, so that "equal" needs no tolerance where the
clocks differ: only then is every difference a field that was forgotten.
"""

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.core.invariants import check
from gateway.core.messages import (
    Adopted,
    Arrived,
    Bounced,
    Cancelled,
    Decision,
    DrainAsked,
    Event,
    Fault,
    Finished,
    FirstToken,
    MoveWanted,
    Outcome,
    PolicyChanged,
    Progressed,
    Readmitted,
    RecallDone,
    Recalled,
    RecallTooLate,
    ReplicaFound,
    ReplicaLost,
    ReplicaRefused,
    ReplicaRemoved,
    ReplicaReported,
    Request,
    Usage,
    WakeWanted,
    Woke,
)
from gateway.core.policy import DEFAULT_TIERS, Ageing, Bounds, Policy, Price, Scaling, Tenant
from gateway.core.report import ReplicaReport
from gateway.core.scheduler import Scheduler
from gateway.core.snapshot import restore, snapshot
from tests.support.snapshots import lack_something, through_json
from tests.support.walking import OF_POLICY, Walk, close

GRID = 64.0
"""Instants are multiples of 1/64 s."""
START_S = 4_096.0
PAUSES = (0, 0, 0, 1, 1, 3, 3, 8, 8, 8, 30, 30, 64, 64, 64, 300, 4_000)
TENANTS = {"t1": Tenant(weight=2.0, users={"a": 4.0}), "t2": Tenant(weight=0.5)}
SMALL = Bounds(
    waiting=14, waiting_per_user=6, prefixes=4, sessions=2, predictions=8, waiting_tokens=60_000
)
STRICT = Policy(
    tiers=DEFAULT_TIERS, tenants=TENANTS, bounds=SMALL, ageing=Ageing(after_s=2.0, per_s=0.5),
    reserve_after_s=0.5, scaling=Scaling(hold_s=1.0, cooldown_s=2.0), hold_s=8.0,
    migrate_running="drain",
)  # fmt: skip
POLICIES = {
    "strict": STRICT,
    "weighted_prefix": replace(STRICT, order="weighted", within_user="prefix", ageing=Ageing()),
    "shortest_gpu": replace(STRICT, within_user="shortest", cost="gpu_seconds", lend=False),
    "deadline_price": replace(
        STRICT, within_user="deadline", cost="price", prices={"m": Price(input=1.0, output=4.0)},
        inflight_limit=3, allowance="constant", limiter="static",
    ),
    "requests_roomy": replace(STRICT, cost="requests", bounds=Bounds(), recall=False),
    "at_once": replace(STRICT, release_at_once=True),
}  # fmt: skip
MODELS = {
    "r1": frozenset({"m"}),
    "r2": frozenset({"m", "x"}),
    "r3": frozenset({"x"}),
    "s1": frozenset({"z"}),
    "s2": frozenset({"z"}),
}
SLOTS = {"r1": 3, "r2": 2, "r3": None, "s1": 1, "s2": None}


CAPS: tuple[tuple[tuple[str, int], ...], ...] = (
    (), (), (), (("user a", 2),), (("key k", 1), ("tenant t1", 5)),
)  # fmt: skip


class Life:
    """Random events that fit what `first` decided; what it takes in, all others take in too."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = START_S
        self.first = Scheduler(policy)
        self.recalls: list[str] = []
        self.made = 0
        self.counted = 0.0
        for name in MODELS:
            self.first.handle(self.found(name), self.now)

    def found(self, name: str) -> ReplicaFound:
        context_tokens = 40_000 if name == "r1" else None
        return ReplicaFound(
            replica=name, models=MODELS[name], slots=SLOTS[name], context_tokens=context_tokens,
            weight=self.dice.choice((1.0, 1.0, 2.0)), orders_by_tier=name == "r2",
        )  # fmt: skip

    def request(self) -> Request:
        dice = self.dice
        self.made += 1
        prefix = dice.choice(((), (), (1,), (1, 2), (1, 2, 3), (7,), (7, 8, 9)))
        return Request(
            id=f"q{self.made}",
            model=dice.choice("mmmmxxzzu"),
            tier=dice.randrange(len(self.first.policy.tiers)),
            tenant=dice.choice(("t1", "t2", "t3")),
            user=dice.choice(("a", "a", "b", "c", f"u{self.made}")),
            arrived_at=self.now - dice.choice((0, 0, 0, 64, 200)) / GRID,
            prompt_tokens=dice.choice((25, 200, 200, 3_000, 20_000, None)),
            output_tokens_max=dice.choice((None, 25, 400, 400, 0)),
            sequences=dice.choice((1, 1, 1, 1, 2, 5)),
            streams=dice.random() < 0.7,
            body_bytes=dice.choice((0, 800, 20_000)),
            patience_s=dice.choice((None, None, None, 3.0, 0.0)),
            route=dice.choice(("chat", "completions")),
            excluded=frozenset({"r1"}) if dice.random() < 0.1 else frozenset(),
            only="r1" if dice.random() < 0.05 else None,
            prefix=prefix,
            session=dice.choice((None, None, "s1", "s2")),
            read_timeout_s=dice.choice((None, None, 30.0)),
            ttft_target_s=dice.choice((None, 0.25)),
            is_continuation=dice.random() < 0.08,
            is_continuable=dice.random() < 0.7,
            caps=dice.choice(CAPS),
        )

    def report(self, name: str) -> ReplicaReported:
        dice = self.dice
        self.counted += dice.choice((0.0, 60.0, 600.0))
        found = self.first.replicas.get(name)
        own = found.ledger.in_flight if found is not None else 0
        slots = SLOTS[name] or 4
        running = min(slots, own + dice.choice((0, 0, 1)))
        is_rich = name in ("r2", "s2") or dice.random() < 0.5
        report = ReplicaReport(
            running=running,
            waiting=max(0, own - running) + dice.choice((0, 0, 1)),
            kv_use=min(1.0, running / 8 + dice.choice((0.0, 0.125, 0.5))) if is_rich else None,
            kv_capacity_tokens=40_000 if is_rich else None,
            slots=3 if name == "s2" else None,
            itl_sum_s=self.counted * dice.choice((0.03, 0.03, 0.031)),
            itl_count=self.counted if name != "s1" else None,
            iterations=self.counted if is_rich else None,
            generation_tokens=self.counted * 2,
            missing=("x_total",) if name == "r3" else (),
        )
        late_s = dice.choice((0, 0, 2, 64)) / GRID
        return ReplicaReported(
            replica=name, sent_at=self.now - late_s, report=report,
            round_trip_s=dice.choice((0.0, 0.015625, 0.25)),
        )  # fmt: skip

    def ending(self, request_id: str) -> Finished:
        outcome = self.dice.choice((Outcome.DONE,) * 5 + tuple(Outcome))
        tpot_s = self.dice.choice((None, 0.02, 0.05, 0.4))
        usage = self.dice.choice(
            (None, Usage(prompt_tokens=180, output_tokens=30), Usage(output_tokens=500))
        )
        fault = self.dice.choice(tuple(Fault)) if outcome is Outcome.FAILED else None
        return Finished(request_id, outcome, usage, tpot_s, fault=fault)

    def event(self) -> Event:
        """The next thing that happens, the clock moved on to when it does."""
        dice, first = self.dice, self.first
        self.now += dice.choice(PAUSES) / GRID
        if self.recalls and dice.random() < 0.25:
            asked = self.recalls.pop()
            found = first.granted.get(asked)
            is_kept = dice.random() < 0.3 or (found is not None and found[0].is_started)
            return RecallTooLate(asked) if is_kept else RecallDone(asked)
        granted, waiting = list(first.granted), list(first.waiting)
        kind = dice.random()
        if kind < 0.42 or not granted:
            return Arrived(self.request())
        if kind < 0.56:
            return self.ending(dice.choice(granted))
        if kind < 0.64:
            return FirstToken(dice.choice(granted))
        if kind < 0.70:
            on = dice.choice(list(first.replicas))
            heard_at = dice.choice((None, self.now - 0.25, self.now))
            tokens = {each: dice.choice((3, 400)) for each in granted}
            held = frozenset(granted[:1]) if dice.random() < 0.3 else frozenset()
            return Progressed(on, tokens, heard_at, held)
        if kind < 0.74:
            return Cancelled(dice.choice([*granted, *waiting]))
        if kind < 0.77:
            return Bounced(dice.choice(granted))
        if kind < 0.87:
            return self.report(dice.choice(list(MODELS)))
        return self.disturbance(dice.choice(list(MODELS))) if kind < 0.92 else Woke()

    def disturbance(self, name: str) -> Event:
        chance = self.dice.random()
        if chance < 0.50:
            return self.found(name)
        if chance < 0.55:
            return ReplicaLost(name)
        if chance < 0.62:
            return ReplicaRefused(name)
        if chance < 0.80:
            return DrainAsked(name, self.dice.random() < 0.3)
        if chance < 0.90 and name in ("s1", "s2"):
            return ReplicaRemoved(name)
        if chance < 0.95:
            return Adopted(request=self.request(), replica=name, running_s=1.5, output_tokens=7)
        was = self.first.policy
        return PolicyChanged(replace(was, headroom_max=0.3 - was.headroom_max / 2))

    def step(self, others: Mapping[float, Scheduler]) -> None:
        """One event for all; `others` run `offset` seconds ahead and must decide the same."""
        event = self.event()
        decided = self.first.handle(event, self.now)
        for offset, other in others.items():
            echoed = other.handle(shifted(event, offset), self.now + offset)
            assert told(echoed) == told(decided), f"{event} at {self.now}"
        asked = [each for each in decided if isinstance(each, Recalled | MoveWanted)]
        self.recalls += [each.request_id for each in asked]

    def live(self, events: int, others: Mapping[float, Scheduler] | None = None) -> None:
        for _ in range(events):
            self.step(others or {})

    def crowd(self) -> None:
        """Many who come once, and one who comes often: what else would take long to come about."""
        for number in range(150):
            one = replace(
                self.request(), model="m", tier=2, user=f"once{number}", sequences=1,
                prompt_tokens=25, excluded=frozenset(),
            )  # fmt: skip
            self.first.handle(Arrived(one), self.now)
            self.first.handle(Cancelled(one.id), self.now)
        for forecast in (each for pool in self.first.pools for each in pool.forecasts):
            for waited_s in range(20):
                forecast.add(10.0, float(waited_s))
        lack_something(self.first.replicas.values(), self.now)
        adopted = Adopted(request=replace(self.request(), model="z"), replica="s1")
        for event in (adopted, ReplicaRemoved("s1")):
            self.first.handle(event, self.now)
        for prefix in ((1, 2), (1, 2), (7,), (1, 2), (7,), (1, 2), (7,), (1, 2)):
            often = replace(
                self.request(), model="m", tier=3, tenant="t1", user="a", sequences=1,
                prompt_tokens=200, output_tokens_max=25, prefix=prefix, excluded=frozenset(),
                is_continuation=False, patience_s=None, caps=(),
            )  # fmt: skip
            self.first.handle(Arrived(often), self.now)
        self.first.handle(Readmitted((replace(self.request(), model="m"),)), self.now)
        for waiting in self.first.waiting.values():
            assert (waiting.lane is None) == (waiting.holder is not None)
            if waiting.lane is not None:
                waiting.lane.overtaken += waiting.kv_tokens


def shifted(event: Event, offset: float) -> Event:
    """The same event told by a clock that is `offset` seconds ahead."""
    match event:
        case Arrived(request):
            return Arrived(replace(request, arrived_at=request.arrived_at + offset))
        case Adopted():
            arrived_at = event.request.arrived_at + offset
            return replace(event, request=replace(event.request, arrived_at=arrived_at))
        case ReplicaReported():
            return replace(event, sent_at=event.sent_at + offset)
        case Progressed() if event.heard_at is not None:
            heard_at = event.heard_at + offset
            return Progressed(event.replica, event.output_tokens, heard_at, event.held)
        case _:
            return event


def told(decisions: list[Decision]) -> list[Decision]:
    """All but when to wake: that is asked again by whoever was restored."""
    return [each for each in decisions if not isinstance(each, WakeWanted)]


OFFSETS = st.integers(-int(4_000 * GRID), int(1e6 * GRID)).map(lambda ticks: ticks / GRID)


@pytest.mark.parametrize("name", POLICIES)
@given(seed=st.integers(0, 1 << 32), before=st.integers(0, 250), offset=OFFSETS)
@settings(max_examples=20, phases=(Phase.generate,))  # a seed does not shrink
def test_a_restored_scheduler_decides_as_the_first_would_have(
    name: str, seed: int, before: int, offset: float
) -> None:
    """Clients of a gateway that was restarted, or whose leader changed, would lose their turn."""
    life = Life(POLICIES[name], seed)
    life.live(before)
    text = through_json(snapshot(life.first, life.now))
    restored = restore(life.first.policy, text, life.now + offset)
    check(restored)
    life.live(120, {offset: restored})
    check(restored)


@pytest.mark.parametrize("name", POLICIES)
def test_a_restored_scheduler_gives_the_same_snapshot(name: str) -> None:
    """A standby that hands over again would lose a little with every change of the leader."""
    for seed in range(8):
        life = Life(POLICIES[name], seed)
        life.live(150)
        taken = through_json(snapshot(life.first, life.now))
        for offset in (0.0, -3_000.5, 86_400.25):
            again = snapshot(
                restore(life.first.policy, taken, life.now + offset), life.now + offset
            )
            for part in taken.keys() - {"checksum", "wake_age_s"}:  # rounded figures; due at once
                assert close(again[part], taken[part]), f"{part}, seed {seed}, {offset} s ahead"


# --- what a snapshot holds, slot by slot ---------------------------------------------------------


@pytest.mark.sources
def test_every_slot_of_every_object_is_restored_or_known_to_be_derived() -> None:
    """A field that somebody adds would be lost with the next change of the leader."""
    seen: defaultdict[str, set[str]] = defaultdict(set)
    never: set[str] = {"nothing seen yet"}
    for seed in range(8):
        for policy in POLICIES.values():
            life = Life(policy, seed)
            life.live(40)
            life.crowd()
            for events in (0, 15, 60, 250):
                life.live(events)
                compare_all(life, seen)
        never = {name for name, values in seen.items() if len(values) < 2} - OF_POLICY
        if not never:
            break
    assert not never, "never but one value: a loss of it would not be seen"


def compare_all(life: Life, seen: defaultdict[str, set[str]]) -> None:
    """Restore what lives now, compare every slot, and gather what values there were."""
    taken = through_json(snapshot(life.first, life.now))
    restored = restore(life.first.policy, taken, life.now)
    walk = Walk(life.now, life.first, restored)
    walk.both(life.first, restored, "scheduler")
    for name, values in walk.seen.items():
        seen[name] |= values
