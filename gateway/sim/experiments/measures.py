"""Figures from the outcome of a run: percentiles by tier, goodput, fairness among the backlogged.

Jain's index of x is (sum x)^2 / (n sum x^2): 1 where all are equal, 1/n where one has everything.
"""

from collections.abc import Iterable, Sequence
from math import inf, isnan

from gateway.core.policy import Tier
from gateway.sim.experiments.report import Distribution, Series, Value
from gateway.sim.profiles import Profile
from gateway.sim.world.outcome import Outcome, Status

QUANTILES = 200
WEIGHTS = (1.0, 2.0)
"""Of a prompt token and an output token, as the scheduler charges them."""
PREFILLS = 3.0
"""A TTFT target is met late by so many times what the prompt takes on an idle engine: no dispatcher
makes a prompt of 12,000 tokens begin in half a second."""


def by_tier(outcome: Outcome, tiers: int, share: float = 0.99) -> dict[str, Value]:
    """TTFT percentile of each tier, and the means of all."""
    label = f"p{share * 100:g}"
    out: dict[str, Value] = {}
    for tier in range(tiers):
        rows = outcome.rows(tier=tier)
        out[f"{label} ttft {tier} s"] = outcome.percentile(outcome.ttft_s, share, rows)
    return out | overall(outcome)


def overall(outcome: Outcome) -> dict[str, Value]:
    """Means and throughput of all, and how many did not end well."""
    done = outcome.counted()["done"]
    rows = outcome.rows(status=Status.DONE)
    return {
        "mean ttft s": outcome.mean(outcome.ttft_s, rows),
        "mean e2e s": outcome.mean(outcome.e2e_s, rows),
        "mean tpot ms": 1000 * outcome.mean(outcome.tpot_s, rows),
        "done/s": done / outcome.lasted_s if outcome.lasted_s else 0.0,
        "not done": outcome.n - done,
    }


def good_of(outcome: Outcome, tiers: Sequence[Tier], profile: Profile) -> int:
    """Requests that met the targets of their tier.

    TTFT counts from `PREFILLS` idle prefills on. A tier without a target takes any time.
    """
    good = 0
    for row in outcome.rows(status=Status.DONE):
        tier = tiers[outcome.tier[row]]
        prompt = outcome.prompt[row]
        alone_s = profile.step_s(prompt, decodes=0, kv_tokens=0, attended=prompt * prompt // 2)
        ttft_s = inf if tier.ttft_target_ms is None else tier.ttft_target_ms / 1000
        tpot_s = inf if tier.tpot_target_ms is None else tier.tpot_target_ms / 1000
        in_time = outcome.ttft_s(row) <= ttft_s + PREFILLS * alone_s
        good += in_time and not outcome.tpot_s(row) > tpot_s
    return good


def jain(values: Iterable[float]) -> float:
    """Jain's index; 1 of nothing, or of nothing but zeros."""
    each = list(values)
    squares = sum(value * value for value in each)
    return sum(each) ** 2 / (len(each) * squares) if squares else 1.0


def fairness(outcome: Outcome, *, every_s: float, skip_s: float = 0.0) -> tuple[float, float, int]:
    """(median, least) Jain's index over the weighted service of users who were backlogged.

    Looked at in spans of `every_s` from `skip_s` on: those count in which at least two users had
    something waiting all the time. Third comes how many spans that were.
    """
    served = outcome.service(outcome.user, every_s=every_s, weights=WEIGHTS)
    waits = {user: _waiting(outcome, user) for user in sorted(served)}
    found = []
    for span in range(int(outcome.lasted_s / every_s)):
        since, until = span * every_s, (span + 1) * every_s
        backlogged = [
            user for user in waits if since >= skip_s and _covers(waits[user], since, until)
        ]
        if len(backlogged) > 1:
            found.append(jain(served[user][span] for user in backlogged))
    if not found:
        return 1.0, 1.0, 0
    return sorted(found)[len(found) // 2], min(found), len(found)


def distributions(outcome: Outcome, case: str, tiers: int) -> tuple[Distribution, ...]:
    """TTFT and TPOT of each tier, for figures."""
    out = []
    for tier in range(tiers):
        rows = outcome.rows(tier=tier, status=Status.DONE)
        ttft = sorted(outcome.ttft_s(row) for row in rows)
        tpot = sorted(value for row in rows if not isnan(value := outcome.tpot_s(row)))
        out.append(
            Distribution(case=case, tier=tier, ttft_s=_quantiles(ttft), tpot_s=_quantiles(tpot))
        )
    return tuple(out)


def shares(outcome: Outcome, case: str, *, heavy: str, every_s: float) -> tuple[Series, ...]:
    """The heavy user's share of all service over time, and the gap of what users had got so far."""
    served = outcome.service(outcome.user, every_s=every_s, weights=WEIGHTS)
    spans = len(next(iter(served.values()), []))
    totals = [sum(row[span] for row in served.values()) for span in range(spans)]
    own = [0.0] * spans
    for user, row in served.items():
        if outcome.users[user][1] == heavy:
            own = row
    share = tuple(part / total if total else 0.0 for part, total in zip(own, totals, strict=True))
    gaps, so_far = [], dict.fromkeys(served, 0.0)
    for span in range(spans):
        for user, row in served.items():
            so_far[user] += row[span]
        gaps.append(max(so_far.values()) - min(so_far.values()))
    return (
        Series(case=case, kind="share", name=heavy, every_s=every_s, values=share),
        Series(case=case, kind="gap", name="all users", every_s=every_s, values=tuple(gaps)),
    )


def _quantiles(ordered: list[float]) -> tuple[float, ...]:
    last = len(ordered) - 1
    if last < 0:
        return ()
    return tuple(ordered[round(part * last / QUANTILES)] for part in range(QUANTILES + 1))


def _waiting(outcome: Outcome, user: int) -> list[tuple[float, float]]:
    """Spans in which that user had something waiting, in order, apart from each other."""
    out: list[tuple[float, float]] = []
    for row in range(outcome.n):
        if outcome.user[row] != user:
            continue
        since, until = outcome.arrived[row], outcome.sent[row]
        until = outcome.lasted_s if isnan(until) else until
        if out and since <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], until))
        else:
            out.append((since, until))
    return out


def _covers(spans: list[tuple[float, float]], since: float, until: float) -> bool:
    return any(first <= since and until <= last for first, last in spans)
