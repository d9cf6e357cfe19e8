"""Requests a second that meet the targets of their tier: every dispatcher on every recorded trace.

Load 1 is the rate at which one central first-come-first-served queue gets the same requests done
while they are all there at once. Tiers are drawn for each request by an enterprise mix of four,
users by the rule that each trace states. A trace shorter than what is asked of it comes again.
Prompts that no engine's KV can hold are refused, and counted.
"""

from dataclasses import replace
from functools import lru_cache

import msgspec

from gateway.core.policy import Policy
from gateway.sim.experiments.measures import good_of, overall
from gateway.sim.experiments.report import Measured, Row, Value
from gateway.sim.experiments.setting import (
    DISPATCHERS,
    FAIRGATE,
    dispatcher,
    fleet,
    policy_of,
    profile_of,
    served_by,
)
from gateway.sim.workload.job import Source
from gateway.sim.workload.mixes import Tiers, tier_shares
from gateway.sim.workload.traced import Playing, Traced
from gateway.sim.workload.traces import TRACES, trace_named
from gateway.sim.world.plan import Plan
from gateway.sim.world.play import play

TOO_FAST = 10.0
PROBES_MAX = 64
LAPS_ROOM = 2
"""Times the requests that are wanted: prompts that are refused do not count."""
BEST_WITHIN = 0.01
BEYOND_LOAD = 1.1
PREFILL_LIMITS_S = (0.4, 0.3, 0.2, 0.1)
"""By tier, fairgate's: most unstarted prompt work where it adds a prompt to an engine. All of it is
computed beside what decodes, in two steps or fewer, or no TPOT target is met; and a lower tier
leaves room for those above it."""


class GoodputKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """See `goodput`."""

    traces: tuple[str, ...] = tuple(trace.name for trace in TRACES)
    loads: tuple[float, ...] = (0.5, 0.8, 1.0, 1.1, 1.25, 1.5)
    dispatchers: tuple[str, ...] = DISPATCHERS
    limit: int = 3_000
    """Requests of each trace: many times the slots, or a tenth too much would never fill them."""
    replicas: int = 2
    max_num_seqs: int = 64
    profile: str = "a100-llama3-8b"
    mix: str = "enterprise-4"


def goodput_points(knobs: GoodputKnobs) -> list[Row]:
    """Each trace at each load by each dispatcher."""
    return [
        {"trace": trace, "load": load, "dispatcher": name}
        for trace in knobs.traces
        for load in knobs.loads
        for name in knobs.dispatchers
    ]


def goodput(knobs: GoodputKnobs, point: Row, seed: int) -> Measured:
    """One run."""
    trace, name = str(point["trace"]), str(point["dispatcher"])
    plan = _fleet(knobs)
    profile = plan.engines[0].profile
    asked = msgspec.structs.replace(knobs, traces=(), loads=(), dispatchers=())
    capacity, natural = _rates_per_s(trace, asked)
    speed = float(point["load"]) * capacity / natural
    source = _source(trace, plan, speed, knobs=knobs, seed=seed)
    policy = goodput_policy(len(tier_shares(knobs.mix)))
    dispatch = dispatcher(name, len(policy.tiers), policy)
    outcome = play(served_by(name, plan), source, dispatch)
    good = good_of(outcome, policy.tiers, profile)
    figures: dict[str, Value] = {
        "goodput/s": good / max(outcome.arrived),
        "good": good / outcome.n,
        "p99 ttft 0 s": outcome.percentile(outcome.ttft_s, 0.99, outcome.rows(tier=0)),
        **overall(outcome),
        "capacity/s": capacity,
        "too long": source.refused,
    }
    return Measured(figures=figures)


def goodput_policy(count: int) -> Policy:
    """Fairgate's, the same for all traces: small steps, and each user's short prompts first.

    A tier beyond the fourth has the limit of the fourth.
    """
    policy = replace(policy_of(count), allowance="bridge")
    limits_s = PREFILL_LIMITS_S + PREFILL_LIMITS_S[-1:] * count
    tiers = (
        replace(tier, prefill_limit_s=limit_s)
        for tier, limit_s in zip(policy.tiers, limits_s, strict=False)
    )
    return replace(policy, tiers=tuple(tiers), within_user="shortest")


def judge_goodput(knobs: GoodputKnobs, rows: list[Row]) -> list[str]:
    """Where fairgate is behind the best baseline, or not above first come, first served."""
    notes = []
    for trace in knobs.traces:
        for load in knobs.loads:
            here = {
                str(row["dispatcher"]): row
                for row in rows
                if row["trace"] == trace and row["load"] == load
            }
            notes += _behind(here, f"{trace} at {load:g}", is_beyond=load >= BEYOND_LOAD)
    return notes or ["at least the best baseline's less 1 % everywhere, above fifo beyond load 1.1"]


def _behind(rows: dict[str, Row], where: str, *, is_beyond: bool) -> list[str]:
    here = {name: float(row["goodput/s"]) for name, row in rows.items()}
    own = here.pop(FAIRGATE, None)
    if own is None or not here:
        return []
    best = max(here, key=here.__getitem__)
    notes = []
    if own < (1 - BEST_WITHIN) * here[best]:
        behind = own / here[best] - 1
        notes.append(f"{where}: {own:.2f}/s, {best} {here[best]:.2f}/s ({behind:+.1%})")
    if is_beyond and "fifo" in here and own <= here["fifo"] and float(rows["fifo"]["good"]) < 1:
        notes.append(f"{where}: {own:.2f}/s is not above fifo's {here['fifo']:.2f}/s")
    return notes


def _fleet(knobs: GoodputKnobs) -> Plan:
    profile = replace(profile_of(knobs.profile), max_num_seqs=knobs.max_num_seqs)
    return fleet(profile, knobs.replicas)


def _source(trace: str, plan: Plan, speed: float, *, knobs: GoodputKnobs, seed: int) -> Traced:
    config, recorded = plan.engines[0].config, trace_named(trace)
    playing = Playing(
        load=speed,
        laps=-(-LAPS_ROOM * knobs.limit // recorded.rows),
        limit=knobs.limit,
        tokens_max=config.kv_blocks * config.block_tokens,
        tiers=Tiers(tier_shares(knobs.mix)),
        seed=seed,
    )
    return Traced(recorded, playing)


@lru_cache(maxsize=PROBES_MAX)
def _rates_per_s(trace: str, knobs: GoodputKnobs) -> tuple[float, float]:
    """(what the fleet gets done while far too much waits, what was recorded), requests a second.

    The first is that of the middle half: before it nothing has ended, and after it the longest
    answers run alone. The second is that of the requests that are played, not of the whole trace.
    """
    plan, recorded = _fleet(knobs), trace_named(trace)
    # Fast enough for all to be there at once, whatever the fleet.
    speed = recorded.span_s * TOO_FAST
    source: Source = _source(trace, plan, speed, knobs=knobs, seed=0)
    outcome = play(plan, source, dispatcher("fifo", 1))
    ended = sorted(outcome.ended)
    quarter = len(ended) // 4
    first, last = ended[quarter], ended[-1 - quarter]
    capacity = (len(ended) - 2 * quarter) / (last - first) if last > first else 1.0
    arrived_s = max(outcome.arrived) * speed
    return capacity, outcome.n / arrived_s if arrived_s else 1.0
