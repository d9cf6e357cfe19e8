"""What a batch does to the people beside it, and how much of what they leave idle it uses.

The same people are served twice, with a batch in the background and without. The scheduler is the
gateway's own, and so is the rule by which a batch has lines under way. Two engines of 256 slots: a
`flat` one, whose steps take little longer with many sequences than with few, so that what changes
is nearly all of the scheduler's doing; and a measured one, where each sequence makes the step of
all longer, whoever sent it: what that model gives for the batches that were seen is told beside
what was measured. `even` may be asked for as well: nothing makes its steps longer.
"""

from dataclasses import replace
from functools import lru_cache

import msgspec

from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.sim.experiments.report import Measured, Row, Value
from gateway.sim.experiments.setting import dispatcher, fleet
from gateway.sim.profiles import DEMO, profile_named
from gateway.sim.workload.arrivals import Bursts, Poisson
from gateway.sim.workload.lengths import Lognormal
from gateway.sim.workload.mixes import Tiers, tier_shares
from gateway.sim.workload.synthetic import Open
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.lines import FIRST_NUMBER, Batch
from gateway.sim.world.outcome import Outcome, Status
from gateway.sim.world.plan import Plan
from gateway.sim.world.play import World, play

FLAT = "flat"
KV_BLOCKS = 29_000
LENGTHS = Lognormal(prompt_tokens_max=4_000, output_tokens_max=2_000)
IN_FLIGHT = 1_024
SAMPLE_S = 0.1
PROBE_REQUESTS = 6_000
"""Many times the slots of an engine."""
WITHIN = 0.03
USED_MIN = 0.95
PROBES_MAX = 16


class BesideKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """See `batch-beside-people`."""

    profiles: tuple[str, ...] = (FLAT, "a100-llama3-8b")
    loads: tuple[float, ...] = (0.3, 0.6, 0.9)
    replicas: int = 1
    slots: int = 256
    lines: int = 50_000
    warm_s: float = 60.0
    until_s: float = 400.0
    headroom_max: float = 0.2
    tpot_limit_ms: float = 75.0
    """Of the background tier."""
    prefill_limit_s: float = 1.0
    """The same."""
    prompts_max: int = 4_000
    """Tokens of the longest prompt among the lines."""
    yields: bool = False
    """Whether the lines make way (`preemptible`), before engines that serve by priority."""
    queue_limit: int = 15
    """Lines that may wait inside such an engine; people: one more."""
    people: str = "1"
    """Their tiers, as shares: all of the first one."""


def beside_points(knobs: BesideKnobs) -> list[Row]:
    """Each engine at each load, without and with the batch."""
    return [
        {"engine": profile, "load": load, "batch": batch}
        for profile in knobs.profiles
        for load in knobs.loads
        for batch in ("no", "yes")
    ]


def beside(knobs: BesideKnobs, point: Row, seed: int) -> Measured:
    """One run."""
    name, slots = str(point["engine"]), knobs.slots
    engines = _fleet(name, knobs.replicas, slots, by_priority=knobs.yields)
    plan = replace(engines, until_s=knobs.until_s)
    rate_per_s = float(point["load"]) * _capacity_per_s(name, knobs.replicas, slots)
    people = Open(
        arrivals=Poisson(rate_per_s=rate_per_s),
        lengths=LENGTHS,
        tiers=Tiers(tier_shares(knobs.people)),
        seed=seed,
        until_s=knobs.until_s,
    )
    batch = Batch(
        people,
        lines=knobs.lines if point["batch"] == "yes" else 0,
        lengths=replace(LENGTHS, prompt_tokens_max=knobs.prompts_max),
        tier=len(DEFAULT_TIERS) - 1,
        in_flight=IN_FLIGHT,
        seed=seed,
    )
    world = World(plan, batch, Fairgate(_policy(knobs)))
    batch.join(world)
    load = Load(world, since_s=knobs.warm_s)
    outcome = world.run()
    return Measured(figures=_figures(outcome, load, knobs))


class Load:
    """What the engines of a world were seen to hold, now and then, from `since_s` on."""

    def __init__(self, world: World, *, since_s: float) -> None:
        self._world = world
        self._looks = self._slots = self._taken = self._people = 0
        self._kv_tokens = 0.0
        self._before: list[tuple[int, int]] = []
        world.clock.at(since_s, self._begin)

    @property
    def used(self) -> float:
        """Share of the slots that people left free that was in use."""
        idle = self._slots - self._people
        return (self._taken - self._people) / idle if idle else 1.0

    @property
    def taken(self) -> float:
        """Share of all slots that was in use."""
        return self._taken / self._slots if self._slots else 0.0

    def step_s(self) -> float:
        """What the engines' model gives for a step with the means of what was seen."""
        stations = self._world.stations
        steps = sum(station.counters["steps"] for station in stations)
        prompts = sum(station.counters["prompt_tokens"] for station in stations)
        steps -= sum(before[0] for before in self._before)
        prompts -= sum(before[1] for before in self._before)
        looks = max(1, self._looks * len(stations))
        decodes = self._taken // looks
        profile = stations[0].machine.profile
        return profile.step_s(
            decodes + prompts // max(1, steps),
            decodes=decodes,
            kv_tokens=int(self._kv_tokens / looks),
            attended=0,
        )

    def _begin(self) -> None:
        self._before = [
            (station.counters["steps"], station.counters["prompt_tokens"])
            for station in self._world.stations
        ]
        self._look()

    def _look(self) -> None:
        self._looks += 1
        for station in self._world.stations:
            config, engine = station.machine.config, station.engine
            people = sum(stay.job.number < FIRST_NUMBER for stay in station.stays.values())
            self._slots += config.max_num_seqs
            self._taken += engine.running
            self._people += min(people, engine.running)
            self._kv_tokens += engine.kv_use * config.kv_blocks * config.block_tokens
        self._world.clock.after(SAMPLE_S, self._look)


def judge_beside(knobs: BesideKnobs, rows: list[Row]) -> list[str]:
    """Each load with the batch against the same without it."""
    found = {(row["engine"], row["load"], row["batch"]): row for row in rows}
    notes = []
    for engine in knobs.profiles:
        for load in knobs.loads:
            alone, beside = found[engine, load, "no"], found[engine, load, "yes"]
            words = []
            for figure in ("p95 ttft ms", "p95 tpot ms"):
                change = float(beside[figure]) / float(alone[figure]) - 1
                words.append(f"{figure} {change:+.1%} ({_word(change <= WITHIN)})")
            model = float(beside["model step ms"]) / float(alone["model step ms"]) - 1
            used = float(beside["idle used"])
            notes.append(
                f"{engine} at {load:g}: {', '.join(words)}; steps by the model {model:+.1%}; "
                f"idle slots in use {used:.1%} ({_word(used >= USED_MIN)})"
            )
    return notes


def _figures(outcome: Outcome, load: Load, knobs: BesideKnobs) -> Row:
    # The last ones have not ended when the run is cut.
    span = (knobs.warm_s, knobs.until_s - knobs.warm_s)
    rows = [row for row in outcome.rows(arrived=span) if outcome.number[row] < FIRST_NUMBER]
    lines = [row for row in range(outcome.n) if outcome.number[row] >= FIRST_NUMBER]
    done = sum(outcome.status[row] == Status.DONE for row in lines)
    figures: dict[str, Value] = {
        "people": len(rows),
        "p50 ttft ms": 1000 * outcome.percentile(outcome.ttft_s, 0.5, rows),
        "p95 ttft ms": 1000 * outcome.percentile(outcome.ttft_s, 0.95, rows),
        "p95 tpot ms": 1000 * outcome.percentile(outcome.tpot_s, 0.95, rows),
        "mean tpot ms": 1000 * outcome.mean(outcome.tpot_s, rows),
        "model step ms": 1000 * load.step_s(),
        "slots taken": load.taken,
        "idle used": load.used,
        "lines/s": done / outcome.lasted_s if outcome.lasted_s else 0.0,
        "refused": outcome.counted()["refused"],
    }
    return figures


def _policy(knobs: BesideKnobs) -> Policy:
    *people, background = DEFAULT_TIERS
    background = replace(
        background, tpot_limit_ms=knobs.tpot_limit_ms, prefill_limit_s=knobs.prefill_limit_s
    )
    if knobs.yields:
        limit = knobs.queue_limit
        people = [replace(tier, queue_limit=limit + 1) for tier in people]
        background = replace(background, queue_limit=limit, preemptible=True)
    return Policy(tiers=(*people, background), headroom_max=knobs.headroom_max)


def _fleet(name: str, replicas: int, slots: int, *, by_priority: bool = False) -> Plan:
    profile = replace(DEMO if name == FLAT else profile_named(name), max_num_seqs=slots)
    return fleet(profile, replicas, kv_blocks=KV_BLOCKS, by_priority=by_priority)


@lru_cache(maxsize=PROBES_MAX)
def _capacity_per_s(name: str, replicas: int, slots: int) -> float:
    """What such engines get done while far too much waits, in requests a second.

    Of the middle half: before it nothing has ended, and after it the longest answers run alone.
    """
    at_once = Open(arrivals=Bursts(size=PROBE_REQUESTS, every_s=1.0), lengths=LENGTHS,
                   limit=PROBE_REQUESTS)  # fmt: skip
    outcome = play(_fleet(name, replicas, slots), at_once, dispatcher("fifo", 1))
    ended = sorted(outcome.ended)
    quarter = len(ended) // 4
    return (len(ended) - 2 * quarter) / (ended[-1 - quarter] - ended[quarter])


def _word(is_met: bool) -> str:
    return "met" if is_met else "missed"
