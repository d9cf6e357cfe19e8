"""Users that always have more than they get, each behind a gateway of its own."""

from collections import Counter
from dataclasses import replace
from random import Random

from gateway.core.policy import Bounds
from tests.simulation.cluster.engine import Engine, Job
from tests.simulation.cluster.site import Gateway, World
from tests.simulation.cluster.store import Heap, Network, Rates
from tests.simulation.cluster.trial import POLICY, SLOTS

PATIENT = replace(POLICY, tiers=(replace(POLICY.tiers[0], patience_s=600.0),), bounds=Bounds())
"""Nobody is refused: all that matters here is whose turn it is."""
SERVICE_S = 0.3
WAITING = {"greedy": 240, "one": 150, "other": 150}
"""Requests of each user that wait from the first instant on."""
CRASH_AT_S = 4.0
SPANS_S = ((2.0, 4.0), (6.5, 8.5))
"""Before the leader dies, and after the next one leads."""


def shared_out() -> tuple[World, list[Counter[str]]]:
    """Requests of each user that were let go in each span; the leader, who has no user, dies."""
    heap = Heap()
    world = World(heap, Random(7), Network(heap, Random(8), Rates()), PATIENT)
    for name in ("r0", "r1"):
        world.engines[name] = Engine(heap, name, frozenset({"m"}), slots=SLOTS, is_mute=False)
    for _ in range(4):
        world.join()
    heap.run(1.0)
    leader = next(each for each in world.gateways if each.member.led)
    followers = [each for each in world.gateways if each is not leader]
    for gateway, (user, count) in zip(followers, WAITING.items(), strict=True):
        for number in range(count):
            _arrive(world, gateway, f"{user}{number}", user)
    heap.at(CRASH_AT_S, leader.crash)
    heap.run(SPANS_S[-1][1] + 1.0)
    served = [
        Counter(job.user for job in world.jobs if first <= job.granted_at < last)
        for first, last in SPANS_S
    ]
    return world, served


def _arrive(world: World, gateway: Gateway, id: str, user: str) -> None:
    job = Job(
        id=id,
        model="m",
        user=user,
        tier=PATIENT.tiers[0].name,
        service_s=SERVICE_S,
        output_tokens=10,
        gateway=gateway,
        arrived_at=world.heap.now,
    )
    world.jobs.append(job)
    gateway.arrive(job)
