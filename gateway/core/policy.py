"""What the operator decides: tiers, weights, gates and bounds, as plain frozen values.

The settings layer builds a `Policy` from YAML and environment; the scheduler only reads it.
Every bound of the product has its name here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Cost = Literal["requests", "tokens"]

HEADROOM_DECAY_SPAN = 2.5
"""Default lambda is this over (K - 1): the last tier reserves e^-2.5 of what the first does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One service class; its rank is its position in `Policy.tiers`, 0 is served first."""

    name: str
    queue_limit: int = 2
    """Most requests this tier may leave waiting inside one engine; 0 = only into a free slot."""
    tpot_limit_ms: float = 150.0
    """A replica slower than this per output token takes no more of this tier."""
    prefill_limit_s: float = 1.0
    """Most unstarted prompt work, in seconds of prefill, on a replica this tier may join."""
    patience_s: float = 300.0
    """How long a request may wait for a grant before it is refused."""
    min_share: float = 0.0
    """Floor: this share of the released cost goes to the tier whatever the tiers above want."""
    ttft_target_ms: float | None = None
    tpot_target_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """An organisation or team and the weights of those of its users that differ from 1."""

    weight: float = 1.0
    users: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWeights:
    """Price of one token by kind; prompt 1 and output 2 as in VTC (arXiv 2401.00588)."""

    prompt: float = 1.0
    output: float = 2.0
    cached: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Every limit on what may accumulate. Counts are requests unless the name says otherwise."""

    waiting_per_user: int = 1_000
    waiting: int = 10_000
    waiting_bytes: int = 1 << 30
    body_bytes: int = 32 << 20
    stream_buffer_bytes: int = 1 << 20
    users_per_tenant: int = 1_000
    max_sequences: int = 128
    predictions: int = 10_000
    """Most (model, tenant, user, route) combinations whose output length is remembered."""
    retry_after_s_max: float = 30.0
    attempts: int = 3
    """Most replicas one request is tried on before its first byte."""
    client_stall_s: float = 60.0
    """A client that reads nothing for this long while its buffer is full is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All that the scheduler may be told. Immutable; a change arrives as a new `Policy`."""

    tiers: tuple[Tier, ...]
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    cost: Cost = "tokens"
    weights: CostWeights = field(default_factory=CostWeights)
    headroom_max: float = 0.20
    headroom_decay: float | None = None
    """Lambda of `h_max e^(-lambda q)`; None derives it from the number of tiers."""
    lend: bool = True
    """True: a tier's headroom is reserved only while the tier had traffic within `hold_s`."""
    hold_s: float = 60.0
    min_inflight: int = 1
    """The speed gate never closes while fewer sequences than this run on the replica."""
    scrape_interval_s: float = 1.0
    bounds: Bounds = field(default_factory=Bounds)
    release_at_once: bool = False
    """The contrast (`--policy fifo`): no queue, no gate, no fairness, everything is forwarded."""

    def headroom_fraction(self, tier: int) -> float:
        """Share of a replica's capacity reserved for `tier`, 0..1 [K-tier Llumnix, SMG]."""
        last = len(self.tiers) - 1
        if last == 0:
            return 0.0
        decay = HEADROOM_DECAY_SPAN / last if self.headroom_decay is None else self.headroom_decay
        return self.headroom_max * math.exp(-decay * tier)

    def tenant_weight(self, tenant: str) -> float:
        """Weight of `tenant` among the tenants; 1 where nothing was configured."""
        known = self.tenants.get(tenant)
        return known.weight if known else 1.0

    def user_weight(self, tenant: str, user: str) -> float:
        """Weight of `user` among the users of `tenant`; 1 where nothing was configured."""
        known = self.tenants.get(tenant)
        return known.users.get(user, 1.0) if known else 1.0


DEFAULT_TIERS = (
    Tier(name="critical", queue_limit=4, patience_s=30, ttft_target_ms=500, tpot_target_ms=100),
    Tier(name="high", queue_limit=3, patience_s=60, min_share=0.02, ttft_target_ms=1000,
         tpot_target_ms=100),
    Tier(name="standard", queue_limit=2, patience_s=300, min_share=0.02, ttft_target_ms=5000,
         tpot_target_ms=150),
    Tier(name="background", queue_limit=0, tpot_limit_ms=75, patience_s=3600, min_share=0.02),
)  # fmt: skip
