"""What light users of a cloud get beside one that sends 77 % of all requests, and without it.

ServeGen's m-large, sampled; each client of the cloud is a tenant of its own. The load is such that
the power user overfills the fleet; `flood_load` is one at which many clients are backlogged, so
that there are some to be fair among.
"""

from dataclasses import replace

import msgspec

from gateway.core.policy import Policy
from gateway.sim.experiments.measures import fairness, overall, shares
from gateway.sim.experiments.report import Measured, Row, Value
from gateway.sim.experiments.setting import (
    FAIRGATE,
    dispatcher,
    fleet,
    policy_of,
    profile_of,
    served_by,
)
from gateway.sim.workload.catalogue import workload_named
from gateway.sim.workload.traces import power_of, trace_named
from gateway.sim.world.outcome import Outcome
from gateway.sim.world.play import play

TTFT_TIMES = 1.5
JAIN_MIN = 0.99
THROUGHPUT_WITHIN = 0.02
NO_TPOT_LIMIT_MS = 1e6
INFLIGHT_MAX = 96
"""What is asked here is mostly prompts, so that a batch of all 256 slots makes every step slower
and gets less than one percent more done."""
SPAN_S = 20.0
"""Over which service is compared."""


class PowerKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """See `power-user`."""

    trace: str = "servegen-large"
    profile: str = "a100-llama3-8b"
    replicas: int = 1
    load: float = 2.5
    flood_load: float = 12.0
    laps: int = 1
    limit: int = 100_000
    dispatchers: tuple[str, ...] = (FAIRGATE, "fifo", "least-outstanding", "vtc", "tng")


def power_points(knobs: PowerKnobs) -> list[Row]:
    """Each dispatcher with the power user, without it, and in the flood."""
    return [
        {"dispatcher": name, "case": case}
        for name in knobs.dispatchers
        for case in ("with", "without", "flood")
    ]


def power_user(knobs: PowerKnobs, point: Row, seed: int) -> Measured:
    """One run; everybody is of one tier."""
    name, case = str(point["dispatcher"]), str(point["case"])
    profile, power = profile_of(knobs.profile), power_of(trace_named(knobs.trace))
    plan = fleet(profile, knobs.replicas)
    config = plan.engines[0].config
    source = workload_named(knobs.trace).source(
        {
            "seed": seed,
            "load": knobs.flood_load if case == "flood" else knobs.load,
            "laps": knobs.laps,
            "limit": knobs.limit,
            "without_power": case == "without",
            "tokens_max": config.kv_blocks * config.block_tokens,
        }
    )
    dispatch = dispatcher(name, 1, power_policy())
    outcome = play(served_by(name, plan), source, dispatch)
    light = [row for row in range(outcome.n) if outcome.users[outcome.user[row]][1] != power.user]
    middle, least, spans = fairness(outcome, every_s=SPAN_S, skip_s=SPAN_S)
    chunks = -(-int(outcome.percentile(lambda row: outcome.prompt[row], 0.99, light))
               // config.max_num_batched_tokens)  # fmt: skip
    figures: dict[str, Value] = {
        "light p50 ttft s": outcome.percentile(outcome.ttft_s, 0.5, light),
        "light p99 ttft s": outcome.percentile(outcome.ttft_s, 0.99, light),
        "chunks": chunks,
        "jain": middle,
        "jain least": least,
        "spans": spans,
        "tokens/s": _tokens_per_s(outcome),
        **overall(outcome),
    }
    series = shares(outcome, f"{name}, {case}", heavy=power.user, every_s=SPAN_S)
    return Measured(figures=figures, series=series)


def judge_power(knobs: PowerKnobs, rows: list[Row]) -> list[str]:
    """Fairgate against the three targets."""
    found = {(row["dispatcher"], row["case"]): row for row in rows}
    if (FAIRGATE, "with") not in found:
        return []
    own, alone = found[FAIRGATE, "with"], found[FAIRGATE, "without"]
    profile = profile_of(knobs.profile)
    step_s = profile.step_s(2048 + 256, decodes=256, kv_tokens=256 * 1024, attended=2048 * 1024)
    bound_s = TTFT_TIMES * float(alone["light p99 ttft s"]) + step_s * float(own["chunks"])
    ttft_s, index = float(own["light p99 ttft s"]), float(found[FAIRGATE, "flood"]["jain"])
    notes = [
        f"light users' P99 TTFT {ttft_s:.3f} s beside the power user, at most {bound_s:.3f} s "
        f"(1.5 times {float(alone['light p99 ttft s']):.3f} s without it, and "
        f"{float(own['chunks']):g} full steps of {step_s:.3f} s): {_word(ttft_s <= bound_s)}",
        f"Jain's index among the backlogged {index:.4f}, at least {JAIN_MIN}: "
        f"{_word(index >= JAIN_MIN)}",
    ]
    for case in ("with", "flood"):
        if ("fifo", case) in found:
            rate = float(found[FAIRGATE, case]["tokens/s"])
            change = rate / float(found["fifo", case]["tokens/s"]) - 1
            word = _word(change >= -THROUGHPUT_WITHIN)
            notes.append(f"tokens/s ({case}) {change:+.1%} against fifo, at least -2 %: {word}")
    return notes


def power_policy() -> Policy:
    """One tier, batches no larger than they need to be, no gate on speed: the others have none."""
    policy = policy_of(1)
    tier = replace(policy.tiers[0], tpot_limit_ms=NO_TPOT_LIMIT_MS)
    return replace(policy, tiers=(tier,), allowance="bridge", inflight_limit=INFLIGHT_MAX)


def _tokens_per_s(outcome: Outcome) -> float:
    """Prompts and answers of all, until the last has ended.

    Up to an earlier instant different dispatchers have served different requests, whose tokens
    differ in what they cost.
    """
    tokens = sum(outcome.prompt) + sum(outcome.output)
    return tokens / outcome.lasted_s if outcome.lasted_s else 0.0


def _word(is_met: bool) -> str:
    return "met" if is_met else "missed"
