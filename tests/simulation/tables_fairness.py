"""Fairness, starvation, gaming, misfits, moves and tiers in figures."""

from collections.abc import Iterator, Mapping

from tests.simulation import (
    policies,
    test_core_fair_shares,
    test_gaming,
    test_idle_users,
    test_misfits,
    test_moving,
    test_starvation,
    test_tier_order,
)
from tests.simulation.fleet import figures
from tests.simulation.fleet.workload import Asking, fixed, keep_asking
from tests.simulation.judge import backlogged, max_min
from tests.simulation.markdown import change, percent, seconds, table

INF = float("inf")


def _against_shares(
    name: str,
    served: Mapping[str, float],
    demands: Mapping[str, float],
    weights: Mapping[str, float],
) -> list[tuple[object, ...]]:
    shares = max_min(sum(served.values()), demands, weights)
    return [
        (name, who, f"{share:.0f}", f"{served.get(who, 0.0):.0f}",
         change(served.get(who, 0.0) / share))
        for who, share in shares.items()
    ]  # fmt: skip


def fairness() -> Iterator[str]:
    """What each got in the window against its max-min share, in cost units."""
    shares = test_core_fair_shares
    rows = []
    for name, policy in (("fair", shares.FAIR), ("FIFO", shares.FIFO)):
        day = shares.day(policy, 1.0)
        rows += _against_shares(f"a day, {name}", day.served, day.demands, shares.WEIGHTS)
    two = {Asking(user="big"): (600, 200), Asking(user="small"): (60, 20)}
    for weights in ({}, {"big": 3.0}, {"small": 2.0}):
        policy = policies.gated(tiers=policies.one_tier(), tenants=policies.weighted_users(weights))
        served = shares.shares(policy, two, figures.user_of)
        label = ", ".join(f"{who} weighs {weight:.0f}" for who, weight in weights.items())
        rows += _against_shares(
            f"sizes 10:1{', ' + label if label else ''}", served, backlogged(served), weights
        )
    crowd = {Asking(user=f"m{n}", tenant="100 users"): (100, 50) for n in range(100)}
    crowd[Asking(user="only", tenant="1 user")] = (100, 50)
    served = shares.shares(policies.gated(tiers=policies.one_tier()), crowd, figures.tenant_of)
    rows += _against_shares("tenants", served, backlogged(served), {})
    yield table("Shares of service", ("case", "who", "max-min share", "served", "off"), rows)


def idle() -> Iterator[str]:
    """Share of all service since a user's return, one of three."""
    rows = [
        (f"{minutes} min", *(percent(s) for s in test_idle_users.shares_after(minutes * 60.0)))
        for minutes in (1, 10, 60)
    ]
    looks = [f"{n * test_idle_users.LOOK_S:.0f} s" for n in range(1, 7)]
    yield table("Share of all service since a user's return (fair: 33.3 %)", ("away", *looks), rows)


def starvation() -> Iterator[str]:
    """The floor of each tier, and waits against the stated bound."""
    found = test_starvation.waits(test_starvation.a_few_of_the_last())
    worst = max(found, key=lambda wait: wait.wait_s / wait.bound_s)
    longest = max(found, key=lambda wait: wait.wait_s)
    yield table(
        "The last tier while tier 0 wants everything and the gates of the others are shut",
        ("requests", "longest wait s", "its bound s", "nearest to its bound s", "bound s"),
        [
            (
                len(found),
                *(seconds(s) for s in (longest.wait_s, longest.bound_s)),
                *(seconds(s) for s in (worst.wait_s, worst.bound_s)),
            )
        ],
    )
    fleet = test_starvation.saturated(test_starvation.shut())
    for tier in (1, 2, 3):
        asking = Asking(user=f"t{tier}", tier=tier, says_max=True)
        keep_asking(fleet, asking, fixed(*test_starvation.HEAD), depth=50)
    served = figures.served_between(fleet, figures.tier_of, 20, 260)
    total = sum(served.values())
    yield table(
        "Floors of 2 % with every tier backlogged",
        ("tier", "share of service"),
        [(tier, percent(served[tier] / total)) for tier in sorted(served)],
    )


def gaming() -> Iterator[str]:
    """What those got who tried."""
    cases = {
        "cancels 100k prompts": (test_gaming.beside_a_quitter(), "quitter"),
        "predicts little, takes much": (test_gaming.beside_a_liar(), "liar"),
        "a new user name each time (by tenant)": (test_gaming.beside_a_swarm(), "swarm"),
    }
    rows = []
    for name, (served, who) in cases.items():
        fair = sum(served.values()) / len(served)
        honest = [cost / fair for user, cost in served.items() if user != who]
        rows.append((name, change(served[who] / fair), change(min(honest)), change(max(honest))))
    yield table(
        "Service against the fair share",
        ("who tries", "it gets", "the honest, least", "most"),
        rows,
    )
    fleet = test_gaming.beside_a_flood()
    waits_s = figures.waits_s(fleet, test_gaming.is_light, 0.0, 110.0)
    refused = [job.request.tenant for job in fleet.jobs.values() if job.reason is not None]
    yield table(
        "4,000 requests at once into a queue of 1,000",
        ("refused of the flood", "refused of the others", "longest wait of the others s"),
        [(refused.count("flood"), refused.count("light"), seconds(max(waits_s)))],
    )


def misfits() -> Iterator[str]:
    """How long each waited, and what its turn cost the others."""
    usual_s, _ = test_misfits.beside(None)
    rows = []
    for kind in test_misfits.MISFITS:
        done_s, job = test_misfits.beside(kind)
        wait_s = INF if job is None or job.wait_s is None else job.wait_s
        ttft_s = INF if job is None or job.ttft_s is None else job.ttft_s
        rows.append((kind, seconds(wait_s), seconds(ttft_s), change(done_s / usual_s)))
    yield table(
        "Heads that fit nowhere at the moment, in a fleet that is always full",
        ("what", "wait s", "TTFT s", "work of the fleet"),
        rows,
    )


def moving() -> Iterator[str]:
    """Recall against none, while others fill one replica past the gateway again and again."""
    rows = []
    for recall in (True, False):
        fleet = test_moving.intruded(recall=recall)
        ttfts_s = figures.ttfts_s(fleet, test_moving.is_any, 5.0, 100.0)
        rows.append(
            (
                "on" if recall else "off",
                fleet.recalls,
                fleet.moved,
                *(seconds(figures.percentile(ttfts_s, share)) for share in (0.5, 0.95, 0.98, 1.0)),
            )
        )
    yield table(
        "Recall of what waits inside an engine",
        ("recall", "asked", "in time", "TTFT p50 s", "p95", "p98", "max"),
        rows,
    )


def tiers() -> Iterator[str]:
    """Isolation and its price, weighted shares, promotions."""
    rows = []
    for load in (0.9, 1.0, 1.5):
        done = {}
        for name in ("none", "gate"):
            fleet = test_tier_order.mixed(name, load)
            done[name] = figures.gpu_s(fleet)
            ttfts = [
                f"{seconds(test_tier_order.tier_ttft_s(fleet, tier, 0.5))} / "
                f"{seconds(test_tier_order.tier_ttft_s(fleet, tier, 0.99))}"
                for tier in range(4)
            ]
            rows.append((load, name, change(done[name] / done["none"]), *ttfts))
    yield table(
        "Four tiers at once (10 / 35 / 35 / 20 %): TTFT p50 / p99 s, and the price of headroom",
        ("load", "policy", "work", "tier 0", "tier 1", "tier 2", "tier 3"),
        rows,
    )
    weights = test_tier_order.WEIGHTS
    yield table(
        "`order: weighted`",
        ("case", "tier", "share", "served", "off"),
        _against_shares("4:2:1:1", test_tier_order.by_weight(), backlogged(weights), weights),
    )
    granted = test_tier_order.promoted_at(5.0, 0.5)
    span_s = granted[-1] - granted[0] if granted else 0.0
    yield table(
        "Ageing after 5 s, at most 0.5 promotions a second, tier 0 wanting everything",
        ("promoted", "in s", "a second"),
        [(len(granted), seconds(span_s), f"{(len(granted) - 1) / span_s if span_s else 0:.3f}")],
    )
