"""The fleets and loads under which the gate is measured, and the measurement itself."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from random import Random

from gateway.core.messages import PREFIX_BLOCK_TOKENS
from gateway.core.policy import Policy
from gateway.sim.profiles import A100_LLAMA2_7B, A100_LLAMA3_8B
from tests.simulation import policies
from tests.simulation.fleet import figures
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.job import Job, Size
from tests.simulation.fleet.replica import ReplicaSpec
from tests.simulation.fleet.scrapes import Wires
from tests.simulation.fleet.workload import Asking, Sizes, arrive, chat, fixed, intrude, keep_asking

WARM_UP_S = 20
BULK = Asking(user="bulk", tier=policies.STANDARD)
LIGHT = Asking(user="light", tier=policies.STANDARD)
LIGHT_PER_S = 0.5
LONG_EVERY = 150
"""One request of so many has a prompt of 100,000 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A fleet and what it is asked for; load 1.0 is what it can do without a gate."""

    name: str
    specs: tuple[ReplicaSpec, ...]
    sizes: Callable[[], Sizes] = lambda: chat
    foreign_share: float = 0.0
    """Of the fleet's capacity, injected past the gateway into the first replica."""
    seconds: int = 100

    def __str__(self) -> str:
        return self.name


def pair(slots: int = 8, **both: object) -> tuple[ReplicaSpec, ...]:
    """Two equal replicas."""
    return tuple(ReplicaSpec(name=name, slots=slots, **both) for name in ("a", "b"))  # type: ignore[arg-type]  # passed on


def with_long_prompts() -> Sizes:
    """Chat, and every so often a prompt that takes the engine half a minute."""
    numbers = count(1)

    def size(dice: Random) -> Size:
        short = chat(dice)
        return Size(100_000, 100) if next(numbers) % LONG_EVERY == 0 else short

    return size


def with_shared_prefix() -> Sizes:
    """Two system prompts of 8,192 tokens; what follows is each request's own."""
    tails = count(1_000_000)
    blocks = 8_192 // PREFIX_BLOCK_TOKENS

    def size(dice: Random) -> Size:
        own = chat(dice)
        first = 1_000 * dice.randrange(2)
        tail = tuple(next(tails) for _ in range(own.prompt_tokens // PREFIX_BLOCK_TOKENS))
        prefix = (*range(first, first + blocks), *tail)
        return Size(8_192 + own.prompt_tokens, own.output_tokens, prefix)

    return size


def bulky(dice: Random) -> Size:
    """About 3,600 tokens at the end: 33 of them fill the KV of the small profile."""
    return Size(dice.randrange(2_000, 4_000), dice.randrange(400, 800))


PLAIN = Scenario(name="plain", specs=pair())
FOREIGN = Scenario(name="foreign traffic", specs=pair(), foreign_share=0.15)
LONG = Scenario(
    name="100k prompts",
    specs=pair(profile=A100_LLAMA3_8B),
    sizes=with_long_prompts,
    seconds=600,
)
SHARED = Scenario(
    name="shared 8k prefixes", specs=pair(prefix_tokens=40_000), sizes=with_shared_prefix
)
UNEQUAL = Scenario(
    name="unequal replicas",
    specs=(
        ReplicaSpec(name="a", slots=6, profile=A100_LLAMA2_7B.faster(0.5)),
        ReplicaSpec(name="b", slots=10),
    ),
)
UNTOLD = Scenario(name="slots not told", specs=pair(tells_slots=False))
WIDE = Scenario(name="64 slots", specs=pair(slots=64))
FULL_KV = Scenario(name="KV before slots", specs=pair(slots=48), sizes=lambda: bulky, seconds=200)
SCENARIOS = (PLAIN, FOREIGN, LONG, SHARED, UNEQUAL, UNTOLD, WIDE, FULL_KV)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFigures:
    """What one run of a scenario came to, after the warm-up."""

    gpu_s: float
    """Worth of what was done, in seconds of a GPU that runs eight at a time: the throughput."""
    tokens_per_s: float
    requests_per_s: float
    beyond_max: int
    excess_max: int
    """Never-started requests beyond the slots, less the allowance of that instant."""
    idle_s: float
    """Longest idle slot beside held work."""
    step_s: float
    """Longest engine step."""
    tpot_worst_s: float
    """Largest 10 s mean of a replica."""
    ttft_light_s: float
    """Median of the user who asks twice a minute for little."""
    ttft_light_p95_s: float
    preemptions: int


@cache
def capacity_per_s(scenario: Scenario) -> float:
    """Requests a second that the fleet can end, deep queues in every engine, nothing foreign."""
    fleet = Fleet(policies.none(), scenario.specs)
    slots = sum(spec.slots for spec in scenario.specs)
    keep_asking(fleet, BULK, scenario.sizes(), depth=3 * slots, seed=7)
    fleet.run(WARM_UP_S + scenario.seconds)
    return figures.requests_per_s(fleet, WARM_UP_S, WARM_UP_S + scenario.seconds)


def run(
    scenario: Scenario, policy: Policy, load: float, *, late_s: float = 1.0, seed: int = 1
) -> GateFigures:
    """One fleet at `load` times its capacity, the same arrivals whatever the policy."""
    fleet = Fleet(policy, scenario.specs, Wires(late_s=late_s))
    fleet.observe_from(float(WARM_UP_S))
    until_s = WARM_UP_S + scenario.seconds
    capacity = capacity_per_s(scenario)
    foreign_per_s = scenario.foreign_share * capacity
    own_per_s = load * capacity - foreign_per_s
    sizes = scenario.sizes()
    arrive(fleet, BULK, sizes, per_s=own_per_s, seed=seed, until_s=until_s)
    arrive(
        fleet, LIGHT, fixed(100, 20), per_s=LIGHT_PER_S, seed=seed + 1_000, until_s=until_s - 10.0
    )
    if foreign_per_s:
        intrude(fleet, "a", chat, per_s=foreign_per_s, seed=seed + 2_000, until_s=until_s)
    return measured(fleet, until_s)


def measured(fleet: Fleet, until_s: int) -> GateFigures:
    """Let it run until then; its figures after the warm-up."""
    fleet.run(WARM_UP_S)
    before_s = figures.gpu_s(fleet)
    fleet.run(until_s)
    light = figures.ttfts_s(fleet, is_light, WARM_UP_S, until_s)
    replicas = fleet.replicas.values()
    return GateFigures(
        gpu_s=figures.gpu_s(fleet) - before_s,
        tokens_per_s=figures.tokens_per_s(fleet, WARM_UP_S, until_s),
        requests_per_s=figures.requests_per_s(fleet, WARM_UP_S, until_s),
        beyond_max=fleet.beyond_max,
        excess_max=fleet.excess_max,
        idle_s=max(replica.idle.longest_s for replica in replicas),
        step_s=max(replica.step_s_max for replica in replicas),
        tpot_worst_s=max(figures.tpot_means_s(fleet, WARM_UP_S, until_s)),
        ttft_light_s=figures.percentile(light, 0.5),
        ttft_light_p95_s=figures.percentile(light, 0.95),
        preemptions=sum(replica.engine.counters.preemptions for replica in replicas),
    )


def is_light(job: Job) -> bool:
    """Whether the light user sent it."""
    return job.request.user == LIGHT.user
