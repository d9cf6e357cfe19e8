"""One seed: a load, misfortunes, and a verdict."""

from dataclasses import dataclass, field, replace
from random import Random

from gateway.cluster.follower import Phase
from gateway.cluster.member import Member
from gateway.core.policy import Bounds, Policy, Tier
from tests.simulation.cluster.engine import Engine, Job
from tests.simulation.cluster.site import World
from tests.simulation.cluster.store import Heap, Network, Rates

KINDS = ("lossy", "crashes", "stalls", "parted", "frozen", "all")
SPAN_S = 14.0
HEAL_AT_S = 22.0
"""Everything is whole again; by then nearly all has ended."""
END_AT_S = 34.0
SLOTS = 6
RECOVERY_S = 3.0

PATIENCE_S = 18.0
LATE_S = (0.2, 1.5)
"""How much later than the others a gateway may find a replica."""
POLICY = Policy(
    tiers=(
        Tier(name="high", queue_limit=1, patience_s=PATIENCE_S),
        Tier(name="extra", queue_limit=1, patience_s=PATIENCE_S),
        Tier(name="low", queue_limit=1, patience_s=PATIENCE_S, min_share=0.1),
    ),
    cost="requests",
    headroom_max=0.0,
    allowance="constant",
    limiter="static",
    warm_up_s=0.0,
    scrape_interval_s=0.5,
    bounds=Bounds(waiting_per_user=12),
)
RELOADED = replace(POLICY, tiers=(POLICY.tiers[0], POLICY.tiers[2]))
MOVED_TO = {"extra": "low"}


@dataclass
class Outcome:
    """What became of a seed."""

    seed: int
    kind: str
    faults: list[str]
    most_over: int
    """Most requests in an engine beyond its slots and the one that may wait."""
    excess: int
    """The same, less those that gateways granted that were alone."""
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
    models = (
        [frozenset({"m"})] * 2 if (seed // len(KINDS)) % 2 else [frozenset({"m"}), frozenset({"n"})]
    )
    is_mute = dice.random() < 0.7
    for number, served in enumerate(models):
        name = f"r{number}"
        world.engines[name] = Engine(
            heap, name, served, slots=SLOTS, is_mute=kind == "crashes" and is_mute
        )
    for _ in range(3):
        heap.after(dice.uniform(0.0, 0.3), world.join)
    _oddities(world, Random(f"{seed}/odd"))
    _load(world, [min(each) for each in models])
    _misfortunes(world, kind)
    gap = _Gap(world)
    heap.run(HEAL_AT_S)
    _heal(world)
    heap.run(END_AT_S)
    faults = [*world.faults, *_verdict(world)]
    if gap.longest_s > RECOVERY_S:
        faults.append(f"something waited for {gap.longest_s:.1f} s although there was room")
    if world.excess > 0:
        faults.append(f"{world.excess} too many in an engine, and nobody was alone")
    states: dict[str, int] = {}
    for job in world.jobs:
        states[job.state] = states.get(job.state, 0) + 1
    resyncs = sum(each.member.deciders.resyncs for each in world.gateways)
    return Outcome(
        seed,
        kind,
        faults,
        world.most_over,
        world.excess,
        states,
        resyncs,
        network.sent,
        gap.longest_s,
    )


def rates_of(kind: str, dice: Random) -> Rates:
    """How bad the network is."""
    if kind not in ("lossy", "all"):
        return Rates()
    return Rates(
        loss=dice.choice((0.0, 0.02, 0.1)),
        doubled=dice.choice((0.0, 0.05)),
        reordered=dice.choice((0.0, 0.02, 0.1)),
    )


def _oddities(world: World, dice: Random) -> None:
    """What is no misfortune: engines that are busy, gateways that find them late, a reload."""
    world.odd = dice
    world.bounces = dice.choice((0.0, 0.02, 0.1))
    world.late_s = dice.choice((None, LATE_S))
    if dice.random() < 0.5:
        world.heap.at(dice.uniform(1.0, SPAN_S), lambda: _reload(world))


def _reload(world: World) -> None:
    """It comes to one gateway after the other, and to each that starts from now on."""
    world.policy, world.moved_to = RELOADED, MOVED_TO
    for gateway in world.alive():
        world.heap.after(world.odd.uniform(0.0, 1.0), gateway.reload)


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
        tier="high" if dice.random() < 0.5 else "extra" if dice.random() < 0.3 else "low",
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
    for _ in range(dice.randrange(1, 6) if happens else 0):
        act = dice.choice(happens)
        world.heap.at(dice.uniform(2.0, SPAN_S - 1.0), lambda act=act: act(world))  # type: ignore[misc]  # a default binds it


def _crash(world: World) -> None:
    alive = world.alive()
    leading = [each for each in alive if each.member.led]
    victims = leading if leading and world.dice.random() < 0.7 else alive
    if len(alive) > 1:
        world.hit_at = world.heap.now
        world.dice.choice(victims).crash()
        world.heap.after(world.dice.uniform(0.5, 3.0), world.join)


def _stall(world: World) -> None:
    alive = world.alive()
    if alive:
        victim = world.dice.choice(alive)
        if victim.member.led:
            world.hit_at = world.heap.now  # as when a leader crashes: others must find it out
        victim.stall(world.dice.choice((0.1, 0.6, 1.5, 5.0)))


def _part(world: World) -> None:
    alive = world.alive()
    if alive:
        name = world.dice.choice(alive).name
        world.network.parted.add(name)
        for_s = world.dice.choice((0.1, 0.6, 1.5, 6.0))
        world.heap.after(for_s, lambda: world.network.parted.discard(name))


def _freeze(world: World) -> None:
    world.network.freeze()
    world.heap.after(world.dice.choice((0.1, 0.3, 1.5, 6.0)), world.network.thaw)


def _restart(world: World) -> None:
    world.network.store.forget()


def _heal(world: World) -> None:
    world.network.rates = Rates()
    world.network.parted.clear()
    world.network.thaw()


def _verdict(world: World) -> list[str]:
    faults = [
        f"{job.id} ({job.state}, {job.gateway.name}) ended {job.ends} times"
        for job in world.jobs
        if job.ends != 1
    ]
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
    """How long something waited at a gateway although there was room for it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.longest_s = 0.0
        world.heap.after(0.05, self._look)

    def _look(self) -> None:
        world, now = self.world, self.world.heap.now
        if now < HEAL_AT_S:
            world.heap.after(0.05, self._look)
        for gateway in world.alive():
            if not gateway.is_hungry():
                gateway.hungry_since = None
                continue
            if gateway.hungry_since is None:
                gateway.hungry_since = now
            since = max(gateway.hungry_since, world.hit_at)
            self.longest_s = max(self.longest_s, now - since)
