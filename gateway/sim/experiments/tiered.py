"""Experiments on the paper's load with correct KV: tiers, gates, headroom, moves.

The set-up is that of the paper's tables (arXiv 2608.16336) but for what is wrong in it: Llama-2-7B
on A100, four replicas, totals by Zipf's law, Poisson arrivals; 7,300 KV blocks, 256 slots, prompts
before decodes as Vidur has it, capacity about 490 to 500 requests/s.
"""

from dataclasses import replace

import msgspec

from gateway.core.policy import Ageing, Policy
from gateway.sim.baselines.llumlet import Llumlet
from gateway.sim.experiments.measures import by_tier, distributions
from gateway.sim.experiments.report import Measured, Row
from gateway.sim.experiments.setting import FAIRGATE, dispatcher, fleet, policy_of, served_by
from gateway.sim.profiles import A100_LLAMA2_7B
from gateway.sim.workload.arrivals import Poisson
from gateway.sim.workload.lengths import Zipf
from gateway.sim.workload.mixes import Tiers, tier_shares
from gateway.sim.workload.synthetic import Open
from gateway.sim.world.dispatch import Dispatch
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.outcome import Outcome
from gateway.sim.world.plan import Plan, Reports
from gateway.sim.world.play import play

KV_BLOCKS = 7_300
FCFS = "least-outstanding"
SHORT_STEPS = "fairgate+short-steps"
PRIORITY_ENGINES = "fairgate+engine-priority"
SHORT_STEP_S = (0.12, 0.12, 0.08)
"""Most prefill that waits in an engine where a tier below the first adds to it; the last of them
stands for all further tiers. A full batch here takes 67 ms a step."""
TPOT_LIMIT_MS = 150.0
"""Of every tier. By default the last one is let in below 75 ms only, and a full batch takes 67."""
FLOOR = 0.02
AGEING_AFTER_S = 5.0
TARGETS_S = (0.18, 0.22, 0.50, 10.5)
"""P99 TTFT by tier at 500 requests/s, medians of five seeds."""
MEAN_WITHIN = 0.02


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the fleet."""

    requests: int = 10_000
    rate_per_s: float = 500.0
    replicas: int = 4
    mix: str = "enterprise-4"
    headroom_max: float = 0.0

    def source(self, seed: int) -> Open:
        """The requests."""
        return Open(
            arrivals=Poisson(rate_per_s=self.rate_per_s),
            lengths=Zipf(),
            tiers=Tiers(tier_shares(self.mix)),
            seed=seed,
            limit=self.requests,
        )

    @property
    def tiers(self) -> int:
        """K."""
        return len(tier_shares(self.mix))

    def plan(self) -> Plan:
        """The fleet."""
        plan = fleet(A100_LLAMA2_7B, self.replicas, kv_blocks=KV_BLOCKS)
        engines = tuple(
            replace(each, config=each.config.styled("vllm-vidur")) for each in plan.engines
        )
        return replace(plan, engines=engines)

    def policy(self) -> Policy:
        """Fairgate's."""
        policy = policy_of(self.tiers, headroom_max=self.headroom_max)
        tiers = tuple(replace(tier, tpot_limit_ms=TPOT_LIMIT_MS) for tier in policy.tiers)
        return replace(policy, tiers=tiers)


# --- paper-honest -------------------------------------------------------------------------------


class HonestKnobs(Load, frozen=True, kw_only=True):
    """See `paper-honest`."""

    dispatchers: tuple[str, ...] = (
        *(FCFS, "fifo", "infaas", "llumnix", "llumlet", "engine-priority"),
        *(FAIRGATE, SHORT_STEPS, PRIORITY_ENGINES),
        *(f"{SHORT_STEPS}+floor", f"{SHORT_STEPS}+ageing"),
    )


def honest_points(knobs: HonestKnobs) -> list[Row]:
    """One for each dispatcher."""
    return [{"dispatcher": name} for name in knobs.dispatchers]


def honest(knobs: HonestKnobs, point: Row, seed: int) -> Measured:
    """One run."""
    name = str(point["dispatcher"])
    dispatch, plan = honest_case(name, knobs)
    outcome = play(plan, knobs.source(seed), dispatch)
    return _measured(outcome, name, knobs.tiers)


def honest_case(name: str, knobs: Load) -> tuple[Dispatch, Plan]:
    """The dispatcher of that name, fairgate's variants included, and its fleet.

    Raises:
        ValueError: nobody is called that.
    """
    policy, plan = knobs.policy(), knobs.plan()
    if name == PRIORITY_ENGINES:
        return Fairgate(policy), served_by("engine-priority", plan)
    if not name.startswith(SHORT_STEPS):
        return dispatcher(name, knobs.tiers, policy), served_by(name, plan)
    policy = short_steps_policy(policy)
    match name.removeprefix(SHORT_STEPS):
        case "":
            return Fairgate(policy), plan
        case "+floor":
            first, *rest = policy.tiers
            tiers = (first, *(replace(tier, min_share=FLOOR) for tier in rest))
            return Fairgate(replace(policy, tiers=tiers)), plan
        case "+ageing":
            ageing = Ageing(after_s=AGEING_AFTER_S)
            return Fairgate(replace(policy, ageing=ageing)), plan
        case _:
            raise ValueError(f"unknown dispatcher {name!r}")


def short_steps_policy(policy: Policy) -> Policy:
    """What an operator sets before engines that serve first come, first served.

    Such an engine begins tier 0 behind whatever waits inside it, three or four steps late. So the
    lower tiers leave less there than a step or two computes, the last of them least. What that
    costs the mean, short prompts first give back.
    """
    first, *rest = policy.tiers
    limits_s = SHORT_STEP_S + SHORT_STEP_S[-1:] * len(rest)
    tiers = (
        replace(tier, prefill_limit_s=limit_s)
        for tier, limit_s in zip(rest, limits_s, strict=False)
    )
    return replace(policy, tiers=(first, *tiers), within_user="shortest")


def judge_honest(knobs: HonestKnobs, rows: list[Row]) -> list[str]:
    """Fairgate, before engines of both kinds, against the targets and against `FCFS`."""
    by_name = {str(row["dispatcher"]): row for row in rows}
    notes: list[str] = []
    for name in (FAIRGATE, SHORT_STEPS, PRIORITY_ENGINES):
        if name in by_name and knobs.tiers == len(TARGETS_S):
            notes += _judged(name, by_name[name], by_name.get(FCFS))
    return notes


def _judged(name: str, own: Row, fcfs: Row | None) -> list[str]:
    notes = []
    for tier, target_s in enumerate(TARGETS_S):
        found_s = float(own[f"p99 ttft {tier} s"])
        word = "met" if found_s <= target_s else "missed"
        notes.append(
            f"{name}: tier {tier}, P99 TTFT {found_s:.3f} s, target {target_s:g} s: {word}"
        )
    if fcfs is None:
        return notes
    for figure in ("mean ttft s", "mean e2e s"):
        change = float(own[figure]) / float(fcfs[figure]) - 1
        word = "met" if change <= MEAN_WITHIN else "missed"
        notes.append(f"{name}: {figure} {change:+.1%} against {FCFS}, target +2 %: {word}")
    return notes


# --- k-sweep ------------------------------------------------------------------------------------


class TierKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """See `k-sweep`."""

    tiers: tuple[int, ...] = tuple(range(1, 11))
    shapes: tuple[str, ...] = ("uniform", "gaussian", "enterprise")
    sizes: tuple[int, ...] = (10_000, 15_000)
    rate_per_s: float = 500.0


def tier_points(knobs: TierKnobs) -> list[Row]:
    """Each number of tiers with each shape and size."""
    return [
        {"shape": shape, "requests": size, "K": tiers}
        for shape in knobs.shapes
        for size in knobs.sizes
        for tiers in knobs.tiers
    ]


def tier_sweep(knobs: TierKnobs, point: Row, seed: int) -> Measured:
    """One run."""
    load = Load(
        requests=int(point["requests"]),
        rate_per_s=knobs.rate_per_s,
        mix=f"{point['shape']}-{point['K']}",
    )
    outcome = play(load.plan(), load.source(seed), Fairgate(load.policy()))
    figures = by_tier(outcome, load.tiers)
    last = figures[f"p99 ttft {load.tiers - 1} s"]
    middle = figures[f"p99 ttft {load.tiers // 2} s"]
    kept = {name: value for name, value in figures.items() if not name.startswith("p99")}
    first = figures["p99 ttft 0 s"]
    ends: Row = {"p99 first tier s": first, "p99 middle s": middle, "p99 last tier s": last}
    return Measured(figures={**ends, **kept})


# --- gate-sweep ---------------------------------------------------------------------------------


class GateKnobs(Load, frozen=True, kw_only=True):
    """See `gate-sweep`."""

    thresholds: tuple[int, ...] = (0, 1, 2, 3, 4, 6, 8, 12, 16)
    scrape_intervals_s: tuple[float, ...] = (0.1, 1.0, 5.0)
    tells_slots: bool = False
    """Whether the gateway knows how many slots an engine has; else reports teach it."""


def gate_points(knobs: GateKnobs) -> list[Row]:
    """Each threshold with each interval."""
    return [
        {"threshold": threshold, "scrape every s": interval_s}
        for threshold in knobs.thresholds
        for interval_s in knobs.scrape_intervals_s
    ]


def gate_sweep(knobs: GateKnobs, point: Row, seed: int) -> Measured:
    """One run: every tier may leave `threshold` waiting in an engine, no more."""
    policy, interval_s = knobs.policy(), float(point["scrape every s"])
    limit = int(point["threshold"])
    tiers = tuple(replace(tier, queue_limit=limit) for tier in policy.tiers)
    policy = replace(policy, tiers=tiers, scrape_interval_s=interval_s)
    plan = replace(knobs.plan(), reports=Reports(interval_s=interval_s))
    dispatch = Fairgate(policy, tells_slots=knobs.tells_slots)
    outcome = play(plan, knobs.source(seed), dispatch)
    return Measured(figures=by_tier(outcome, knobs.tiers))


# --- headroom-sweep -----------------------------------------------------------------------------


class HeadroomKnobs(Load, frozen=True, kw_only=True):
    """See `headroom-sweep`."""

    headrooms: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
    rates_per_s: tuple[float, ...] = (450.0, 500.0)


def headroom_points(knobs: HeadroomKnobs) -> list[Row]:
    """Each headroom at each rate."""
    return [
        {"requests/s": rate, "headroom": headroom}
        for rate in knobs.rates_per_s
        for headroom in knobs.headrooms
    ]


def headroom_sweep(knobs: HeadroomKnobs, point: Row, seed: int) -> Measured:
    """One run."""
    load = msgspec.structs.replace(
        knobs, headroom_max=float(point["headroom"]), rate_per_s=float(point["requests/s"])
    )
    outcome = play(load.plan(), load.source(seed), Fairgate(load.policy()))
    return Measured(figures=by_tier(outcome, load.tiers))


# --- migration-sweep ----------------------------------------------------------------------------


class MigrationKnobs(Load, frozen=True, kw_only=True):
    """See `migration-sweep`."""

    lengths: tuple[int, ...] = (512, 3_500)
    """Longest totals of Zipf's law."""
    cases: tuple[str, ...] = (
        *("llumlet", "llumlet, moves off", FAIRGATE, "fairgate, recall off"),
        "fairgate, balance",
    )


def migration_points(knobs: MigrationKnobs) -> list[Row]:
    """Each way of moving with each law of lengths."""
    return [{"longest": longest, "case": case} for longest in knobs.lengths for case in knobs.cases]


def migration_sweep(knobs: MigrationKnobs, point: Row, seed: int) -> Measured:
    """One run; the rate is scaled by the mean length, so that the load stays."""
    longest, usual = int(point["longest"]), Zipf()
    law = Zipf(usual.theta, usual.low, longest)
    rate = knobs.rate_per_s * _mean(usual) / _mean(law)
    source = replace(knobs.source(seed), lengths=law, arrivals=Poisson(rate_per_s=rate))
    policy, plan = knobs.policy(), knobs.plan()
    by_priority = served_by("llumlet", plan)
    cases: dict[str, tuple[Dispatch, Plan]] = {
        "llumlet": (Llumlet(knobs.tiers), by_priority),
        "llumlet, moves off": (Llumlet(knobs.tiers, migrates=False), by_priority),
        FAIRGATE: (Fairgate(policy), plan),
        "fairgate, recall off": (Fairgate(replace(policy, recall=False)), plan),
        "fairgate, balance": (Fairgate(replace(policy, migrate_running="balance")), plan),
    }
    case = str(point["case"])
    if case not in cases:
        raise ValueError(f"unknown case {case!r}; known: {', '.join(cases)}")
    dispatch, where = cases[case]
    outcome = play(where, source, dispatch)
    moved = sum(max(0, attempts - 1) for attempts in outcome.attempts)
    return Measured(figures={**by_tier(outcome, knobs.tiers), "sent again": moved})


def _mean(law: Zipf) -> float:
    heights = [(rank + 1) ** -law.theta for rank in range(law.high - law.low + 1)]
    total = sum((law.low + rank) * height for rank, height in enumerate(heights))
    return float(total / sum(heights))


def _measured(outcome: Outcome, case: str, tiers: int) -> Measured:
    return Measured(
        figures=by_tier(outcome, tiers), distributions=distributions(outcome, case, tiers)
    )
