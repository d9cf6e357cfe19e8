"""One seed: a load, misfortunes, and a verdict."""

from dataclasses import dataclass, field
from random import Random

from gateway.cluster.follower import Phase
from gateway.cluster.member import Member
from gateway.core.policy import Policy, Tier
from tests.simulation.cluster.site import Engine, Job, World
from tests.simulation.cluster.store import Heap, Network, Rates

KINDS = ("lossy", "crashes", "stalls", "parted", "frozen", "all")
SPAN_S = 14.0
QUIET_AT_S = 16.0
"""Everything is whole again."""
END_AT_S = 40.0
SLOTS = 6
RECOVERY_S = 3.0

POLICY = Policy(
    tiers=(
        Tier(name="high", queue_limit=1, patience_s=1e4),
        Tier(name="low", queue_limit=1, patience_s=1e4, min_share=0.1),
    ),
    cost="requests",
    headroom_max=0.0,
    allowance="constant",
    limiter="static",
    warm_up_s=0.0,
    scrape_interval_s=0.5,
)


@dataclass
class Outcome:
    """What became of a seed."""

    seed: int
    kind: str
    faults: list[str]
    excess: int
    """Most requests in an engine beyond its slots and the one that may wait."""
    states: dict[str, int] = field(default_factory=dict)
    resyncs: int = 0
    messages: int = 0
    gap_s: float = 0.0
    """Longest time without a grant while something waited."""


def played(seed: int, kind: str | None = None, member: type[Member] = Member) -> Outcome:
    """Play one seed."""
    dice = Random(seed)
    kind = KINDS[seed % len(KINDS)] if kind is None else kind
    heap = Heap()
    network = Network(heap, Random(f"{seed}/network"), rates_of(kind, dice))
    world = World(heap, dice, network, POLICY, member=member)
    models = [frozenset({"m"})] * 2 if seed % 2 else [frozenset({"m"}), frozenset({"n"})]
    for number, served in enumerate(models):
        world.engines[f"r{number}"] = Engine(heap, f"r{number}", served, SLOTS)
    for _ in range(3):
        heap.after(dice.uniform(0.0, 0.3), lambda: world.gateway() and None)
    _load(world, [sorted(each)[0] for each in models])
    _misfortunes(world, kind)
    gap = _Gap(world)
    heap.run(SPAN_S + 2.0)
    _heal(world)
    heap.run(END_AT_S)
    faults = [*world.faults, *_verdict(world)]
    if gap.longest_s > RECOVERY_S and kind in ("lossy", "crashes"):
        faults.append(f"nothing was granted for {gap.longest_s:.1f} s")
    excess = max(world.excess.values(), default=0)
    allowed = residual(world, kind)
    if excess > allowed:
        faults.append(f"{excess} too many in an engine, {allowed} may be")
    states: dict[str, int] = {}
    for job in world.jobs:
        states[job.state] = states.get(job.state, 0) + 1
    resyncs = sum(each.member.resyncs for each in world.gateways)
    return Outcome(seed, kind, faults, excess, states, resyncs, network.sent, gap.longest_s)


def residual(world: World, kind: str) -> int:
    """How many requests too many an engine may hold."""
    if kind in ("lossy", "crashes"):
        return 0
    return 3 * max(1, SLOTS // 3)


def rates_of(kind: str, dice: Random) -> Rates:
    """How bad the network is."""
    if kind not in ("lossy", "all"):
        return Rates()
    return Rates(
        loss=dice.choice((0.0, 0.01, 0.05)),
        doubled=dice.choice((0.0, 0.05)),
        reordered=dice.choice((0.0, 0.02, 0.1)),
    )


def _load(world: World, models: list[str]) -> None:
    dice, at = world.dice, 0.5
    per_s = dice.uniform(0.7, 1.6) * SLOTS * len(world.engines) / 0.55
    number = 0
    while at < SPAN_S:
        at += dice.expovariate(per_s)
        number += 1
        world.heap.at(at, lambda number=number: _arrives(world, number, models))  # type: ignore[misc]  # a default binds it


def _arrives(world: World, number: int, models: list[str]) -> None:
    dice = world.dice
    alive = world.alive()
    if not alive:
        return
    gateway = dice.choice(alive)
    job = Job(
        id=f"j{number}",
        model=dice.choice(models),
        user=f"u{dice.randrange(5)}",
        tier=dice.randrange(2),
        service_s=dice.uniform(0.1, 1.0),
        output_tokens=dice.randrange(1, 50),
        gateway=gateway,
        arrived_at=world.heap.now,
    )
    world.jobs.append(job)
    gateway.arrive(job)
    if dice.random() < 0.15:
        world.heap.after(dice.uniform(0.0, 2.0), lambda: gateway.hang_up(job))


def _misfortunes(world: World, kind: str) -> None:
    dice = world.dice
    happens = {
        "lossy": (),
        "crashes": (_crash,),
        "stalls": (_stall,),
        "parted": (_part,),
        "frozen": (_freeze, _restart),
        "all": (_crash, _stall, _part, _freeze, _restart),
    }[kind]
    for _ in range(dice.randrange(1, 5) if happens else 0):
        act = dice.choice(happens)
        world.heap.at(dice.uniform(2.0, SPAN_S - 1.0), lambda act=act: act(world))  # type: ignore[misc]  # a default binds it


def _crash(world: World) -> None:
    alive = world.alive()
    leading = [each for each in alive if each.member.led]
    victims = leading if leading and world.dice.random() < 0.7 else alive
    if len(alive) > 1:
        world.hit_at = world.heap.now
        world.dice.choice(victims).crash()
        world.heap.after(world.dice.uniform(0.5, 3.0), lambda: world.gateway() and None)


def _stall(world: World) -> None:
    alive = world.alive()
    if alive:
        world.dice.choice(alive).stall(world.dice.choice((0.1, 0.6, 1.5, 5.0)))


def _part(world: World) -> None:
    alive = world.alive()
    if alive:
        name = world.dice.choice(alive).name
        world.network.parted.add(name)
        for_s = world.dice.choice((0.1, 0.6, 1.5, 4.0))
        world.heap.after(for_s, lambda: world.network.parted.discard(name))


def _freeze(world: World) -> None:
    world.network.freeze()
    world.heap.after(world.dice.choice((0.1, 0.3, 1.5, 3.0)), world.network.thaw)


def _restart(world: World) -> None:
    world.network.store.forget()


def _heal(world: World) -> None:
    world.network.rates = Rates()
    world.network.parted.clear()
    world.network.thaw()


def _verdict(world: World) -> list[str]:
    faults = []
    for job in world.jobs:
        if job.ends != 1:
            faults.append(f"{job.id} ({job.state}, {job.gateway.name}) ended {job.ends} times")
    for gateway in world.alive():
        faults += gateway.books()
    for engine in world.engines.values():
        if engine.inside:
            faults.append(f"{engine.name} still has {len(engine.inside)}")
    alone = [
        each.name
        for each in world.alive()
        if any(follower.phase is Phase.ALONE for follower in each.member.followers.values())
    ]
    if alone:
        faults.append(f"still alone: {', '.join(alone)}")
    return faults


class _Gap:
    """How long nothing was granted although something waited and there was room."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.longest_s = 0.0
        self._since: dict[str, float] = {}
        world.heap.after(0.05, self._look)

    def _look(self) -> None:
        world, now = self.world, self.world.heap.now
        if now < SPAN_S:
            world.heap.after(0.05, self._look)
        for engine in world.engines.values():
            is_wanted = any(
                job.state == "waiting" and job.model in engine.models
                for gateway in world.alive()
                for job in gateway.jobs.values()
            )
            if is_wanted and len(engine.running) < engine.slots:
                since = self._since.setdefault(engine.name, now)
                self.longest_s = max(self.longest_s, now - max(since, world.hit_at))
            else:
                self._since.pop(engine.name, None)
