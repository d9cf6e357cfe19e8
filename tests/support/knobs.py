"""Everything an operator may set, as a table of values to draw from; any mixture is a policy."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.core.policy import (
    DEFAULT_TIERS,
    Affinity,
    Ageing,
    Bounds,
    Policy,
    Price,
    Room,
    Scaling,
    Tenant,
    Tier,
)

FOUR = DEFAULT_TIERS
TWO = (
    replace(DEFAULT_TIERS[0], queue_limit=2),
    replace(DEFAULT_TIERS[3], name="rest", min_share=0.2, weight=2.0),
)
ROOMY = (
    replace(DEFAULT_TIERS[0], room=Room(requests=6), weight=3.0),
    Tier(name="middle", queue_limit=1, patience_s=20.0, room=Room(tokens=6_000), min_share=0.1),
    Tier(
        name="last",
        queue_limit=1,
        patience_s=50.0,
        room=Room(body_bytes=30_000),
        weight=0.5,
        preemptible=True,
    ),
)
ONE = (Tier(name="only", queue_limit=3, patience_s=30.0),)

TIGHT = Bounds(
    waiting=12, waiting_bytes=60_000, waiting_tokens=40_000, waiting_per_user=5,
    waiting_bytes_per_user=30_000, waiting_tokens_per_user=25_000, predictions=3, prefixes=4,
    sessions=2,
)  # fmt: skip
TENANTS = {
    "t1": Tenant(weight=3.0, room=Room(requests=4), users={"a": 2.0}),
    "t2": Tenant(weight=0.5, room=Room(tokens=8_000)),
}
SCALING = Scaling(min=1, max=4, hold_s=1.0, cooldown_s=2.0)
PRICES = {"m": Price(input=3.0, output=9.0)}

KNOBS: Mapping[str, tuple[Any, ...]] = {
    "tiers": (FOUR, FOUR, TWO, ROOMY, ONE),
    "order": ("strict", "strict", "weighted"),
    "within_user": ("fcfs", "shortest", "deadline", "prefix"),
    "cost": ("tokens", "requests", "gpu_seconds", "price"),
    "tenants": ({}, TENANTS),
    "ageing": (Ageing(), Ageing(), Ageing(after_s=2.0), Ageing(after_s=0.5, per_s=0.2)),
    "limiter": ("adaptive", "static"),
    "inflight_limit": (None, None, 2),
    "recall": (True, True, False),
    "recall_gap": (0.3, 0.0),
    "migrate_running": ("off", "drain", "balance"),
    "lend": (True, True, False),
    "hold_s": (60.01, 3.01),
    "min_inflight": (1, 2),
    "allowance": ("bridge", "constant"),
    "reserve_after_s": (0.5, 5.0),
    "warm_up_s": (10.0, 0.0),
    "affinity": (Affinity(), Affinity(prefix=0.0, session=0.0, adapter=0.0)),
    "scaling": (Scaling(), SCALING),
    "headroom_max": (0.2, 0.4),
    "bounds": (Bounds(), Bounds(), TIGHT),
    "release_at_once": (False,) * 19 + (True,),
}
"""What is usual comes more than once; Hypothesis shrinks towards the first.

Time goes on in steps of 50 ms, so no hold ends at the very instant of an event.
"""


def policy_of(drawn: Mapping[str, Any]) -> Policy:
    """The policy of these settings; those that are missing have the product's own values."""
    return Policy(**{"tiers": FOUR, "prices": PRICES, **drawn})


def moves(old: Policy, new: Policy) -> dict[str, str]:
    """Where the requests of removed tiers go: to the last one there is."""
    kept = {tier.name for tier in new.tiers}
    return {tier.name: new.tiers[-1].name for tier in old.tiers if tier.name not in kept}
