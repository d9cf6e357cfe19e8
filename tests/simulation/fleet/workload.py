"""Who asks when for how much: open arrivals of a given rate, and clients that ask again at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.job import Job, Size

Sizes = Callable[[Random], Size]


def fixed(prompt_tokens: int, output_tokens: int, *, sequences: int = 1) -> Sizes:
    """Always the same size."""
    size = Size(prompt_tokens, output_tokens, sequences=sequences)
    return lambda dice: size


def chat(dice: Random) -> Size:
    """Prompts of 20..1,500 tokens (median 200), answers of 4..400 (mean about 95)."""
    prompt_tokens = round(dice.lognormvariate(5.3, 0.8))
    output_tokens = round(dice.expovariate(1 / 96))
    return Size(min(1_500, max(20, prompt_tokens)), min(400, max(4, output_tokens)))


@dataclass(frozen=True, slots=True)
class Asking:
    """Whom requests come from and how they are labelled."""

    user: str = "u"
    tenant: str = "t"
    tier: int = 0
    says_max: bool = False
    streams: bool = True

    def send(self, fleet: Fleet, size: Size) -> Job:
        """One request, now."""
        return fleet.send(
            self.user,
            size,
            tier=self.tier,
            tenant=self.tenant,
            says_max=self.says_max,
            streams=self.streams,
        )


def arrive(
    fleet: Fleet,
    asking: Asking,
    sizes: Sizes,
    *,
    per_s: float,
    seed: int,
    from_s: float = 0.0,
    until_s: float,
) -> None:
    """Poisson arrivals; the same ones for the same seed, whatever the fleet does."""
    dice = Random(seed)

    def come() -> None:
        plan()
        asking.send(fleet, sizes(dice))

    def plan() -> None:
        at = fleet.now + dice.expovariate(per_s)
        if at < until_s:
            fleet.clock.at(at, come)

    if per_s > 0.0:
        fleet.clock.at(from_s, plan)


def intrude(
    fleet: Fleet, replica: str, sizes: Sizes, *, per_s: float, seed: int, until_s: float
) -> None:
    """Poisson arrivals at one engine, past the gateway."""
    dice = Random(seed)

    def come() -> None:
        plan()
        fleet.send_foreign(replica, sizes(dice))

    def plan() -> None:
        at = fleet.now + dice.expovariate(per_s)
        if at < until_s:
            fleet.clock.at(at, come)

    plan()


def keep_asking(
    fleet: Fleet,
    asking: Asking,
    sizes: Sizes,
    *,
    depth: int,
    seed: int = 0,
    from_s: float = 0.0,
    until_s: float = float("inf"),
) -> None:
    """A closed loop: `depth` requests at a time, each answered one followed by another."""
    dice = Random(seed)
    mine: set[str] = set()

    def ask() -> None:
        job = asking.send(fleet, sizes(dice))
        if job.reason is None:
            mine.add(job.request.id)

    def again(job: Job) -> None:
        if job.request.id in mine:
            mine.discard(job.request.id)
            if fleet.now < until_s:
                ask()

    fleet.on_end(again)
    for _ in range(depth):
        fleet.clock.at(from_s, partial(ask))
